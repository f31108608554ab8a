"""The merge of hints: the cases that KEP-693 and KEP-3545 describe, and agreement with an enumeration of all combinations."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykubelet.base.model.machine import ResourceHints, TopologyHint
from pykubelet.provide.placement.topology_manager import PolicyDecision, merge
from pykubelet.provide.placement.topology_options import Policy, Scope, Topology

#: Eight NUMA nodes in two groups of four, of two pairs each. From 7 to 6 it is further than back.
DISTANCES = {
    a: {b: 10 if a == b else 11 if a // 2 == b // 2 else 12 if a // 4 == b // 4 else 30 for b in range(8)}
    for a in range(8)
}
DISTANCES[7][6] = 13

PLAIN = [Topology(policy, Scope.CONTAINER, (0, 1, 2, 3)) for policy in (Policy.BEST_EFFORT, Policy.RESTRICTED)]
CLOSEST = [
    Topology(policy, Scope.CONTAINER, tuple(range(8)), DISTANCES) for policy in (Policy.BEST_EFFORT, Policy.RESTRICTED)
]
SINGLE = [Topology(Policy.SINGLE_NUMA_NODE, Scope.CONTAINER, (0, 1, 2, 3))]

#: Hints ("01+": nodes 0 and 1, preferred; "*": any node), resources divided by commas, providers by slashes; "-": a provider
#: without resources. Then the merged hint on 4 nodes, on 8 nodes with prefer-closest-numa-nodes, and with single-numa-node.
CASES = """
    0+ / 0+                              | 0+    | 0+        | 0+
    1+ / 1+                              | 1+    | 1+        | 1+
    - / 0+                               | 0+    | 0+        | 0+
    - / 1+                               | 1+    | 1+        | 1+
    0+ 1+ / 0+                           | 0+    | 0+        | 0+
    0+ 1+ / 1+                           | 1+    | 1+        | 1+
    0+ 1+ / 0+ 01-                       | 0+    | 0+        | 0+
    1+ 01- / 0+ 1+ 01-                   | 1+    | 1+        | 1+
    1+ 01-, 0+ 1+ 01-                    | 1+    | 1+        | 1+
    01+ 02+ / 01+ 02+                    | 01+   | 01+       |
                                         | 0123+ | 01234567+ | *+
    -                                    | 0123+ | 01234567+ | *+
    any                                  | 0123+ | 01234567+ | *+
    nowhere                              | 0123- | 01234567- | *-
    *+                                   | 0123+ | 01234567+ | *+
    *-                                   | 0123- | 01234567- | *-
    0+ / 1+                              | 0123- | 01234567- | *-
    0+ / 0-                              | 0-    | 0-        | *-
    1+ / 1-                              | 1-    | 1-        | *-
    0+ / 01+                             | 0-    | 0-        |
    0+ 1+ / 01-                          | 0-    | 0-        | *-
    1+ / 01+                             | 1-    | 1-        |
    0123- 01- / 01-                      | 01-   | 01-       |
    0123- 01- / 03-                      | 03-   | 03-       |
    0123- 01- / 12-                      | 12-   | 12-       |
    0123- 01- / 23-                      | 23-   | 23-       |
    0123- 01- / 12- 23-                  | 12-   | 23-       |
    0123- 01- / 123- 12- 13- 23-         | 12-   | 23-       |
    01+, 0+ 1+ 01-                       |       |           | *-
    0+ 1+ 01- / -                        |       |           | 0+
    04+ 02+ / 04+ 02+                    |       | 02+       |
    4+ 02+ / 4+ 02+                      |       | 4+        |
"""


def read_hint(text: str) -> TopologyHint:
    nodes = None if text[0] == "*" else frozenset(int(digit) for digit in text[:-1])
    return TopologyHint(nodes, text[-1] == "+")


def read_hints(text: str) -> list[TopologyHint] | None:
    return None if text == "any" else [] if text == "nowhere" else [read_hint(hint) for hint in text.split()]


def read_providers(text: str) -> list[ResourceHints]:
    return [
        {} if part.strip() == "-" else {f"r{n}": read_hints(hints.strip()) for n, hints in enumerate(part.split(","))}
        for part in text.split("/")
        if part.strip()
    ]


def rows(column: int, topologies: Sequence[Topology]) -> list[tuple[Topology, str, str]]:
    cells = [[cell.strip() for cell in line.split("|")] for line in CASES.strip("\n").splitlines()]
    return [(topology, row[0], row[column]) for topology in topologies for row in cells if row[column]]


@pytest.mark.parametrize(("topology", "hints", "merged"), [*rows(1, PLAIN), *rows(2, CLOSEST), *rows(3, SINGLE)])
def test_documented_cases(topology: Topology, hints: str, merged: str) -> None:
    hint = read_hint(merged)
    admit = hint.preferred or topology.policy is Policy.BEST_EFFORT
    assert merge(topology, read_providers(hints)) == PolicyDecision(hint, admit)


def test_none_admits_everything_without_a_hint() -> None:
    topology = Topology(Policy.NONE, Scope.CONTAINER, (0, 1))
    assert merge(topology, [{"cpu": ()}]) == PolicyDecision(TopologyHint(None, False), True)


def test_the_only_node_is_no_restriction_for_single_numa_node() -> None:
    topology = Topology(Policy.SINGLE_NUMA_NODE, Scope.CONTAINER, (0,))
    assert merge(topology, [{"cpu": [TopologyHint(frozenset({0}), True)]}]) == PolicyDecision(
        TopologyHint(None, True), True
    )


def test_the_distances_do_not_count_for_single_numa_node() -> None:
    distances = {0: {0: 20, 1: 30}, 1: {0: 30, 1: 10}}
    hints = {"cpu": [TopologyHint(frozenset({0}), True), TopologyHint(frozenset({1}), True)]}
    for policy, node in ((Policy.SINGLE_NUMA_NODE, 0), (Policy.BEST_EFFORT, 1)):
        topology = Topology(policy, Scope.CONTAINER, (0, 1), distances)
        assert merge(topology, [hints]).hint == TopologyHint(frozenset({node}), True)


def test_all_masks_of_eight_nodes_for_four_resources() -> None:
    nodes = range(8)
    subsets = [frozenset(chosen) for size in range(1, 9) for chosen in itertools.combinations(nodes, size)]
    hints = {
        f"r{low}": [TopologyHint(chosen, False) for chosen in subsets if len(chosen) >= low] for low in (1, 2, 3, 5)
    }
    topology = Topology(Policy.BEST_EFFORT, Scope.POD, tuple(nodes))
    assert merge(topology, [hints]) == PolicyDecision(TopologyHint(frozenset({0, 1, 2, 3, 4}), False), True)


# The enumeration of all combinations, as KEP-693 describes it: slow, one combination after another.


class Enumeration:
    """Folds the combinations, in their order, into the best one."""

    def __init__(self, topology: Topology, resources: Sequence[Sequence[TopologyHint]]) -> None:
        self.every = frozenset(topology.nodes)
        self.distances = {} if topology.policy is Policy.SINGLE_NUMA_NODE else topology.distances
        self.resources = resources
        least = [min((len(hint.nodes) for hint in hints if hint.nodes is not None), default=0) for hints in resources]
        self.wanted = max(least, default=0)

    def best(self) -> TopologyHint:
        best: tuple[frozenset[int], bool] | None = None
        for combination in itertools.product(*self.resources):
            named = [hint.nodes for hint in combination if hint.nodes is not None]
            nodes = self.every.intersection(*named)
            preferred = all(hint.preferred for hint in combination) and len(set(named)) <= 1
            if nodes and (best is None or self.replaces(best, (nodes, preferred))):
                best = nodes, preferred
        return TopologyHint(best[0], best[1]) if best else TopologyHint(self.every, False)

    def replaces(self, current: tuple[frozenset[int], bool], candidate: tuple[frozenset[int], bool]) -> bool:
        (old, old_preferred), (new, new_preferred) = current, candidate
        if old_preferred != new_preferred:
            return new_preferred
        if new_preferred or len(old) > self.wanted:
            return self.closer(new, old)
        if len(old) == self.wanted:
            return len(new) == self.wanted and self.closer(new, old)
        if len(new) > self.wanted:
            return False
        return len(new) > len(old) or (len(new) == len(old) and self.closer(new, old))

    def closer(self, nodes: frozenset[int], other: frozenset[int]) -> bool:
        return self.rank(nodes) < self.rank(other)

    def rank(self, nodes: frozenset[int]) -> tuple[int, float, int]:
        pairs = [self.distances[a][b] for a in nodes for b in nodes] if self.distances else [0]
        return len(nodes), sum(pairs) / len(pairs), sum(1 << node for node in nodes)


def enumerated(topology: Topology, providers: Sequence[ResourceHints]) -> PolicyDecision:
    resources: list[list[TopologyHint]] = []
    for provided in providers:
        if not provided:
            resources.append([TopologyHint(None, True)])
        for hints in provided.values():
            if hints is None:
                resources.append([TopologyHint(None, True)])
            else:
                resources.append(list(hints) or [TopologyHint(None, False)])
    if topology.policy is Policy.SINGLE_NUMA_NODE:
        resources = [
            [h for h in hints if h.preferred and (h.nodes is None or len(h.nodes) == 1)] for hints in resources
        ]
    hint = Enumeration(topology, resources).best()
    if topology.policy is Policy.SINGLE_NUMA_NODE and hint.nodes == frozenset(topology.nodes):
        hint = TopologyHint(None, hint.preferred)
    return PolicyDecision(hint, hint.preferred or topology.policy is Policy.BEST_EFFORT)


@st.composite
def merges(draw: st.DrawFn) -> tuple[Topology, list[ResourceHints]]:
    nodes = draw(st.sampled_from([(0,), (0, 1), (0, 1, 2, 3), tuple(range(8)), (0, 3, 9)]))
    distances: Mapping[int, Mapping[int, int]] = {}
    if draw(st.booleans()):
        distances = {a: {b: draw(st.sampled_from([10, 12, 30])) for b in nodes} for a in nodes}
    policy = draw(st.sampled_from([Policy.BEST_EFFORT, Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE]))
    hint = st.builds(
        TopologyHint, st.none() | st.frozensets(st.sampled_from(nodes), min_size=1), st.booleans() | st.just(False)
    )
    provider = st.dictionaries(st.sampled_from(["a", "b"]), st.none() | st.lists(hint, max_size=4), max_size=2)
    return Topology(policy, Scope.CONTAINER, nodes, distances), draw(st.lists(provider, max_size=3))


@settings(max_examples=150, deadline=None)
@given(merges())
def test_agrees_with_the_enumeration(case: tuple[Topology, list[ResourceHints]]) -> None:
    assert merge(*case) == enumerated(*case)


@settings(max_examples=15, deadline=None)
@given(st.sets(st.integers(1, 255), min_size=60, max_size=90), st.sets(st.integers(1, 255), min_size=60, max_size=90))
def test_agrees_with_the_enumeration_of_many_hints(cpus: set[int], memory: set[int]) -> None:
    topology = Topology(Policy.BEST_EFFORT, Scope.CONTAINER, tuple(range(8)), DISTANCES)
    providers: list[ResourceHints] = [
        {name: [TopologyHint(frozenset(n for n in range(8) if mask >> n & 1), False) for mask in masks]}
        for name, masks in (("cpu", cpus), ("memory", memory))
    ]
    assert merge(topology, providers) == enumerated(topology, providers)

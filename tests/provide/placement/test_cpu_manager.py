"""The CPU manager's decisions: start, hints, allocation, release, cpusets and quotas."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from provide.placement.cpu_pods import admit, admitted, make_manager, make_pod, make_policy, shown
from support.machines import Shape

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cpuset import parse_cpuset
from pykubelet.base.kit.values import replace
from pykubelet.base.model.machine import ResourceHints, TopologyHint
from pykubelet.provide.placement.cpu_manager import (
    INITIAL_INCREMENTS,
    CpuGauges,
    CpuManager,
    CpusetUpdate,
    CpuState,
    NoQuota,
    RunningContainer,
    cpuset_updates,
    gauges,
    release,
    start,
    without_quota,
)
from pykubelet.provide.placement.provider import AllocationError, ManagerStartError, MetricIncrement

SINGLE = Shape()
DUAL = Shape(sockets=2, cores_per_node=3)  # node 0: 0-2,6-8; node 1: 3-5,9-11
FOUR_NODES = Shape(sockets=2, nodes_per_socket=2, cores_per_node=2)
FULL, STRICT, SOCKET = "full-pcpus-only", "strict-cpu-reservation", "align-by-socket"
REQUEST = MetricIncrement("kubelet_cpu_manager_pinning_requests_total")
ERROR = MetricIncrement("kubelet_cpu_manager_pinning_errors_total")


def aligned(boundary: str, what: str = "count") -> MetricIncrement:
    labels = (("scope", "container"), ("boundary", boundary))
    return MetricIncrement(f"kubelet_container_aligned_compute_resources_{what}", labels)


def nodes(*ids: int, preferred: bool = True) -> TopologyHint:
    return TopologyHint(frozenset(ids), preferred)


def containers_of(pods: Iterable[Pod]) -> dict[str, frozenset[str]]:
    """The names of the init and regular containers of pods, by pod UID."""
    return {p.metadata.uid: frozenset(c.name for c in (*p.spec.initContainers, *p.spec.containers)) for p in pods}


def state(default: str, **assigned: str) -> CpuState:
    """`pod_container="cpus"`."""
    entries: dict[str, dict[str, frozenset[int]]] = {}
    for name, cpus in assigned.items():
        uid, _, container = name.partition("_")
        entries.setdefault(uid, {})[container] = parse_cpuset(cpus)
    return CpuState(parse_cpuset(default), entries)


# start


@pytest.mark.parametrize(
    ("options", "restored", "expected"),
    [
        ((), state(""), "0-7"),
        ((STRICT,), state(""), "1-7"),
        ((), state("0-5", u_c="6-7"), "0-5"),
        ((STRICT,), state("1-5", u_c="6-7"), "1-5"),
        ((), state("", u_c="1"), "default cpuset cannot be empty"),
        ((), state("1-5", u_c="6-7"), 'not all reserved cpus: "0" are present in defaultCpuSet: "1-5"'),
        ((STRICT,), state("0-5", u_c="6-7"),
         'some of strictly reserved cpus: "0" are present in defaultCpuSet: "0-5"'),
        ((), state("0-6", u_c="6-7"), 'pod: u, container: c cpuset: "6-7" overlaps with default cpuset "0-6"'),
        ((), state("0-4", u_c="6-7"),
         'current set of available CPUs "0-7" doesn\'t match with CPUs in state "0-4,6-7"'),
        ((), state("0-5", u_c="6-9"),
         'current set of available CPUs "0-7" doesn\'t match with CPUs in state "0-9"'),
        ((STRICT,), state("2-5", u_c="6-7"),
         'current set of available CPUs "1-7" doesn\'t match with CPUs in state "2-7"'),
    ],
)  # fmt: skip
def test_start(options: tuple[str, ...], restored: CpuState, expected: str) -> None:
    result = start(make_policy(SINGLE, options), restored)
    if isinstance(result, ManagerStartError):
        assert result.text == expected
    else:
        assert shown(result)["default"] == expected


# hints


def cpu_hints(hints: ResourceHints) -> list[tuple[tuple[int, ...], bool]]:
    listed = hints["cpu"]
    assert listed is not None
    return [(tuple(sorted(hint.nodes or ())), hint.preferred) for hint in listed]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        ("2", [((0,), True), ((1,), True), ((0, 1), False)]),
        ("5", [((1,), True), ((0, 1), False)]),
        ("7", [((0, 1), True)]),
        ("11", []),
    ],
)
def test_hints_name_every_set_of_nodes_with_enough_cpus(
    count: str, expected: list[tuple[tuple[int, ...], bool]]
) -> None:
    manager = replace(make_manager(DUAL), state=state("0,2-11"))  # CPU 1 is gone, CPU 0 reserved: 4 are free on node 0
    pod = make_pod("u", count)
    assert cpu_hints(manager.hints(pod, pod.spec.containers[0])) == expected
    assert cpu_hints(manager.pod_hints(pod)) == expected


def test_no_preference_without_exclusive_cpus() -> None:
    manager, pod = make_manager(DUAL), make_pod("u", "1500m")
    assert manager.hints(pod, pod.spec.containers[0]) == {}
    assert manager.pod_hints(pod) == {}


def test_hints_of_an_allocated_container_come_from_its_cpus() -> None:
    manager = replace(make_manager(DUAL), state=state("0-2,4-8,10-11", u_c0="3,9"))
    pod = make_pod("u", "2")
    expected = [((1,), True), ((0, 1), False)]
    assert cpu_hints(manager.hints(pod, pod.spec.containers[0])) == expected
    assert cpu_hints(manager.pod_hints(pod)) == expected


def test_an_allocated_container_of_another_size_fits_nowhere() -> None:
    manager = replace(make_manager(DUAL), state=state("0-2,4-8,10-11", u_c0="3,9"))
    pod = make_pod("u", "4")
    assert manager.hints(pod, pod.spec.containers[0]) == {"cpu": ()}
    assert manager.pod_hints(pod) == {"cpu": ()}


def test_hints_include_the_nodes_of_reusable_cpus() -> None:
    manager, pod = make_manager(DUAL), make_pod("u", "4", init=("2",))
    after = manager.allocate(pod, pod.spec.initContainers[0], nodes(1)).after
    assert isinstance(after, CpuManager)
    assert cpu_hints(after.hints(pod, pod.spec.containers[0])) == [((1,), True), ((0, 1), False)]
    assert cpu_hints(after.pod_hints(pod)) == [((1,), True), ((0, 1), False)]


@pytest.mark.parametrize(
    ("options", "preferred"),
    [((), [(2,), (3,), (1,)]), ((SOCKET,), [(1,), (2,), (3,), (0, 1), (2, 3)])],
)
def test_align_by_socket_prefers_all_nodes_of_the_fewest_sockets(
    options: tuple[str, ...], preferred: list[tuple[int, ...]]
) -> None:
    pod = make_pod("u", "4")
    hints = cpu_hints(make_manager(FOUR_NODES, options).hints(pod, pod.spec.containers[0]))
    assert sorted(ids for ids, is_preferred in hints if is_preferred) == sorted(preferred)


TEN_CORES = Shape(sockets=2, nodes_per_socket=2, cores_per_node=10)


@pytest.mark.parametrize(
    ("count", "available", "options", "preferred", "others"),
    [
        ("2", "2-3,11", (), [(0,)], [(0, 1), (0, 2), (0, 3), (0, 1, 2), (0, 1, 3), (0, 2, 3), (0, 1, 2, 3)]),
        ("2", "2-3,11", (SOCKET,), [(0,), (0, 1)], [(0, 2), (0, 3), (0, 1, 2), (0, 1, 3), (0, 2, 3), (0, 1, 2, 3)]),
        ("41", "1-28,40-57", (SOCKET,), [(0, 1, 2), (0, 1, 2, 3)], []),
    ],
)
def test_documented_cases_of_align_by_socket(
    count: str,
    available: str,
    options: tuple[str, ...],
    preferred: list[tuple[int, ...]],
    others: list[tuple[int, ...]],
) -> None:
    manager = replace(make_manager(TEN_CORES, options), state=state(available))
    hints = cpu_hints(manager.pod_hints(make_pod("u", count)))
    assert [ids for ids, is_preferred in hints if is_preferred] == preferred
    assert [ids for ids, is_preferred in hints if not is_preferred] == others


def test_align_by_socket_with_as_many_sockets_as_nodes_changes_nothing() -> None:
    pod = make_pod("u", "2")
    plain, by_socket = make_manager(DUAL), make_manager(DUAL, (SOCKET,))
    assert plain.pod_hints(pod) == by_socket.pod_hints(pod)


# allocation


@pytest.mark.parametrize(
    ("hint", "cpus", "default"),
    [
        (TopologyHint(None, False), "1-2,7-8", "0,3-6,9-11"),
        (nodes(1), "3-4,9-10", "0-2,5-8,11"),
        (nodes(0, 1), "1-2,7-8", "0,3-6,9-11"),
    ],
)
def test_cpus_come_from_the_nodes_of_the_hint(hint: TopologyHint, cpus: str, default: str) -> None:
    after = admitted(make_manager(DUAL), make_pod("u", "4"), hint)
    assert shown(after.state) == {"default": default, "u/c0": cpus}


def test_what_the_nodes_of_the_hint_lack_comes_from_others() -> None:
    after = admitted(make_manager(DUAL), make_pod("u", "8"), nodes(1))
    assert shown(after.state) == {"default": "0,2,6,8", "u/c0": "1,3-5,7,9-11"}


@pytest.mark.parametrize(
    ("options", "near", "cpus"), [((), nodes(1), "2"), ((SOCKET,), nodes(1), "0"), ((), nodes(1, 2), "2,4")]
)
def test_align_by_socket_takes_from_the_sockets_of_the_nodes(
    options: tuple[str, ...], near: TopologyHint, cpus: str
) -> None:
    """Nodes 0 and 1 are on socket 0: CPUs 0 and 1, 2 and 3; nodes 2 and 3 on socket 1: 4 and 5, 6 and 7."""
    manager = replace(make_manager(FOUR_NODES, options, reserved="7"), state=state("0,2,4,7"))
    after = admitted(manager, make_pod("u", str(len(cpus.split(",")))), near)
    assert shown(after.state)["u/c0"] == cpus


def test_a_container_without_exclusive_cpus_changes_nothing() -> None:
    manager, pod = make_manager(SINGLE), make_pod("u", "500m")
    allocation = manager.allocate(pod, pod.spec.containers[0], nodes(0))
    assert (allocation.after, allocation.increments) == (manager, ())


def test_too_few_cpus() -> None:
    manager, pod = make_manager(SINGLE), make_pod("u", "8")
    allocation = manager.allocate(pod, pod.spec.containers[0], nodes(0))
    assert isinstance(allocation.after, AllocationError)
    text = "not enough cpus available to satisfy request: requested=1, available=0"
    assert allocation.after.message() == f"Allocate failed due to {text}, which is unexpected"
    assert allocation.increments == (REQUEST, ERROR)


@pytest.mark.parametrize(
    ("count", "reserved", "text"),
    [
        ("3", "0", "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"),
        ("8", "0", "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 6, "
         "requested CPUs = 8, CPUs per core = 2"),
        ("6", "0-1", "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 4, "
         "requested CPUs = 6, CPUs per core = 2"),
    ],
)  # fmt: skip
def test_full_pcpus_only_rejects_parts_of_cores(count: str, reserved: str, text: str) -> None:
    manager, pod = make_manager(SINGLE, (FULL,), reserved=reserved), make_pod("u", count)
    allocation = manager.allocate(pod, pod.spec.containers[0], nodes(0))
    assert allocation.after == AllocationError(text, "SMTAlignmentError")
    assert allocation.increments == (REQUEST, ERROR, aligned("physical_cpu", "failure_count"))


def test_a_pod_that_is_admitted_again_keeps_its_cpus() -> None:
    pod = make_pod("u", "2", init=("2",))
    first = admitted(make_manager(SINGLE), pod)
    again = admitted(replace(first, state=replace(first.state, reusing="", reusable=frozenset())), pod)
    assert again.state.assignments == first.state.assignments
    assert again.state.default == first.state.default


def test_full_pcpus_only_checks_an_allocated_container_too() -> None:
    """As in the kubelet 1.36: on a full node, a container can fail the check with the CPUs that it has."""
    pod = make_pod("u", "6")
    first = admitted(make_manager(SINGLE, (FULL,)), pod)
    allocation = first.allocate(pod, pod.spec.containers[0], nodes(0))
    assert isinstance(allocation.after, AllocationError)


def test_facts_of_an_allocation() -> None:
    pod = make_pod("u", "2")
    plain = make_manager(DUAL).allocate(pod, pod.spec.containers[0], nodes(0))
    assert plain.increments == (REQUEST, aligned("uncore_cache"))
    full = make_manager(DUAL, (FULL,)).allocate(pod, pod.spec.containers[0], nodes(0))
    assert full.increments == (REQUEST, aligned("uncore_cache"), aligned("physical_cpu"))
    again = full.after
    assert isinstance(again, CpuManager)
    assert again.allocate(pod, pod.spec.containers[0], nodes(0)).increments == (REQUEST, aligned("physical_cpu"))
    wide = make_pod("v", "10")
    assert make_manager(DUAL).allocate(wide, wide.spec.containers[0], nodes(0, 1)).increments == (REQUEST,)
    assert (
        aligned("physical_cpu", "failure_count"),
        aligned("physical_cpu"),
        aligned("uncore_cache"),
    ) == INITIAL_INCREMENTS


def test_init_containers_hand_their_cpus_on() -> None:
    after = admitted(make_manager(SINGLE), make_pod("u", "2", "2", init=("4", "2")))
    expected = {"default": "0,3-4,7", "u/i0": "1-2,5-6", "u/i1": "1,5", "u/c0": "1,5", "u/c1": "2,6"}
    assert shown(after.state) == expected


def test_sidecars_keep_their_cpus() -> None:
    after = admitted(make_manager(SINGLE), make_pod("u", "2", init=("4",), sidecars=("2",)))
    sidecar, app = after.state.own("u", "s0"), after.state.own("u", "c0")
    assert not sidecar & app
    assert sidecar | app == after.state.own("u", "i0")


def test_another_pod_reuses_nothing() -> None:
    manager = admitted(make_manager(SINGLE), make_pod("u", "1", init=("4",)))
    after = admitted(manager, make_pod("v", "2"))
    assert not after.state.own("v", "c0") & after.state.own("u", "i0")
    assert after.state.reusable_by("u") == frozenset()


def test_strict_reservation_keeps_reserved_cpus_out_of_the_shared_pool() -> None:
    after = admitted(make_manager(SINGLE, (STRICT,), reserved="0-1"), make_pod("u", "6"))
    assert shown(after.state) == {"default": "", "u/c0": "2-7"}


# release


def test_cpus_return_when_the_pod_is_gone() -> None:
    empty = make_manager(SINGLE)
    pod, other = make_pod("u", "2", init=("2",)), make_pod("v", "1")
    both = admitted(admitted(empty, pod), other)
    assert release(both.state, containers_of([pod, other])) is both.state
    left = release(both.state, containers_of([other]))
    assert left.default == empty.state.default - both.state.own("v", "c0")
    assert set(left.assignments) == {"v"}
    assert release(left, {}).default == empty.state.default


def test_cpus_that_the_pod_still_uses_stay() -> None:
    full = admitted(make_manager(SINGLE), make_pod("u", "2", init=("4",)))
    left = release(full.state, {"u": ["c0"]})
    assert left.assignments == {"u": {"c0": full.state.own("u", "c0")}}
    assert left.default == frozenset(range(8)) - full.state.own("u", "c0")
    assert left.reusable_by("u") == frozenset()
    same = release(full.state, {"u": ["i0"]})
    assert same.default == full.state.default
    assert same.assignments == {"u": {"i0": full.state.own("u", "i0")}}


# what follows from the state


def test_containers_whose_cpuset_changed_are_updated() -> None:
    manager = replace(make_manager(SINGLE), state=state("0-5", u_c0="6-7"))
    running = [RunningContainer("a", "u", "c0"), RunningContainer("b", "v", "c0"), RunningContainer("c", "w", "c0")]
    shared, own = parse_cpuset("0-5"), parse_cpuset("6-7")
    applied = {"b": shared, "c": parse_cpuset("0-7")}
    assert cpuset_updates(lambda pod, name: manager.state.own(pod, name) or shared, running, applied) == (
        CpusetUpdate("a", own),
        CpusetUpdate("c", shared),
    )
    assert cpuset_updates(CpuState().own, running, {}) == ()


def test_containers_with_exclusive_cpus_have_no_quota() -> None:
    pod = make_pod("u", "2", "500m")
    after = admitted(make_manager(SINGLE), pod)
    assert without_quota(after.state, pod, gate=True) == NoQuota(True, frozenset({"c0"}))
    assert without_quota(after.state, pod, gate=False) == NoQuota()
    assert without_quota(after.state, make_pod("v", "500m"), gate=True) == NoQuota()


def test_gauges() -> None:
    manager = admitted(make_manager(DUAL), make_pod("u", "2", init=("4",)), nodes(1))
    assert gauges(manager.policy, manager.state) == CpuGauges(7000, 4, {0: 0, 1: 4})


# what always holds

SHAPES = [SINGLE, DUAL, FOUR_NODES, Shape(sockets=2, cores_per_node=4, caches=2), Shape(threads=1, cores_per_node=8)]
OPTIONS = [
    (), (FULL,), (STRICT,), (FULL, STRICT), ("distribute-cpus-across-numa",), ("distribute-cpus-across-numa", FULL),
    ("prefer-align-cpus-by-uncorecache",), ("distribute-cpus-across-cores",),
]  # fmt: skip


def check(manager: CpuManager) -> None:
    """No CPU belongs to two pods, or to a pod and the shared pool; none is lost; none is reserved."""
    now, policy = manager.state, manager.policy
    pods = [frozenset[int]().union(*containers.values()) for containers in now.assignments.values()]
    owned = frozenset[int]().union(*pods)
    assert sum(map(len, pods)) == len(owned)
    assert not owned & now.default
    every = policy.allocatable if policy.options.strict_reservation else policy.allocatable | policy.reserved
    assert owned | now.default == every
    assert not owned & policy.reserved
    assert start(policy, now) == now or not now.default


amounts = st.sampled_from(["1", "2", "3", "4", "500m"])


@st.composite
def admissions(draw: st.DrawFn) -> list[tuple[Pod, int]]:
    """Pods to admit one after the other, each with the number of the running pod that ends then, if there are as many."""
    steps = []
    for number in range(draw(st.integers(1, 12))):
        apps, init = draw(st.lists(amounts, min_size=1, max_size=2)), draw(st.lists(amounts, max_size=2))
        sidecars = draw(st.lists(amounts, max_size=1))
        pod = make_pod(f"u{number}", *apps, init=tuple(init), sidecars=tuple(sidecars))
        steps.append((pod, draw(st.integers(0, 3))))
    return steps


@settings(deadline=None)
@given(st.sampled_from(SHAPES), st.sampled_from(OPTIONS), admissions())
def test_no_cpu_is_lost_or_shared(shape: Shape, options: tuple[str, ...], steps: list[tuple[Pod, int]]) -> None:
    """A pod may be rejected when some of its containers have CPUs already."""
    manager = empty = make_manager(shape, options, reserved="0")
    active: list[Pod] = []
    for number, (pod, ending) in enumerate(steps):
        manager = replace(manager, state=release(manager.state, containers_of(active)))
        after = admit(manager, pod, TopologyHint(frozenset({number % 2}), True))
        if isinstance(after, CpuManager):
            manager = after
            active.append(pod)
        check(manager)
        if ending < len(active):
            del active[ending]
    assert release(manager.state, {}).default == empty.state.default


def test_a_thousand_rounds_leak_nothing() -> None:
    chance = random.Random(1)
    manager = empty = make_manager(Shape(sockets=2, cores_per_node=8, caches=2))
    active: dict[str, Pod] = {}
    for number in range(1000):
        pod = make_pod(f"u{number}", *chance.choices(["1", "2", "3"], k=chance.randint(1, 3)), init=("2",))
        after = admit(manager, pod)
        if isinstance(after, CpuManager):
            manager = after
            active[pod.metadata.uid] = pod
        else:
            for uid in chance.sample(sorted(active), chance.randint(1, len(active))):
                del active[uid]
            manager = replace(manager, state=release(manager.state, containers_of(active.values())))
        check(manager)
    assert release(manager.state, {}) == replace(empty.state, reusing=manager.state.reusing)

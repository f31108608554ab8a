"""The Memory Manager: cases of the documentation and KEP-1769, and what holds after any sequence of pods."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykubelet.base.api.core import Pod
from pykubelet.base.api.quantity import Amount, parse_text
from pykubelet.base.model.machine import NumaNode, TopologyHint
from pykubelet.base.model.placement import MemoryBlock
from pykubelet.config.kubelet import MemoryReservation
from pykubelet.provide.placement.memory_hints import memory_hints
from pykubelet.provide.placement.memory_manager import MemoryManager, MemoryPolicy, start_memory_manager
from pykubelet.provide.placement.memory_state import MemoryState, MemoryTable, NodeMemory, encode
from pykubelet.provide.placement.provider import Allocation, AllocationError, ManagerStartError, MetricIncrement
from pykubelet.provide.placement.topology_options import Policy, Scope, Topology
from pykubelet.provide.placement.topology_scopes import Admitted, PlacementRejection, admit

MI, GI = 1 << 20, 1 << 30
PATH = "/var/lib/kubelet/memory_manager_state"
REQUEST, ERROR = (
    MetricIncrement("kubelet_memory_manager_pinning_requests_total"),
    MetricIncrement("kubelet_memory_manager_pinning_errors_total"),
)
NO_HINT = TopologyHint(None, False)

# The file of cases

Case = Mapping[str, Sequence[str]]


def read_cases() -> list[Case]:
    cases: list[Case] = []
    for record in (Path(__file__).parent / "memory_cases.txt").read_text().split("\n\n"):
        case: dict[str, list[str]] = {}
        for line in record.strip().splitlines():
            if not line.startswith("#"):
                key, _, value = line.partition(":")
                case.setdefault(key, []).append(value.strip())
        if case:
            cases.append(case)
    return cases


def line_of(case: Case, key: str, default: str = "") -> str:
    return case.get(key, [default])[0]


def read_machine(lines: Sequence[str]) -> dict[int, NodeMemory]:
    machine = {}
    for line in lines:
        match = re.fullmatch(r"(\d+) \[([\d ]*)\] (\d+) (.*)", line)
        assert match, line
        tables = {}
        for part in match[4].split(", "):
            name, sizes = part.split()
            total, system, allocatable, reserved, free = (int(size) * MI for size in sizes.split("/"))
            tables[name] = MemoryTable(total, system, allocatable, reserved, free)
        machine[int(match[1])] = NodeMemory(int(match[3]), tables, tuple(map(int, match[2].split())))
    return machine


def read_entries(lines: Sequence[str]) -> dict[str, dict[str, tuple[MemoryBlock, ...]]]:
    entries: dict[str, dict[str, tuple[MemoryBlock, ...]]] = {}
    for line in lines:
        owner, _, rest = line.partition(" ")
        pod, container = owner.split("/")
        blocks = []
        for part in rest.split(", "):
            name, size, _, *nodes = part.split()
            blocks.append(MemoryBlock(tuple(map(int, nodes)), name, int(size) * MI))
        entries.setdefault(pod, {})[container] = tuple(blocks)
    return entries


def state_of(case: Case, after: str = "") -> MemoryState:
    return MemoryState(read_machine(case.get(f"machine{after}", ())), read_entries(case.get(f"entry{after}", ())))


def read_hint(text: str) -> TopologyHint:
    return TopologyHint(None if text[0] == "*" else frozenset(map(int, text[:-1])), text[-1] == "+")


def container(name: str, kind: str = "app", cpu: str = "1", **sizes: Any) -> dict[str, Any]:
    """Sizes: `memory`, and `pages` for huge pages of 2 MiB, as quantities."""
    amounts = {"cpu": cpu, **{"hugepages-2Mi" if name == "pages" else name: size for name, size in sizes.items()}}
    always = {"restartPolicy": "Always"} if kind == "sidecar" else {}
    return {"name": name, "kind": kind, **always, "resources": {"requests": amounts, "limits": dict(amounts)}}


def make_pod(containers: Sequence[dict[str, Any]], uid: str = "pod1", **spec: Any) -> Pod:
    spec["initContainers"] = [c for c in containers if c["kind"] != "app"]
    spec["containers"] = [c for c in containers if c["kind"] == "app"]
    return msgspec.convert({"metadata": {"uid": uid}, "spec": spec}, Pod)


def read_pod(case: Case) -> Pod:
    containers = []
    for line in case["container"]:
        kind, name, rest = line.split(" ", 2)
        amounts = dict(part.split() for part in rest.removesuffix(" burstable").split(", "))
        made = container(name, kind, **{resource: f"{size}Mi" for resource, size in amounts.items()})
        if rest.endswith(" burstable"):
            made["resources"]["limits"]["memory"] = "1Ti"
        containers.append(made)
    if "pod level" in case:
        return make_pod(
            containers, resources={"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}
        )
    return make_pod(containers, line_of(case, "uid", "pod1"))


def run(case: Case) -> MemoryState | str:
    """The state after the case's operation, or the error."""
    what = line_of(case, "do")
    if what == "start":
        nodes = []
        for line in case["node"]:
            match = re.fullmatch(r"(\d+) memory (\d+)(?:, (\d+)Mi pages (\d+))?", line)
            assert match, line
            pages = {int(match[3]) * MI: int(match[4])} if match[3] else {}
            nodes.append(NumaNode(int(match[1]), int(match[2]) * MI, pages))
        reserved = [line.split() for line in case["reserved"]]
        given = [MemoryReservation(numaNode=int(node), limits={name: f"{size}Mi"}) for node, name, size in reserved]
        reservation: dict[str, Amount] = {}
        for _, name, size in reserved:
            reservation[name] = parse_text(f"{size}Mi") + reservation.get(name, Amount(0))
        started = start_memory_manager("Static", nodes, reservation, given, (PATH, encode("Static", state_of(case))))
        return started.text if isinstance(started, ManagerStartError) else started.state
    manager = MemoryManager(MemoryPolicy.STATIC, state_of(case))
    if what == "release":
        return manager.release("pod1", "container1").state
    pod = read_pod(case)
    containers = [*pod.spec.initContainers, *pod.spec.containers]
    for c in containers if what == "allocate all" else containers[:1]:
        after = manager.allocate(pod, c, read_hint(line_of(case, "hint"))).after
        if isinstance(after, AllocationError):
            return after.text
        manager = after
    return manager.state


def comparable(state: MemoryState) -> Any:
    """Which node of a group has what is free does not count, nor the order of blocks."""
    machine = {}
    for number, node in state.machine.items():
        tables = {}
        for name, table in node.tables.items():
            group = [state.machine[cell].tables[name] for cell in node.cells]
            free, reserved = sum(t.free for t in group), sum(t.reserved for t in group)
            tables[name] = (table.total, table.system_reserved, table.allocatable, free, reserved)
        machine[number] = (node.assignments, sorted(node.cells), tables)
    blocks = {(pod, name): set(found) for pod, by_name in state.entries.items() for name, found in by_name.items()}
    return machine, blocks


CASES = read_cases()


@pytest.mark.parametrize("case", [case for case in CASES if "hints" not in case], ids=lambda case: line_of(case, "do"))
def test_documented_cases(case: Case) -> None:
    result = run(case)
    if isinstance(result, str):
        assert result == line_of(case, "error")
    else:
        assert "error" not in case
        assert comparable(result) == comparable(state_of(case, " after"))


@pytest.mark.parametrize("case", [case for case in CASES if "hints" in case], ids=lambda case: line_of(case, "do"))
def test_documented_hints(case: Case) -> None:
    pod, manager = read_pod(case), MemoryManager(MemoryPolicy.STATIC, state_of(case))
    given = manager.hints(pod, pod.spec.containers[0]) if line_of(case, "do") == "hints" else manager.pod_hints(pod)
    *names, last = line_of(case, "hints").split(", ")
    resource, *texts = last.split() or [""]
    expected = tuple(map(read_hint, texts))
    assert given == {name: expected for name in (*names, resource) if name}


# Start


def nodes_with(*memory: int, pages: int = 0) -> list[NumaNode]:
    return [NumaNode(number, size, {2 * MI: pages} if pages else {}) for number, size in enumerate(memory)]


def start(
    memory: str = "1Gi",
    nodes: Sequence[NumaNode] = tuple(nodes_with(4 * GI, 4 * GI)),
    file: str | None = None,
    reservation: Mapping[str, str] | None = None,
    given: Sequence[MemoryReservation] | None = None,
) -> MemoryManager | ManagerStartError:
    if given is None:
        given = [MemoryReservation(numaNode=nodes[0].id, limits={"memory": memory})]
    wanted = {name: parse_text(text) for name, text in (reservation or {"memory": memory, "cpu": "1"}).items()}
    return start_memory_manager("Static", nodes, wanted, given, (PATH, file))


def started(**arguments: Any) -> MemoryManager:
    manager = start(**arguments)
    assert isinstance(manager, MemoryManager), manager
    return manager


def test_the_unused_machine() -> None:
    manager = started(nodes=nodes_with(4 * GI, 2 * GI, pages=256))
    tables = [
        {
            "hugepages-2Mi": MemoryTable(512 * MI, 0, 512 * MI, 0, 512 * MI),
            "memory": MemoryTable(size, kept, size - kept - 512 * MI, 0, size - kept - 512 * MI),
        }
        for size, kept in ((4 * GI, GI), (2 * GI, 0))
    ]
    assert manager.state == MemoryState({n: NodeMemory(0, tables[n], (n,)) for n in (0, 1)})
    assert manager.allocatable == (
        MemoryBlock((0,), "hugepages-2Mi", 512 * MI),
        MemoryBlock((0,), "memory", 2560 * MI),
        MemoryBlock((1,), "hugepages-2Mi", 512 * MI),
        MemoryBlock((1,), "memory", 1536 * MI),
    )


def test_a_node_that_is_reserved_wholly_has_nothing_allocatable() -> None:
    manager = started(memory="5Gi")
    assert manager.allocatable == (MemoryBlock((1,), "memory", 4 * GI),)
    assert manager.state.machine[0].tables["memory"] == MemoryTable(4 * GI, 5 * GI, 0, 0, 0)


def limits(**by_node: Mapping[str, str]) -> list[MemoryReservation]:
    return [MemoryReservation(numaNode=int(node[1:]), limits=dict(given)) for node, given in by_node.items()]


NOT_EQUAL = 'the total amount "{}" of type "{}" is not equal to the value "{}" determined by Node Allocatable feature'


@pytest.mark.parametrize(
    ("reservation", "given", "text"),
    [
        ({"cpu": "1"}, [], "[memorymanager] you should specify the system reserved memory"),
        ({"cpu": "1"}, limits(n0={"memory": "12"}), NOT_EQUAL.format("12", "memory", "0")),
        ({"hugepages-2Mi": "5"}, [], NOT_EQUAL.format("0", "hugepages-2Mi", "5")),
        ({"memory": "5"}, limits(n0={"memory": "12"}), NOT_EQUAL.format("12", "memory", "5")),
        ({"memory": "1124Mi"}, limits(n0={"memory": "1Gi"}), NOT_EQUAL.format("1Gi", "memory", "1124Mi")),
        (
            {"memory": "17"},
            limits(n0={"memory": "12"}, n2={"memory": "5"}),
            "the reserved memory configuration references a NUMA node 2 that does not exist on this machine",
        ),
        (
            {"memory": "17", "hugepages-2Mi": "14"},
            limits(n0={"memory": "12", "hugepages-2Mi": "70"}, n1={"memory": "5", "hugepages-2Mi": "7"}),
            NOT_EQUAL.format("77", "hugepages-2Mi", "14"),
        ),
        ({"memory": "1500m"}, limits(n0={"memory": "1500m"}), "could not covert a variable of type Quantity to int64"),
        (
            {"memory": "1Gi"},
            limits(n0={"memory": "2Gi"}, n1={"memory": "-1Gi"}),
            'the reserved memory of type "memory" on NUMA node 1 is negative: -1Gi',
        ),
        (
            {"memory": "17", "hugepages-2Mi": "7"},
            limits(n0={"memory": "12"}, n1={"memory": "5", "hugepages-2Mi": "7"}),
            "",
        ),
    ],
)
def test_reserved_memory(reservation: Mapping[str, str], given: Sequence[MemoryReservation], text: str) -> None:
    result = start(reservation=reservation, given=given)
    assert result == ManagerStartError(text) if text else isinstance(result, MemoryManager)


def test_policies() -> None:
    def start_with(policy: str, text: str | None = None) -> MemoryManager | ManagerStartError:
        return start_memory_manager(policy, [], {}, [], (PATH, text))

    assert start_with("None") == MemoryManager(MemoryPolicy.NONE, MemoryState())
    assert start_with("None", encode("None", MemoryState())) == MemoryManager(MemoryPolicy.NONE, MemoryState())
    assert start_with("BestEffort") == ManagerStartError('policy "BestEffort" is not available for platform "linux"')
    assert start_with("static") == ManagerStartError('unknown policy: "static"')
    changed = start_with("None", encode("Static", MemoryState()))
    assert changed == ManagerStartError(
        'could not restore state from checkpoint: [memorymanager] configured policy "None" differs from state checkpoint policy '
        f'"Static", please drain this node and delete the memory manager checkpoint file "{PATH}" before restarting Kubelet'
    )


def test_none_does_nothing() -> None:
    manager = MemoryManager(MemoryPolicy.NONE, MemoryState())
    pod = make_pod([container("app", memory="1Gi")])
    assert manager.hints(pod, pod.spec.containers[0]) == manager.pod_hints(pod) == {}
    assert manager.allocate(pod, pod.spec.containers[0], NO_HINT) == Allocation(manager)
    assert manager.cpuset_mems("pod1", "app") == ""


def test_entries_of_another_machine_prevent_the_start() -> None:
    manager = placed(started(), make_pod([container("app", memory="1Gi")]))
    text = encode("Static", manager.state)
    assert started(file=text).state == manager.state
    assert start(file=text, nodes=nodes_with(4 * GI)) == ManagerStartError(
        "[memorymanager] the expected machine state is different from the real one"
    )
    for block, problem in (
        (MemoryBlock((7,), "memory", 1), "the NUMA that does not exist"),
        (MemoryBlock((0,), "hugepages-1Gi", 1), "memory resource that does not exist"),
    ):
        wrong = manager.state.with_entries("pod1", {"app": (block,)})
        owner = "[memorymanager] (pod: pod1, container: app) the memory assignment uses"
        assert start(file=encode("Static", wrong)) == ManagerStartError(f"{owner} {problem}")


# Pods


def placed(manager: MemoryManager, pod: Pod, hint: TopologyHint = NO_HINT) -> MemoryManager:
    for c in (*pod.spec.initContainers, *pod.spec.containers):
        after = manager.allocate(pod, c, hint).after
        assert isinstance(after, MemoryManager), after
        manager = after
    return manager


def test_what_is_reported_of_a_container() -> None:
    pod = make_pod([container("app", memory="5Gi", pages="64Mi"), container("small", memory="1Mi", cpu="100m")])
    manager = placed(started(nodes=nodes_with(4 * GI, 4 * GI, 4 * GI, pages=64)), pod)
    blocks = (MemoryBlock((0, 1), "hugepages-2Mi", 64 * MI), MemoryBlock((0, 1), "memory", 5 * GI))
    assert manager.blocks("pod1", "app") == blocks
    assert manager.cpuset_mems("pod1", "app") == "0,1"
    assert manager.cpuset_mems("pod1", "small") == "2"
    assert manager.blocks("pod1", "other") == ()
    assert manager.cpuset_mems("pod2", "app") == ""


def test_what_is_counted() -> None:
    manager = started()
    small, large = (make_pod([container("app", memory=size)]) for size in ("1Gi", "64Gi"))
    best_effort = msgspec.convert({"metadata": {"uid": "b"}, "spec": {"containers": [{"name": "app"}]}}, Pod)
    app = small.spec.containers[0]
    assert manager.allocate(best_effort, best_effort.spec.containers[0], NO_HINT).increments == ()
    first = manager.allocate(small, app, NO_HINT)
    assert first.increments == (REQUEST,)
    assert isinstance(first.after, MemoryManager)
    assert first.after.allocate(small, app, NO_HINT).increments == (REQUEST,)
    text = "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
    failed = manager.allocate(large, large.spec.containers[0], NO_HINT)
    assert failed == Allocation(AllocationError(text), (REQUEST, ERROR))


def test_no_capacity_is_no_preference_and_the_allocation_rejects() -> None:
    manager, pod = started(), make_pod([container("app", memory="64Gi")])
    assert manager.hints(pod, pod.spec.containers[0]) == manager.pod_hints(pod) == {}
    result = admit(Topology(Policy.RESTRICTED, Scope.CONTAINER, (0, 1)), [manager], pod)
    assert isinstance(result, PlacementRejection)
    assert result.reason == "UnexpectedAdmissionError"


def test_memory_of_a_type_that_no_node_has_is_refused() -> None:
    pod = make_pod([container("app", memory="1Gi", pages="2Mi")])
    assert isinstance(started().allocate(pod, pod.spec.containers[0], NO_HINT).after, AllocationError)


def test_amounts_must_be_whole_bytes() -> None:
    manager = started()
    for kind in ("app", "init"):
        pod = make_pod([container("first", kind, memory="1500m"), container("app", memory="1Gi")])
        first = [*pod.spec.initContainers, *pod.spec.containers][0]
        assert manager.hints(pod, first) == manager.pod_hints(pod) == {}
        text = "[memorymanager] failed to represent quantity as int64"
        assert manager.allocate(pod, first, NO_HINT).after == AllocationError(text)


@pytest.mark.parametrize(
    ("size", "hint", "result"),
    [
        ("1Gi", "1+", (1,)),
        ("4Gi", "1+", (1,)),
        ("3500Mi", "0-", (0, 1)),
        ("6Gi", "01+", (0, 1)),
        ("1Gi", "*+", (0,)),
        ("3500Mi", "0+", "failed to find the extended preferred hint"),
        ("64Gi", "0-", "failed to find NUMA nodes to extend the current topology hint"),
    ],
)
def test_the_hint_is_followed_or_extended(size: str, hint: str, result: tuple[int, ...] | str) -> None:
    pod = make_pod([container("app", memory=size)])
    after = started().allocate(pod, pod.spec.containers[0], read_hint(hint)).after
    if isinstance(result, str):
        assert after == AllocationError(f"[memorymanager] {result}")
    else:
        assert isinstance(after, MemoryManager)
        assert {block.nodes for block in after.blocks("pod1", "app")} == {result}


def test_a_preferred_hint_must_not_become_a_worse_one() -> None:
    manager = placed(started(), make_pod([container("app", memory="3Gi")], "other"), read_hint("0+"))
    manager = placed(manager, make_pod([container("app", memory="2Gi")], "more"), read_hint("1+"))
    pod = make_pod([container("app", memory="4Gi")])
    assert manager.allocate(pod, pod.spec.containers[0], read_hint("01-")).after == AllocationError(
        "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
    )
    small = make_pod([container("app", memory="1Gi")])
    assert manager.allocate(small, small.spec.containers[0], read_hint("01-")).after == AllocationError(
        "[memorymanager] preferred hint violates NUMA node allocation"
    )
    grouped = placed(started(nodes=nodes_with(4 * GI, 4 * GI)), make_pod([container("app", memory="5Gi")], "wide"))
    assert grouped.allocate(small, small.spec.containers[0], read_hint("*+")).after == AllocationError(
        "[memorymanager] failed to find the default preferred hint"
    )


def test_later_containers_reuse_the_memory_of_init_containers_but_not_of_sidecars() -> None:
    sizes = (("setup", "init", "2Gi"), ("sidecar", "sidecar", "512Mi"), ("load", "init", "1Gi"), ("app", "app", "1Gi"))
    pod = make_pod([container(name, kind, memory=size) for name, kind, size in sizes])
    manager = placed(started(), pod, read_hint("1+"))
    booked = {name: manager.blocks("pod1", name)[0].size // MI for name, *_ in sizes}
    assert booked == {"setup": 0, "sidecar": 512, "load": 512, "app": 1024}
    assert manager.state.machine[1].tables["memory"].reserved == 2048 * MI
    completed = manager.release_completed(pod, "app")
    assert set(completed.state.entries["pod1"]) == {"sidecar", "app"}
    assert completed.state.machine[1].tables["memory"].reserved == 1536 * MI
    assert manager.release_completed(pod, "sidecar").state.blocks("pod1", "load") is not None


def test_a_pod_that_comes_back_with_its_uid_reuses_nothing() -> None:
    pod = make_pod([container("setup", "init", memory="2Gi"), container("app", memory="1Gi")])
    empty = started()
    manager = placed(empty, pod).release_others({})
    assert manager == empty
    assert placed(manager, pod).state == placed(empty, pod).state


def test_only_what_is_not_active_is_released() -> None:
    manager = started()
    for uid in ("a", "b"):
        manager = placed(manager, make_pod([container("app", memory="1Gi"), container("log", memory="1Gi")], uid))
    assert manager.release_others({"a": {"app", "log"}, "b": ["app", "log"]}) == manager
    left = manager.release_others({"a": ["app"]})
    assert {pod: set(names) for pod, names in left.state.entries.items()} == {"a": {"app"}}
    assert left.release("a", "log") == left
    assert left.release("a", "app").state == started().state


def test_what_is_allocated_already_is_the_only_hint() -> None:
    pod = make_pod([container("app", memory="5Gi", pages="64Mi")])
    manager = placed(started(nodes=nodes_with(4 * GI, 4 * GI, pages=64)), pod)
    hint = (TopologyHint(frozenset({0, 1}), True),)
    expected = {"hugepages-2Mi": hint, "memory": hint}
    assert manager.hints(pod, pod.spec.containers[0]) == manager.pod_hints(pod) == expected
    other = make_pod([container("app", memory="6Gi", pages="64Mi")])
    assert manager.hints(other, other.spec.containers[0]) == {}
    result = admit(Topology(Policy.SINGLE_NUMA_NODE, Scope.CONTAINER, (0, 1)), [manager], other)
    assert isinstance(result, Admitted)


def test_the_only_hint_of_a_pod_is_what_all_its_containers_have() -> None:
    """After a restart of the agent, when a pod that runs is placed again."""
    pod = make_pod([container("one", memory="1Gi"), container("two", memory="2Gi")])
    manager = placed(started(nodes=nodes_with(4 * GI, 4 * GI)), pod)
    assert manager.pod_hints(pod) == {"memory": (TopologyHint(frozenset({0}), True),)}
    larger = make_pod([container("one", memory="1Gi"), container("two", memory="3Gi")])
    assert manager.pod_hints(larger) == {}


def test_pod_hints_count_what_runs_at_the_same_time() -> None:
    sizes = (("one", "sidecar", "1Gi"), ("two", "init", "5Gi"), ("three", "init", "1Gi"), ("four", "app", "2Gi"))
    pod = make_pod([container(name, kind, memory=size) for name, kind, size in sizes])
    hints = started(nodes=nodes_with(4 * GI, 6 * GI, 5 * GI)).pod_hints(pod)["memory"]
    assert hints is not None
    assert [hint for hint in hints if hint.preferred] == [TopologyHint(frozenset({1}), True)]


# What holds after any sequence of pods

SIZES = st.sampled_from(["256Mi", "1Gi", "1500Mi", "3Gi", "5Gi"])
PAGES = st.sampled_from([None, None, "64Mi", "600Mi"])


@st.composite
def containers(draw: st.DrawFn) -> list[dict[str, Any]]:
    kinds = draw(st.lists(st.sampled_from(["init", "init", "sidecar"]), max_size=3)) + ["app"] * draw(st.integers(1, 2))
    made = []
    for number, kind in enumerate(kinds):
        pages = draw(PAGES)
        more = {"pages": pages} if pages else {}
        made.append(container(f"c{number}", kind, memory=draw(SIZES), **more))
    return made


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "started", "remove"]), st.integers(0, 3), containers()), max_size=9
)


def check(
    manager: MemoryManager, unused: Mapping[int, NodeMemory], nodes: Sequence[NumaNode], keeps_groups: bool
) -> None:
    state = manager.state
    blocks = [block for by_name in state.entries.values() for found in by_name.values() for block in found]
    for name in ("memory", "hugepages-2Mi"):
        tables = [node.tables[name] for node in state.machine.values()]
        assert all(table.free >= 0 and table.free + table.reserved == table.allocatable for table in tables)
        # What is reserved is what containers have: nothing is booked twice, and nothing is lost.
        assert sum(table.reserved for table in tables) == sum(block.size for block in blocks if block.type == name)
    if not keeps_groups:
        return
    # A node is used alone or in one group.
    for number, node in state.machine.items():
        used = {block.nodes for block in blocks if number in block.nodes}
        assert used <= {node.cells}
        assert node.assignments == sum(number in block.nodes for block in blocks)
        assert used or node == unused[number]
    assert started(nodes=nodes, file=encode("Static", state)).state == state


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from(list(Policy)),
    st.sampled_from(list(Scope)),
    STEPS,
)
def test_nothing_is_booked_twice_or_lost(
    count: int, policy: Policy, scope: Scope, steps: list[tuple[str, int, Any]]
) -> None:
    nodes = nodes_with(*[4 * GI] * count, pages=256)
    manager = empty = started(nodes=nodes)
    topology = Topology(policy, scope, tuple(range(count)))
    # As with the kubelet, a single node of a group is not refused at the allocation. A hint may name one where it need not be
    # preferred, and for the whole pod, because it does not count what init containers alone request.
    keeps_groups = policy is not Policy.BEST_EFFORT and scope is Scope.CONTAINER
    pods: dict[str, Pod] = {}
    for what, number, made in steps:
        uid = f"u{number}"
        if what == "add" and uid not in pods:
            pod = make_pod(made, uid)
            result = admit(topology, [manager], pod)
            if isinstance(result, Admitted):
                (after,) = result.providers
                assert isinstance(after, MemoryManager)
                manager, pods[uid] = after, pod
        elif what == "started" and uid in pods:
            manager = manager.release_completed(pods[uid], pods[uid].spec.containers[0].name)
        elif what == "remove":
            pods.pop(uid, None)
            active = {
                uid: [c.name for c in (*pod.spec.initContainers, *pod.spec.containers)] for uid, pod in pods.items()
            }
            manager = manager.release_others(active)
        check(manager, empty.state.machine, nodes, keeps_groups)
    assert manager.release_others({}).state == empty.state


def test_hints_on_eight_nodes() -> None:
    machine = started(nodes=nodes_with(*[4 * GI] * 8)).state.machine
    hints = memory_hints(machine, {"memory": 9 * GI}, {})
    assert len(hints) == 219  # all sets of three nodes and more
    assert {len(hint.nodes or ()) for hint in hints if hint.preferred} == {3}
    assert memory_hints(machine, {}, {}) == ()


def test_a_group_of_the_state_with_a_node_that_is_gone_is_no_place() -> None:
    tables = {"memory": MemoryTable(10 * GI, 0, 10 * GI, 0, 10 * GI)}
    machine = {0: NodeMemory(1, tables, (0, 5)), 1: NodeMemory(0, tables, (1,))}
    assert [hint.nodes for hint in memory_hints(machine, {"memory": GI}, {})] == [frozenset({1})]

"""Pods that get CPUs and memory as a whole (gate PodLevelResourceManagers): who gets what, restarts, releases, rejections."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from provide.placement.cpu_pods import make_pod
from provide.placement.pool_pods import (
    EIGHT,
    GIB,
    TWO,
    admitted,
    memory_of,
    random_whole_pod,
    rejected,
    shown,
    whole_managers,
    whole_pod,
)
from provide.placement.together import FilledNode, make_managers, names_of
from support.cost import check_cost
from support.machines import Shape

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cpuset import format_cpuset, parse_cpuset
from pykubelet.base.kit.values import replace
from pykubelet.base.model.placement import MemoryBlock
from pykubelet.provide.placement import cpu_manager
from pykubelet.provide.placement.cpu_manager import without_quota
from pykubelet.provide.placement.explanation import explain_rejection
from pykubelet.provide.placement.topology_options import Scope
from pykubelet.provide.placement.topology_scopes import Admitted, PlacementRejection, admit

# who gets what


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(whole_pod("a", "4", "", ""), {"pod": "1-4", "c0": "(1-4)", "c1": "(1-4)"}, id="all-share"),
        pytest.param(whole_pod("a", "4", "2", "", ""), {"pod": "1-4", "c0": "1-2", "c1": "(3-4)", "c2": "(3-4)"}, id="mixed"),
        pytest.param(whole_pod("a", "5", "3", "1", "1"), {"pod": "1-5", "c0": "1-3", "c1": "4", "c2": "5"}, id="none-shares"),
        pytest.param(whole_pod("a", "6", "2", "1"), {"pod": "1-6", "c0": "1-2", "c1": "3"}, id="some-are-left"),
        pytest.param(
            whole_pod("a", "4", "2", "", init=("4",)),
            {"pod": "1-4", "i0": "1-4", "c0": "1-2", "c1": "(3-4)"},
            id="an-init-container-leaves-its-cpus-to-all",
        ),
        pytest.param(
            whole_pod("a", "4", "2", "", init=("", "1")),
            {"pod": "1-4", "i0": "(1-4)", "i1": "1", "c0": "1-2", "c1": "(3-4)"},
            id="an-init-container-that-shares-has-all",
        ),
        pytest.param(
            whole_pod("a", "5", "2", "", sidecars=("2", "")),
            {"pod": "1-5", "s0": "1-2", "s1": "(5)", "c0": "3-4", "c1": "(5)"},
            id="a-sidecar-keeps-its-cpus",
        ),
        pytest.param(whole_pod("a", "4", "500m", "2"), {"pod": "1-4", "c0": "(3-4)", "c1": "1-2"}, id="no-whole-number"),
        pytest.param(whole_pod("a", "1500m", "1", ""), {"pod": ""}, id="a-pod-without-whole-cpus-has-none"),
    ],
)  # fmt: skip
def test_the_cpus_of_a_pod_and_its_containers(pod: Pod, expected: dict[str, str]) -> None:
    managers = admitted(whole_managers(EIGHT), pod)
    assert {name: cpus for name, cpus in shown(managers, pod).items() if cpus or name == "pod"} == expected
    assert managers.cpu_state.default == frozenset(range(8)) - parse_cpuset(expected["pod"])


def test_an_init_container_between_sidecars_has_what_the_first_one_leaves() -> None:
    pod = whole_pod("a", "4", "", sidecars=("1", "1"))
    s0, s1 = pod.spec.initContainers
    init = whole_pod("a", "4", init=("",)).spec.initContainers[0]
    pod = replace(pod, spec=replace(pod.spec, initContainers=(s0, init, s1)))
    managers = admitted(whole_managers(EIGHT), pod)
    assert shown(managers, pod) == {"pod": "1-4", "s0": "1", "i0": "(2-4)", "s1": "2", "c0": "(3-4)"}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (whole_pod("a", "4", "2", "", ""), {"pod": 8, "c0": 1, "c1": 7, "c2": 7}),
        (whole_pod("a", "4", "500m", "2"), {"pod": 8, "c0": 1, "c1": 1}),
        (whole_pod("a", "4", "2", init=("1", ""), sidecars=("1", "")), {"pod": 8, "i0": 1, "i1": 8, "s0": 1, "s1": 6, "c0": 1}),
        (whole_pod("a", "1500m", "", memory="3Gi"), {"pod": 3, "c0": 3}),
    ],
)  # fmt: skip
def test_the_memory_of_a_pod_and_its_containers(pod: Pod, expected: dict[str, int]) -> None:
    managers = admitted(whole_managers(EIGHT), pod)
    assert memory_of(managers, pod) == expected
    assert managers.memory.state.machine[0].tables["memory"].reserved == expected["pod"] * GIB, (
        "the pool is booked, and no part of it a second time"
    )
    assert managers.memory.state.machine[0].assignments == 1
    placement = managers.placement(pod, 0.0)
    assert {has.mems for has in placement.containers.values()} == {"0"}
    assert sum(block.size for block in placement.memory) == expected["pod"] * GIB


def test_what_containers_share_is_no_memory_of_one_of_them() -> None:
    pod = whole_pod("a", "4", "2", "", init=("1",))
    placement = admitted(whole_managers(EIGHT), pod).placement(pod, 0.0)
    sizes = {name: [block.size // GIB for block in has.memory] for name, has in placement.containers.items()}
    assert sizes == {"i0": [], "c0": [1], "c1": []}
    assert placement.shared_memory == (MemoryBlock((0,), "memory", 7 * GIB),)
    assert (format_cpuset(placement.cpus), format_cpuset(placement.shared_cpus)) == ("1-4", "3-4")


def test_a_pod_is_on_one_node_and_the_next_on_the_other() -> None:
    managers, first, second = whole_managers(TWO), whole_pod("a", "3", "2", ""), whole_pod("b", "4", "")
    both = admitted(admitted(managers, first), second)
    assert shown(both, first)["pod"] == "1-3"
    assert shown(both, second)["pod"] == "4-7"
    assert [both.placement(pod, 0.0).containers["c0"].mems for pod in (first, second)] == ["0", "1"]


def test_with_the_scope_container_only_guaranteed_containers_have_their_own() -> None:
    pod = whole_pod("a", "6", "2", "", "500m", init=("3",), sidecars=("1",))
    managers = admitted(whole_managers(TWO, scope="container"), pod)
    assert shown(managers, pod) == {"pod": "", "i0": "1-3", "s0": "1", "c0": "2-3", "c2": ""}
    assert memory_of(managers, pod) == {"pod": 0, "i0": 0, "s0": 1, "c0": 1, "c2": 1}
    placement = managers.placement(pod, 0.0)
    assert "c1" not in placement.containers, "it uses the shared pool of the node, and memory of any node"
    assert not any(has.shares_cpus for has in placement.containers.values())


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
def test_a_container_that_shares_is_no_reason_to_reject_a_pod_by_containers(policy: str) -> None:
    """It requests no memory, so no NUMA node is looked for. (The reference refuses it with some policies.)"""
    busy = admitted(whole_managers(TWO, policy, scope="container"), make_pod("busy", "1"))
    pod = whole_pod("a", "4", "", "")
    assert admitted(busy, pod).memory.state == busy.memory.state


def test_a_policy_of_none_places_containers() -> None:
    pod = whole_pod("a", "4", "2", "")
    managers = admitted(whole_managers(EIGHT, policy="none"), pod)
    assert shown(managers, pod) == {"pod": "", "c0": "1-2"}


@pytest.mark.parametrize("scope", list(Scope))
def test_without_the_gate_the_pod_gets_nothing(scope: str) -> None:
    managers = make_managers(EIGHT, "single-numa-node", scope)
    pod = whole_pod("a", "4", "2", "")
    after = admitted(managers, pod)
    assert (after.cpu_state, after.memory.state) == (managers.cpu_state, managers.memory.state)
    assert not after.placement(pod, 0.0).containers and not after.has_all(pod)


def test_a_pod_that_is_not_guaranteed_gets_nothing() -> None:
    pod = whole_pod("a", "4", "2")
    assert pod.spec.resources is not None
    burstable = replace(pod.spec.resources, limits={"cpu": "5", "memory": "8Gi"})
    pod = replace(pod, spec=replace(pod.spec, resources=burstable))
    managers = whole_managers(EIGHT)
    assert admitted(managers, pod).holders() == frozenset()


@pytest.mark.parametrize(
    ("containers", "expected"),
    [(("2", "2"), {"pod": True, "c0": True, "c1": True}), (("2", ""), {"pod": False, "c0": True, "c1": False})],
)
@pytest.mark.parametrize("scope", list(Scope))
def test_cpu_quotas(scope: str, containers: tuple[str, ...], expected: dict[str, bool]) -> None:
    """A container that shares has its quota, so that it leaves something to the others; and so has then its pod."""
    pod = whole_pod("a", "4", *containers)
    managers = admitted(whole_managers(EIGHT, scope=scope), pod)
    without = without_quota(managers.cpu_state, pod, gate=True)
    assert {"pod": without.pod, **{name: name in without.containers for name in names_of(pod)}} == expected
    placements = managers.publish({pod.metadata.uid: managers.placement(pod, 0.0)}, {})  # type: ignore[dict-item]
    uid = next(iter(placements.pods))
    assert placements.has_quota(uid) != expected["pod"]
    assert {name: placements.cpuset(uid, name).exclusive for name in names_of(pod)} == {
        name: value for name, value in expected.items() if name != "pod"
    }
    assert without_quota(managers.cpu_state, pod, gate=False) == cpu_manager.NoQuota()


def test_whole_cores_are_checked_for_the_pod() -> None:
    shape = Shape(cores_per_node=4)
    managers = whole_managers(shape, options=("full-pcpus-only",))
    odd = rejected(managers, whole_pod("a", "3", ""))
    assert (odd.reason, odd.message) == (
        "SMTAlignmentError",
        "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2",
    )
    pod = whole_pod("a", "4", "1", "")
    assert shown(admitted(managers, pod), pod) == {"pod": "1-2,5-6", "c0": "1", "c1": "(2,5-6)"}


# rejections


INIT = "pod rejected, pod has shared init containers but no {} available for them"


EMPTY = "pod rejected, sum of exclusive container {} requests equals pod budget, leaving no {} for shared containers"


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        (whole_pod("a", "5", "3", "2", ""), EMPTY.format("cpu", "cpus")),
        (whole_pod("a", "3", "2", sidecars=("1", "")), EMPTY.format("cpu", "cpus")),
        (whole_pod("a", "4", "1", init=(), sidecars=("4",)), None),
        (whole_pod("a", "4", "2", "", memory="1Gi"), EMPTY.format("memory", "memory")),
        (whole_pod("a", "4", "500m", "", memory="1Gi"), EMPTY.format("memory", "memory")),
    ],
)
def test_a_pod_that_leaves_nothing_to_those_that_share_is_rejected(pod: Pod, message: str | None) -> None:
    best_effort, single = whole_managers(TWO, "best-effort"), whole_managers(TWO)
    result = rejected(best_effort, pod)
    if message is None:
        text = "Allocate failed due to not enough cpus available to satisfy request: requested=1, available=0"
        assert (result.reason, result.message) == ("UnexpectedAdmissionError", f"{text}, which is unexpected")
        return
    assert (result.reason, result.message) == ("EmptyPodSharedPoolError", message)
    assert explain_rejection(best_effort.topology, best_effort.providers, pod, {}) == message
    strict = rejected(single, pod)
    text = "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager"
    assert (strict.reason, strict.message) == ("TopologyAffinityError", text)
    assert explain_rejection(single.topology, single.providers, pod, {}) == message


def test_an_init_container_after_a_sidecar_that_takes_all() -> None:
    pod = whole_pod("a", "2", "", sidecars=("2",))
    (sidecar,) = pod.spec.initContainers
    init = whole_pod("a", "4", init=("",)).spec.initContainers[0]
    pod = replace(pod, spec=replace(pod.spec, initContainers=(sidecar, init)))
    assert rejected(whole_managers(TWO, "best-effort"), pod).message == INIT.format("cpus")
    first = replace(pod, spec=replace(pod.spec, initContainers=(init, sidecar)))
    assert rejected(whole_managers(TWO, "best-effort"), first).message == EMPTY.format("cpu", "cpus")


def test_containers_that_request_more_memory_than_their_pod() -> None:
    result = rejected(whole_managers(TWO, "best-effort"), whole_pod("a", "4", "2", "2", memory="1536Mi"))
    text = "Allocate failed due to [memorymanager] containers request more memory than their pod, which is unexpected"
    assert result.message == text
    one_after_the_other = whole_pod("a", "4", "2", init=("2",), memory="1Gi")
    admitted(whole_managers(TWO, "best-effort"), one_after_the_other)


def test_a_pod_that_does_not_fit_is_explained() -> None:
    full = admitted(admitted(whole_managers(TWO), whole_pod("a", "2", "1", "")), whole_pod("b", "2", ""))
    pod = whole_pod("c", "3", "")
    result = rejected(full, pod)
    text = "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager"
    assert (result.reason, result.message) == ("TopologyAffinityError", text)
    assert explain_rejection(full.topology, full.providers, pod, {"a": "default/a", "b": "default/b"}) == (
        "needs 3 CPUs on one NUMA node; largest free: 2 on node 1, held by default/b as a whole (2)"
    )
    large = whole_pod("d", "1", "", memory="12Gi")
    assert explain_rejection(full.topology, full.providers, large, {"a": "default/a", "b": "default/b"}).startswith(
        "needs 12Gi of memory on one NUMA node; largest free: 8Gi on node 1, held by default/b as a whole (8Gi)"
    )


def test_by_containers_the_message_is_another() -> None:
    managers = whole_managers(TWO, scope="container")
    result = rejected(managers, whole_pod("a", "6", "5", ""))
    text = "Pod Scope pod with pod-level resources failed admission with a container-level topology manager"
    assert (result.reason, result.message) == ("TopologyAffinityError", text)


# releases


def test_a_pod_gives_everything_back_once_and_only_with_its_last_container() -> None:
    pod, other = whole_pod("a", "4", "2", "", init=("1",), memory="7Gi"), whole_pod("b", "2", "")
    unused = whole_managers(EIGHT)
    both = admitted(admitted(unused, pod), other)
    assert both.cpus is not None
    state, memory = both.cpu_state, both.memory
    names = list(names_of(pod))
    for number in range(1, len(names)):
        kept = {"a": names[number:], "b": ["c0"]}
        state, memory = cpu_manager.release(state, kept), memory.release_others(kept)
        assert state.default == both.cpu_state.default
        assert memory.state.machine == both.memory.state.machine
    for _ in range(2):
        state, memory = cpu_manager.release(state, {"b": ["c0"]}), memory.release_others({"b": ["c0"]})
        only = admitted(unused, other)
        assert len(state.default) == len(only.cpu_state.default)
        assert state.pools.keys() == {"b"} and state.assignments.keys() == {"b"}
        table = memory.state.machine[0].tables["memory"]
        assert (memory.state.machine[0].assignments, table.reserved) == (1, 8 * GIB)


def test_the_same_cpus_serve_the_next_pod() -> None:
    managers = whole_managers(EIGHT)
    first, second = whole_pod("a", "7", "", memory="12Gi"), whole_pod("b", "7", "2", "", memory="12Gi")
    taken = admitted(managers, first)
    assert rejected(taken, second).reason == "TopologyAffinityError"
    free = taken.release(["a"])
    assert free.cpu_state == managers.cpu_state and free.memory.state == managers.memory.state
    assert shown(admitted(free, second), second)["pod"] == "1-7"
    assert taken.release(["a"]).release(["a"]).holders() == frozenset()


# metrics


def test_metrics() -> None:
    result = admit((m := whole_managers(EIGHT)).topology, m.providers, whole_pod("a", "4", "2", "", init=("1",)))
    assert isinstance(result, Admitted)
    counted = Counter((increment.metric, *(label for _, label in increment.labels)) for increment in result.increments)
    assert {key: number for key, number in counted.items() if key[0].startswith("resource_manager")} == {
        ("resource_manager_allocations_total", "cpu", "pod"): 3,
        ("resource_manager_allocations_total", "memory", "pod"): 3,
        ("resource_manager_container_assignments", "cpu", "pod_exclusive"): 2,
        ("resource_manager_container_assignments", "cpu", "pod_shared"): 1,
        ("resource_manager_container_assignments", "memory", "pod_exclusive"): 2,
        ("resource_manager_container_assignments", "memory", "pod_shared"): 1,
    }
    assert counted[("kubelet_cpu_manager_pinning_requests_total",)] == 2
    assert counted[("kubelet_memory_manager_pinning_requests_total",)] == 3
    again = admit(m.topology, result.providers, whole_pod("a", "4", "2", "", init=("1",)))
    assert isinstance(again, Admitted)
    assert [increment.metric for increment in again.increments if increment.metric.startswith("resource_manager")] == []


@pytest.mark.parametrize(
    ("scope", "pod", "expected"),
    [
        ("container", make_pod("a", "1"), [
            ("resource_manager_allocations_total", "cpu", "node"),
            ("resource_manager_container_assignments", "cpu", "node_exclusive"),
            ("resource_manager_allocations_total", "memory", "node"),
            ("resource_manager_container_assignments", "memory", "node_exclusive"),
        ]),
        ("pod", whole_pod("a", "9", ""), [("resource_manager_allocation_errors_total", "cpu", "pod")]),
        ("pod", whole_pod("a", "1", "", memory="99Gi"), [
            ("resource_manager_allocations_total", "cpu", "pod"),
            ("resource_manager_container_assignments", "cpu", "pod_shared"),
            ("resource_manager_allocation_errors_total", "memory", "pod"),
        ]),
        ("container", make_pod("a", "9"), [("resource_manager_allocation_errors_total", "cpu", "node")]),
    ],
)  # fmt: skip
def test_metrics_of_containers_and_of_errors(scope: str, pod: Pod, expected: list[tuple[str, ...]]) -> None:
    managers = whole_managers(EIGHT, "best-effort", scope)
    result = admit(managers.topology, managers.providers, pod)
    assert isinstance(result, Admitted | PlacementRejection)
    names = [(increment.metric, *(label for _, label in increment.labels)) for increment in result.increments]
    assert [name for name in names if name[0].startswith("resource_manager")] == expected
    off = make_managers(EIGHT, "best-effort", scope)
    plain = admit(off.topology, off.providers, pod)
    assert isinstance(plain, Admitted | PlacementRejection)
    assert not [increment for increment in plain.increments if increment.metric.startswith("resource_manager")]


# cost


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(whole_pod("a", "31", *[""] * 500), id="all-share"),
        pytest.param(whole_pod("a", "31", "", init=("",) * 499), id="init-containers-that-share"),
        pytest.param(whole_pod("a", "31", *["1"] * 30, *[""] * 470, memory="40Gi"), id="some-have-their-own"),
        pytest.param(whole_pod("a", "31", "", sidecars=("500m",) * 499, memory="600Gi"), id="memory-of-their-own"),
    ],
)
def test_a_pod_of_500_containers_holds_nothing_up(pod: Pod) -> None:
    managers = whole_managers(Shape(cores_per_node=16, node_memory=1000 * GIB))

    async def place() -> None:
        after = admitted(managers, pod)
        await asyncio.sleep(0)
        placement = after.placement(pod, 0.0)
        await asyncio.sleep(0)
        assert after.has_all(pod) and len(placement.containers) == 500
        await asyncio.sleep(0)
        assert not after.release(["a"]).holders()

    check_cost("a pod as a whole", place)


# whatever happens


SHAPES = (EIGHT, TWO, Shape(sockets=2, cores_per_node=6), Shape(sockets=2, nodes_per_socket=2, cores_per_node=3))


OPTIONS: tuple[tuple[str, ...], ...] = (
    (),
    ("full-pcpus-only",),
    ("distribute-cpus-across-numa",),
    ("distribute-cpus-across-cores",),
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SHAPES), st.sampled_from(OPTIONS), st.sampled_from(("best-effort", "restricted")), st.data())
def test_whatever_comes_and_goes_nothing_is_lost_or_given_twice(
    shape: Shape, options: tuple[str, ...], policy: str, data: st.DataObject
) -> None:
    """Pods come and go, the agent restarts, and a pod is asked about again: `FilledNode` checks each step."""
    node = FilledNode(make_managers(shape, policy, "pod", options, pod_level=True))
    unused, random = node.managers, Random(data.draw(st.integers(0, 2**32)))
    for number in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(("admit", "admit", "release", "restart", "again")))
        if step == "admit":
            node.admit(random_whole_pod(random, number, cpus=2))
        elif step == "restart":
            node.restart()
        elif node.pods and step == "release":
            node.release([random.choice(list(node.pods))])
        elif node.pods:
            pod, before = random.choice(list(node.pods.values())), node.managers
            node.admit(pod)
            assert node.managers.cpu_state == before.cpu_state and node.managers.memory.state == before.memory.state
        node.check()
    node.release(list(node.pods))
    assert node.managers.cpu_state.default == unused.cpu_state.default
    assert node.managers.memory.state == unused.memory.state and node.managers.holders() == frozenset()

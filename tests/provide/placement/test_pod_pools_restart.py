"""Pods that have CPUs and memory as a whole, over a restart: with their state files, with other settings, and without files."""

from __future__ import annotations

import pytest
from provide.placement.cpu_pods import make_manager, make_pod
from provide.placement.pool_pods import EIGHT, TWO, admitted, memory_of, rejected, shown, whole_managers, whole_pod
from provide.placement.stand import view
from provide.placement.together import start_memory
from support.machines import Shape

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cpuset import parse_cpuset
from pykubelet.base.kit.values import replace
from pykubelet.base.model.machine import TopologyHint
from pykubelet.base.model.observed import Observed
from pykubelet.provide.placement import cpu_manager, cpu_state, memory_state
from pykubelet.provide.placement.cpu_manager import CpuManager, CpuState
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.provider import ManagerStartError
from pykubelet.provide.placement.rebuild import as_running, rebuilt

ALONE = TopologyHint(frozenset({0}), True)


def restarted(managers: Managers, shape: Shape, *, pod_level: bool = True) -> Managers:
    """The managers after a restart with their state files, before any pod is admitted again."""
    assert managers.cpus is not None
    text = cpu_state.encode("static", managers.cpu_state, has_data=True)
    state = cpu_manager.start(managers.cpus.policy, cpu_state.decode(text, "static", {}))
    assert isinstance(state, CpuState), state
    file = memory_state.encode("Static", managers.memory.state, has_data=True)
    memory = start_memory(shape.machine, file, pod_level=pod_level)
    policy = replace(managers.cpus.policy, pod_level=pod_level)
    topology = replace(managers.topology, pod_level=pod_level)
    return replace(managers, topology=topology, cpus=CpuManager(policy, state), memory=memory)


def with_cpus(managers: Managers, state: CpuState) -> Managers:
    assert managers.cpus is not None
    return replace(managers, cpus=replace(managers.cpus, state=state))


@pytest.mark.parametrize("cores", [4, 6])
@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
def test_a_restart_neither_moves_a_pod_nor_rejects_it(cores: int, policy: str) -> None:
    """On 4 CPUs, there are none for the same pod again; on 6, there would be others."""
    shape, pod = Shape(cores_per_node=cores, threads=1), whole_pod("a", "2", "1", "")
    before = admitted(whole_managers(shape, policy), pod)
    after = restarted(before, shape)
    again = admitted(after, pod)
    assert again.cpu_state == before.cpu_state
    assert admitted(again, pod).cpu_state == before.cpu_state


def test_a_restart_books_no_memory_again() -> None:
    """10Gi of 16Gi are taken, so there is no such pod a second time."""
    pod = whole_pod("a", "2", "1", "", memory="10Gi")
    before = admitted(whole_managers(EIGHT), pod)
    again = admitted(restarted(before, EIGHT), pod)
    assert again.memory.state == before.memory.state
    small = whole_pod("b", "2", "1", "", memory="2Gi")
    before = admitted(before, small)
    assert admitted(restarted(before, EIGHT), small).memory.state == before.memory.state


@pytest.mark.parametrize("containers", [("1", "1"), ("1", ""), ("", "")])
def test_after_a_restart_the_pod_is_still_wanted_on_its_node(containers: tuple[str, ...]) -> None:
    """Not on the nodes that fit one of its containers: a pod of several containers has not what one of them has."""
    first, pod = whole_pod("a", "3", "", memory="10Gi"), whole_pod("b", "3", *containers, memory="10Gi")
    before = admitted(admitted(whole_managers(TWO), first), pod)
    after = restarted(before, TWO)
    assert after.memory.pod_hints(pod) == {"memory": (TopologyHint(frozenset({1}), True),)}
    (best,) = [hint for hint in after.cpus.pod_hints(pod)["cpu"] or () if hint.preferred] if after.cpus else []
    assert best.nodes == frozenset({1})
    assert admitted(after, pod).memory.state == before.memory.state
    gone = after.release(["a"])
    assert admitted(gone, pod).cpu_state == gone.cpu_state, "also if another node has become free"


def test_a_pod_whose_init_container_has_completed_keeps_all() -> None:
    pod = whole_pod("a", "4", "2", "", init=("1", ""), memory="10Gi")
    managers = admitted(whole_managers(EIGHT), pod)
    running = replace(managers, memory=managers.memory.release_completed(pod, "c0"))
    assert memory_of(running, pod) == {"pod": 10, "c0": 1, "c1": 9}
    assert running.memory.state.machine == managers.memory.state.machine, "the pod keeps its memory"
    after = restarted(running, EIGHT)
    assert admitted(after, pod).memory.state == running.memory.state
    assert after.memory.cpuset_mems("a", "i0") == "0", "also if an init container runs again"
    assert after.has_all(pod)


@pytest.mark.parametrize(
    ("pod", "pool", "parts", "expected"),
    [
        pytest.param(whole_pod("a", "4", "2", "2"), "3-6", {"c0": "3-4", "c1": "5-6"}, {"c0": "3-4", "c1": "5-6"}, id="complete"),
        pytest.param(whole_pod("a", "4", "2", "2"), "1-4", {"c0": "3-4"}, {"c0": "3-4", "c1": "1-2"}, id="one-is-missing"),
        pytest.param(whole_pod("a", "4", "2", "2"), "1-4", {"c1": "1-2"}, {"c0": "3-4", "c1": "1-2"}, id="the-first-is-missing"),
        pytest.param(whole_pod("a", "4", "2", "2"), "4-7", {}, {"c0": "4-5", "c1": "6-7"}, id="all-are-missing"),
        pytest.param(whole_pod("a", "3", "2", ""), "1-3", {"c0": "1-2"}, {"c0": "1-2", "c1": "(3)"}, id="a-sharer-is-missing"),
        pytest.param(whole_pod("a", "2", "2", init=("2",)), "1-2", {"i0": "1-2"}, {"i0": "1-2", "c0": "1-2"}, id="after-init"),
        pytest.param(whole_pod("a", "4", "2", sidecars=("2",)), "1-4", {"s0": "3-4"}, {"s0": "3-4", "c0": "1-2"}, id="after-sidecar"),
        pytest.param(whole_pod("a", "4", "2", sidecars=("2",)), "1-4", {"c0": "1-2"}, {"s0": "3-4", "c0": "1-2"}, id="before-sidecar"),
        pytest.param(whole_pod("a", "4", "2", "2"), "1-4", {"c0": "1-3"}, {"c0": "1-2", "c1": "3-4"}, id="of-another-size"),
    ],
)  # fmt: skip
def test_what_a_file_has_stays_and_what_it_lacks_comes_from_the_pool(
    pod: Pod, pool: str, parts: dict[str, str], expected: dict[str, str]
) -> None:
    cpus = parse_cpuset(pool)
    given = {name: parse_cpuset(part) for name, part in parts.items()}
    state = CpuState(frozenset(range(8)) - cpus, {"a": given} if given else {}, pools={"a": cpus})
    unused = whole_managers(EIGHT)
    after = admitted(restarted(with_cpus(unused, state), EIGHT), pod)
    assert shown(after, pod) == {"pod": pool, **expected}
    assert after.cpu_state.default == state.default
    assert after.release(["a"]).cpu_state.default == frozenset(range(8))


def test_a_pool_that_is_free_again_is_dropped_at_the_start() -> None:
    """Its last container was gone, and its CPUs free, before the pool itself was removed."""
    stale = CpuState(frozenset(range(8)), {}, pools={"a": parse_cpuset("5-6")})
    after = restarted(with_cpus(whole_managers(EIGHT), stale), EIGHT)
    assert after.cpu_state == CpuState(frozenset(range(8)))
    pod = whole_pod("a", "2", "")
    assert shown(admitted(after, pod), pod) == {"pod": "1-2", "c0": "(1-2)"}


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (CpuState(parse_cpuset("0-6"), {"a": {"c": parse_cpuset("7")}}, pools={"a": parse_cpuset("6-7")}),
         'pod: a cpuset: "6-7" overlaps with default cpuset "0-6"'),
        (CpuState(parse_cpuset("0-5"), {}, pools={"a": parse_cpuset("6")}),
         'current set of available CPUs "0-7" doesn\'t match with CPUs in state "0-6"'),
        (CpuState(parse_cpuset(""), {}, pools={"a": parse_cpuset("0-7")}), "default cpuset cannot be empty"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_of_this_machine_stops_the_start(state: CpuState, problem: str) -> None:
    assert cpu_manager.start(make_manager(EIGHT).policy, state) == ManagerStartError(problem)


@pytest.mark.parametrize("is_booked", [False, True])
def test_a_pool_of_memory_without_containers_is_kept_only_if_it_is_booked(is_booked: bool) -> None:
    """kubernetes/kubernetes issue 141993: a pool that was written and not booked is none."""
    unused, pod = whole_managers(EIGHT), whole_pod("a", "2", "1", "")
    whole = admitted(unused, pod).memory.state
    machine = whole.machine if is_booked else unused.memory.state.machine
    state = replace(whole, machine=machine, entries={})
    after = start_memory(EIGHT.machine, memory_state.encode("Static", state), pod_level=True)
    assert after.state.pools == (whole.pools if is_booked else {})
    again = after.allocate_pod(pod, ALONE).after
    assert again == replace(after, state=whole)
    assert after.release_others({}).state == unused.memory.state
    assert after.release_others({"a": ()}).state == after.state, "the pod may still come"


def test_without_the_gate_again_a_pod_keeps_what_it_has_until_it_ends() -> None:
    pod = whole_pod("a", "4", "2", "")
    before = admitted(whole_managers(EIGHT), pod)
    off = restarted(before, EIGHT, pod_level=False)
    again = admitted(off, pod)
    assert again.cpu_state == before.cpu_state and again.memory.state == before.memory.state
    assert shown(again, pod) == {"pod": "1-4", "c0": "1-2", "c1": "(3-4)"}
    assert off.release(["a"]).memory.state == whole_managers(EIGHT).memory.state
    assert off.release(["a"]).cpu_state == CpuState(frozenset(range(8)))
    new = whole_pod("b", "2", "1")
    assert admitted(off, new).cpu_state == off.cpu_state, "new pods use the shared pool"


def test_from_containers_to_the_pod_what_runs_stays_where_it_is() -> None:
    pod = whole_pod("a", "4", "2", "", init=("3",))
    by_container = admitted(whole_managers(EIGHT, scope="container"), pod)
    assert shown(by_container, pod) == {"pod": "", "i0": "1-3", "c0": "1-2"}
    whole = admitted(replace(by_container, topology=whole_managers(EIGHT).topology), pod)
    assert shown(whole, pod) == {"pod": "1-4", "i0": "1-3", "c0": "1-2", "c1": "(3-4)"}
    assert memory_of(whole, pod) == {"pod": 8, "i0": 1, "c0": 1, "c1": 7}
    assert whole.release(["a"]).memory.state == whole_managers(EIGHT).memory.state


def test_a_running_pod_without_free_cpus_for_a_whole_one_stays() -> None:
    pod, other = whole_pod("a", "4", "2", ""), make_pod("b", "5")
    by_container = admitted(admitted(whole_managers(EIGHT, scope="container"), pod), other)
    now = replace(by_container, topology=whole_managers(EIGHT).topology)
    assert rejected(now, pod).reason == "TopologyAffinityError"
    assert now.has_all(pod), "so it is not ended"


def test_from_the_pod_to_containers_nothing_changes() -> None:
    pod = whole_pod("a", "4", "2", "", init=("1",))
    whole = admitted(whole_managers(EIGHT), pod)
    running = replace(whole, memory=whole.memory.release_completed(pod, "c1"))
    now = replace(running, topology=whole_managers(EIGHT, scope="container").topology)
    assert admitted(now, pod).memory.state == running.memory.state
    assert admitted(now, pod).cpu_state == running.cpu_state


def test_a_resized_pod_is_not_what_it_requests() -> None:
    managers, pod = admitted(whole_managers(EIGHT), whole_pod("a", "4", "2", "")), whole_pod("a", "5", "2", "")
    assert not managers.has_all(pod)
    assert managers.cpus is not None and managers.cpus.pod_hints(pod) == {"cpu": ()}
    assert managers.memory.pod_hints(whole_pod("a", "4", "2", "", memory="9Gi")) == {}


@pytest.mark.parametrize(
    ("pod", "found", "expected"),
    [
        (whole_pod("a", "4", "2", ""), {"c0": "3-4", "c1": "6-7"}, {"pod": "3-4,6-7", "c0": "3-4", "c1": "(6-7)"}),
        (whole_pod("a", "4", "", ""), {"c0": "4-7", "c1": "4-7"}, {"pod": "4-7", "c0": "(4-7)", "c1": "(4-7)"}),
        (whole_pod("a", "4", "2"), {"c0": "6-7"}, {"pod": "1-2,6-7", "c0": "6-7"}),
        (whole_pod("a", "4", "2", ""), {"c0": "6-7"}, {"pod": "1-2,6-7", "c0": "6-7", "c1": "(1-2)"}),
    ],
)
def test_what_runs_is_found_without_state_files(pod: Pod, found: dict[str, str], expected: dict[str, str]) -> None:
    empty = replace(whole_managers(EIGHT), is_new=True, is_memory_new=True)
    running = view(pod, found, dict.fromkeys(found, "0"))
    observed = Observed(pods={running.ref.uid: running}, listed_at=1.0)
    managers = as_running(rebuilt(empty, observed), pod, running)
    after = admitted(managers, pod)
    assert shown(after, pod) == expected
    assert memory_of(after, pod)["pod"] == 8
    assert after.release(["a"]).cpu_state == CpuState(frozenset(range(8)))
    assert after.release(["a"]).memory.state == empty.memory.state

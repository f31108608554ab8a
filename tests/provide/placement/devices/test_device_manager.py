"""Which devices containers get: tables of the documented behavior, and invariants of random histories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cost import check_cost

from pykubelet.base.api.core import ContainerExtendedResourceRequest, Pod, PodExtendedResourceClaimStatus
from pykubelet.base.kit.values import replace
from pykubelet.base.model.machine import TopologyHint
from pykubelet.base.model.placement import DeviceResource
from pykubelet.provide.placement.devices.device_hints import device_hints
from pykubelet.provide.placement.devices.device_manager import AllocateCall, DeviceManager
from pykubelet.provide.placement.devices.device_state import DeviceEntry, state_of
from pykubelet.provide.placement.provider import AllocationError, PreferredAllocationRequest
from pykubelet.provide.placement.topology_options import Policy, Scope, Topology
from pykubelet.provide.placement.topology_scopes import Admitted, PlacementRejection, admit

R = "example.com/r"
ANYWHERE = TopologyHint(None, False)
NONE = Topology(Policy.NONE, Scope.CONTAINER, (0, 1))
#: Devices by name, with the NUMA nodes of each; None: the plugin reports no topology.
Listed = Mapping[str, tuple[int, ...] | None]


def resource(healthy: Listed, unhealthy: Listed | None = None, *, prefers: bool = False) -> DeviceResource:
    """The resource of a plugin that listed these devices."""
    nodes = {name: own for name, own in {**healthy, **(unhealthy or {})}.items() if own is not None}
    groups = {own: frozenset(name for name in nodes if nodes[name] == own) for own in set(nodes.values()) - {()}}
    return DeviceResource(frozenset(healthy), frozenset(unhealthy or ()), nodes, groups, prefers=prefers)


def manager(**resources: DeviceResource) -> DeviceManager:
    return DeviceManager(
        (0, 1), {f"example.com/{name}": device_resource for name, device_resource in resources.items()}
    )


def flat(*names: str) -> dict[str, None]:
    return dict.fromkeys(names)


def container(name: str, restart: str = "", **counts: int) -> dict[str, Any]:
    amounts = {f"example.com/{key}": str(count) for key, count in counts.items()}
    return {"name": name, "restartPolicy": restart, "resources": {"requests": amounts, "limits": amounts}}


def make_pod(uid: str, *containers: dict[str, Any], init: Sequence[dict[str, Any]] = ()) -> Pod:
    spec = {"initContainers": list(init), "containers": list(containers)}
    return msgspec.convert({"metadata": {"uid": uid, "name": uid}, "spec": spec}, Pod)


def place(
    before: DeviceManager, pod: Pod, topology: Topology = NONE
) -> DeviceManager | PlacementRejection | PreferredAllocationRequest:
    """The manager after the pod's admission, with answers of the plugins to `Allocate`."""
    result = admit(topology, [before], pod)
    if not isinstance(result, Admitted):
        return result
    (after,) = result.providers
    assert isinstance(after, DeviceManager)
    for call in after.unanswered(pod.metadata.uid):
        after = after.with_response(pod.metadata.uid, call, b"response")
    return after


def placed(before: DeviceManager, pod: Pod, topology: Topology = NONE) -> DeviceManager:
    after = place(before, pod, topology)
    assert isinstance(after, DeviceManager), after
    return after


def ids(after: DeviceManager, uid: str, name: str = "app", key: str = R) -> str:
    entry = after.state.entry(uid, name, key)
    return " ".join(sorted(entry.ids)) if entry else ""


def rejection(text: str) -> str:
    return f"Allocate failed due to {text}, which is unexpected"


# allocation


def test_containers_get_free_healthy_devices_and_release_gives_them_back() -> None:
    first = placed(manager(r=resource(flat("a", "b", "c"), flat("x"))), make_pod("1", container("app", r=2)))
    assert ids(first, "1") == "a b"
    second = placed(first, make_pod("2", container("app", r=1)))
    assert ids(second, "2") == "c"
    full = place(second, make_pod("3", container("app", r=1)))
    text = f"requested number of devices unavailable for {R}. Requested: 1, Available: 0"
    assert isinstance(full, PlacementRejection)
    assert (full.reason, full.message) == ("UnexpectedAdmissionError", rejection(text))
    assert ids(placed(second.release(["1"]), make_pod("3", container("app", r=1))), "3") == "a"


def test_other_resources_are_left_alone() -> None:
    pod = make_pod("1", container("app", other=1))
    before = manager(r=resource(flat("a")))
    assert placed(before, pod).state == before.state
    assert before.hints(pod, pod.spec.containers[0]) == before.pod_hints(pod) == {}


@pytest.mark.parametrize(
    ("known", "text"),
    [
        (None, f"cannot allocate unregistered device {R}"),
        (resource({}), f"no healthy devices present; cannot allocate unhealthy devices {R}"),
        (resource({}, flat("a")), f"no healthy devices present; cannot allocate unhealthy devices {R}"),
        (
            resource(flat("b", "c"), flat("a")),
            f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {R}",
        ),
        (resource(flat("a")), f'pod "1" container "app" changed request for resource "{R}" from 1 to 2'),
    ],
)
def test_refusals_of_a_pod_that_had_devices(known: DeviceResource | None, text: str) -> None:
    had = state_of({"1": {"app": {R: DeviceEntry({-1: frozenset({"a"})}, b"")}}})
    before = DeviceManager((0,), {} if known is None else {R: known}, had)
    count = 2 if "changed" in text else 1
    result = place(before, make_pod("1", container("app", r=count)))
    assert isinstance(result, PlacementRejection)
    assert result.message == rejection(text)
    # a container that was running when the agent started keeps what it has
    running = replace(before, running=frozenset({("1", "app")}))
    if count == 1:
        assert placed(running, make_pod("1", container("app", r=1))).state == had


def test_a_pod_keeps_its_devices_when_it_is_admitted_again() -> None:
    pod = make_pod("1", container("app", r=1))
    first = placed(manager(r=resource(flat("a", "b"))), pod)
    again = placed(first, pod)
    assert again.state == first.state
    assert again.unanswered("1") == ()


def test_one_call_for_each_container_and_resource() -> None:
    pod = make_pod("1", container("app", r=1, s=2), container("log", s=1))
    result = admit(NONE, [manager(r=resource(flat("a")), s=resource(flat("k", "l", "m")))], pod)
    assert isinstance(result, Admitted)
    (after,) = result.providers
    assert isinstance(after, DeviceManager)
    assert after.unanswered("1") == (
        AllocateCall("app", R, frozenset({"a"})),
        AllocateCall("app", "example.com/s", frozenset({"k", "l"})),
        AllocateCall("log", "example.com/s", frozenset({"m"})),
    )
    gone = AllocateCall("app", R, frozenset({"b"}))
    assert after.with_response("1", gone, b"") == after == after.with_response("2", gone, b"")


def test_devices_behind_a_resource_claim_are_not_those_of_a_plugin() -> None:
    pod = make_pod("1", container("app", r=1, s=1), container("log", r=1))
    rows = (ContainerExtendedResourceRequest(containerName="app", resourceName=R, requestName="request-0"),)
    claim = PodExtendedResourceClaimStatus(requestMappings=rows, resourceClaimName="claim")
    pod = replace(pod, status=replace(pod.status, extendedResourceClaimStatus=claim))
    before = manager(r=resource(TWO_NODES), s=resource(flat("k")))
    assert before.hints(pod, pod.spec.containers[0]) == {"example.com/s": None}
    assert before.pod_hints(pod)[R] == (
        hint({0}, preferred=True),
        hint({1}, preferred=True),
        hint({0, 1}, preferred=False),
    )
    after = placed(before, pod)
    assert [ids(after, "1", *where) for where in (("app",), ("app", "example.com/s"), ("log",))] == ["", "k", "a0"]


# init containers


def test_devices_of_plain_init_containers_are_used_again() -> None:
    init = [container("i0", r=2), container("i1", r=1)]
    pod = make_pod("1", container("app", r=1), container("log", r=2), init=init)
    after = placed(manager(r=resource(flat("a", "b", "c", "d"))), pod)
    assert [ids(after, "1", name) for name in ("i0", "i1", "app", "log")] == ["a b", "a", "a", "b c"]


def test_devices_of_sidecars_are_not() -> None:
    init = [container("i0", r=2), container("side", "Always", r=1), container("i1", r=1)]
    pod = make_pod("1", container("app", r=1), init=init)
    after = placed(manager(r=resource(flat("a", "b", "c"))), pod)
    assert [ids(after, "1", name) for name in ("i0", "side", "i1", "app")] == ["a b", "a", "b", "b"]


def test_another_pod_does_not_get_what_can_be_reused() -> None:
    first = placed(manager(r=resource(flat("a", "b"))), make_pod("1", container("app"), init=[container("i", r=1)]))
    assert ids(placed(first, make_pod("2", container("app", r=1))), "2") == "b"


def test_a_pod_that_runs_keeps_the_devices_of_its_completed_init_containers() -> None:
    pod = make_pod("1", container("app"), init=[container("i", r=1), container("side", "Always", r=1)])
    had = placed(manager(r=resource(flat("a", "b"))), pod)
    restarted = replace(had, resources={R: DeviceResource(is_stopped=True)})
    assert isinstance(place(replace(restarted, running=frozenset()), pod), PlacementRejection)
    assert isinstance(place(replace(restarted, running=frozenset({("1", "app")})), pod), PlacementRejection), (
        "the sidecar"
    )
    running = frozenset({("1", "app"), ("1", "side")})
    assert placed(replace(restarted, running=running), pod).state == had.state
    assert placed(replace(restarted, running=None), pod).state == had.state, "what runs is not known yet"


# NUMA nodes

TWO_NODES: Listed = {"a0": (0,), "b0": (0,), "c1": (1,), "d1": (1,)}


def hint(nodes: set[int], *, preferred: bool) -> TopologyHint:
    return TopologyHint(frozenset(nodes), preferred)


@pytest.mark.parametrize(
    ("listed", "count", "expected"),
    [
        (TWO_NODES, 1, (hint({0}, preferred=True), hint({1}, preferred=True), hint({0, 1}, preferred=False))),
        (TWO_NODES, 3, (hint({0, 1}, preferred=True),)),
        (TWO_NODES, 5, ()),
        ({"a": (0,)}, 1, (hint({0}, preferred=True), hint({0, 1}, preferred=False))),
        ({"a": (0, 1)}, 1, (hint({0}, preferred=True), hint({1}, preferred=True), hint({0, 1}, preferred=False))),
        ({"a": (0,), "b": None}, 2, ()),  # too few on nodes, but enough: nothing can be aligned
        ({"a": None, "b": None}, 1, None),
        ({"a": (), "b": ()}, 1, None),
    ],
)
def test_hints(listed: Listed, count: int, expected: tuple[TopologyHint, ...] | None) -> None:
    before, pod = manager(r=resource(listed)), make_pod("1", container("app", r=count))
    assert before.hints(pod, pod.spec.containers[0]) == {R: expected}
    assert before.pod_hints(pod) == {R: expected}


def test_hints_count_only_free_devices_but_prefer_what_could_ever_fit() -> None:
    before = placed(manager(r=resource(TWO_NODES)), make_pod("1", container("app", r=1)))
    pod = make_pod("2", container("app", r=2))
    expected = {R: (hint({1}, preferred=True), hint({0, 1}, preferred=False))}
    assert before.hints(pod, pod.spec.containers[0]) == expected
    full = placed(before, make_pod("3", container("app", r=2)))
    assert full.hints(pod, pod.spec.containers[0]) == {R: ()}


def test_hints_of_a_pod_that_has_devices_are_those_of_its_devices() -> None:
    pod = make_pod("1", container("app", r=2))
    after = placed(manager(r=resource(TWO_NODES)), pod)
    expected = {R: (hint({0}, preferred=True), hint({0, 1}, preferred=False))}
    assert after.hints(pod, pod.spec.containers[0]) == after.pod_hints(pod) == expected
    other = make_pod("1", container("app", r=1))
    assert after.hints(other, other.spec.containers[0]) == after.pod_hints(other) == {R: ()}


def test_reusable_devices_bind_the_hints_of_later_containers() -> None:
    pod = make_pod("1", container("app", r=2), init=[container("i", r=1)])
    before = manager(r=resource(TWO_NODES))
    after = before.allocate(pod, pod.spec.initContainers[0], hint({1}, preferred=True)).after
    assert isinstance(after, DeviceManager)
    assert ids(after, "1", "i") == "c1"
    app = pod.spec.containers[0]
    assert after.hints(pod, app) == {R: (hint({1}, preferred=True), hint({0, 1}, preferred=False))}
    # the pod as a whole needs two, whatever it has already: it has one, so nothing fits
    assert before.pod_hints(pod)[R] == before.hints(pod, app)[R]


@pytest.mark.parametrize(
    ("nodes", "count", "expected"),
    [
        ({1}, 1, "c1"),
        ({1}, 2, "c1 d1"),
        ({1}, 3, "a0 c1 d1"),
        ({1}, 5, "a0 b0 c1 d1 n"),
        (None, 2, "a0 b0"),
    ],
)
def test_devices_on_the_nodes_of_the_hint_come_first_and_those_without_a_node_last(
    nodes: set[int] | None, count: int, expected: str
) -> None:
    before, pod = manager(r=resource({**TWO_NODES, "n": None})), make_pod("1", container("app", r=count))
    chosen = TopologyHint(None if nodes is None else frozenset(nodes), True)
    after = before.allocate(pod, pod.spec.containers[0], chosen).after
    assert isinstance(after, DeviceManager)
    assert ids(after, "1") == expected


def test_entries_are_by_node() -> None:
    after = placed(
        manager(r=resource({"a": (0, 1), "b": (1,), "c": None, "d": ()})), make_pod("1", container("app", r=4))
    )
    entry = after.state.entry("1", "app", R)
    assert entry is not None
    assert entry.by_node == {-1: {"c", "d"}, 0: {"a"}, 1: {"a", "b"}}
    assert [(assigned.resource, assigned.by_node) for assigned in after.state.assigned("1", "app")] == [
        (R, entry.by_node)
    ]


def test_single_numa_node_keeps_a_pod_together() -> None:
    topology = Topology(Policy.SINGLE_NUMA_NODE, Scope.POD, (0, 1))
    before = placed(manager(r=resource(TWO_NODES)), make_pod("1", container("app", r=1)), topology)
    after = placed(before, make_pod("2", container("app", r=1), container("log", r=1)), topology)
    assert (ids(after, "2", "app"), ids(after, "2", "log")) == ("c1", "d1")
    refused = place(before, make_pod("3", container("app", r=3)), topology)
    assert isinstance(refused, PlacementRejection)
    assert refused.reason == "TopologyAffinityError"


def hints_by_definition(
    nodes: tuple[int, ...], listed: Listed, busy: frozenset[str], reusable: frozenset[str], count: int
) -> list[TopologyHint]:
    """The documented behavior, set by set and device by device."""
    least, fitting = len(nodes), []
    for size in range(1, len(nodes) + 1):
        for chosen in combinations(nodes, size):
            on = {name for name, own in listed.items() if own and set(own) & set(chosen)}
            if len(on) >= count:
                least = min(least, size)
            if (
                all(listed[name] is None or name in on for name in reusable)
                and len((on - busy) | (on & reusable)) >= count
            ):
                fitting.append(frozenset(chosen))
    return [TopologyHint(chosen, len(chosen) == least) for chosen in fitting]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_hints_are_those_of_the_definition(data: st.DataObject) -> None:
    nodes = tuple(data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True).map(sorted)))
    own = st.none() | st.lists(st.integers(-1, 7), max_size=3, unique=True).map(lambda found: tuple(sorted(found)))
    listed: Listed = data.draw(st.dictionaries(st.sampled_from("abcdefgh"), own, max_size=8))
    subset = st.sets(st.sampled_from(sorted(listed))) if listed else st.just(set[str]())
    busy, count = frozenset(data.draw(subset)), data.draw(st.integers(0, 5))
    reusable = frozenset(data.draw(subset)) & busy  # what can be reused is in use
    found = device_hints(nodes, resource(listed), busy, reusable, count)
    assert list(found) == hints_by_definition(nodes, listed, busy, reusable, count)


# plugins that choose


def request(available: str, must: str, size: int) -> PreferredAllocationRequest:
    return PreferredAllocationRequest("1", "app", R, frozenset(available.split()), frozenset(must.split()), size)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (["c", "b"], "b c"),
        (["c"], "a c"),  # too few: filled up
        ([], "a b"),
        (["nonsense", "d", "c"], "c d"),
        (["d", "c", "b"], "b c"),  # too many: the first by name
    ],
)
def test_a_plugin_may_choose(answer: list[str], expected: str) -> None:
    before, pod = manager(r=resource(flat(*"abcd"), prefers=True)), make_pod("1", container("app", r=2))
    asked = place(before, pod)
    assert asked == request("a b c d", "", 2)
    assert isinstance(asked, PreferredAllocationRequest)
    after = placed(before.with_answer(asked, answer), pod)
    assert ids(after, "1") == expected
    assert after.settled("1").answers == {}


def test_a_plugin_chooses_among_aligned_devices_or_beside_all_of_them() -> None:
    before = manager(r=resource(TWO_NODES, prefers=True))
    for count, available, must, answer, expected in (
        (1, "c1 d1", "", ["a0", "d1"], "d1"),
        (3, "a0 b0 c1 d1", "c1 d1", ["b0"], "b0 c1 d1"),
    ):
        pod = make_pod("1", container("app", r=count))
        result = before.allocate(pod, pod.spec.containers[0], hint({1}, preferred=True)).after
        assert isinstance(result, AllocationError)
        asked = request(available, must, count)
        assert getattr(result, "request", None) == asked
        answered = before.with_answer(asked, answer)
        after = answered.allocate(pod, pod.spec.containers[0], hint({1}, preferred=True)).after
        assert isinstance(after, DeviceManager)
        assert ids(after, "1") == expected


def test_reused_devices_must_be_included() -> None:
    before = manager(r=resource(flat(*"abc"), prefers=True))
    pod = make_pod("1", container("app", r=2), init=[container("i", r=1)])
    first = PreferredAllocationRequest("1", "i", R, frozenset("abc"), frozenset(), 1)
    assert place(before, pod) == first
    answered = before.with_answer(first, ["b"])
    second = place(answered, pod)
    assert second == request("a b c", "b", 2)
    assert isinstance(second, PreferredAllocationRequest)
    assert ids(placed(answered.with_answer(second, ["b", "c"]), pod), "1") == "b c"


def test_an_answer_to_another_question_is_not_used() -> None:
    before, pod = manager(r=resource(flat(*"abcd"), prefers=True)), make_pod("1", container("app", r=2))
    answered = before.with_answer(request("a b c d", "", 2), ["c", "d"])
    fewer = replace(answered, resources={R: resource(flat(*"abc"), flat("d"), prefers=True)})
    assert place(fewer, pod) == request("a b c", "", 2)


# histories


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Admissions (pod, devices of an init container, devices of the app) and removals (pod, -1, -1)."""
    step = st.tuples(st.sampled_from("123456"), st.integers(-1, 3), st.integers(0, 3))
    return draw(st.lists(step, max_size=30))


@settings(max_examples=100, deadline=None)
@given(steps())
def test_no_device_is_lost_or_given_twice(history: list[tuple[str, int, int]]) -> None:
    before = manager(r=resource({f"d{n}": (n % 2,) for n in range(6)}))
    now, known = before, dict[str, tuple[int, int]]()
    for uid, starting, count in history:
        if starting < 0:
            now = now.release([uid])
            known.pop(uid, None)
            continue
        starting, count = known.get(uid, (starting, count))
        pod = make_pod(uid, container("app", r=count), init=[container("i", r=starting)])
        after = place(now, pod)
        if isinstance(after, DeviceManager):
            now = after
            known[uid] = (starting, count)
            assert len(now.state.pod_ids(uid, R)) == max(starting, count)
        held = [now.state.pod_ids(holder, R) for holder in known]
        assert sum(map(len, held)) == len(frozenset[str]().union(*held))
        assert now.state.in_use.get(R, frozenset()) == frozenset[str]().union(*held)
    assert now.release(list(known)).state == before.state


def test_a_pod_is_admitted_quickly_among_a_hundred_thousand_devices() -> None:
    many = resource({f"device-{n:06}": (n % 2,) for n in range(100_000)})
    before, pod = DeviceManager(tuple(range(8)), {R: many}), make_pod("1", container("app", r=3))
    topology = Topology(Policy.SINGLE_NUMA_NODE, Scope.CONTAINER, tuple(range(8)))

    async def admit_one() -> None:
        placed(before, pod, topology)

    check_cost("one pod", admit_one)

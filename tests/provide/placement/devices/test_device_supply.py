"""Devices that are taken from a supply are those that sets of all devices give; and many devices cost no container anything."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from provide.placement.devices.test_device_manager import R, container, make_pod, resource
from support.cost import count_instructions

from pykubelet.base.api.core import Container, Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.machine import TopologyHint
from pykubelet.base.model.restart import is_sidecar
from pykubelet.provide.placement.devices.device_hints import device_hints, far, near
from pykubelet.provide.placement.devices.device_manager import DeviceManager
from pykubelet.provide.placement.devices.device_supply import supply_of
from pykubelet.provide.placement.provider import (
    AllocationError,
    NeedsPluginAnswer,
    PreferenceKey,
    PreferredAllocationRequest,
)
from pykubelet.provide.placement.topology_options import Policy, Scope, Topology
from pykubelet.provide.placement.topology_scopes import Admitted, admit

NODES = (0, 1, 2)
NONE = frozenset[str]()
HINTS = [None, frozenset({0}), frozenset({1}), frozenset({0, 1}), frozenset({2})]


def chosen_by_definition(
    manager: DeviceManager, pod: Pod, c: Container, hint: TopologyHint
) -> frozenset[str] | PreferredAllocationRequest | str:
    """The devices of a container without any yet, by sets of all devices; the request; or the error."""
    uid, count, known = pod.metadata.uid, manager.wanted(pod, c)[R], manager.resources[R]
    in_use = manager.state.in_use.get(R, NONE)
    reusable = manager.reusable.get(R, NONE) if manager.reusable_pod == uid else NONE
    taken = first(reusable, count)
    if len(taken) == count:
        return taken
    free = known.healthy - in_use - taken
    if len(free) < count - len(taken):
        return f"Requested: {count - len(taken)}, Available: {len(free)}"
    busy = in_use | known.unhealthy | taken
    aligned = near(known, busy, hint)
    is_enough = count - len(taken) < len(aligned)
    choices = aligned if is_enough else free
    taken = taken if is_enough else taken | aligned
    if len(taken) < count and known.prefers:
        request = PreferredAllocationRequest(uid, c.name, R, choices | taken, taken, count)
        if request.key not in manager.answers:
            return request
        taken |= first((manager.answers[request.key] & choices) - taken, count - len(taken))
    for rank in (choices,) if is_enough else (far(known, busy, hint), free):
        taken |= first(rank - taken, count - len(taken))
    return taken


def first(ids: frozenset[str], count: int) -> frozenset[str]:
    return frozenset(sorted(ids)[: max(count, 0)])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_devices_are_chosen_as_by_the_definition(data: st.DataObject) -> None:
    own = st.none() | st.lists(st.integers(0, 3), max_size=2, unique=True).map(lambda nodes: tuple(sorted(nodes)))
    listed = data.draw(st.dictionaries(st.sampled_from("abcdefghijkl"), own, min_size=3, max_size=12))
    ill = data.draw(st.sets(st.sampled_from(sorted(listed)), max_size=2))
    healthy, unhealthy = ({n: listed[n] for n in listed if (n in ill) is is_ill} for is_ill in (False, True))
    manager = DeviceManager(NODES, {R: resource(healthy, unhealthy, prefers=data.draw(st.booleans()))})
    restarts, counts = st.sampled_from(["", "", "Always"]), st.integers(0, 3)
    for uid in ("1", "2"):
        init = [
            container(f"i{n}", data.draw(restarts), r=data.draw(counts)) for n in range(data.draw(st.integers(0, 3)))
        ]
        apps = [container(f"c{n}", r=data.draw(counts)) for n in range(data.draw(st.integers(1, 3)))]
        pod = make_pod(uid, *apps, init=init)
        for c in (*pod.spec.initContainers, *pod.spec.containers):
            assert manager.hints(pod, c) == replace(manager, supplies={}).hints(pod, c)
            hint = TopologyHint(data.draw(st.sampled_from(HINTS)), False)
            manager = allocated(data, manager, pod, c, hint)
        if data.draw(st.booleans()):
            manager = manager.release([uid])


def allocated(data: st.DataObject, manager: DeviceManager, pod: Pod, c: Container, hint: TopologyHint) -> DeviceManager:
    """The manager after the container has its devices, which are those of the definition."""
    known = manager.resources[R]
    after = manager.allocate(pod, c, hint).after
    expected: object = chosen_by_definition(manager, pod, c, hint) if known.healthy else "no healthy devices"
    if isinstance(after, NeedsPluginAnswer):
        assert after.request == expected
        answer = data.draw(st.lists(st.sampled_from("abcdefghijklxyz"), max_size=4, unique=True))
        answered = manager.with_answer(after.request, answer)
        assert answered.allocate(pod, c, hint).after is not None
        return allocated(data, answered, pod, c, hint)
    if isinstance(after, AllocationError):
        assert isinstance(expected, str) and expected in after.text
        return manager
    entry = after.state.entry(pod.metadata.uid, c.name, R)
    assert (entry.ids if entry else NONE) == expected
    in_use = after.state.in_use.get(R, NONE)
    carried, anew = after.supplies[R], supply_of(known, in_use, 100)
    for part, whole in ((carried.free, anew.free), *((carried.groups[own], anew.groups[own]) for own in anew.groups)):
        assert part.count == whole.count
        assert part.first == whole.first[: len(part.first)]
    if entry is not None:
        others = (known.healthy | known.unhealthy) - entry.ids
        again = device_hints(NODES, known, others, NONE, len(entry.ids)) if known.groups else None
        assert after.hints(pod, c)[R] == again
    completes = c in pod.spec.initContainers and not is_sidecar(c)
    assert completes or not after.reusable.get(R, NONE) & (entry.ids if entry else NONE)
    return after


def test_an_answer_without_its_devices_is_that_of_a_recording() -> None:
    pod = make_pod("1", container("app", r=1))
    key = PreferenceKey("1", "app", R, NONE, 1)
    manager = DeviceManager(NODES, {R: resource({"a": None, "b": None}, prefers=True)}, answers={key: frozenset("b")})
    after = manager.allocate(pod, pod.spec.containers[0], TopologyHint(None, False)).after
    assert isinstance(after, DeviceManager)
    assert after.state.in_use == {R: frozenset("b")}


class CountedIds(frozenset[str]):
    """A set that counts how often it is copied or gone through as a whole."""

    passes = 0

    def __sub__(self, other: object) -> frozenset[str]:
        CountedIds.passes += 1
        return frozenset(self).difference(other)  # type: ignore[arg-type]

    def __iter__(self):  # type: ignore[no-untyped-def]
        CountedIds.passes += 1
        return super().__iter__()


@pytest.mark.parametrize("policy", [Policy.NONE, Policy.BEST_EFFORT])
def test_sets_of_all_devices_are_gone_through_once_for_a_pod(policy: Policy) -> None:
    listed = {f"d{number:04}": (number % 2,) for number in range(400)}
    known = resource(listed)
    counted = replace(
        known, healthy=CountedIds(known.healthy), groups={o: CountedIds(i) for o, i in known.groups.items()}
    )
    passes = []
    for count in (10, 100):
        CountedIds.passes = 0
        pod = make_pod("1", *(container(f"c{n}", r=1) for n in range(count)))
        manager = DeviceManager(NODES, {R: counted})
        assert isinstance(admit(Topology(policy, Scope.CONTAINER, NODES), [manager], pod), Admitted)
        passes.append(CountedIds.passes)
    assert passes[0] == passes[1] < 10


@pytest.mark.parametrize("policy", [Policy.NONE, Policy.BEST_EFFORT])
def test_the_work_for_devices_grows_with_the_number_of_containers(policy: Policy) -> None:
    manager = DeviceManager(NODES, {R: resource({f"d{n:04}": (n % 2,) for n in range(400)})})
    topology = Topology(policy, Scope.CONTAINER, NODES)
    pods = [make_pod("1", *(container(f"c{n}", r=1) for n in range(count))) for count in (40, 80, 160)]
    few, more, many = (count_instructions(lambda pod=pod: admit(topology, [manager], pod)) for pod in pods)  # type: ignore[misc]
    assert many - more <= 2.2 * (more - few)

"""Pods with very many volumes: what one step does has a bound, and the cost of all steps grows with the number of volumes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import cache, partial
from typing import Any

import pytest
from provide.volumes.samples import (
    NODE,
    check_published,
    claimed,
    empty_dir,
    inputs,
    lifecycles,
    make_pod,
    moment,
    roster,
)
from support.cost import count_instructions

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import HostPathVolumeSource, Pod, Volume
from pykubelet.base.kit.cells import Sink
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Absent, Content, ContentKind, ObjectKey
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.roster import Roster
from pykubelet.provide.volumes.decide import step_all
from pykubelet.provide.volumes.execute import COLLECTED_S, MANY, Results
from pykubelet.provide.volumes.model import (
    Command,
    DirectoryMade,
    DirectoryRemoved,
    Event,
    FoundPod,
    FoundVolume,
    Inputs,
    InputsChanged,
    MakePodDirectory,
    MountPhase,
    RecordEvent,
    RemovePodDirectory,
    Result,
    Resumed,
    Scanned,
    SetUp,
    SetUpEnded,
    State,
    TearDown,
    TearDownEnded,
)
from pykubelet.provide.volumes.plan import plan_volume
from pykubelet.provide.volumes.work import MAX_NAMED, MAX_RUNNING, PLANS_AT_ONCE

pytestmark = pytest.mark.virtual_time

UID = PodUID("u1")
PATHS = Paths("/k", "/logs")
#: Of one step: they take about 30 ms.
INSTRUCTIONS = 4_000_000
#: More than any test here takes.
STEPS = 5_000


class Node:
    """The volume manager with operations that take no time. `longest`, `total`: the instructions of steps, if `count`."""

    def __init__(self, *, check: bool = False, count: bool = False) -> None:
        self.state = State()
        self.under_way: list[Command] = []
        self.most = self.most_set_ups = 0
        self.longest = self.total = 0
        self.commands: list[Command] = []
        self._check, self._count = check, count

    def see(self, *events: Event) -> None:
        if self._count:
            spent = count_instructions(lambda: self._step(events))
            self.longest, self.total = max(self.longest, spent), self.total + spent
        else:
            self._step(events)

    def _step(self, events: tuple[Event, ...]) -> None:
        self.state, commands = step_all(self.state, events, moment(), PATHS)
        self.commands += commands
        self.most_set_ups = max(self.most_set_ups, sum(isinstance(command, SetUp) for command in commands))
        self.under_way += [command for command in commands if not isinstance(command, RecordEvent)]
        self.most = max(self.most, len(self.under_way))
        if self._check:
            check_published(self.state)
            assert self.most_set_ups <= PLANS_AT_ONCE

    def end(self, commands: Iterable[Command], result: Result = Result.DONE) -> None:
        events: list[Event] = []
        for command in list(commands):
            self.under_way.remove(command)
            match command:
                case SetUp(uid, key):
                    events.append(SetUpEnded(uid, key, result, "" if result is Result.DONE else "broken"))
                case TearDown(uid, key):
                    events.append(TearDownEnded(uid, key, result))
                case MakePodDirectory(uid):
                    events.append(DirectoryMade(uid, result))
                case RemovePodDirectory(uid):
                    events.append(DirectoryRemoved(uid, result))
        self.see(*events)

    def settle(self, at_once: int = MANY) -> None:
        for _ in range(STEPS):
            if self.state.unfinished:
                self.see(Resumed())
            if self.under_way:
                self.end(self.under_way[:at_once])
            if not (self.under_way or self.state.unfinished):
                return
        raise AssertionError(f"no end after {STEPS} steps: {self.state.unfinished[:3]} {self.under_way[:3]}")

    def run(self, now: Inputs, **options: int) -> None:
        self.see(InputsChanged(now))
        self.settle(**options)


def big_pod(number: int) -> Pod:
    return make_pod(*(empty_dir(f"v{n}") for n in range(number)))


@pytest.mark.parametrize("at_once", [1, MANY, 10_000])
def test_many_volumes_are_mounted_and_unmounted_a_few_at_a_time(at_once: int) -> None:
    node, pod = Node(check=True), big_pod(300)
    node.run(inputs(roster(pod)), at_once=at_once)
    assert node.state.mounts.pods[UID].ready
    assert len(node.state.mounts.pods[UID].volumes) == 300
    assert node.most == MAX_RUNNING
    node.see(Scanned(()))
    node.run(inputs(Roster({}, True), lifecycles((pod, Stage.TERMINATED))), at_once=at_once)
    assert UID not in node.state.mounts.pods
    assert node.most == MAX_RUNNING
    node.run(inputs(Roster({}, True)))
    assert not node.state.pods


def test_volumes_left_by_an_earlier_agent_are_taken_over() -> None:
    node, pod = Node(check=True), big_pod(300)
    found = tuple(FoundVolume("kubernetes.io~empty-dir", f"v{n}") for n in range(0, 600, 2))
    node.see(Scanned((FoundPod(UID, found),)))
    node.run(inputs(roster(pod)))
    assert node.state.mounts.pods[UID].ready
    assert len(node.state.pods[UID].volumes) == 450
    node.run(inputs(Roster({}, True)))
    assert not node.state.pods
    assert len([command for command in node.commands if isinstance(command, TearDown)]) == 450


def test_a_pod_that_ends_while_its_volumes_are_looked_at_waits_without_being_looked_at_again() -> None:
    node, pod = Node(check=True), big_pod(300)
    node.see(Scanned(()))
    node.see(InputsChanged(inputs(roster(pod))))
    assert set(node.state.unfinished) == {UID}
    node.see(InputsChanged(inputs(roster(pod), lifecycles((pod, Stage.TERMINATING)))))
    assert not node.state.unfinished
    node.run(inputs(roster(pod)))
    assert node.state.mounts.pods[UID].ready


def test_pods_that_end_while_their_volumes_are_looked_at_hold_up_no_others() -> None:
    pods = [make_pod(empty_dir("v"), uid=f"u{n:03}") for n in range(3 * PLANS_AT_ONCE)]
    node = Node(check=True)
    node.see(Scanned(()))
    node.see(InputsChanged(inputs(roster(*pods))))
    ending = set(node.state.unfinished[:PLANS_AT_ONCE])
    lives = [(pod, Stage.TERMINATING) for pod in pods if pod.metadata.uid in ending]
    assert len(lives) == PLANS_AT_ONCE
    node.run(inputs(roster(*pods), lifecycles(*lives)))
    assert {uid for uid, pod in node.state.mounts.pods.items() if pod.ready} == {
        pod.metadata.uid for pod in pods
    } - ending


def test_claims_of_one_volume_share_its_directory_one_operation_at_a_time() -> None:
    volume, content = claimed(hostPath={"path": "/data"})
    pod = make_pod(*(replace(volume, name=f"v{n}") for n in range(100)))
    node = Node(check=True)
    node.see(Scanned(()))
    node.run(replace(inputs(roster(pod)), content=content))
    assert node.state.mounts.pods[UID].ready


def mount_and_unmount(number: int, *, count: bool = False) -> Node:
    node, pod = Node(count=count), big_pod(number)
    node.see(Scanned(()))
    node.run(inputs(roster(pod)))
    node.run(inputs(Roster({}, True)))
    assert not node.state.pods
    return node


@cache
def counted(number: int) -> Node:
    """A node on which so many volumes were mounted and unmounted, with the instructions counted."""
    return mount_and_unmount(number, count=True)


def test_no_step_takes_long() -> None:
    """Nor does one of 4,000 volumes, which takes at most eight times as many instructions as one of 500."""
    assert counted(500).longest < 2 * counted(250).longest
    assert 8 * counted(500).longest < INSTRUCTIONS


def test_the_cost_of_all_steps_grows_with_the_number_of_volumes() -> None:
    assert counted(500).total < 2.3 * counted(250).total


BUNDLES = [{"clusterTrustBundle": {"name": "b", "path": f"p{n}", "optional": True}} for n in range(200)]
NO_BUNDLE = ObjectKey(ContentKind.TRUST_BUNDLE, "", "b")
LIMITS = [{"path": f"p{n}", "resourceFieldRef": {"containerName": "c0", "resource": "limits.cpu"}} for n in range(200)]


def with_containers(number: int, volumes: list[dict[str, Any]]) -> Pod:
    listed = {"memory": "1Mi", "ephemeral-storage": "1Mi", "hugepages-2Mi": "2Mi", "cpu": "1m"}
    containers: list[dict[str, Any]] = [{"name": f"c{n}", "resources": {"limits": listed}} for n in range(number)]
    containers[0]["volumeMounts"] = [{"name": f"v{n}", "mountPath": f"/v{n}"} for n in range(len(volumes))]
    named = [{"name": f"v{n}", **volume} for n, volume in enumerate(volumes)]
    return from_object(
        Pod,
        {
            "metadata": {"name": "p", "namespace": "shop", "uid": "u1"},
            "spec": {"volumes": named, "containers": containers[::-1]},
        },
    )


@pytest.mark.parametrize(
    "volume",
    [
        {"projected": {"sources": BUNDLES}},
        {"downwardAPI": {"items": LIMITS}},
        *({"emptyDir": {"medium": medium}} for medium in ("", "Memory", "HugePages")),
    ],
    ids=["projected", "downwardAPI", "emptyDir", "Memory", "HugePages"],
)
def test_what_plans_need_of_all_containers_is_found_once(volume: dict[str, Any]) -> None:
    """Each volume and file of a pod with 490 containers costs as much as one of a pod with a single container."""
    node = replace(NODE, page_sizes=(2 << 20,))

    def instructions(containers: int) -> int:
        pod = with_containers(containers, [volume] * 10)
        known = Inputs(node=node, content=Content(True, {NO_BUNDLE: Absent("it is missing")}))
        of_pod = [count_instructions(partial(plan_volume, pod, entry, known, PATHS)) for entry in pod.spec.volumes]
        return sum(of_pod[1:])

    assert instructions(490) < 1.1 * instructions(1)


def test_plans_of_many_things_count_as_several_in_a_step() -> None:
    node, pod = Node(), with_containers(1, [{"downwardAPI": {"items": LIMITS}}] * 40)
    node.see(Scanned(()))
    node.run(inputs(roster(pod)))
    assert node.state.mounts.pods[UID].ready
    assert 2 <= node.most_set_ups <= 10


def test_an_event_names_a_few_of_many_missing_volumes() -> None:
    bad = Volume(name="bad", hostPath=HostPathVolumeSource(path="relative/../../x"))
    node = Node()
    node.run(inputs(roster(make_pod(bad, *(replace(bad, name=f"bad{n:05}") for n in range(3000))))))
    texts = [command.kube_event.message for command in node.commands if isinstance(command, RecordEvent)]
    assert len(texts) > 3000
    assert max(map(len, texts)) < 20 * MAX_NAMED


def test_content_that_comes_piece_by_piece_costs_what_depends_on_it() -> None:
    volumes = [replace(claimed(claim_name=f"c{n}")[0], name=f"v{n}") for n in range(400)]
    node, pod = Node(count=True), make_pod(*volumes)
    known = Content(True)
    node.run(replace(inputs(roster(pod)), content=known))
    for n in range(400):
        _, more = claimed(claim_name=f"c{n}", hostPath={"path": "/data"})
        renamed = {
            key if key.name != "pv" else replace(key, name=f"pv{n}"): found for key, found in more.objects.items()
        }
        known = replace(known, objects={**known.objects, **renamed})
        before = node.total
        node.run(replace(inputs(roster(pod)), content=known))
        assert node.total - before < INSTRUCTIONS / 40
    assert {volume.phase for volume in node.state.pods[UID].volumes.values()} <= {MountPhase.NEW, MountPhase.MOUNTED}


def test_content_of_very_many_volumes_is_looked_at_a_few_volumes_at_a_time() -> None:
    volume, content = claimed(hostPath={"path": "/data"})
    node = Node(count=True)
    before = inputs(roster(make_pod(*(replace(volume, name=f"v{n}") for n in range(500)))))
    node.run(before)
    node.longest = 0
    node.run(replace(before, content=content))
    assert node.longest < INSTRUCTIONS / 16


# What is posted


@pytest.mark.looptime
async def test_results_of_few_operations_are_posted_at_once() -> None:
    sink: Sink[Event] = Sink()
    results = Results(sink)
    for _ in range(MANY):
        results.begun(UID)
    for number in range(MANY):
        results.ended(UID, TearDownEnded(UID, str(number), Result.DONE))
        assert len(sink.events) == number + 1


@pytest.mark.looptime
async def test_results_of_many_operations_are_posted_together_and_soon() -> None:
    sink: Sink[Event] = Sink()
    results, other = Results(sink), PodUID("u2")
    for _ in range(100):
        results.begun(UID)
    results.begun(other)
    ends = [TearDownEnded(UID, str(number), Result.DONE) for number in range(100)]
    results.ended(UID, ends[0])
    assert not sink.events
    results.ended(other, TearDownEnded(other, "", Result.DONE))
    assert len(sink.events) == 1
    await asyncio.sleep(2 * COLLECTED_S)
    assert sink.events[1:] == ends[:1]
    for end in ends[1:]:
        results.ended(UID, end)
    assert sink.events[1:] == ends
    results.begun(UID)
    results.ended(UID, ends[0])
    assert sink.events[-1] == ends[0]

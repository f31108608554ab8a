"""What the files of a pod's volumes may take: the same content many times is refused before it is written, each content once never."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from provide.volumes.samples import CONTEXT, NODE, check_published, inputs, make_pod, moment, roster
from support.cost import count_instructions, no_collections, peak_bytes

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import ConfigMap, Pod, Secret, Volume
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Content, ContentKind, ObjectKey, Present
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.roster import Roster
from pykubelet.provide.volumes.decide import next_timer, step_all
from pykubelet.provide.volumes.kind import HEAVY, VolumesError
from pykubelet.provide.volumes.model import (
    Command,
    Event,
    Inputs,
    InputsChanged,
    PlanVolume,
    Result,
    Scanned,
    SetUp,
    SetUpEnded,
    State,
    TearDown,
    TearDownEnded,
    VolumePlanned,
    VolumeState,
)
from pykubelet.provide.volumes.payloads import payload_kind
from pykubelet.provide.volumes.payloads.budget import MAX_EXTRA, PayloadBudget
from pykubelet.provide.volumes.payloads.payload import MAX_FILES, PayloadPlan
from pykubelet.provide.volumes.plan import plan_volume

T = TypeVar("T")
UID = PodUID("u1")
PATHS = Paths("/k", "/logs")
MIB = 1 << 20


def content(**objects: ConfigMap | Secret) -> Content:
    kinds = {ConfigMap: ContentKind.CONFIG_MAP, Secret: ContentKind.SECRET}
    return Content(True, {ObjectKey(kinds[type(item)], "shop", name): Present(item) for name, item in objects.items()})


def plan_of(volume: Volume, known: Content, pod: Pod | None = None) -> PayloadPlan:
    plan = plan_volume(pod or make_pod(volume), volume, Inputs(node=NODE, content=known), PATHS)
    assert isinstance(plan, PayloadPlan), plan
    return plan


def volume_of(kind: str, of: str = "", **source: object) -> Volume:
    """A volume of a kind. `of`: the name in its source."""
    return from_object(Volume, {"name": "v", kind: {**({"name": of} if of else {}), **source}})


def take(budget: PayloadBudget, plans: Iterable[PayloadPlan]) -> None:
    for number, plan in enumerate(plans):
        budget.take(UID, f"/v{number}", plan)


def test_each_key_of_many_large_objects_is_never_refused() -> None:
    maps = {f"m{n}": ConfigMap(data={f"k{k}": f"{n}{k}" * (MIB // 24) for k in range(8)}) for n in range(60)}
    known, budget = content(**maps), PayloadBudget()
    whole = [plan_of(volume_of("configMap", of=name), known) for name in maps]
    take(budget, whole)
    apart = [plan_of(projected(*(one_key("configMap", name, f"k{k}") for name in maps)), known) for k in range(8)]
    take(PayloadBudget(), apart)
    take(budget, whole)  # written again


def test_the_same_content_many_times_is_refused() -> None:
    known, budget = content(m=ConfigMap(data={"k": "x" * MIB})), PayloadBudget()
    plan = plan_of(volume_of("configMap", of="m"), known)
    take(budget, [plan] * (1 + MAX_EXTRA // MIB))
    with pytest.raises(
        VolumesError, match="take 33 MiB more than what they are made from, more than 32 MiB: mount the same"
    ):
        budget.take(UID, "/more", plan)
    budget.take(PodUID("u2"), "/more", plan)
    budget.release(UID, "/v0")
    budget.take(UID, "/more", plan)


@pytest.mark.parametrize("kind", ["configMap", "downwardAPI"])
def test_text_counts_by_its_bytes(kind: str) -> None:
    pod = make_pod(annotations={"a": "\u4e2d" * (MIB // 4)})
    known = content(m=ConfigMap(data={"k": "\u4e2d" * (MIB // 4)}))
    items = [{"path": "k", "fieldRef": {"fieldPath": "metadata.annotations"}}]
    volume = volume_of(kind, of="m") if kind == "configMap" else volume_of(kind, items=items)
    plan, budget = plan_of(volume, known, pod), PayloadBudget()
    take(budget, [plan] * 43)
    with pytest.raises(VolumesError, match="take 32 MiB more than what they are made from"):
        budget.take(UID, "/more", plan)


def test_many_small_files_in_memory_take_whole_pages() -> None:
    known = content(
        s=Secret(data={f"k{n}": b"x" for n in range(40_000)}), m=ConfigMap(data={f"k{n}": "" for n in range(40_000)})
    )
    on_disk, in_memory = (
        plan_of(volume, known) for volume in (volume_of("configMap", of="m"), volume_of("secret", secretName="s"))
    )
    take(PayloadBudget(), [on_disk])
    with pytest.raises(VolumesError, match="or fewer small files"):
        take(PayloadBudget(), [in_memory])


def test_more_files_than_a_pod_may_have_are_refused_before_they_are_made() -> None:
    """A pod of 0.6 MB with 9,000 volumes of a ConfigMap of 0.5 MB would have 360 million files of one byte each."""
    known = content(m=ConfigMap(data={f"k{n}": "x" for n in range(MAX_FILES // 2)}))
    plan, budget = plan_of(volume_of("configMap", of="m"), known), PayloadBudget()
    take(budget, [plan, plan, plan][:2])
    with no_collections():
        refused = count_instructions(lambda: check_refused(budget, plan))
    assert refused < 50_000
    budget.release(UID, "/v0")
    take(budget, [plan, plan])
    budget.release(UID, "/v0")
    budget.release(UID, "/v1")
    take(budget, [plan, plan])


def check_refused(budget: PayloadBudget, plan: PayloadPlan) -> None:
    with pytest.raises(VolumesError, match=r"the pod's volumes have 98304 files, more than 65536: mount fewer keys"):
        budget.take(UID, "/more", plan)


def test_an_object_that_is_projected_again_and_again_is_written_once() -> None:
    """A pod of 0.5 MB has 9,000 sources of one ConfigMap, which took minutes of CPU time."""
    keys = {f"k{n}": "x" for n in range(100)}
    known = content(m=ConfigMap(data=keys), n=ConfigMap(data={"k0": "y"}))
    again: list[dict[str, object]] = [{"configMap": {"name": "m"}}] * 5000
    plan = plan_of(projected(*again, {"configMap": {"name": "n"}}, *again, {"configMap": {"name": "n"}}), known)
    assert plan.most_files == 101
    files = {file.path: file.data for file in plan.files}
    assert files == {**keys, "k0": "y"}
    assert count_instructions(lambda: plan.files) < 10_000 * 50


def one_key(kind: str, name: str, key: str) -> dict[str, object]:
    return {kind: {"name": name, "items": [{"key": key, "path": f"{name}/{key}"}]}}


def projected(*sources: dict[str, object]) -> Volume:
    return volume_of("projected", sources=list(sources))


def repeating(what: str, number: int) -> tuple[Volume, Pod, Content]:
    """A volume with the same content in so many files, its pod, and what it is made from."""
    known = content(s=Secret(data={"k": b"x" * 900_000}))
    items = [{"key": "k", "path": f"f{n}"} for n in range(number)]
    fields = [{"path": f"f{n}", "fieldRef": {"fieldPath": "metadata.annotations"}} for n in range(number)]
    annotation = [{"path": f"f{n}", "fieldRef": {"fieldPath": "metadata.annotations['a']"}} for n in range(number)]
    volumes = {
        "secret": lambda: volume_of("secret", secretName="s", items=items),
        "annotation": lambda: volume_of("downwardAPI", items=annotation),
        "annotations": lambda: volume_of("downwardAPI", items=fields),
        "projected": lambda: projected({"secret": {"name": "s", "items": items}}, {"downwardAPI": {"items": fields}}),
    }
    volume = volumes[what]()
    return volume, make_pod(volume, annotations={"a": "\u00a0" * 250_000}), known


@pytest.mark.parametrize("what", ["secret", "annotation", "annotations", "projected"])
def test_a_volume_that_repeats_its_content_is_refused_before_memory_or_disk_is_used(tmp_path: Path, what: str) -> None:
    volume, pod, known = repeating(what, 1500)
    budget = PayloadBudget()
    context = replace(CONTEXT, take_files=partial(budget.take, UID))

    def attack() -> None:
        plan = plan_volume(pod, volume, Inputs(node=NODE, content=known), Paths(str(tmp_path), str(tmp_path)))
        assert isinstance(plan, PayloadPlan)
        with pytest.raises(VolumesError, match="mount the same content fewer times"):
            payload_kind.set_up(plan, context)

    attack()
    assert peak_bytes(attack) < 8 * MIB
    assert list(tmp_path.iterdir()) == []


# Plans of many parts


class Node:
    def __init__(self, now: Inputs) -> None:
        self.state, self.commands = State(), list[Command]()
        self.now = now
        self.see(InputsChanged(now))

    def see(self, *events: Event) -> None:
        self.state, commands = step_all(self.state, events, moment(), PATHS)
        check_published(self.state)
        self.commands += commands

    def take(self, kind: type[T]) -> T:
        (found,) = [command for command in self.commands if isinstance(command, kind)]
        self.commands.clear()
        return found

    def know(self, known: Content) -> None:
        self.now = replace(self.now, content=known)
        self.see(InputsChanged(self.now))

    def planned(self) -> None:
        request = self.take(PlanVolume)
        plan = plan_volume(request.pod, request.volume, request.inputs, PATHS)
        self.see(VolumePlanned(request.uid, request.key, request, plan))

    @property
    def volume(self) -> VolumeState:
        return self.state.pods[UID].volumes["v"]


def many_keys(value: str) -> Content:
    return content(m=ConfigMap(data={f"k{n}": value for n in range(HEAVY)}))


HEAVY_VOLUME = volume_of("configMap", of="m", items=[{"key": f"k{n}", "path": f"k{n}"} for n in range(HEAVY)])


def heavy() -> Node:
    return Node(replace(inputs(roster(make_pod(HEAVY_VOLUME))), content=many_keys("1")))


def test_a_plan_of_many_parts_is_made_in_a_thread() -> None:
    node = heavy()
    (wait,) = node.state.mounts.pods[UID].waits
    assert (wait.what, wait.detail, wait.next_step) == ("volume", "being planned", "set it up")
    node.planned()
    assert node.take(SetUp).plan.kind == "configMap"
    node.see(SetUpEnded(UID, "v", Result.DONE))
    assert node.state.mounts.pods[UID].ready
    node.know(many_keys("2"))
    assert node.state.mounts.pods[UID].ready
    node.planned()
    assert node.take(SetUp).cause == "content changed"


def content_of(command: SetUp) -> bytes:
    """Of the first file of the plan."""
    assert isinstance(command.plan, PayloadPlan)
    return command.plan.files[0].content


def test_what_changes_while_a_plan_is_made_is_planned_after_it() -> None:
    node = heavy()
    node.know(many_keys("2"))
    node.planned()
    assert content_of(node.take(SetUp)) == b"1"
    node.see(SetUpEnded(UID, "v", Result.DONE))
    node.planned()
    assert content_of(node.take(SetUp)) == b"2"


def test_a_plan_that_is_refused_is_made_again_when_its_content_changes() -> None:
    node = Node(replace(inputs(roster(make_pod(HEAVY_VOLUME))), content=content(m=ConfigMap())))
    node.planned()
    assert node.volume.failure is not None
    node.know(many_keys("1"))
    node.planned()
    assert node.take(SetUp).plan.kind == "configMap"


def test_a_plan_that_comes_too_late_is_dropped() -> None:
    node = heavy()
    request = node.take(PlanVolume)
    node.see(Scanned(()))
    node.see(InputsChanged(replace(node.now, roster=Roster({}, True))))
    assert UID not in node.state.mounts.pods
    plan = plan_volume(request.pod, request.volume, request.inputs, PATHS)
    node.see(VolumePlanned(UID, "v", request, plan))
    assert not [command for command in node.commands if isinstance(command, SetUp)]


def test_a_plan_that_cannot_be_made_is_tried_again() -> None:
    node = heavy()
    request = node.take(PlanVolume)
    node.see(VolumePlanned(UID, "v", request, None))
    assert node.volume.failure is not None
    assert node.volume.failure.error == "its plan could not be made"
    assert next_timer(node.state, moment()) is not None


def test_a_plan_that_comes_during_a_tear_down_is_dropped() -> None:
    """The pod is not wanted for a moment, while the new content of its volume is being planned."""
    node = heavy()
    node.planned()
    node.see(SetUpEnded(UID, "v", Result.DONE))
    node.see(Scanned(()))
    node.commands.clear()
    node.know(many_keys("2"))
    request = node.take(PlanVolume)
    node.see(InputsChanged(replace(node.now, roster=Roster({}, True))))
    assert node.take(TearDown).key == "v"
    node.see(InputsChanged(node.now))
    plan = plan_volume(request.pod, request.volume, request.inputs, PATHS)
    node.see(VolumePlanned(UID, "v", request, plan))
    assert node.commands == []
    node.see(TearDownEnded(UID, "v", Result.DONE))
    node.planned()
    assert content_of(node.take(SetUp)) == b"2"

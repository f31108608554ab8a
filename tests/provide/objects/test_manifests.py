"""The answers from manifests follow the roster, and what was bound survives a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from provide.objects.test_binding import claim, volume

from pykubelet.app.parts import Slot
from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import ConfigMap, ObjectMeta, Pod, RuntimeClass, Volume
from pykubelet.base.api.storage import CSIDriver, PersistentVolumeClaim
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Absent, Content, ContentKind, ManifestObject, ObjectKey, Present, Unreadable
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.needs import pod_needs
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.roster import Roster, RosterPod
from pykubelet.provide.objects.manifests import StandaloneContent
from pykubelet.provide.volumes.plan import volume_keys

pytestmark = pytest.mark.virtual_time

KEY = ObjectKey(ContentKind.VOLUME_CLAIM, "default", "x")


class Stand:
    def __init__(self, folder: Path) -> None:
        self.roster = Slot("roster", Roster(), "test")
        self.content = Slot("content", Content(), "test")
        node = Slot("node", NodeView("n", "n"), "test")
        needs = partial(pod_needs, volume_keys=volume_keys)
        flight = SingleFlight("test", 1)
        path = str(folder / "root" / "volume_bindings")
        self.loop = StandaloneContent(path, self.roster.cell, node.cell, self.content.writer, flight, needs)

    def put(self, *objects: ManifestObject, pods: tuple[RosterPod, ...] = (), ready: bool = True) -> None:
        ordered = tuple(sorted(objects, key=lambda item: (item.key, item.origin)))
        by_uid = {PodUID(item.pod.metadata.uid): item for item in pods}
        self.roster.writer.publish(Roster(by_uid, ready, objects=ordered))

    async def bound_to(self) -> str:
        """The volume of the claim `x` as soon as the content is that of the roster."""
        async with asyncio.timeout(10):
            now = await self.content.cell.wait_for(lambda content: content.made_from == self.roster.cell.get().objects)
        found = now.find(KEY)
        assert isinstance(found, Present), found
        assert isinstance(found.value, PersistentVolumeClaim)
        return found.value.spec.volumeName


def using(volume: Volume) -> Pod:
    """A pod whose container mounts the volume."""
    mounts = [{"name": volume.name, "mountPath": "/v"}]
    spec = {"containers": [{"name": "main", "image": "x", "volumeMounts": mounts}]}
    metadata = {"name": f"web-{volume.name}", "namespace": "default", "uid": f"u-{volume.name}"}
    pod = from_object(Pod, {"metadata": metadata, "spec": spec})
    return replace(pod, spec=replace(pod.spec, volumes=(volume,)))


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Stand]:
    stand = Stand(folder)
    async with Supervisor("test") as tasks:
        tasks.start_root("content", stand.loop.run())
        try:
            yield stand
        finally:
            await tasks.stop()


async def test_a_runtime_class_is_answered_with_and_without_its_manifest(tmp_path: Path) -> None:
    key = ObjectKey(ContentKind.RUNTIME_CLASS, "", "sealed")
    sealed = ManifestObject(key, RuntimeClass(metadata=ObjectMeta(name="sealed"), handler="kata"), "/m/class.yaml")
    spec = {"runtimeClassName": "sealed", "containers": [{"name": "main", "image": "x"}]}
    pod = from_object(Pod, {"metadata": {"name": "web", "namespace": "default", "uid": "u"}, "spec": spec})
    async with running(tmp_path) as stand, asyncio.timeout(10):
        stand.put(pods=(RosterPod(pod, "file", 0.0),))
        now = await stand.content.cell.wait_for(lambda content: key in content.objects)
        assert now.find(key) == Absent('no manifest has the RuntimeClass "sealed"')
        stand.put(sealed, pods=(RosterPod(pod, "file", 0.0),))
        await stand.content.cell.wait_for(lambda content: content.find(key) == Present(sealed.value))


async def test_a_claim_has_the_same_volume_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as stand:
        stand.put(volume("b", "9Gi"), claim("x"))
        assert await stand.bound_to() == "b"
    async with running(tmp_path) as stand:
        stand.put(volume("a", "2Gi"), volume("b", "9Gi"), claim("x"))
        assert await stand.bound_to() == "b"


async def test_a_damaged_file_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "volume_bindings").write_bytes(b"\xff{")
    async with running(tmp_path) as stand:
        stand.put(volume("a"), claim("x"))
        assert await stand.bound_to() == "a"


async def test_an_unwritable_file_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("not a directory")
    async with running(tmp_path) as stand:
        stand.put(volume("a"), claim("x"))
        assert await stand.bound_to() == "a"


async def test_what_pods_refer_to_without_a_manifest_is_answered_when_all_manifests_are_known(tmp_path: Path) -> None:
    wanted = from_object(Volume, {"name": "v", "persistentVolumeClaim": {"claimName": "x"}})
    inline = from_object(Volume, {"name": "w", "csi": {"driver": "d.example.com"}})
    pods = tuple(RosterPod(using(source), "file", 0.0) for source in (wanted, inline))
    async with running(tmp_path) as stand:
        stand.put(pods=pods, ready=False)
        await asyncio.sleep(0.05)
        assert stand.content.cell.get().find(KEY) is None
        assert stand.content.cell.get().may_answer(KEY)
        stand.put(pods=pods)
        async with asyncio.timeout(10):
            now = await stand.content.cell.wait_for(lambda content: bool(content.objects))
        found = now.find(KEY)
        assert isinstance(found, Absent)
        driver = now.find(ObjectKey(ContentKind.CSI_DRIVER, "", "d.example.com"))
        assert isinstance(driver, Present) and isinstance(driver.value, CSIDriver)
        assert driver.value.spec.attachRequired is False


MAP_KEY = ObjectKey(ContentKind.CONFIG_MAP, "default", "settings")


def settings(mode: str, origin: str = "/m/a.yaml") -> ManifestObject:
    metadata = ObjectMeta(name="settings", namespace="default")
    return ManifestObject(MAP_KEY, ConfigMap(metadata=metadata, data={"mode": mode}), origin)


def with_environment(*names: str) -> RosterPod:
    sources = [{"configMapRef": {"name": name}} for name in names]
    spec = {"containers": [{"name": "main", "image": "x", "envFrom": sources}]}
    pod = from_object(Pod, {"metadata": {"name": "web", "namespace": "default", "uid": "u"}, "spec": spec})
    return RosterPod(pod, "file", 0.0)


async def answer(stand: Stand, *objects: ManifestObject, pods: tuple[RosterPod, ...] = ()) -> object:
    """What is answered about the ConfigMap when the manifests have these objects."""
    stand.put(*objects, pods=pods)
    async with asyncio.timeout(10):
        now = await stand.content.cell.wait_for(lambda content: content.made_from == objects)
    return now.find(MAP_KEY)


async def test_a_config_map_is_answered_as_its_manifest_comes_changes_and_goes(tmp_path: Path) -> None:
    pods = (with_environment("settings"),)
    async with running(tmp_path) as stand, asyncio.timeout(10):
        stand.put(pods=pods)
        now = await stand.content.cell.wait_for(lambda content: MAP_KEY in content.objects)
        missing = Absent('no manifest has the ConfigMap "settings" of namespace "default"')
        assert now.find(MAP_KEY) == missing
        for mode in ("slow", "fast"):
            assert await answer(stand, settings(mode), pods=pods) == Present(settings(mode).value)
        assert await answer(stand, pods=pods) == missing


async def test_of_two_config_maps_the_one_that_counted_before_counts_also_after_a_restart(tmp_path: Path) -> None:
    old, new = settings("old", "/m/b.yaml"), settings("new", "/m/a.yaml")
    async with running(tmp_path) as stand:
        assert await answer(stand, old) == Present(old.value)
        assert await answer(stand, new, old) == Present(old.value)
    async with running(tmp_path) as stand:
        assert await answer(stand, new, old) == Present(old.value)
        assert await answer(stand, new) == Present(new.value)


async def test_of_two_in_one_manifest_the_first_one_counts(tmp_path: Path) -> None:
    first, second = settings("first"), settings("second")
    async with running(tmp_path) as stand:
        for _ in range(2):
            stand.put(first, second)
            async with asyncio.timeout(10):
                now = await stand.content.cell.wait_for(lambda content: content.made_from == (first, second))
            assert now.find(MAP_KEY) == Present(first.value)
            await answer(stand)


async def test_a_pod_of_many_objects_gets_an_answer_about_each(tmp_path: Path) -> None:
    pod = with_environment(*(f"m{number}" for number in range(2100)))
    async with running(tmp_path) as stand, asyncio.timeout(10):
        stand.put(pods=(pod,))
        now = await stand.content.cell.wait_for(lambda content: len(content.objects) == 2100)
    assert sum(isinstance(found, Unreadable) for found in now.objects.values()) == 100


async def test_answers_do_not_wait_for_a_disk_that_is_full(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("not a directory")
    async with running(tmp_path) as stand:
        assert await answer(stand, settings("slow")) == Present(settings("slow").value)

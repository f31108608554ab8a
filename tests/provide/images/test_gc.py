"""Image collection: removed images, kept images, and Events."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from provide.images.stand import FakeRuntime, LoopClock, image, pod

from pykubelet.base.api import core
from pykubelet.base.kit.cells import Sink, make_cell
from pykubelet.base.kit.clock import Clock, ManualClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.mounts import FsUsage
from pykubelet.provide.images import decide_gc
from pykubelet.provide.images.decide_gc import Sightings
from pykubelet.provide.images.gc import ImageCollector, ImageGcError
from pykubelet.provide.images.metrics import COLLECTED
from pykubelet.provide.images.model import NEVER, ImageSettings, RemovalCandidate, Sighting, StoredImage
from pykubelet.provide.images.record_store import RecordStore
from pykubelet.provide.images.records import ImageAccess, ImageIdentity


class Node:
    """A collector over a fake runtime, on a disk of 10000 bytes."""

    def __init__(self, tmp_path: Path, *images: pb.Image, clock: Clock | None = None, **settings: Any) -> None:
        self.clock = ManualClock()
        self.runtime = FakeRuntime()
        self.runtime.images = {tagged.repo_tags[0]: tagged for tagged in images}
        self.available = 5000
        self.capacity = 10_000
        self.settings = ImageSettings(str(tmp_path), **settings)
        self.records = RecordStore(str(tmp_path), self.clock)
        self.records.load()
        self.sink: Sink[KubeEvent] = Sink()
        self.lifecycles, self.lifecycles_writer = make_cell("Lifecycles", Lifecycles())
        self.collector = ImageCollector(
            self.runtime, self.records, clock or self.clock, self.settings, self.lifecycles, self.sink, self.usage
        )

    def usage(self, path: str) -> FsUsage:
        assert path == "/images"
        freed = 1000 * len(self.runtime.removed)
        return FsUsage(self.capacity, self.available + freed, self.available + freed, 1, 1)

    def use(self, name: str) -> None:
        self.runtime.containers = [pb.Container(image_ref=f"id-of-{name}")]

    def left(self) -> set[str]:
        return set(self.runtime.images)

    def events(self) -> list[str]:
        lines = [f"{e.type} {e.reason} {e.message}" for e in self.sink.events]
        assert all(e.pod is None for e in self.sink.events)
        self.sink.events.clear()
        return lines


async def test_below_the_threshold_nothing_goes(tmp_path: Path) -> None:
    node = Node(tmp_path, image("a:1"), image("b:1"))
    node.available = 1600
    assert await node.collector.collect() == 0
    assert node.left() == {"a:1", "b:1"}


async def test_at_the_threshold_the_longest_unused_go_until_the_low_one(tmp_path: Path) -> None:
    node = Node(tmp_path, *(image(f"{name}:1") for name in "abcd"))
    for name in ("c:1", "a:1", "b:1", "d:1"):
        node.use(name)
        await node.collector.run_round()
        node.clock.advance(300)
    node.available = 500  # 95 % used; 1500 bytes are to go
    node.use("d:1")
    assert await node.collector.collect() == 2000
    assert node.runtime.removed == ["id-of-c:1", "id-of-a:1"]
    assert node.left() == {"b:1", "d:1"}


async def test_images_in_use_pinned_protected_or_young_stay(tmp_path: Path) -> None:
    pinned = image("pinned:1", pinned=True)
    node = Node(
        tmp_path,
        image("used:1"),
        pinned,
        image("docker.io/library/pause:1"),
        image("mounted:1"),
        protected=frozenset({"pause:1"}),
    )
    node.use("used:1")
    volume = core.Volume(name="v", image=core.ImageVolumeSource(reference="docker.io/library/mounted:1"))
    node.runtime.images["mounted:1"].repo_tags[0] = "docker.io/library/mounted:1"
    spec = core.PodSpec(containers=(), volumes=(volume,))
    found = PodLifecycle(pod("web"), core.Pod(spec=spec), Stage.SYNCING, 0.0, 0.0)
    node.lifecycles_writer.publish(Lifecycles({PodUID("uid-web"): found}))
    await node.collector.run_round()
    node.runtime.images["young:1"] = image("young:1")
    node.available = 0
    with pytest.raises(ImageGcError):
        await node.collector.collect()
    assert node.runtime.removed == []
    text = (
        "Warning FreeDiskSpaceFailed Insufficient free disk space on the node's image filesystem (100% of 9.8 KiB used). "
        "Failed to free sufficient space by deleting unused images (freed 0 bytes). "
        "Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
    )
    assert node.events() == [text]
    node.clock.advance(120)
    with pytest.raises(ImageGcError):
        await node.collector.collect()
    assert node.runtime.removed == ["id-of-young:1"]


@pytest.mark.parametrize(
    ("config", "kept"), [('{"sandboxImage": "pause:1", "x": 1}', 1), ('{"sandboxImage": ""}', 0), ("no JSON", 0)]
)
async def test_the_sandbox_image_of_a_runtime_that_cannot_pin_stays(tmp_path: Path, config: str, kept: int) -> None:
    node = Node(tmp_path, image("docker.io/library/pause:1"), min_age_s=0.0)
    node.runtime.info = {"config": config}
    await node.collector.delete_unused()
    assert len(node.left()) == kept


async def test_an_image_just_given_to_a_container_stays(tmp_path: Path) -> None:
    node = Node(tmp_path, image("a:1"), image("b:1"), image("c:1"), min_age_s=0.0)
    node.available = 500
    node.records.hand_out("id-of-a:1")
    await node.collector.collect()
    assert node.left() == {"a:1"}


async def test_what_was_there_before_the_start_is_let_grow_old(tmp_path: Path) -> None:
    node = Node(tmp_path, image("a:1"))
    node.available = 500
    await node.collector.run_round()
    assert node.left() == {"a:1"}, "a pod may just be about to be made from it"
    node.clock.advance(300)
    await node.collector.run_round()
    assert node.left() == set()


async def test_images_too_old_that_cannot_be_removed(tmp_path: Path) -> None:
    node = Node(tmp_path, image("a:1"), max_age_s=3600.0, high_percent=100)
    node.runtime.remove_failures = {"id-of-a:1"}
    node.clock.advance(3601)
    with pytest.raises(ImageGcError) as caught:
        await node.collector.collect()
    assert str(caught.value) == (
        "wanted to free images older than 1h0m0s, encountered errors in image deletion: "
        "rpc error: code = Unknown desc = cannot remove id-of-a:1"
    )


@pytest.mark.parametrize(
    ("size", "words"),
    [(1023, "1023 B"), (1024, "1.0 KiB"), (1536 << 10, "1.5 MiB"), (50 << 30, "50.0 GiB"), (2 << 40, "2.0 TiB")],
)
def test_how_much_of_the_disk_is_used(size: int, words: str) -> None:
    assert f"(75% of {words} used)" in decide_gc.too_little_freed(size, size // 4 + 1, 0)


async def test_unused_for_too_long(tmp_path: Path) -> None:
    node = Node(tmp_path, image("a:1"), image("b:1"), max_age_s=3600.0, high_percent=100)
    node.use("b:1")
    await node.collector.run_round()
    node.clock.advance(3600)
    assert await node.collector.collect() == 0, "the agent has not run that long"
    counted = COLLECTED.value("age")
    node.clock.advance(1)
    assert await node.collector.collect() == 1000
    assert node.left() == {"b:1"}
    assert COLLECTED.value("age") == counted + 1
    node.runtime.containers = []
    node.clock.advance(3601)
    await node.collector.collect()
    assert node.left() == set()


async def test_eviction_may_remove_all_that_is_unused(tmp_path: Path) -> None:
    node = Node(tmp_path, image("a:1"), image("b:1"), image("c:1"), min_age_s=0.0)
    node.use("b:1")
    counted = COLLECTED.value("space")
    assert await node.collector.delete_unused() == 2000
    assert COLLECTED.value("space") == counted + 2
    assert node.left() == {"b:1"}


async def test_a_failed_removal_is_reported_and_the_others_go(tmp_path: Path) -> None:
    node = Node(tmp_path, image("a:1"), image("b:1"), min_age_s=0.0)
    node.available = 500
    node.runtime.remove_failures = {"id-of-a:1"}
    with pytest.raises(ImageGcError) as caught:
        await node.collector.collect()
    assert str(caught.value) == (
        "wanted to free 1500 bytes, but freed 1000 bytes space with errors in image deletion: "
        "rpc error: code = Unknown desc = cannot remove id-of-a:1"
    )
    assert node.left() == {"a:1"}


async def test_failing_twice_in_a_row_is_an_event(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.capacity = 0
    invalid = "Warning InvalidDiskCapacity invalid capacity 0 on image filesystem"
    await node.collector.run_round()
    assert node.events() == [invalid]
    await node.collector.run_round()
    assert node.events() == [invalid, "Warning ImageGCFailed invalid capacity 0 on image filesystem"]
    node.capacity = 10_000
    await node.collector.run_round()
    node.capacity = 0
    await node.collector.run_round()
    assert node.events() == [invalid]


async def test_what_the_runtime_or_disk_refuses_never_ends_the_loop(tmp_path: Path) -> None:
    class Away(FakeRuntime):
        async def list_images(self, image: str = "") -> list[pb.Image]:
            raise CriError(CriCode.UNAVAILABLE, "gone", "ListImages")

    node = Node(tmp_path)
    away = ImageCollector(Away(), node.records, node.clock, node.settings, node.lifecycles, node.sink, node.usage)

    def refuse(path: str) -> FsUsage:
        raise HostError("statfs", path, "ENOENT", "no such file or directory")

    broken = ImageCollector(node.runtime, node.records, node.clock, node.settings, node.lifecycles, node.sink, refuse)
    for collector, text in (
        (away, "rpc error: code = Unavailable desc = gone"),
        (broken, "statfs /images: no such file or directory"),
    ):
        await collector.run_round()
        await collector.run_round()
        assert node.events() == [f"Warning ImageGCFailed {text}"]


async def test_switched_off_it_only_takes_inventory_and_tidies_intents(tmp_path: Path) -> None:
    node = Node(tmp_path, image("docker.io/library/a:1"), high_percent=100)
    await node.records.begin("a:1")
    node.records.unsure("a:1")
    node.available = 0
    await node.collector.run_round()
    assert node.runtime.removed == []
    assert not node.records.is_pulling("a:1")
    assert node.records.record(ImageIdentity("id-of-docker.io/library/a:1")) is not None


async def test_records_go_with_their_images(tmp_path: Path) -> None:
    node = Node(tmp_path, image("a:1"), image("b:1"), min_age_s=0.0)
    for name in ("a:1", "b:1", "gone:1"):
        await node.records.learn(name, ImageIdentity(f"id-of-{name}"), ImageAccess(node_wide=True))
    node.clock.advance(10)
    node.use("b:1")
    node.available = 500
    with pytest.raises(ImageGcError):
        await node.collector.collect()
    assert node.records.record(ImageIdentity("id-of-a:1")) is None
    assert node.records.record(ImageIdentity("id-of-gone:1")) is None
    assert node.records.record(ImageIdentity("id-of-b:1")) is not None


@pytest.mark.looptime
async def test_the_loop_retries_often_until_the_runtime_answers_then_every_five_minutes(tmp_path: Path) -> None:
    class Late(FakeRuntime):
        def __init__(self) -> None:
            super().__init__()
            self.inventories: list[float] = []

        async def list_images(self, image: str = "") -> list[pb.Image]:
            self.inventories.append(round(LoopClock().monotonic()))
            if LoopClock().monotonic() < 25:
                raise CriError(CriCode.UNAVAILABLE, "not yet", "ListImages")
            return []

    node = Node(tmp_path, high_percent=100)
    late = Late()
    collector = ImageCollector(late, node.records, LoopClock(), node.settings, node.lifecycles, node.sink, node.usage)
    async with Supervisor("test") as tasks:
        tasks.start_root("gc", collector.run_gc_loop())
        await asyncio.sleep(700)
    assert late.inventories == [0, 10, 20, 30, 330, 630]


def stored(name: str, *names: str) -> StoredImage:
    return StoredImage(name, names, 1, False)


def test_use_is_recognised_by_id_and_by_name() -> None:
    images = [
        stored("sha256:1", "docker.io/library/a:1"),
        stored("sha256:2", "quay.io/b@sha256:" + "f" * 64),
        stored("sha256:3", "docker.io/library/c:latest"),
        stored("sha256:4", "d:1"),
    ]
    used = decide_gc.find_used(images, ["sha256:1", "quay.io/b@sha256:" + "f" * 64], ["c"])
    assert used == {"sha256:1", "sha256:2", "sha256:3"}


def test_an_image_is_as_old_as_it_is_known_and_gone_ones_are_forgotten() -> None:
    first = decide_gc.update_sightings(Sightings(), [stored("1"), stored("2")], frozenset({"2"}), 100.0)
    assert first.images == {"1": Sighting(100.0, NEVER), "2": Sighting(100.0, 100.0)}
    second = decide_gc.update_sightings(first, [stored("2"), stored("3")], frozenset(), 200.0)
    assert second.images == {"2": Sighting(100.0, 100.0), "3": Sighting(200.0, NEVER)}


def test_the_order_is_last_used_then_first_seen() -> None:
    sightings = Sightings({"a": Sighting(5, 9), "b": Sighting(7, NEVER), "c": Sighting(6, NEVER), "d": Sighting(1, 8)})
    images = [stored(name) for name in "abcd"]
    ranked = decide_gc.rank_candidates(sightings, images, frozenset(), frozenset())
    assert [c.image.id for c in ranked] == ["c", "b", "d", "a"]


@pytest.mark.parametrize(("available", "wanted"), [(1600, 0), (1500, 500), (0, 2000), (20_000, 0), (2000, 0)])
def test_how_much_is_to_be_freed(available: int, wanted: int) -> None:
    assert decide_gc.bytes_to_free(10_000, available, ImageSettings("/x")) == wanted


def test_used_in_this_round_or_too_young_may_not_go() -> None:
    assert decide_gc.may_free(RemovalCandidate(stored("a"), Sighting(0, NEVER)), 120.0, 120.0)
    assert not decide_gc.may_free(RemovalCandidate(stored("a"), Sighting(1, NEVER)), 120.0, 120.0)
    assert not decide_gc.may_free(RemovalCandidate(stored("a"), Sighting(0, 120.0)), 120.0, 120.0)

"""When writable layers are walked, and what a call waits for, in virtual time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.virtual_time import VirtualLoop

from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.edges.host.fs.errors import HostError
from pykubelet_cri_docker.stats.layers import AGE_S, MAX_WALKS, SHARE, WAIT_S, WritableLayers
from pykubelet_cri_docker.stats.tracked import ContainerPlaces, Tracked

pytestmark = pytest.mark.virtual_time


class Disk:
    """Walks of each layer in order. `seconds`: how long a walk takes. `held`: those that do not end before `let_go`."""

    def __init__(self, clock: ManualClock) -> None:
        self.walked: list[str] = []
        self.seconds: dict[str, float] = {}
        self.held: set[str] = set()
        self.let_go = threading.Event()
        self._clock = clock

    def walk(self, path: str) -> tuple[int, int]:
        self.walked.append(path)
        if path in self.held:
            self.let_go.wait()
        self._clock.advance(self.seconds.get(path, 0.0))
        return 4096, 1

    def take(self) -> list[str]:
        taken, self.walked = sorted(self.walked), []
        return taken


def layers_of(clock: ManualClock, walk: Callable[[str], tuple[int, int]]) -> WritableLayers:
    return WritableLayers(clock, SingleFlight("layers", MAX_WALKS), walk)


def containers(*paths: str) -> list[Tracked]:
    return [Tracked(ContainerPlaces(1, path)) for path in paths]


def hang(*paths: str) -> None:
    """These alone do not end: time passes in spite of them."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.hung = set(paths)


async def test_a_layer_is_what_du_counts(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made/file").write_bytes(b"x" * 10_000)
    (tmp_path / "made/same").hardlink_to(tmp_path / "made/file")
    clock = ManualClock()
    (container,) = made = containers(str(tmp_path))
    await WritableLayers(clock, SingleFlight("layers")).measure(made)
    layer = container.layer
    assert layer is not None
    blocks = sum(path.stat().st_blocks for path in (tmp_path, tmp_path / "made", tmp_path / "made/file"))
    assert (layer.used, layer.inodes, layer.at) == (blocks * 512, 3, clock.wall())


async def test_a_layer_is_walked_again_when_its_size_is_old() -> None:
    clock = ManualClock()
    disk, made = Disk(clock), containers("/a", "/b", "")
    layers = layers_of(clock, disk.walk)
    await layers.measure(made)
    assert disk.take() == ["/a", "/b"]
    clock.advance(AGE_S - 1)
    await layers.measure(made)
    assert disk.take() == []
    new = containers("/c")
    await layers.measure([*made, *new])
    assert disk.take() == ["/c"]
    clock.advance(1)
    await layers.measure([*made, *new])
    assert disk.take() == ["/a", "/b"]


async def test_all_walks_together_take_a_small_part_of_the_time() -> None:
    clock = ManualClock()
    disk, made = Disk(clock), containers("/large", "/small")
    disk.seconds = {"/large": 3.0}
    layers = layers_of(clock, disk.walk)
    began = clock.monotonic()
    while clock.monotonic() - began < 600:
        await layers.measure(made)
        clock.advance(10)
    assert 600 * SHARE / 2 <= disk.walked.count("/large") * 3 <= 600 * SHARE + 3


async def test_a_call_waits_for_a_moment_and_a_later_one_has_the_result() -> None:
    clock, loop = ManualClock(), asyncio.get_running_loop()
    disk, made = Disk(clock), containers("/slow", "/quick")
    disk.held = {"/slow"}
    hang("/slow")
    layers, began = layers_of(clock, disk.walk), loop.time()
    await layers.measure(made)
    assert loop.time() - began == pytest.approx(WAIT_S, abs=0.01)
    assert made[0].layer is None and made[1].layer is not None
    began = loop.time()
    await layers.measure(made)
    assert loop.time() - began < 0.01, "it is not waited for twice"
    disk.let_go.set()
    hang()
    await asyncio.sleep(1)
    assert disk.take() == ["/quick", "/slow"], "nor walked twice"
    assert made[0].layer is not None


async def test_walks_at_once_are_few_whatever_hangs() -> None:
    clock = ManualClock()
    paths = [f"/{number}" for number in range(20)]
    disk, made = Disk(clock), containers(*paths)
    disk.held = set(paths)
    hang(*paths)
    layers = layers_of(clock, disk.walk)
    for _ in range(5):
        await layers.measure(made)
    disk.let_go.set()
    hang()
    await asyncio.sleep(1)
    assert len(disk.walked) == MAX_WALKS


async def test_a_layer_that_cannot_be_walked_keeps_its_last_size() -> None:
    clock = ManualClock()
    made = containers("/a")
    await layers_of(clock, Disk(clock).walk).measure(made)
    before = made[0].layer

    def fail(path: str) -> tuple[int, int]:
        raise HostError("walk", path, "ENOENT", "no such file or directory")

    clock.advance(AGE_S)
    await layers_of(clock, fail).measure(made)
    assert made[0].layer == before is not None

"""Volumes with a file system or device of their own are measured alone; those that hang hold a bounded number of threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from support.block import block_device

from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.observe.stats.volumes import MAX_STUCK, measure_file_systems

UID = PodUID("u1")


def volume(path: str, name: str = "data", *, is_block: bool = False) -> MountedVolume:
    return MountedVolume(name, "local", path, is_block=is_block, spec_name=f"pv-{name}", has_stats=True)


async def test_two_pods_with_one_volume_both_have_its_figures(tmp_path: Path) -> None:
    flight = SingleFlight("test")
    (first,), (second,) = [
        await measure_file_systems(flight, PodUID(uid), [volume(str(tmp_path))], 5.0) for uid in "ab"
    ]
    assert first.source == second.source == "statfs"
    assert first.use.fs.capacity == second.use.fs.capacity != 0


async def test_no_more_threads_are_held_than_the_bound() -> None:
    flight, free = SingleFlight("test"), threading.Event()
    for number in range(MAX_STUCK):
        await flight.run(f"stats-volume:nfs/{number}", free.wait, 0.001)
    try:
        before = threading.active_count()
        assert await measure_file_systems(flight, UID, [volume("/"), volume("/tmp", "tmp")], 5.0) == []
        assert threading.active_count() == before
    finally:
        free.set()


@pytest.mark.skipif(os.geteuid() != 0, reason="loop devices need root")
async def test_a_block_volume_has_a_size_only() -> None:
    with block_device(8 << 20) as device:
        (found,) = await measure_file_systems(SingleFlight("test"), UID, [volume(device, is_block=True)], 5.0)
    assert (found.source, found.use.fs.capacity, found.use.fs.used) == ("block", 8 << 20, None)

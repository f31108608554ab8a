"""Measures volumes with a file system or device of their own, such as those of NFS servers: each alone, with a deadline.

A server that is away holds the thread that asks. There is one thread at most for each volume, and no new ones while `MAX_STUCK`
threads are held: the figures of such volumes stay as they are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from pykubelet.base.kit.flight import Done, SingleFlight
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.usage import FileSystemUse, VolumeUse
from pykubelet.edges.host.devices.block_devices import device_size
from pykubelet.observe.stats.sizes import read_file_system

ANSWER_S = 5.0
MAX_STUCK = 32
_KEY = "stats-volume:"


class MeasuredVolume(Value):
    """A volume's usage, what measured it (`statfs`, `block` or the name of a driver), and the seconds that it took.

    `condition`: what is wrong with the volume, as its driver reports it.
    """

    use: VolumeUse
    source: str
    took_s: float
    condition: str = ""


async def measure_file_systems(
    flight: SingleFlight, uid: PodUID, volumes: Iterable[MountedVolume], at: float
) -> list[MeasuredVolume]:
    """The usage of those volumes that answer within `ANSWER_S`. `at`: wall seconds now."""
    found = await asyncio.gather(*(_measure(flight, uid, volume, at) for volume in volumes))
    return [measured for measured in found if measured is not None]


async def _measure(flight: SingleFlight, uid: PodUID, volume: MountedVolume, at: float) -> MeasuredVolume | None:
    if sum(key.startswith(_KEY) for key in flight.stuck()) >= MAX_STUCK:
        return None
    key = f"{_KEY}{volume.kind}/{volume.spec_name or f'{uid}/{volume.name}'}"
    outcome = await flight.run_next(key, lambda: _read(volume, at), ANSWER_S)
    return outcome.value if isinstance(outcome, Done) else None


def _read(volume: MountedVolume, at: float) -> MeasuredVolume:
    """Ask the file system, or the block device, which only has a size. Blocks. HostError."""
    began = time.perf_counter()
    if volume.is_block:
        fs, source = FileSystemUse(at, capacity=device_size(volume.host_path)), "block"
    else:
        fs, source = read_file_system(volume.host_path, at), "statfs"
    use = VolumeUse(volume.name, fs, volume.claim, is_local=False)
    return MeasuredVolume(use, source, time.perf_counter() - began)

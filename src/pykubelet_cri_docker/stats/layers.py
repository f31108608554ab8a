"""The sizes of writable layers, by walks over their files.

Owns: when a layer is walked. A walk runs in a thread while a client asks for statistics, never else, and its result is used until
it is too old: so all walks together take a small part of the time, however many containers and files there are. A call waits for
a moment; a walk that takes longer goes on, and a later call has its result. Docker's own measurement would walk every layer each time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from functools import partial

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.trees import read_disk_usage
from pykubelet_cri_docker.stats.tracked import LayerSize, Tracked

log = Log("cri-docker")
#: The age at which a result is too old, and the part of the time that all walks together may take: if they take longer, it grows.
AGE_S = 10.0
SHARE = 0.05
#: How long a call waits for walks.
WAIT_S = 1.0
MAX_WALKS = 4


class WritableLayers:
    """The writable layers of containers. `usage`: the bytes and inodes of a directory; blocks, raises HostError."""

    def __init__(
        self, clock: Clock, flight: SingleFlight, usage: Callable[[str], tuple[int, int]] = read_disk_usage
    ) -> None:
        self._clock = clock
        self._flight = flight
        self._usage = usage

    async def measure(self, containers: Collection[Tracked]) -> None:
        """Walk the layers whose sizes are too old or unknown, as far as there is time. One call at a time."""
        now, loop = self._clock.monotonic(), asyncio.get_running_loop()
        age_s = max(AGE_S, sum(_took_s(each) for each in containers) / SHARE)
        due = [
            each
            for each in containers
            if each.places.upper_dir and (each.layer is None or now - each.layer.walked_at >= age_s)
        ]
        waiting, until = deque(sorted(due, key=_took_s)), loop.time() + WAIT_S

        async def walk() -> None:
            while waiting and (left_s := until - loop.time()) > 0:
                each = waiting.popleft()
                outcome = await self._flight.run(each.places.upper_dir, partial(self._walk, each), left_s)
                if isinstance(outcome, Failed):
                    raise outcome.error

        lanes = min(len(due), MAX_WALKS - len(self._flight.stuck()))
        await asyncio.gather(*(walk() for _ in range(lanes)))

    def _walk(self, container: Tracked) -> None:
        wall, began = self._clock.wall(), self._clock.monotonic()
        try:
            used, inodes = self._usage(container.places.upper_dir)
        except HostError as error:
            log.debug("a writable layer cannot be measured", path=container.places.upper_dir, error=error)
            return
        ended = self._clock.monotonic()
        container.layer = LayerSize(wall, used, inodes, ended, ended - began)


def _took_s(container: Tracked) -> float:
    return container.layer.took_s if container.layer is not None else 0.0

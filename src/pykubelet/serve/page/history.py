"""The last minutes of usage, for the charts of the node's page.

Owns: a bounded ring of samples. Reads: the cell `Usage`; asks for a look every `PERIOD_S`, so it exists only where the page
is switched on.
"""

from __future__ import annotations

import asyncio
from collections import deque

from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.usage import GroupUse, NetworkUse, NodeUse, PodUse, Usage, UsageWanted, bytes_on_disk

PERIOD_S = 5.0
KEPT = 120


class Sample(Value):
    """One look at the node or a pod. `at`: wall seconds; `cpu` in nanocores, `memory` and `disk` in bytes, `received` and
    `sent` in bytes a second. None: not known."""

    at: float
    cpu: int | None
    memory: int
    received: int | None
    sent: int | None
    disk: int | None


class Track:
    """The samples of one of them, oldest first."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=KEPT)
        self._before: tuple[float, int, int] | None = None

    def add(self, taken_at: float, group: GroupUse, network: NetworkUse | None, disk: int | None) -> None:
        received, sent = self._rates(taken_at, network)
        self.samples.append(Sample(group.at, group.nano_cores, group.memory.working_set, received, sent, disk))

    def _rates(self, taken_at: float, network: NetworkUse | None) -> tuple[int | None, int | None]:
        """Since the look before. Counters that went down are those of another network namespace."""
        before, self._before = self._before, None
        if network is None:
            return None, None
        received = sum(one.rx_bytes for one in network.interfaces)
        sent = sum(one.tx_bytes for one in network.interfaces)
        self._before = (taken_at, received, sent)
        if before is None or taken_at <= before[0]:
            return None, None
        span = taken_at - before[0]
        return max(0, int((received - before[1]) / span)), max(0, int((sent - before[2]) / span))


class History:
    """`run` never returns. `node` and `pods`: what is remembered."""

    def __init__(self, usage: Cell[Usage], wanted: Post[UsageWanted], clock: Clock) -> None:
        self._usage = usage
        self._wanted = wanted
        self._clock = clock
        self._seen: float | None = None
        self.node = Track()
        self.pods: dict[PodUID, Track] = {}

    async def run(self) -> None:
        async with Supervisor("history") as supervisor:
            supervisor.start_root("history-asks", self._ask())
            supervisor.start_root("history-keeps", self._keep())
            raise await supervisor.wait_failed()

    async def _ask(self) -> None:
        while True:
            self._wanted.post(UsageWanted(self._clock.monotonic() - PERIOD_S / 2))
            await asyncio.sleep(PERIOD_S)

    async def _keep(self) -> None:
        async for usage in self._usage.changes():
            if usage.node is not None and usage.taken_at is not None and not usage.error:
                self.add(usage.taken_at, usage.node, list(usage.pods.values()))

    def add(self, taken_at: float, node: NodeUse, pods: list[PodUse]) -> None:
        """Remember one look; looks that follow each other too fast count once."""
        if self._seen is not None and taken_at - self._seen < PERIOD_S / 2:
            return
        self._seen = taken_at
        self.node.add(taken_at, node.group, node.network, node.fs.used if node.fs is not None else None)
        for uid in self.pods.keys() - {pod.ref.uid for pod in pods}:
            del self.pods[uid]
        for pod in pods:
            if pod.group is not None:
                track = self.pods.setdefault(pod.ref.uid, Track())
                track.add(taken_at, pod.group, pod.network, bytes_on_disk(pod))

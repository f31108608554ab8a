"""The last minutes of usage, for the charts of the node's page.

Owns: a bounded ring of points. Reads: the cell `Usage`. Requests usage every `PERIOD_S`, so it runs only if the page is
enabled.
"""

from __future__ import annotations

import asyncio
from collections import deque

from pykubelet.base.kit.cells import Cell, Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.usage import GroupUse, NetworkUse, NodeUse, PodUse, Usage, UsageWanted, bytes_on_disk

PERIOD_S = 5.0
KEPT = 120


class UsagePoint(Value):
    """One measurement of the node or a pod. `at`: wall seconds. `cpu`: nanocores. `memory`, `disk`: bytes. `received`, `sent`:
    bytes per second. None: not known."""

    at: float
    cpu: int | None
    memory: int
    received: int | None
    sent: int | None
    disk: int | None


class Track:
    """The points of the node or of one pod, oldest first."""

    def __init__(self) -> None:
        self.points: deque[UsagePoint] = deque(maxlen=KEPT)
        self._before: tuple[float, int, int] | None = None

    def add(self, taken_at: float, group: GroupUse, network: NetworkUse | None, disk: int | None) -> None:
        """Add one measurement, taken at `taken_at` (monotonic seconds). `disk`: bytes."""
        received, sent = self._rates(taken_at, network)
        self.points.append(UsagePoint(group.at, group.nano_cores, group.memory.working_set, received, sent, disk))

    def _rates(self, taken_at: float, network: NetworkUse | None) -> tuple[int | None, int | None]:
        """The rates since the previous measurement. Counters that decreased are those of another network namespace."""
        before, self._before = self._before, None
        if network is None:
            return None, None
        received = sum(interface.rx_bytes for interface in network.interfaces)
        sent = sum(interface.tx_bytes for interface in network.interfaces)
        self._before = (taken_at, received, sent)
        if before is None or taken_at <= before[0]:
            return None, None
        span = taken_at - before[0]
        return max(0, int((received - before[1]) / span)), max(0, int((sent - before[2]) / span))


class History:
    """The recent usage of the node and the pods. `run` never returns."""

    def __init__(self, usage: Cell[Usage], wanted: Post[UsageWanted], clock: Clock) -> None:
        self._usage = usage
        self._wanted = wanted
        self._clock = clock
        self._seen: float | None = None
        self.node = Track()
        self.pods: dict[PodUID, Track] = {}

    async def run(self) -> None:
        """Request usage every PERIOD_S and keep it. Never returns."""
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
        """Add one measurement. If it is too soon after the last one, it is dropped."""
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

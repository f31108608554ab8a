"""The last minutes of usage, for the charts of the node's page.

Owns: a bounded ring of samples. Reads: the cell `Usage`; asks for a look every `PERIOD_S`, so it exists only where the page
is switched on.
"""

from __future__ import annotations

import asyncio
from collections import deque

from msgspec import Struct

from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.usage import NetworkUse, NodeUse, PodUse, Usage, UsageWanted

PERIOD_S = 5.0
KEPT = 120


class NodeSample(Value):
    """`cpu` in nanocores, `memory` and `disk` in bytes, `received` and `sent` in bytes a second. None: not known."""

    at: float
    cpu: int | None
    memory: int
    received: float | None
    sent: float | None
    disk: int | None


class PodSamples(Struct):
    """`cpu` in nanocores, `memory` in bytes, oldest first."""

    cpu: deque[int | None] = field(default_factory=lambda: deque(maxlen=KEPT))
    memory: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT))


def _total(network: NetworkUse | None) -> tuple[int, int] | None:
    if network is None:
        return None
    return sum(one.rx_bytes for one in network.interfaces), sum(one.tx_bytes for one in network.interfaces)


class History:
    """`run` never returns. `node` and `pods`: what is remembered."""

    def __init__(self, usage: Cell[Usage], wanted: Post[UsageWanted], clock: Clock) -> None:
        self._usage = usage
        self._wanted = wanted
        self._clock = clock
        self._before: tuple[float, tuple[int, int]] | None = None
        self._seen: float | None = None
        self.node: deque[NodeSample] = deque(maxlen=KEPT)
        self.pods: dict[PodUID, PodSamples] = {}

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
        received = sent = None
        total = _total(node.network)
        if total is not None and self._before is not None and taken_at > self._before[0]:
            span, old = taken_at - self._before[0], self._before[1]
            received, sent = max(0.0, (total[0] - old[0]) / span), max(0.0, (total[1] - old[1]) / span)
        self._before = (taken_at, total) if total is not None else None
        group = node.group
        disk = node.fs.used if node.fs is not None else None
        self.node.append(NodeSample(group.at, group.nano_cores, group.memory.working_set, received, sent, disk))
        present = {pod.ref.uid for pod in pods}
        for uid in self.pods.keys() - present:
            del self.pods[uid]
        for pod in pods:
            if pod.group is not None:
                samples = self.pods.setdefault(pod.ref.uid, PodSamples())
                samples.cpu.append(pod.group.nano_cores)
                samples.memory.append(pod.group.memory.working_set)

"""A PLEG in front of a fake runtime in virtual time, with pods that tests make in the runtime directly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.virtual_time import virtual_clock

from pykubelet.base.kit.cells import Cell, CellWriter, Mailbox, Sink, make_cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model import labels
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.node import RuntimeReady
from pykubelet.base.model.observed import ContainerEnd, Observed, ObservedState, PodReadWanted, PodView, StopInProgress
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.edges.cri.events import HintKind, RuntimeEventSource, RuntimeHint, StreamLost, watch_runtime
from pykubelet.observe.pleg.decide import RelistPeriods
from pykubelet.observe.pleg.loop import Hints, Pleg, PlegCells
from pykubelet.testing.cri.fake_answers import FakeFeatures
from pykubelet.testing.cri.fake_state import FakeContainer, FakeSandbox
from pykubelet.testing.cri.in_memory import MemoryRuntime

IMAGE = "busybox:1"
RUNNING, EXITED = ObservedState.RUNNING, ObservedState.EXITED
NO_EVENTS = FakeFeatures(cri_events=False, containerd_events=False)
SLOW = RelistPeriods(with_events_s=300.0, without_events_s=300.0, first_s=300.0)  # longer than any test waits


def ref(name: str) -> PodRef:
    return PodRef("shop", name, PodUID(f"uid-{name}"))


@dataclass
class Stand:
    fake: MemoryRuntime
    client: CriClient
    clock: Clock
    cell: Cell[Observed]
    mailbox: Mailbox[PodReadWanted | StopInProgress]
    published: list[Observed] = field(default_factory=list)
    recorder: Sink[KubeEvent] = field(default_factory=Sink)
    runtime: CellWriter[RuntimeReady] = field(default_factory=lambda: make_cell("runtime", RuntimeReady())[1])
    subscribed_at: float | None = None

    # In the runtime

    def make_pod(self, name: str, *containers: str, attempt: int = 0) -> FakeSandbox:
        """A sandbox, and containers that run until they are stopped."""
        known = {labels.POD_UID: f"uid-{name}", labels.POD_NAME: name, labels.POD_NAMESPACE: "shop"}
        meta = pb.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="shop", attempt=attempt)
        sandbox = self.fake.state.run_sandbox(pb.PodSandboxConfig(metadata=meta, labels=known), "")
        for container in containers:
            self.start(sandbox, container)
        return sandbox

    def create(self, sandbox: FakeSandbox, name: str, attempt: int = 0) -> FakeContainer:
        known = {**sandbox.config.labels, labels.CONTAINER_NAME: name}
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=name, attempt=attempt), image=pb.ImageSpec(image=IMAGE), labels=known
        )
        return self.fake.state.create(sandbox.id, config)

    def start(self, sandbox: FakeSandbox, name: str, attempt: int = 0) -> FakeContainer:
        container = self.create(sandbox, name, attempt)
        self.fake.state.start(container)
        return container

    # What the PLEG publishes

    async def wait(self, condition: Callable[[Observed], bool]) -> Observed:
        return await asyncio.wait_for(self.cell.wait_for(condition), 30.0)

    async def until(self, what: str, condition: Callable[[], object]) -> None:
        """For what is in no cell."""
        for _ in range(3000):
            if condition():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"not {what}")

    async def listed(self, *unread: str) -> Observed:
        """A relist was published, and each pod was read except those named."""
        refs = {ref(name) for name in unread}
        return await self.wait(lambda now: now.listed_at is not None and now.unread == refs)

    async def followed(self) -> Observed:
        """A relist was published since the subscription: later changes lead to events, and nothing else is under way."""
        await self.until("subscribed", lambda: self.subscribed_at is not None)
        since = self.subscribed_at
        assert since is not None
        return await self.wait(lambda now: now.listed_at is not None and now.listed_at >= since and not now.unread)

    async def wait_state(self, pod: str, container: str, state: ObservedState) -> PodView:
        def is_so(now: Observed) -> bool:
            view = now.pods.get(ref(pod).uid)
            newest = view.newest(container) if view is not None else None
            return newest is not None and newest.state is state

        return (await self.wait(is_so)).pods[ref(pod).uid]

    def view(self, pod: str) -> PodView | None:
        return self.cell.get().pods.get(ref(pod).uid)

    def touch(self, pod: str, *changed: str) -> None:
        self.mailbox.post(PodReadWanted(ref(pod), "test", frozenset(ContainerID(name) for name in changed)))


def pods(stand: Stand, *names: str) -> None:
    for name in names:
        stand.make_pod(name, "app")


@asynccontextmanager
async def run_pleg(
    folder: Path,
    periods: RelistPeriods = SLOW,
    features: FakeFeatures | None = None,
    hints: Hints = watch_runtime,
    before: Callable[[Stand], None] | None = None,
) -> AsyncIterator[Stand]:
    """A running PLEG. `before` prepares the runtime; at the end of the block no task may have crashed."""
    clock = virtual_clock()
    fake = MemoryRuntime(str(folder / "cri.sock"), clock, features)
    fake.add_image(IMAGE)
    fake.start()
    client = fake.connect()
    cell, writer = make_cell("observed", Observed())
    stand = Stand(fake, client, clock, cell, Mailbox("pleg"))
    if before is not None:
        before(stand)
    cells = PlegCells(writer, stand.runtime.cell)
    noted = _noting(stand, hints)
    pleg = Pleg(client, clock, cells, stand.mailbox, periods, stand.recorder, noted)
    async with Supervisor("test") as supervisor:
        supervisor.start_root("keep", _keep(stand))
        running = supervisor.start_child("pleg", pleg.run())
        try:
            yield stand
            if running.done():
                running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await client.close()
            fake.stop()


def _noting(stand: Stand, hints: Hints) -> Hints:
    """The same hints; the stand knows since when they are sent."""

    async def noted(client: CriClient) -> AsyncIterator[RuntimeHint]:
        try:
            async for hint in hints(client):
                if hint.kind is HintKind.SUBSCRIBED:
                    if hints is watch_runtime:
                        await stand.until("followed by the runtime", lambda: stand.fake.subscribers)
                    stand.subscribed_at = stand.clock.monotonic()
                yield hint
        finally:
            stand.subscribed_at = None

    return noted


async def _keep(stand: Stand) -> None:
    async for observed in stand.cell.changes():
        stand.published.append(observed)


class FedHints:
    """A stream of hints that the test writes."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[RuntimeHint | None] = asyncio.Queue()
        self.subscriptions = 0

    async def __call__(self, client: CriClient) -> AsyncIterator[RuntimeHint]:
        self.subscriptions += 1
        yield RuntimeHint("", HintKind.SUBSCRIBED, RuntimeEventSource.CONTAINERD)
        while True:
            hint = await self._queue.get()
            if hint is None:
                raise StreamLost(RuntimeEventSource.CONTAINERD, CriError(CriCode.UNAVAILABLE, "gone", "Subscribe"))
            yield hint

    def say(self, kind: HintKind, runtime_id: str, pod_uid: str | None = None, end: ContainerEnd | None = None) -> None:
        self._queue.put_nowait(RuntimeHint(runtime_id, kind, RuntimeEventSource.CONTAINERD, pod_uid, end=end))

    def lose(self) -> None:
        self._queue.put_nowait(None)

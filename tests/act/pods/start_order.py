"""What a runtime was asked for, and when each call began and ended: for tests of the promised orders (docs/start-order.md)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from act.pods.node import Node, named
from act.pods.scenes import IMAGE, container, pod, sidecar
from support.virtual_time import virtual_clock

from pykubelet.base.api.core import Container, Pod
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.edges.cri.errors import CriCode
from pykubelet.testing.cri.fake_answers import Answer
from pykubelet.testing.cri.fake_handles import RuntimeFault
from pykubelet.testing.cri.fake_state import Refused
from pykubelet.testing.cri.in_memory import MemoryRuntime

HOOK = {"postStart": {"exec": {"command": ["true"]}}}
CREATE, START, HOOK_CALL, REMOVE = "CreateContainer", "StartContainer", "ExecSync", "RemoveContainer"
_METHODS = (CREATE, START, HOOK_CALL)


@dataclass
class Span:
    """One call for a container. `ended`: None while it is running."""

    method: str
    name: str
    began: int
    ended: int | None = None


@dataclass
class Delays:
    """Seconds that successive calls take, one after the other. `is_late`: their effect comes at once, and only the answer later."""

    create_s: Sequence[float] = (0.01,)
    start_s: Sequence[float] = (0.02,)
    hook_s: Sequence[float] = (0.5,)
    is_late: bool = False
    _next: dict[str, Iterator[float]] = field(default_factory=dict)

    def next_s(self, method: str) -> float:
        every = {CREATE: self.create_s, START: self.start_s, HOOK_CALL: self.hook_s}
        return next(self._next.setdefault(method, itertools.cycle(every[method])))


class TimedRuntime(MemoryRuntime):
    """A runtime that notes the order in which calls begin and end. As containerd does, it removes no container while it is started."""

    def __init__(self, path: str, delays: Delays | None = None) -> None:
        super().__init__(path, virtual_clock())
        self.spans: list[Span] = []
        self.delays = delays or Delays()
        self._step = itertools.count()
        self._starting = set[str]()

    async def answer(self, method: str, request: Any, answer: Answer, traceparent: str = "") -> Any:
        if method == REMOVE and request.container_id in self._starting:
            message = f'failed to set removing state for container "{request.container_id}"'
            raise Refused(CriCode.UNKNOWN, f"{message}: container is in starting state, can't be removed")
        if method not in _METHODS:
            return await super().answer(method, request, answer, traceparent)
        meta = request.config.metadata if method == CREATE else self.state.need(request.container_id).config.metadata
        span = Span(method, meta.name, next(self._step))
        self.spans.append(span)
        takes_s = self.delays.next_s(method)
        if method == START:
            self._starting.add(request.container_id)
        try:
            if self.delays.is_late:
                answered = await super().answer(method, request, answer, traceparent)
                await asyncio.sleep(takes_s)
                return answered
            await asyncio.sleep(takes_s)
            return await super().answer(method, request, answer, traceparent)
        finally:
            span.ended = next(self._step)
            if method == START:
                self._starting.discard(request.container_id)

    def of(self, method: str) -> list[Span]:
        return [span for span in self.spans if span.method == method]

    def first(self, method: str, name: str) -> Span:
        return next(span for span in self.of(method) if span.name == name)

    def names(self, method: str) -> list[str]:
        return [span.name for span in self.of(method)]

    def most_ahead(self) -> int:
        """The largest number of containers that were created, or being created, and not being started, at the begin of a call."""
        return max(
            sum(span.began <= at.began for span in self.of(CREATE)) - sum(s.began <= at.began for s in self.of(START))
            for at in self.spans
        )


@contextmanager
def timed(folder: Path, delays: Delays | None = None, *faults: RuntimeFault) -> Iterator[TimedRuntime]:
    runtime = TimedRuntime(str(folder / "cri.sock"), delays)
    runtime.add_image(IMAGE)
    for fault in faults:
        runtime.inject(fault)
    runtime.start()
    yield runtime
    runtime.stop()


def many(count: int, *, hooked: Sequence[int] = (), init: tuple[Container, ...] = (), **spec: Any) -> Pod:
    """A pod of the containers `c0`, `c1` and so on; each has an image of its own, which is there."""
    made = (
        container(f"c{n}", image=f"image-{n}:1", **({"lifecycle": HOOK} if n in hooked else {})) for n in range(count)
    )
    return named(pod(*made, init=init, terminationGracePeriodSeconds=1, **spec), "web")


def inits(kinds: Sequence[bool]) -> tuple[Container, ...]:
    """Init containers that end at once, or sidecars where True."""
    ends = {"command": ["sh", "-c", "true"]}
    return tuple(sidecar(f"i{n}") if stays else container(f"i{n}", **ends) for n, stays in enumerate(kinds))


def events_of(n: Node) -> list[tuple[str, str]]:
    """The Events of containers, as name and reason."""
    return [(_name(event), event.reason) for event in n.recorder.events if event.field_path]


def _name(event: KubeEvent) -> str:
    return event.field_path.partition("{")[2].rstrip("}")

"""The fake container runtime without gRPC and sockets: its answers are called, each with messages as they would travel.

For tests in virtual time, and for whole agents in one process: where millions of calls are made, and hundreds of agents at
once (set `records` False there). What a call does is the fake's own (`fake_answers.py`); how calls travel is tested elsewhere
(tests/net/grpc).
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.edges.cri.calls import ContainerdCalls, ImageCalls, RuntimeCalls
from pykubelet.edges.cri.client import ContainerdApi, CriClient
from pykubelet.edges.cri.events import HintKind
from pykubelet.edges.cri.wire import Wire
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet.testing.cri.fake_answers import FakeFeatures
from pykubelet.testing.cri.fake_events import cri_event, envelopes
from pykubelet.testing.cri.fake_handles import FakeHandles
from pykubelet.testing.cri.fake_state import FakeSandbox, Refused
from pykubelet.testing.ordered import OrderedSet

SUBSCRIBE, CRI_EVENTS = "Subscribe", "GetContainerEvents"
#: Takes a message and the caller's span.
Serve = Callable[[bytes, str], Awaitable[bytes]]
_TRACEPARENT_SIZE = 55


class MemoryRuntime(FakeHandles):
    """`start` and `stop`: as a daemon that is restarted; what runs goes on. `counted`: how many calls of each method."""

    def __init__(self, path: str, clock: Clock, features: FakeFeatures | None = None) -> None:
        super().__init__(path, clock, features, self._notify)
        self.counted: Counter[str] = Counter()
        self.channels: OrderedSet[MemoryChannel] = OrderedSet()
        self.is_up = False
        self._starts = 0
        self.supervisor = Supervisor("memory-runtime")
        self._serving = self._tables()

    def start(self) -> None:
        """Accept calls."""
        with open(self.path, "w", encoding="ascii"):
            self.is_up = True
        self._starts += 1
        os.utime(self.path, (self._starts, self._starts))  # each socket is another file, however quick a restart is

    def stop(self) -> None:
        """Calls and streams break, the socket is gone, the state is kept. Does nothing if it is stopped."""
        if not self.is_up:
            return
        self.is_up = False
        os.unlink(self.path)
        for channel in list(self.channels):
            channel.lose()

    def die(self) -> None:
        """Stop in the middle of a call."""
        self.stop()

    @property
    def subscribers(self) -> int:
        """The number of open event streams."""
        return sum(len(channel.streams) for channel in self.channels)

    def connect(self, timeout_s: float = 120.0) -> CriClient:
        """A client of this runtime. `timeout_s`: as of `CriClient`."""
        return MemoryCriClient(self, timeout_s)

    def serve(self, method: str) -> Serve | None:
        """What answers a method; None if nothing does."""
        return self._serving.get(method)

    def streams(self, method: str) -> bool:
        """Whether there is such a stream of events."""
        features = self.features
        return (method == SUBSCRIBE and features.containerd_events) or (method == CRI_EVENTS and features.cri_events)

    def _tables(self) -> dict[str, Serve]:
        answers = {**self.runtime_answers(), **self.image_answers(), **self.task_answers()}
        return {name: self._serve(name, *answer) for name, answer in answers.items()}

    def _serve(self, name: str, request: type[Any], answer: Callable[[Any], Awaitable[Any]]) -> Serve:
        async def serve(message: bytes, traceparent: str) -> bytes:
            self.counted[name] += 1
            try:
                result = await self.answer(name, request.FromString(message), answer, traceparent)
            except Refused as error:
                raise RpcError(Code[error.code.name], error.message) from None
            data: bytes = result.SerializeToString()
            return data

        return serve

    def _notify(self, kind: HintKind, object_id: str, sandbox: FakeSandbox) -> None:
        made = {SUBSCRIBE: [envelope.SerializeToString() for envelope in envelopes(kind, object_id)]}
        if self.features.cri_events:
            event = cri_event(self.state, kind, object_id, sandbox)
            made[CRI_EVENTS] = [event.SerializeToString()] if event is not None else []
        for channel in self.channels:
            for stream in channel.streams:
                for message in made[stream.method]:
                    stream.put(message)


class MemoryStream:
    """A subscription (`net.grpc.channel.ServerStream`)."""

    def __init__(self, channel: MemoryChannel, method: str) -> None:
        self._channel = channel
        self.method = method
        self._messages: deque[bytes] = deque()
        self._wakeup = asyncio.Event()
        self.end: RpcError | None = None

    def put(self, message: bytes) -> None:
        self._messages.append(message)
        self._wakeup.set()

    async def read(self) -> bytes | None:
        while not self._messages:
            if self.end is not None:
                raise self.end
            self._wakeup.clear()
            await self._wakeup.wait()
        return self._messages.popleft()

    def fail(self, error: RpcError) -> None:
        self.end = self.end or error
        self._channel.streams.discard(self)
        self._channel.runtime.changed()
        self._wakeup.set()

    def close(self) -> None:
        self.fail(RpcError(Code.CANCELED, "the stream was closed"))


class MemoryChannel:
    """The way to the runtime (`net.grpc.channel.Channel`)."""

    def __init__(self, runtime: MemoryRuntime) -> None:
        self.runtime = runtime
        self._lost = asyncio.Event()
        self._waiting: OrderedSet[asyncio.Future[bytes]] = OrderedSet()
        self.streams: OrderedSet[MemoryStream] = OrderedSet()

    def method(self, path: str, metadata: tuple[tuple[str, str], ...] = ()) -> bytes:
        return path.rpartition("/")[2].encode()

    async def wait_lost(self) -> None:
        await self._lost.wait()
        self._lost.clear()

    async def unary(self, method: bytes, message: bytes, timeout_s: float | None, fields: bytes = b"") -> bytes:
        """Answered in the loop's next round at the earliest, as over a socket. The runtime ends what it has begun."""
        serve = self._connected(method)
        traceparent = fields[-_TRACEPARENT_SIZE:].decode()
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        child = self.runtime.supervisor.start_child(
            f"call-{method.decode()}", _carry(serve(message, traceparent), waiting)
        )
        try:
            async with asyncio.timeout(timeout_s):
                return await waiting
        except TimeoutError:
            raise RpcError(Code.DEADLINE_EXCEEDED, "context deadline exceeded") from None
        finally:
            self._waiting.discard(waiting)
            if not child.done() and method == b"ExecSync":
                child.cancel()
            del waiting  # its error, if it has one, refers to this frame

    async def stream(self, method: bytes, message: bytes) -> MemoryStream:
        self._connected(b"Version")
        stream = MemoryStream(self, method.decode())
        if not self.runtime.streams(stream.method):
            stream.fail(RpcError(Code.UNIMPLEMENTED, f"unknown method {method.decode()}"))
            return stream
        self.streams.add(stream)
        self.runtime.changed()
        return stream

    def _connected(self, method: bytes) -> Serve:
        runtime = self.runtime
        if not runtime.is_up:
            raise RpcError(Code.UNAVAILABLE, f"connection error: dial unix {runtime.path}: no such file or directory")
        runtime.channels.add(self)
        serve = runtime.serve(method.decode())
        if serve is None:
            raise RpcError(Code.UNIMPLEMENTED, f"unknown method {method.decode()}")
        return serve

    def lose(self) -> None:
        self._break(RpcError(Code.UNAVAILABLE, "error reading from server: EOF"))
        self._lost.set()

    def close(self) -> None:
        self._break(RpcError(Code.CANCELED, "grpc: the client connection is closing"))

    def _break(self, error: RpcError) -> None:
        self.runtime.channels.discard(self)
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(error)
        for stream in list(self.streams):
            stream.fail(error)


async def _carry(work: Awaitable[bytes], waiting: asyncio.Future[bytes]) -> None:
    try:
        answer = await work
    except RpcError as error:
        if not waiting.done():
            waiting.set_exception(error.with_traceback(None))  # which refers to `waiting`
        return
    if not waiting.done():
        waiting.set_result(answer)


class MemoryCriClient(CriClient):
    """The agent's client, on such a channel."""

    def __init__(self, runtime: MemoryRuntime, timeout_s: float = 120.0) -> None:
        self.endpoint = f"unix://{runtime.path}"
        self._containerd_api = ContainerdApi()
        self._timeout_s = timeout_s
        self._wire = Wire(self.endpoint)
        self._wire.channel = MemoryChannel(runtime)  # type: ignore[assignment]
        self._image_wire = self._containerd_wire = self._wire
        self._runtime = RuntimeCalls(self._wire)
        self._images = ImageCalls(self._image_wire)
        self._containerd = ContainerdCalls(self._wire, self._containerd_api.namespace)
        self._execs = Supervisor("exec-sync")

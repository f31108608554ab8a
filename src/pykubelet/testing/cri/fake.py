"""A fake container runtime: a real gRPC server on a unix socket that behaves like containerd, in this process.

Owns: serving `FakeState` as CRI, and both event streams. For tests and benchmarks; the running agent never imports it (`grpc`
is installed for development only). The contract tests check its behavior and run against containerd too. The same without
gRPC is in `in_memory.py`.

    fake = FakeRuntime(str(tmp_path / "cri.sock"))
    fake.add_image("busybox:1")                     # present
    fake.registry["nginx:1"] = FakeImage("nginx:1") # can be pulled
    await fake.start()
    fault = fake.inject(Fault("CreateContainer", pod="web", code=CriCode.UNKNOWN, message="boom", times=2))
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.edges.cri import containerd_events_pb2 as events_pb2
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriCode
from pykubelet.edges.cri.events import HintKind
from pykubelet.testing.cri.fake_answers import FakeConditions, FakeFeatures, RegistryAuth
from pykubelet.testing.cri.fake_events import cri_event, envelopes
from pykubelet.testing.cri.fake_handles import Call, FakeHandles, RuntimeFault
from pykubelet.testing.cri.fake_state import FakeImage, FakeSandbox, Refused
from pykubelet.testing.ordered import OrderedSet

__all__ = ["Call", "FakeConditions", "FakeFeatures", "FakeImage", "FakeRuntime", "RegistryAuth", "RuntimeFault"]

_STATUS = {code: getattr(grpc.StatusCode, "CANCELLED" if code.name == "CANCELED" else code.name) for code in CriCode}


@dataclass(slots=True)
class _Subscribers:
    cri: OrderedSet[asyncio.Queue[pb.ContainerEventResponse]] = field(default_factory=OrderedSet)
    containerd: OrderedSet[asyncio.Queue[events_pb2.Envelope]] = field(default_factory=OrderedSet)


class FakeRuntime(FakeHandles):
    """The server. Create it inside the event loop."""

    def __init__(self, path: str, clock: Clock | None = None, features: FakeFeatures | None = None) -> None:
        super().__init__(path, clock, features, self._notify)
        self._subscribers = _Subscribers()
        self._server: grpc.aio.Server | None = None
        self._starts = 0
        self._supervisor = Supervisor("fake-runtime")

    async def start(self) -> None:
        """Start serving, also after `stop` or a `die` fault. Containers that ran still run, as with containerd's shims."""
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        server.add_generic_rpc_handlers(tuple(self._services()))
        # When a server stops, gRPC removes the path that it has bound, possibly after the next server has started. So bind
        # a unique name, then move the socket into place.
        self._starts += 1
        bound = f"{self.path}.{self._starts}"
        server.add_insecure_port(f"unix:{bound}")
        await server.start()
        os.rename(bound, self.path)
        self._server = server

    async def stop(self) -> None:
        """Stop at once: calls and streams fail and the socket is removed, but the state is kept."""
        server, self._server = self._server, None
        self._unlink()
        if server is not None:
            await server.stop(grace=None)

    def _unlink(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def connect(self, timeout_s: float = 120.0) -> CriClient:
        """A client of this runtime. `timeout_s`: as of `CriClient`."""
        return CriClient(self.endpoint, timeout_s=timeout_s)

    @property
    def subscribers(self) -> int:
        """The number of open event streams."""
        return len(self._subscribers.cri) + len(self._subscribers.containerd)

    def die(self) -> None:
        """Stop in the middle of a call."""
        self._supervisor.start_child("die", self.stop())  # a task of its own, because stopping cancels the call

    # Serving

    def _services(self) -> list[grpc.GenericRpcHandler[Any, Any]]:
        runtime: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: self._unary(name, request, answer) for name, (request, answer) in self.runtime_answers().items()
        }
        images = {name: self._unary(name, request, answer) for name, (request, answer) in self.image_answers().items()}
        if self.features.cri_events:
            runtime["GetContainerEvents"] = grpc.unary_stream_rpc_method_handler(
                self._cri_events, pb.GetEventsRequest.FromString, _serialize
            )
        services = [
            grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", runtime),
            grpc.method_handlers_generic_handler("runtime.v1.ImageService", images),
        ]
        if self.features.containerd_events:
            tasks = {
                name: self._unary(name, request, answer) for name, (request, answer) in self.task_answers().items()
            }
            services.append(grpc.method_handlers_generic_handler("containerd.services.tasks.v1.Tasks", tasks))
            subscribe: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
                self._containerd_events, events_pb2.SubscribeRequest.FromString, _serialize
            )
            name = "containerd.services.events.v1.Events"
            services.append(grpc.method_handlers_generic_handler(name, {"Subscribe": subscribe}))
        return services

    def _unary(
        self, name: str, request_type: type[Any], answer: Callable[[Any], Awaitable[Any]]
    ) -> grpc.RpcMethodHandler[Any, Any]:
        async def serve(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            fields = {key: str(value) for key, value in context.invocation_metadata() or ()}
            try:
                return await self.answer(name, request, answer, fields.get("traceparent", ""))
            except Refused as error:
                await context.abort(_STATUS[error.code], error.message)

        return grpc.unary_unary_rpc_method_handler(serve, request_type.FromString, _serialize)

    # Events

    def _notify(self, kind: HintKind, object_id: str, sandbox: FakeSandbox) -> None:
        event = cri_event(self.state, kind, object_id, sandbox)
        if event is not None:
            for cri_queue in self._subscribers.cri:
                cri_queue.put_nowait(event)
        for envelope in envelopes(kind, object_id):
            for queue in self._subscribers.containerd:
                queue.put_nowait(envelope)

    async def _cri_events(self, _request: Any, _context: Any) -> AsyncIterator[pb.ContainerEventResponse]:
        queue: asyncio.Queue[pb.ContainerEventResponse] = asyncio.Queue()
        self._subscribers.cri.add(queue)
        self.changed()
        try:
            while True:
                yield await queue.get()
        finally:
            self._subscribers.cri.discard(queue)
            self.changed()

    async def _containerd_events(self, _request: Any, _context: Any) -> AsyncIterator[events_pb2.Envelope]:
        queue: asyncio.Queue[events_pb2.Envelope] = asyncio.Queue()
        self._subscribers.containerd.add(queue)
        self.changed()
        try:
            while True:
                yield await queue.get()
        finally:
            self._subscribers.containerd.discard(queue)
            self.changed()


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data

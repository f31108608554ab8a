"""A fake container runtime: a real gRPC server on a unix socket that behaves like containerd, in this process.

Owns: serving `FakeState` as CRI, injected faults, the record of calls, both event streams. For tests and benchmarks; the
running agent never imports it (`grpc` is installed for development only). The contract tests check its behavior and run
against containerd too.

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
from pykubelet.base.kit.values import Value
from pykubelet.edges.cri import containerd_events_pb2 as events_pb2
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode
from pykubelet.edges.cri.events import HintKind
from pykubelet.testing.cri.fake_answers import FakeAnswers, FakeConditions, FakeFeatures, RegistryAuth
from pykubelet.testing.cri.fake_events import task_events
from pykubelet.testing.cri.fake_state import (
    FakeContainer,
    FakeImage,
    FakeSandbox,
    Refused,
    container_status,
    sandbox_status,
)

__all__ = ["Call", "FakeConditions", "FakeFeatures", "FakeImage", "FakeRuntime", "RegistryAuth", "RuntimeFault"]

_STATUS = {code: getattr(grpc.StatusCode, "CANCELLED" if code.name == "CANCELED" else code.name) for code in CriCode}


@dataclass(slots=True)
class RuntimeFault:
    """A fault of the calls of one method (`*`: any), for all pods or for one by name or UID.

    `delay_s`: delays the call. `hang`: waits until the caller gives up. `code`: then fails the call. `after`: this happens after
    the call has taken effect, as if its answer were lost. `times` None: until withdrawn. `die`: stops the whole runtime
    instead, with its socket.
    """

    method: str
    pod: str = ""
    code: CriCode | None = None
    message: str = "injected"
    delay_s: float = 0.0
    hang: bool = False
    after: bool = False
    die: bool = False
    times: int | None = None
    met: int = 0


class Call(Value):
    """One received call: the method, the request, the pod's name if known, and the caller's span if it is traced."""

    method: str
    request: Any
    pod: str
    traceparent: str = ""


@dataclass(slots=True)
class _Subscribers:
    cri: set[asyncio.Queue[pb.ContainerEventResponse]] = field(default_factory=set)
    containerd: set[asyncio.Queue[events_pb2.Envelope]] = field(default_factory=set)


class FakeRuntime(FakeAnswers):
    """The server, with the handles for tests: `state`, `registry`, `calls`, `inject`. Create it inside the event loop."""

    def __init__(self, path: str, clock: Clock | None = None, features: FakeFeatures | None = None) -> None:
        super().__init__(clock, features, self._notify)
        self.path = path
        self.endpoint = f"unix://{path}"
        self.calls: list[Call] = []
        self._faults: list[RuntimeFault] = []
        self._subscribers = _Subscribers()
        self._server: grpc.aio.Server | None = None
        self._starts = 0
        self._supervisor = Supervisor("fake-runtime")

    # Handles for tests

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

    def add_image(self, name: str, size: int = 1_000_000, user: str = "") -> FakeImage:
        """Add an image to the store, as if it had been pulled."""
        image = FakeImage(name, size, user)
        self.state.images[name] = image
        return image

    def inject(self, fault: RuntimeFault) -> RuntimeFault:
        """Inject a fault, and return it for `withdraw`."""
        self._faults.append(fault)
        return fault

    def withdraw(self, fault: RuntimeFault) -> None:
        """Remove an injected fault."""
        self._faults.remove(fault)

    @property
    def subscribers(self) -> int:
        """The number of open event streams."""
        return len(self._subscribers.cri) + len(self._subscribers.containerd)

    def called(self, method: str) -> list[Call]:
        """The recorded calls of one method, oldest first."""
        return [call for call in self.calls if call.method == method]

    def container(self, name: str, pod: str = "") -> FakeContainer:
        """The newest instance of a container by name, in the pod with this name or UID if given. Raises KeyError."""
        for container in reversed(self.state.containers.values()):
            meta = container.sandbox.config.metadata
            if container.config.metadata.name == name and pod in ("", meta.name, meta.uid):
                return container
        raise KeyError(name)

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
            pod = self._pod_of(request)
            fields = {key: str(value) for key, value in context.invocation_metadata() or ()}
            self.calls.append(Call(name, request, pod[0], fields.get("traceparent", "")))
            fault = self._fault_for(name, pod)
            try:
                if fault is not None and not fault.after:
                    await self._suffer(fault)
                result = await answer(request)
                if fault is not None and fault.after:
                    await self._suffer(fault)
            except Refused as error:
                await context.abort(_STATUS[error.code], error.message)
            return result

        return grpc.unary_unary_rpc_method_handler(serve, request_type.FromString, _serialize)

    def _fault_for(self, method: str, pod: tuple[str, str]) -> RuntimeFault | None:
        for fault in self._faults:
            spent = fault.times is not None and fault.met >= fault.times
            if not spent and fault.method in ("*", method) and (not fault.pod or fault.pod in pod):
                fault.met += 1
                return fault
        return None

    async def _suffer(self, fault: RuntimeFault) -> None:
        if fault.die:
            self._supervisor.start_child("die", self.stop())  # a task of its own, because stopping cancels this call
        if fault.hang or fault.die:
            await asyncio.Event().wait()
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        if fault.code is not None:
            raise Refused(fault.code, fault.message)

    def _pod_of(self, request: Any) -> tuple[str, str]:
        """The name and UID of the pod that a request concerns; empty if there is none."""
        config = getattr(request, "config", None) or getattr(request, "sandbox_config", None)
        if isinstance(config, pb.PodSandboxConfig):
            return config.metadata.name, config.metadata.uid
        container = self.state.containers.get(getattr(request, "container_id", ""))
        sandbox = container.sandbox if container else self.state.sandboxes.get(getattr(request, "pod_sandbox_id", ""))
        return (sandbox.config.metadata.name, sandbox.config.metadata.uid) if sandbox else ("", "")

    # Events

    def _notify(self, kind: HintKind, object_id: str, sandbox: FakeSandbox) -> None:
        cri_kind = _CRI_EVENTS.get(kind)
        if cri_kind is not None:
            present = sandbox.id in self.state.sandboxes
            event = pb.ContainerEventResponse(
                container_id=object_id,
                container_event_type=cri_kind,
                created_at=sandbox.created_at,
                pod_sandbox_status=sandbox_status(sandbox) if present else None,
                containers_statuses=[container_status(c) for c in self.state.containers_of(sandbox)],
            )
            for cri_queue in self._subscribers.cri:
                cri_queue.put_nowait(event)
        for topic, message in task_events(kind, object_id):
            envelope = events_pb2.Envelope(namespace="k8s.io", topic=topic)
            envelope.event.type_url = message.DESCRIPTOR.full_name
            envelope.event.value = message.SerializeToString()
            for queue in self._subscribers.containerd:
                queue.put_nowait(envelope)

    async def _cri_events(self, _request: Any, _context: Any) -> AsyncIterator[pb.ContainerEventResponse]:
        queue: asyncio.Queue[pb.ContainerEventResponse] = asyncio.Queue()
        self._subscribers.cri.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._subscribers.cri.discard(queue)

    async def _containerd_events(self, _request: Any, _context: Any) -> AsyncIterator[events_pb2.Envelope]:
        queue: asyncio.Queue[events_pb2.Envelope] = asyncio.Queue()
        self._subscribers.containerd.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._subscribers.containerd.discard(queue)


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


_CRI_EVENTS = {
    HintKind.CREATED: pb.CONTAINER_CREATED_EVENT,
    HintKind.STARTED: pb.CONTAINER_STARTED_EVENT,
    HintKind.STOPPED: pb.CONTAINER_STOPPED_EVENT,
    HintKind.DELETED: pb.CONTAINER_DELETED_EVENT,
}

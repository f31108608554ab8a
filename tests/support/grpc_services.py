"""gRPC services of tests: served by grpcio on a real socket, or within the process on an event loop of virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, cast
from urllib.parse import quote

import grpc
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RemoteSettingsChanged, RequestReceived, StreamEnded, StreamReset, WindowUpdated
from support.memory_transport import MemoryServer
from support.virtual_time import VirtualLoop

from pykubelet.net.grpc.http2 import FRAME_BYTES
from pykubelet.net.grpc.services import Method
from pykubelet.net.grpc.status import Code, RpcError, framed

#: Bytes before a message: whether it is compressed, and its length.
PREFIX = 5
_ANSWER = ((":status", "200"), ("content-type", "application/grpc"))


class Context(Protocol):
    """What a handler may use of `grpc.aio.ServicerContext`."""

    def peer(self) -> str:
        """The client's connection."""
        ...

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """End the call with this status."""
        ...


@dataclass(frozen=True, slots=True)
class Rpc:
    """A method. `handler`: takes the request and a context; a coroutine function, or an asynchronous generator if it `streams`."""

    handler: Callable[[Any, Any], Any]
    request: type[Any]
    streams: bool = False


#: Methods by path: `/package.Service/Method`.
Service = Mapping[str, Rpc]


def named(service: str, methods: Mapping[str, Rpc]) -> dict[str, Rpc]:
    """The methods of the service with this name, by path."""
    return {f"/{service}/{method}": rpc for method, rpc in methods.items()}


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A message that the method itself parses and writes."""

    data: bytes

    def SerializeToString(self) -> bytes:
        return self.data

    @classmethod
    def FromString(cls, data: bytes) -> _Bytes:
        return cls(data)


def of_methods(methods: Mapping[str, Method]) -> dict[str, Rpc]:
    """The methods of the product's own gRPC server."""

    def rpc(method: Method) -> Rpc:
        async def handle(request: _Bytes, _: Context) -> _Bytes:
            return _Bytes(await method(request.data))

        return Rpc(handle, _Bytes)

    return {path: rpc(method) for path, method in methods.items()}


def grpcio_handlers(service: Service) -> tuple[grpc.GenericRpcHandler[Any, Any], ...]:
    """The methods for a server of grpcio."""
    found: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = defaultdict(dict)
    for path, rpc in service.items():
        _, name, method = path.split("/")
        make = grpc.unary_stream_rpc_method_handler if rpc.streams else grpc.unary_unary_rpc_method_handler
        found[name][method] = make(rpc.handler, rpc.request.FromString, lambda answer: answer.SerializeToString())
    return tuple(grpc.method_handlers_generic_handler(name, methods) for name, methods in found.items())


async def serve_in_process(path: str, service: Service) -> MemoryServer:
    """Serve on a unix socket in virtual time."""
    numbers = itertools.count(1)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return await loop.create_unix_server(lambda: _Connection(service, f"unix:{path}#{next(numbers)}"), path)


class _Context:
    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        raise RpcError(Code[code.name.replace("CANCELLED", "CANCELED")], details)


class _Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, service: Service, peer: str) -> None:
        self._service = service
        self._context = _Context(peer)
        self._http = H2Connection(H2Configuration(client_side=False, header_encoding=False))
        self._paths: dict[int, str] = {}
        self._bodies: dict[int, bytearray] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._window_opened = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._http.initiate_connection()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        for task in self._tasks.values():
            task.cancel()

    def data_received(self, data: bytes) -> None:
        for event in self._http.receive_data(data):
            match event:
                case RequestReceived():
                    self._paths[event.stream_id] = dict(event.headers)[b":path"].decode()
                    self._bodies[event.stream_id] = bytearray()
                case DataReceived():
                    self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    self._bodies[event.stream_id] += event.data
                case StreamEnded():
                    self._start(event.stream_id)
                case StreamReset():
                    if (task := self._tasks.get(event.stream_id)) is not None:
                        task.cancel()
                case WindowUpdated() | RemoteSettingsChanged():
                    self._window_opened.set()
                case _:
                    pass  # pings and acknowledgments, which h2 answers
        self._flush()

    def _flush(self) -> None:
        self._transport.write(self._http.data_to_send())

    def _start(self, id: int) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(id, self._paths.pop(id), self._bodies.pop(id)))
        self._tasks[id] = task
        task.add_done_callback(lambda _: self._tasks.pop(id))

    async def _answer(self, id: int, path: str, body: bytearray) -> None:
        try:
            if path not in self._service:
                raise RpcError(Code.UNIMPLEMENTED, f"unknown method {path}")
            rpc = self._service[path]
            request = rpc.request.FromString(bytes(body[PREFIX:]))
            self._http.send_headers(id, _ANSWER)
            self._flush()
            async for answer in _answers(rpc, request, self._context):
                await self._send(id, framed(answer.SerializeToString()))
            status: tuple[tuple[str, str], ...] = (("grpc-status", "0"),)
        except RpcError as error:
            status = (("grpc-status", str(int(error.code))), ("grpc-message", quote(error.message)))
            if path not in self._service:
                status = _ANSWER + status
        self._http.send_headers(id, status, end_stream=True)
        self._flush()

    async def _send(self, id: int, body: bytes) -> None:
        """Send the body as the client's window allows."""
        rest = memoryview(body)
        while rest:
            if (size := min(len(rest), self._http.local_flow_control_window(id), FRAME_BYTES)) <= 0:
                self._window_opened.clear()
                await self._window_opened.wait()
                continue
            self._http.send_data(id, bytes(rest[:size]))
            self._flush()
            rest = rest[size:]


async def _answers(rpc: Rpc, request: Any, context: _Context) -> AsyncIterator[Any]:
    made: Awaitable[Any] | AsyncIterator[Any] = rpc.handler(request, context)
    if isinstance(made, AsyncIterator):
        async for answer in made:
            yield answer
    else:
        yield await made

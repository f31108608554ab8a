"""The way to the runtime: endpoints, channels, and one call with its errors translated.

Owns: parsing of `unix://` endpoints, and `Unary`, `Stream` and `OpenStream`, the thin wrappers that every call goes through.
Does not know any method of CRI; `client.py` does. How calls travel, net/grpc knows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar

from google.protobuf.message import DecodeError

from pykubelet.edges.cri.errors import CriCode, CriError, translated
from pykubelet.edges.cri.metrics import OPERATION_DURATIONS, OPERATION_ERRORS, OPERATIONS, operation_type
from pykubelet.net.grpc.channel import Channel, ServerStream, unix_dial
from pykubelet.net.grpc.status import Code, RpcError

_MAX_SOCKET_PATH_BYTES = 107


class Message(Protocol):
    """What the wire needs of a protobuf message."""

    def SerializeToString(self) -> bytes: ...

    @classmethod
    def FromString(cls, s: bytes) -> Self: ...


Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)
Metadata = tuple[tuple[str, str], ...]


def socket_path(endpoint: str) -> str:
    """The path in `unix:///run/x.sock` (or a bare absolute path).

    Raises CriError(INVALID_ARGUMENT) for another scheme, a relative path, or one longer than the kernel takes.
    """
    if endpoint.startswith("unix://"):
        path = endpoint.removeprefix("unix://")
    elif endpoint.startswith("unix:"):
        path = endpoint.removeprefix("unix:")
    else:
        path = endpoint
    if not path.startswith("/") or path == "/":
        raise CriError(CriCode.INVALID_ARGUMENT, f"only unix:///path endpoints are supported, not {endpoint!r}", "dial")
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH_BYTES:
        problem = f"the socket path {path!r} is longer than {_MAX_SOCKET_PATH_BYTES} bytes"
        raise CriError(CriCode.INVALID_ARGUMENT, problem, "dial")
    return path


class Wire:
    """One channel to one socket. Make it inside the running event loop."""

    def __init__(self, endpoint: str) -> None:
        self.path = socket_path(endpoint)
        self.channel = Channel(unix_dial(self.path))

    def close(self) -> None:
        """Close the channel; calls in flight fail with code Canceled."""
        self.channel.close()

    async def wait_lost(self) -> None:
        """Until a connection that stood is lost; a channel that has none yet gets one by the first call."""
        await self.channel.wait_lost()

    def error(self, error: RpcError, call: str) -> CriError:
        """Translate, and say so plainly when nobody can be listening because the socket is not there."""
        found = translated(error.code, error.message, call)
        if found.is_unavailable and not os.path.exists(self.path):
            message = f"the runtime's socket {self.path} does not exist; is the container runtime running?"
            return CriError(CriCode.UNAVAILABLE, message, call)
        return found


class _Method(Generic[Q, R]):
    """One method of a service, by its path."""

    def __init__(self, wire: Wire, path: str, request: type[Q], response: type[R], metadata: Metadata = ()) -> None:
        self._wire = wire
        self._name = path.rpartition("/")[2]
        self._operation = operation_type(self._name)
        self._method = wire.channel.method(path, metadata)
        self._encode = request.SerializeToString
        self._decode = response.FromString


class Unary(_Method[Q, R]):
    """One request, one answer, one deadline."""

    async def __call__(self, request: Q, timeout_s: float | None) -> R:
        """Raises CriError. Cancelling the caller cancels the call; the runtime may finish it all the same."""
        loop, operation = asyncio.get_running_loop(), self._operation
        began = loop.time()
        OPERATIONS.inc(operation)
        try:
            answer = await self._wire.channel.unary(self._method, self._encode(request), timeout_s)
        except RpcError as error:
            OPERATION_ERRORS.inc(operation)
            raise self._wire.error(error, self._name) from error
        finally:
            OPERATION_DURATIONS.observe(loop.time() - began, operation)
        return _decoded(self._decode, answer, self._name)


class Stream(_Method[Q, R]):
    """One request, answers until somebody ends it."""

    async def open(self, request: Q) -> OpenStream[R]:
        """Send the request; answers are kept until they are read. Close the result. Raises CriError."""
        try:
            stream = await self._wire.channel.stream(self._method, self._encode(request))
        except RpcError as error:
            raise self._wire.error(error, self._name) from error
        return OpenStream(self._wire, self._name, self._decode, stream)


class OpenStream(Generic[R]):
    """A running stream with one reader."""

    def __init__(self, wire: Wire, name: str, decode: Callable[[bytes], R], stream: ServerStream) -> None:
        self._wire = wire
        self._name = name
        self._decode = decode
        self._stream = stream

    def failure(self) -> CriError | None:
        """Why the stream has already ended, or None while it is open."""
        end = self._stream.end
        if end is None:
            return None
        if end.code is Code.OK:
            return CriError(CriCode.UNAVAILABLE, "the runtime ended the stream", self._name)
        return self._wire.error(end, self._name)

    async def read(self) -> R | None:
        """The next answer, or None when the runtime has ended the stream; CriError when it broke."""
        try:
            answer = await self._stream.read()
        except RpcError as error:
            raise self._wire.error(error, self._name) from error
        return None if answer is None else _decoded(self._decode, answer, self._name)

    def close(self) -> None:
        """End the stream; harmless when it has ended."""
        self._stream.close()


def _decoded(decode: Callable[[bytes], R], answer: bytes, call: str) -> R:
    try:
        return decode(answer)
    except DecodeError as error:
        raise CriError(CriCode.INTERNAL, f"grpc: failed to unmarshal the received message: {error}", call) from error

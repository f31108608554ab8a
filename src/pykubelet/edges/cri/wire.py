"""The way to the runtime: endpoints, channels, and one call with its errors translated.

Owns: parsing of `unix://` endpoints, the channel options, and `Unary`, the thin wrapper that every call goes through.
Does not know any method of CRI; `client.py` does.
"""

from __future__ import annotations

import asyncio
import os
from typing import Generic, Protocol, Self, TypeVar, cast

import grpc

from pykubelet.edges.cri.errors import CriCode, CriError, translated

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_MAX_SOCKET_PATH_BYTES = 107

# A restarted runtime must be seen within a second, and lists of a full node are larger than the default 4 MiB.
_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.default_authority", "localhost"),
)


class Message(Protocol):
    """What the wire needs of a protobuf message."""

    def SerializeToString(self) -> bytes: ...

    @classmethod
    def FromString(cls, s: bytes) -> Self: ...


Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


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
        self.channel = grpc.aio.insecure_channel(f"unix:{self.path}", options=_CHANNEL_OPTIONS)

    async def close(self) -> None:
        """Close the channel; calls in flight fail with code Canceled."""
        await self.channel.close(grace=None)

    async def wait_lost(self) -> None:
        """Until a connection that stood is lost; a channel that has none yet gets one by the first call."""
        state = self.channel.get_state()
        while True:
            await self.channel.wait_for_state_change(state)
            before, state = state, self.channel.get_state()
            if before is grpc.ChannelConnectivity.READY and state is not before:
                return

    def error(self, status: grpc.StatusCode, details: str | None, call: str) -> CriError:
        """Translate, and say so plainly when nobody can be listening because the socket is not there."""
        found = translated(status, details or "", call)
        if found.is_unavailable and not os.path.exists(self.path):
            message = f"the runtime's socket {self.path} does not exist; is the container runtime running?"
            return CriError(CriCode.UNAVAILABLE, message, call)
        return found


class Unary(Generic[Q, R]):
    """One request, one answer, one deadline."""

    __slots__ = ("_call", "_name", "_wire")

    def __init__(self, wire: Wire, service: str, name: str, request: type[Q], response: type[R]) -> None:
        self._wire = wire
        self._name = name
        self._call = wire.channel.unary_unary(
            f"/{service}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )

    async def __call__(self, request: Q, timeout_s: float | None) -> R:
        """Raises CriError. Cancelling the caller cancels the call; the runtime may finish it all the same."""
        try:
            answer: R = await self._call(request, timeout=timeout_s)
            return answer
        except grpc.aio.AioRpcError as error:
            raise self._wire.error(error.code(), error.details(), self._name) from error
        except grpc.aio.UsageError as error:
            raise CriError(CriCode.CANCELED, "the client is closed", self._name) from error
        except asyncio.CancelledError as error:
            if _is_cancelled_from_outside():
                raise
            raise CriError(CriCode.CANCELED, "the client was closed", self._name) from error


class Stream(Generic[Q, R]):
    """One request, answers until somebody ends it."""

    __slots__ = ("_call", "_metadata", "_name", "_wire")

    def __init__(
        self,
        wire: Wire,
        service: str,
        name: str,
        request: type[Q],
        response: type[R],
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._wire = wire
        self._name = name
        self._metadata = metadata
        self._call = wire.channel.unary_stream(
            f"/{service}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )

    def open(self, request: Q) -> OpenStream[R]:
        """Send the request; answers are kept until they are read. Close the result."""
        try:
            return OpenStream(self._wire, self._name, self._call(request, metadata=self._metadata))
        except grpc.aio.UsageError as error:
            raise CriError(CriCode.CANCELED, "the client is closed", self._name) from error


class OpenStream(Generic[R]):
    """A running stream with one reader."""

    def __init__(self, wire: Wire, name: str, call: grpc.aio.UnaryStreamCall[Q, R]) -> None:
        self._wire = wire
        self._name = name
        self._call = call

    async def failure(self) -> CriError | None:
        """Why the stream has already ended, or None while it is open. Does not wait."""
        if not self._call.done():
            return None
        code, details = await self._call.code(), await self._call.details()
        if code is grpc.StatusCode.OK:
            return CriError(CriCode.UNAVAILABLE, "the runtime ended the stream", self._name)
        return self._wire.error(code, details, self._name)

    async def read(self) -> R | None:
        """The next answer, or None when the runtime has ended the stream; CriError when it broke."""
        try:
            answer = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise self._wire.error(error.code(), error.details(), self._name) from error
        except asyncio.CancelledError as error:
            if _is_cancelled_from_outside():
                raise
            raise CriError(CriCode.CANCELED, "the client was closed", self._name) from error
        return None if answer is grpc.aio.EOF else cast("R", answer)  # type: ignore[attr-defined]

    def close(self) -> None:
        """End the stream; harmless when it has ended."""
        self._call.cancel()


def _is_cancelled_from_outside() -> bool:
    """Whether our own task was cancelled; closing the channel also ends calls with CancelledError."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0

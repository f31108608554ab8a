"""Typed calls: requests and answers are encoded and decoded, on a channel and in a server, and every failure is an `RpcError`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, Self, TypeVar

from google.protobuf.message import DecodeError

from pykubelet.net.grpc.channel import Channel
from pykubelet.net.grpc.services import Method
from pykubelet.net.grpc.status import Code, RpcError


class Message(Protocol):
    """The methods of a protobuf message that calls use."""

    def SerializeToString(self) -> bytes:
        """The message in protobuf wire format."""
        ...

    @classmethod
    def FromString(cls, s: bytes) -> Self:
        """Parse wire format; raises DecodeError."""
        ...


R = TypeVar("R", bound=Message)


async def call(channel: Channel, method: str, request: Message, answer: type[R], timeout_s: float) -> R:
    """Call `method` (`/package.Service/Method`) within `timeout_s`. Raises RpcError."""
    return decoded(answer, await channel.unary(channel.method(method), request.SerializeToString(), timeout_s))


def decoded(kind: type[R], data: bytes) -> R:
    """Decode a message. Raises RpcError (INTERNAL)."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise RpcError(Code.INTERNAL, f"the received message cannot be decoded: {error}") from error


def typed_method(request: type[R], handler: Callable[[R], Awaitable[Message]]) -> Method:
    """A method of an `RpcServer` that decodes its request and encodes its answer. What `handler` raises is passed on."""

    async def answer(data: bytes) -> bytes:
        try:
            decoded = request.FromString(data)
        except DecodeError as error:
            raise RpcError(Code.INVALID_ARGUMENT, f"cannot read the request: {error}") from error
        return (await handler(decoded)).SerializeToString()

    return answer

"""Calls to plugins on unix sockets: one typed call with a deadline, and one error.

A plugin is not trusted: the limits bound the memory and event loop time that it can cost.
"""

from __future__ import annotations

import asyncio
import os
from typing import Protocol, Self, TypeVar

from google.protobuf.message import DecodeError

from pykubelet.edges.cri.errors import translated
from pykubelet.net.grpc.channel import MAX_SOCKET_PATH, Channel, unix_dial
from pykubelet.net.grpc.limits import Http2Limits
from pykubelet.net.grpc.status import Code, RpcError

UNIX = "unix:"


class PluginCallError(Exception):
    """A call to a plugin failed. As text: `rpc error: code = Unavailable desc = ...`, as in the reference's messages."""

    def __init__(self, code: Code, message: str, method: str) -> None:
        super().__init__(code, message, method)
        self.code = code
        self.message = message
        self.method = method

    def __str__(self) -> str:
        return str(translated(self.code, self.message, self.method))


class PluginMessage(Protocol):
    """The methods of a protobuf message that this module uses."""

    def SerializeToString(self) -> bytes:
        """The message in protobuf wire format."""
        ...

    @classmethod
    def FromString(cls, s: bytes) -> Self:
        """Parse wire format; raises DecodeError."""
        ...


R = TypeVar("R", bound=PluginMessage)


def plugin_channel(endpoint: str, limits: Http2Limits) -> Channel:
    """A channel to the plugin at `endpoint`, an absolute path with or without `unix:`. Raises PluginCallError."""
    return Channel(unix_dial(endpoint_path(endpoint)), limits)


def endpoint_path(endpoint: str) -> str:
    """The path of an endpoint. Raises PluginCallError for one that cannot be a unix socket."""
    path = endpoint.removeprefix(UNIX)
    path = f"/{path.lstrip('/')}" if path.startswith("//") else path
    if not path.startswith("/") or "\0" in path:
        raise PluginCallError(Code.INVALID_ARGUMENT, f"the endpoint {endpoint!r} is not an absolute path", "dial")
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        problem = f"the endpoint {endpoint!r} is longer than {MAX_SOCKET_PATH} bytes"
        raise PluginCallError(Code.INVALID_ARGUMENT, problem, "dial")
    return path


async def call_plugin(channel: Channel, method: str, request: PluginMessage, answer: type[R], timeout_s: float) -> R:
    """Call `method` (`/package.Service/Method`) within `timeout_s`. Raises PluginCallError."""
    try:
        data = await channel.unary(channel.method(method), request.SerializeToString(), timeout_s)
    except RpcError as error:
        raise PluginCallError(error.code, error.message, method) from error
    return decoded(answer, data, method)


def decoded(answer: type[R], data: bytes, method: str) -> R:
    """Decode a plugin's answer. Raises PluginCallError."""
    try:
        return answer.FromString(data)
    except DecodeError as error:
        problem = f"the received message cannot be decoded: {error}"
        raise PluginCallError(Code.INTERNAL, problem, method) from error


async def reach(endpoint: str, timeout_s: float) -> None:
    """Connect to `endpoint` and close the connection. Raises PluginCallError."""
    path = endpoint_path(endpoint)
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_unix_connection(path)
    except TimeoutError as error:
        raise PluginCallError(Code.DEADLINE_EXCEEDED, f"dial unix {path}: i/o timeout", "dial") from error
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno else str(error)
        raise PluginCallError(Code.UNAVAILABLE, f"dial unix {path}: connect: {why}", "dial") from error
    writer.close()

"""The unix sockets of plugins: their endpoints, and channels to them.

A plugin is not trusted: the limits bound the memory and event loop time that it can cost.
"""

from __future__ import annotations

import asyncio
import os

from pykubelet.net.grpc.channel import MAX_SOCKET_PATH, Channel, unix_dial
from pykubelet.net.grpc.limits import Http2Limits
from pykubelet.net.grpc.status import Code, RpcError

UNIX = "unix:"


def plugin_channel(endpoint: str, limits: Http2Limits) -> Channel:
    """A channel to the plugin at `endpoint`, an absolute path with or without `unix:`. Raises RpcError."""
    return Channel(unix_dial(endpoint_path(endpoint)), limits)


def endpoint_path(endpoint: str) -> str:
    """The path of an endpoint. Raises RpcError for one that cannot be a unix socket."""
    path = endpoint.removeprefix(UNIX)
    path = f"/{path.lstrip('/')}" if path.startswith("//") else path
    if not path.startswith("/") or "\0" in path:
        raise RpcError(Code.INVALID_ARGUMENT, f"the endpoint {endpoint!r} is not an absolute path")
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        problem = f"the endpoint {endpoint!r} is longer than {MAX_SOCKET_PATH} bytes"
        raise RpcError(Code.INVALID_ARGUMENT, problem)
    return path


async def reach(endpoint: str, timeout_s: float) -> None:
    """Connect to `endpoint` and close the connection. Raises RpcError."""
    path = endpoint_path(endpoint)
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_unix_connection(path)
    except TimeoutError as error:
        raise RpcError(Code.DEADLINE_EXCEEDED, f"dial unix {path}: i/o timeout") from error
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno else str(error)
        raise RpcError(Code.UNAVAILABLE, f"dial unix {path}: connect: {why}") from error
    writer.close()

"""Listening: TCP ports and the root-only unix socket, each as a loop that never returns.

Owns: binding of ports, and retries. The health port and the page's port are retried every 5 s. If the authenticated or the read-only
port cannot be bound, the agent exits, as the reference does.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Awaitable

from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc.dead_sockets import release_port
from pykubelet.edges.host.services.unix_socket import RETRY_S, keep_serving_socket, until_the_end
from pykubelet.net.http.accept import keep_alive, serve_connections
from pykubelet.net.http.checked_tls import CheckedTls
from pykubelet.net.http.client_hello import ContextsByGroup
from pykubelet.net.http.server import HEAD_BYTES, Handler, HttpServer, ServerLimits

log = Log("server")
API_CONNECTIONS = 4096
BACKLOG = 4096
#: The time for a request's head on ports without authentication, whose requests are small.
OPEN_HEAD_S = 5.0
_ADVICE = {
    errno.EADDRINUSE: "another program listens there, perhaps another kubelet: stop it, or set another port",
    errno.EADDRNOTAVAIL: "this machine does not have that address: correct `address`",
    errno.EACCES: "the agent may not use this port: run it as root, or set another port",
}
_UCRED = struct.Struct("=iII")


class ListenError(Exception):
    """A port cannot be opened. The text names the setting, the address, and what to do."""


async def keep_serving_port(handler: Handler, address: str, port: int, what: str, retry_s: float = RETRY_S) -> None:
    """Listen on a port and answer. Never returns; if the address cannot be bound, it is logged once and retried."""
    logged = ""
    while True:
        try:
            listening = open_port(address, port)
        except OSError as error:
            if str(error) != logged:
                log.error(f"cannot listen for {what}, trying again", address=address, port=port, error=error)
                logged = str(error)
        else:
            await serve_port(handler, listening, what)
        await asyncio.sleep(retry_s)


async def serve_port(handler: Handler, listening: socket.socket, what: str) -> None:
    """Answer on a listening socket until cancelled, and close it at the end."""
    server = HttpServer(handler, limits=ServerLimits(head_s=OPEN_HEAD_S))
    with listening:
        address, port = listening.getsockname()[:2]
        listener = await asyncio.start_server(until_the_end(server.serve), sock=listening, limit=HEAD_BYTES)
        log.info(f"serving {what}", address=address, port=port)
        await _until_cancelled(listener, server)


async def serve_tls(
    handler: Handler,
    listening: socket.socket,
    tls: CheckedTls | ContextsByGroup,
    certificate: Awaitable[None] | None,
    stream_idle_s: float,
) -> None:
    """Serve the authenticated port on a listening socket until cancelled, and close it at the end.

    `certificate`: awaited first; it ends once there is a certificate. Clients that connect in the meantime wait.
    """
    with listening:
        if certificate is not None:
            await certificate
        server = HttpServer(handler, limits=ServerLimits(connections=API_CONNECTIONS, stream_idle_s=stream_idle_s))
        address, port = listening.getsockname()[:2]
        log.info("serving the API", address=address, port=port)
        await serve_connections(listening, tls, server)


def open_required_port(setting: str, address: str, port: int) -> socket.socket:
    """Open a listening socket that the agent cannot do without. `setting`: the name of the port's setting. Raises ListenError."""
    try:
        return open_port(address, port)
    except OSError as error:
        where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        reason = os.strerror(error.errno) if error.errno else str(error)
        advice = _ADVICE.get(error.errno or 0, "set another address or another port")
        raise ListenError(f"{setting}: cannot listen on {where}: {reason}: {advice}") from error


def open_port(address: str, port: int) -> socket.socket:
    """Open a listening socket; if no address is given, for all addresses of both families. Raises OSError.

    A port of an agent that was killed, but cannot end because a file system hangs, is taken over.
    """
    try:
        return _open_port(address, port)
    except OSError as error:
        try:
            if error.errno != errno.EADDRINUSE or not release_port(port):
                raise
        except HostError as refused:
            log.warning("the port of a process that cannot end is not released", port=port, error=refused)
            raise error from None
    return _open_port(address, port)


def _open_port(address: str, port: int) -> socket.socket:
    if address in ("", "0.0.0.0", "::") and socket.has_dualstack_ipv6():
        made = socket.create_server(("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    else:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = socket.create_server((address or "0.0.0.0", port), family=family, backlog=BACKLOG)
    made.setblocking(False)
    keep_alive(made)
    return made


async def serve_socket(handler: Handler, path: str, retry_s: float = RETRY_S) -> None:
    """Answer HTTP requests on the root-only unix socket at `path`, as `keep_serving_socket` does."""
    await keep_serving_socket(HttpServer(handler, is_root).serve, path, "pykubelet pods and explain", retry_s)


async def _until_cancelled(listener: asyncio.Server, server: HttpServer) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        listener.close()
        server.close()


def is_root(writer: asyncio.StreamWriter) -> bool:
    """Whether the process at the other end of a unix socket runs as root, or as the agent's own user."""
    end = writer.get_extra_info("socket")
    _, uid, _ = _UCRED.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return uid in (0, os.geteuid())

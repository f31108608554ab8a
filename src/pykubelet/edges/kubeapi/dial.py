"""Connections to the API server: TCP with limits that find a dead peer, TLS, and a proxy on the way.

Owns: `Wire`, one connection that carries one exchange after the other. Raises OSError, ssl.SSLError and BadAnswer;
`connection.py` makes ApiErrors of them.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import base64
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import cast
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from pykubelet.base.kit.values import Value
from pykubelet.edges.kubeapi.answer import Answer, BadAnswer
from pykubelet.edges.kubeapi.kubeconfig import Access
from pykubelet.edges.kubeapi.socks import connect_through

#: A peer that is gone is noticed within about half a minute: what was sent stays unacknowledged, or probes do.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
CONNECT_S = 10.0
#: A reader that is behind by so much lets the peer wait.
_BEHIND = 1 << 20
_ASYNCIO_TLS_READ = 32768
SOCKS = "socks5"
_PROXY_PORTS = {"http": 80, "https": 443, SOCKS: 1080}


class Route(Value):
    """Where a connection leads. `prefix`: the path of the server's URL. `proxy`: host and port, its credentials, and how it is spoken
    to: `http`, `https` or `socks5`."""

    host: str
    port: int
    tls: bool
    server_name: str
    prefix: str = ""
    proxy: tuple[str, int] | None = None
    proxy_user: tuple[str, str] = ("", "")
    proxy_scheme: str = "http"

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def through_tunnel(self) -> bool:
        return self.proxy is not None and self.tls and self.proxy_scheme != SOCKS

    @property
    def is_passed_on(self) -> bool:
        """The proxy is asked for whole URLs."""
        return self.proxy is not None and not self.tls and self.proxy_scheme != SOCKS

    @property
    def proxy_login(self) -> str:
        user, password = self.proxy_user
        return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode() if user else ""


def route_to(access: Access) -> Route:
    """By the access and the usual environment variables."""
    parts = urlsplit(access.server)
    tls = parts.scheme == "https"
    host = parts.hostname or ""
    proxy = urlsplit(access.proxy or _proxy_of_environment(host, parts.scheme))
    scheme = proxy.scheme if proxy.scheme in _PROXY_PORTS else "http"
    return Route(
        host=host,
        port=parts.port or (443 if tls else 80),
        tls=tls,
        server_name=access.server_name or host,
        prefix=parts.path,
        proxy=(proxy.hostname, proxy.port or _PROXY_PORTS[scheme]) if proxy.hostname else None,
        proxy_user=(unquote(proxy.username or ""), unquote(proxy.password or "")),
        proxy_scheme=scheme,
    )


def _proxy_of_environment(host: str, scheme: str) -> str:
    """As HTTPS_PROXY, HTTP_PROXY and NO_PROXY say; loopback never goes through a proxy."""
    if host == "localhost" or proxy_bypass(host):
        return ""
    try:
        if ipaddress.ip_address(host).is_loopback:
            return ""
    except ValueError:
        pass
    return getproxies().get(scheme, "")


class Wire(asyncio.Protocol):
    """One connection. `exchange` one after the other; after any error or cancellation it must be `abort`ed."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.tls: ssl.SSLContext | None = None
        self.idle_since = 0.0
        self.used = False
        self.closed = False
        self.answer = Answer()
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class is not derived

    def data_received(self, data: bytes) -> None:
        try:
            self.answer.feed(data)
        except BadAnswer as error:
            self._fail(error)
            return
        if not self._paused and sum(map(len, self.answer.parts)) > _BEHIND and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        try:
            self.answer.end()
        except BadAnswer as bad:
            self._failure = self._failure or error or bad
        self._wake()

    def abort(self) -> None:
        self._fail(ConnectionAbortedError("Connection closed"))

    async def exchange(self, request: bytes, *, has_body: bool = True) -> Answer:
        """Send a request; the answer as soon as its head is there."""
        assert self.transport is not None
        self.answer = Answer(has_body=has_body)
        self.used = True
        self.transport.write(request)
        await self._wait(lambda: self.answer.begun)
        return self.answer

    async def body(self) -> bytes:
        """All of the body."""
        parts = []
        while (part := await self.part()) is not None:
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def part(self) -> bytes | None:
        """The next part of the body, as large as it has arrived; None at its end."""
        answer = self.answer
        await self._wait(lambda: bool(answer.parts) or answer.complete)
        part = answer.take()
        if self._paused and self.transport is not None and not self.closed:
            self._paused = False
            self.transport.resume_reading()
        return part or None

    async def _wait(self, holds: Callable[[], bool]) -> None:
        while not holds():
            if self._failure is not None:
                raise self._failure
            if self.closed:
                raise BadAnswer("the connection was closed")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self.closed = True
        if self.transport is not None:
            self.transport.abort()
        self._wake()


async def dial(route: Route, tls: ssl.SSLContext | None) -> Wire:
    """A connection ready for its first exchange."""
    _spare_memory()
    loop = asyncio.get_running_loop()
    first, name = _first_hop(route, tls)
    connected = await _connected(*(route.proxy or (route.host, route.port)))
    try:
        if route.proxy is not None and route.proxy_scheme == SOCKS:
            async with asyncio.timeout(CONNECT_S):
                await connect_through(connected, route.host, route.port, *route.proxy_user)
        _, wire = await loop.create_connection(
            Wire,
            sock=connected,
            ssl=first,
            server_hostname=name if first is not None else None,
            ssl_handshake_timeout=CONNECT_S if first is not None else None,
        )
    except BaseException:
        connected.close()
        raise
    wire.tls = tls
    if route.through_tunnel and tls is not None:
        try:
            await _tunnel(route, wire, tls)
        except BaseException:
            wire.abort()
            raise
    return wire


def _first_hop(route: Route, tls: ssl.SSLContext | None) -> tuple[ssl.SSLContext | None, str]:
    """The TLS of whoever is connected to, and its name: of a proxy by the same authority as the server's, as in the reference."""
    if route.proxy is not None and route.proxy_scheme == "https":
        return tls or ssl.create_default_context(), route.proxy[0]
    return (None if route.through_tunnel else tls), route.server_name


async def _tunnel(route: Route, wire: Wire, tls: ssl.SSLContext) -> None:
    host = f"[{route.host}]" if ":" in route.host else route.host
    lines = [f"CONNECT {host}:{route.port} HTTP/1.1", f"Host: {host}:{route.port}"]
    if route.proxy_login:
        lines.append(f"Proxy-Authorization: {route.proxy_login}")
    answer = await wire.exchange("\r\n".join((*lines, "", "")).encode(), has_body=False)
    if answer.status != 200:
        raise BadAnswer(f"the proxy refuses to connect: status {answer.status}")
    assert wire.transport is not None
    transport = await asyncio.get_running_loop().start_tls(
        wire.transport, wire, tls, server_hostname=route.server_name, ssl_handshake_timeout=CONNECT_S
    )
    if transport is None:
        raise ConnectionResetError("the connection ended in the TLS handshake")
    wire.transport = transport
    wire.used = False


async def _connected(host: str, port: int) -> socket.socket:
    """By the first address that answers."""
    loop = asyncio.get_running_loop()
    problem: Exception = OSError(f"no address for {host}")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        made = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
        try:
            for level, option, value in _KEEP_ALIVE:
                made.setsockopt(level, option, value)
            async with asyncio.timeout(CONNECT_S):
                await loop.sock_connect(made, address)
        except TimeoutError:
            made.close()
            problem = OSError(f"no connection to {address[0]} within {CONNECT_S:g} s")
        except OSError as error:
            made.close()
            problem = error
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise problem


def _spare_memory() -> None:
    """asyncio's own TLS keeps 256 KiB for each connection; records are 16 KiB at most. uvloop keeps less by itself."""
    asyncio.sslproto.SSLProtocol.max_size = _ASYNCIO_TLS_READ

"""Opening the connections of an HTTP client: TCP, TLS, and proxies. Raises OSError, ssl.SSLError and BadResponse (`FAILURES`)."""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import base64
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from pykubelet.base.kit.values import Value
from pykubelet.net.http.exchange import HttpConnection
from pykubelet.net.http.socks import SocksHandshake

ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)
CONNECT_S = 10.0
_ASYNCIO_TLS_READ = 32768
SOCKS = "socks5"
_PROXY_PORTS = {"http": 80, "https": 443, SOCKS: 1080}


class Destination(Value):
    """The destination of a connection. `prefix`: the path of the server's URL.

    `proxy`: its host and port, its credentials, and its protocol: `http`, `https` or `socks5`.
    """

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
        """Host and port as in a `Host` field, without the scheme's default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def through_tunnel(self) -> bool:
        """Whether the connection is made with CONNECT to the proxy."""
        return self.proxy is not None and self.tls and self.proxy_scheme != SOCKS

    @property
    def is_passed_on(self) -> bool:
        """Whether the proxy forwards requests, which then contain the whole URL."""
        return self.proxy is not None and not self.tls and self.proxy_scheme != SOCKS

    @property
    def proxy_login(self) -> str:
        """The value of `Proxy-Authorization`; "" without a user."""
        user, password = self.proxy_user
        return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode() if user else ""


def destination_of(url: str, proxy_url: str = "", server_name: str = "") -> Destination:
    """The destination of `url`, through `proxy_url` or else the proxy of the usual environment variables.

    `server_name`: for TLS, instead of the host. Raises ValueError if the URL cannot be parsed.
    """
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    host = parts.hostname or ""
    proxy = urlsplit(proxy_url or _proxy_of_environment(host, parts.scheme))
    scheme = proxy.scheme if proxy.scheme in _PROXY_PORTS else "http"
    return Destination(
        host=host,
        port=parts.port or (443 if tls else 80),
        tls=tls,
        server_name=server_name or host,
        prefix=parts.path,
        proxy=(proxy.hostname, proxy.port or _PROXY_PORTS[scheme]) if proxy.hostname else None,
        proxy_user=(unquote(proxy.username or ""), unquote(proxy.password or "")),
        proxy_scheme=scheme,
    )


def _proxy_of_environment(host: str, scheme: str) -> str:
    """The proxy from HTTPS_PROXY, HTTP_PROXY and NO_PROXY. Loopback addresses are never reached through a proxy."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return ""
    from urllib.request import getproxies, proxy_bypass  # it loads an HTTP client and more, a MiB of memory

    if host == "localhost" or proxy_bypass(host):
        return ""
    try:
        if ipaddress.ip_address(host).is_loopback:
            return ""
    except ValueError:
        pass
    return getproxies().get(scheme, "")


async def dial(destination: Destination, tls: ssl.SSLContext | None, connect_s: float = CONNECT_S) -> HttpConnection:
    """Open a connection that is ready for its first exchange. `connect_s`: the time for TCP, for each address.

    The event loop makes the socket and is its only owner. A socket of our own would have two: uvloop closes the number, also
    when it is cancelled, and the socket object may close it again.
    """
    if isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
        _spare_memory()
    first, name = _first_hop(destination, tls)
    if destination.proxy is not None and destination.proxy_scheme == SOCKS:
        connection = await _through_socks(destination, *destination.proxy, connect_s)
    else:
        connection = await _connected(
            HttpConnection, *(destination.proxy or (destination.host, destination.port)), connect_s
        )
    try:
        if first is not None:
            await _secure(connection, first, name)
        connection.tls = tls
        if destination.through_tunnel and tls is not None:
            await _tunnel(destination, connection, tls)
    except BaseException:
        connection.abort()
        raise
    return connection


def _first_hop(destination: Destination, tls: ssl.SSLContext | None) -> tuple[ssl.SSLContext | None, str]:
    """The TLS context and server name of the first peer. A proxy is verified with the server's CA, as in the reference."""
    if destination.proxy is not None and destination.proxy_scheme == "https":
        return tls or ssl.create_default_context(), destination.proxy[0]
    return (None if destination.through_tunnel else tls), destination.server_name


async def _tunnel(destination: Destination, connection: HttpConnection, tls: ssl.SSLContext) -> None:
    host = f"[{destination.host}]" if ":" in destination.host else destination.host
    lines = [f"CONNECT {host}:{destination.port} HTTP/1.1", f"Host: {host}:{destination.port}"]
    if destination.proxy_login:
        lines.append(f"Proxy-Authorization: {destination.proxy_login}")
    response = await connection.exchange("\r\n".join((*lines, "", "")).encode(), has_body=False)
    if response.status != 200:
        raise ConnectionRefusedError(f"the proxy refuses to connect: status {response.status}")
    if connection.is_early:
        raise ConnectionResetError("the proxy sends something before TLS has begun")
    await _secure(connection, tls, destination.server_name)
    connection.used = False


async def _secure(connection: HttpConnection, tls: ssl.SSLContext, server_name: str) -> None:
    """Continue the connection with TLS."""
    assert connection.transport is not None
    transport = await asyncio.get_running_loop().start_tls(
        connection.transport, connection, tls, server_hostname=server_name, ssl_handshake_timeout=CONNECT_S
    )
    if transport is None:
        raise ConnectionResetError("the connection ended in the TLS handshake")
    connection.transport = transport


async def _through_socks(destination: Destination, host: str, port: int, connect_s: float) -> HttpConnection:
    handshake = await _connected(SocksHandshake, host, port, connect_s)
    assert handshake.transport is not None
    try:
        async with asyncio.timeout(CONNECT_S):
            transport = await handshake.connect(destination.host, destination.port, *destination.proxy_user)
    except BaseException:
        handshake.transport.abort()
        raise
    connection = HttpConnection()
    transport.set_protocol(connection)
    connection.connection_made(transport)
    return connection


async def _connected(make: Callable[[], ProtocolT], host: str, port: int, connect_s: float) -> ProtocolT:
    """Connect to the first address that answers."""
    loop = asyncio.get_running_loop()
    problem: Exception = OSError(f"no address for {host}")
    try:
        for family, _, _, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                async with asyncio.timeout(connect_s):
                    return (await loop.create_connection(make, *address[:2], family=family))[1]
            except TimeoutError:
                problem = OSError(f"no connection to {address[0]} within {connect_s:g} s")
            except OSError as error:
                problem = error
        raise problem
    finally:
        del problem  # it refers to this frame


def _spare_memory() -> None:
    """Make the TLS read buffers of asyncio smaller than their 256 KiB per connection, because records have at most 16 KiB.

    uvloop has its own TLS implementation.
    """
    asyncio.sslproto.SSLProtocol.max_size = _ASYNCIO_TLS_READ

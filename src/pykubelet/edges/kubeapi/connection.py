"""HTTP to one API server on aiohttp: the only module that imports it for the client side.

Owns: connections (TCP keep-alive and time limits that find a dead peer), proxies, and the translation of every error of
the library and every bad answer to ApiError. Knows nothing of Kubernetes objects but `Status`.

Source: the Kubernetes documentation "Kubernetes API Concepts".
"""

from __future__ import annotations

import asyncio.sslproto
import ipaddress
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from yarl import URL

from pykubelet.base.api.codec import DecodeError, decode
from pykubelet.base.api.core import Status
from pykubelet.edges.kubeapi.credentials import Identity
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.kubeconfig import Access

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
#: Less than the API server's own limit for idle connections (90 s), so that we never write into one it is closing.
IDLE_S = 60.0
_SHOWN = 400
_READ_SIZE = 1 << 16
_ASYNCIO_TLS_READ = 32768


class Connection:
    """Requests to one server. Made inside a running loop; `close` ends all of them."""

    def __init__(self, access: Access, user_agent: str) -> None:
        _spare_memory()
        self._access = access
        self._connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=IDLE_S, socket_factory=_make_socket, resolver=aiohttp.ThreadedResolver()
        )
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            headers={"User-Agent": user_agent, "Accept": "application/json"},
            skip_auto_headers=("Accept-Encoding",),
            auto_decompress=False,
            read_bufsize=_READ_SIZE,
        )
        self._streams: set[Stream] = set()
        self._options: dict[str, Any] = {"allow_redirects": False}
        if access.server_name:
            self._options["server_hostname"] = access.server_name
        if proxy := access.proxy or _proxy_of_environment(access.server):
            self._options["proxy"] = proxy

    async def request(
        self, method: str, path: str, identity: Identity, body: bytes | None = None, content_type: str = ""
    ) -> bytes:
        """The body of a good answer. Raises ApiError."""
        try:
            async with self._session.request(
                method,
                self._url(path),
                data=body,
                headers=_headers(identity, content_type),
                ssl=identity.tls or False,
                **self._options,
            ) as response:
                data = await response.read()
        except (aiohttp.ClientError, OSError, ssl.SSLError) as error:
            raise _unreached(error, self._access.server) from error
        if response.status >= 300:
            raise answer_error(response.status, data, response.headers)
        return data

    async def open(self, path: str, identity: Identity) -> Stream:
        """A GET whose body goes on: returns when the head has come. Raises ApiError."""
        try:
            response = await self._session.get(
                self._url(path), headers=_headers(identity, ""), ssl=identity.tls or False, **self._options
            )
            if response.status >= 300:
                data = await response.read()
                response.release()
                raise answer_error(response.status, data, response.headers)
        except (aiohttp.ClientError, OSError, ssl.SSLError) as error:
            raise _unreached(error, self._access.server) from error
        stream = Stream(response, self._access.server, self._streams)
        self._streams.add(stream)
        return stream

    async def close(self) -> None:
        for stream in list(self._streams):
            stream.close()  # the library would leave their readers waiting
        await self._session.close()

    def _url(self, path: str) -> URL:
        return URL(self._access.server + path, encoded=True)


class Stream:
    """The body of one answer, piece by piece. Close it."""

    def __init__(self, response: aiohttp.ClientResponse, server: str, open_ones: set[Stream]) -> None:
        self._response = response
        self._server = server
        self._open_ones = open_ones

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """What has arrived, as it arrives; ends when the server ends the answer. Raises ApiError."""
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise _unreached(error, self._server) from error

    def close(self) -> None:
        self._open_ones.discard(self)
        self._response.close()


def with_query(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def answer_error(status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """The ApiError of an answer that is no success."""
    text, reason, retry_after = "", "", _seconds(headers.get("Retry-After", ""))
    try:
        said = decode(Status, body)
        if said.kind == "Status":
            text, reason = said.message, said.reason
            if retry_after is None and said.details is not None and said.details.retryAfterSeconds:
                retry_after = float(said.details.retryAfterSeconds)
    except (DecodeError, msgspec.MsgspecError):
        text = ""
    if not text:
        text = body[:_SHOWN].decode("utf-8", "replace").strip() or f"the server answered with status {status}"
    return ApiError(status, reason, text, retry_after)


def timed_out(seconds: float, server: str) -> ApiError:
    return ApiError(0, "Timeout", f"{server}: no answer within {seconds:g} s")


def _headers(identity: Identity, content_type: str) -> list[tuple[str, str]]:
    return [*identity.headers, ("Content-Type", content_type)] if content_type else list(identity.headers)


def _unreached(error: Exception, server: str) -> ApiError:
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return ApiError(0, "Certificate", f"{server}: {error}")
    text = str(error) or type(error).__name__
    return ApiError(0, "Unreachable", f"{server}: {text}")


def _seconds(text: str) -> float | None:
    """Of a Retry-After header; the API server gives whole seconds, never a date."""
    try:
        return max(0.0, float(text))
    except ValueError:
        return None


def _make_socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
    for level, option, value in _KEEP_ALIVE:
        made.setsockopt(level, option, value)
    return made


def _proxy_of_environment(server: str) -> str:
    """As HTTPS_PROXY, HTTP_PROXY and NO_PROXY say; loopback never goes through a proxy."""
    parts = urlsplit(server)
    host = parts.hostname or ""
    if host == "localhost" or proxy_bypass(host):
        return ""
    try:
        if ipaddress.ip_address(host).is_loopback:
            return ""
    except ValueError:
        pass
    return getproxies().get(parts.scheme, "")


def _spare_memory() -> None:
    """asyncio's own TLS keeps 256 KiB for each connection; records are 16 KiB at most. uvloop keeps less by itself."""
    asyncio.sslproto.SSLProtocol.max_size = _ASYNCIO_TLS_READ

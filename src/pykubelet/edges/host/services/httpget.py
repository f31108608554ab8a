"""An HTTP GET with limits on time and size, for manifest URLs.

Owns: the TLS settings, and a connection per request, without cookies or retries. Proxies come from the environment. The
connection code is imported on first use, because most nodes have no manifest URL.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from pykubelet.base.kit.values import Value
from pykubelet.net.http.hops import (
    MAX_REDIRECTS,
    PATH_SAFE,
    REDIRECTS,
    Headers,
    Hop,
    UnsendableRequest,
    make_hop,
    redirect_hop,
)

if TYPE_CHECKING:
    from pykubelet.net.http.dial import Destination

USER_AGENT = "pykubelet"
#: The share of the time for a connection to one address, so that there is time left for another one.
_CONNECT_SHARE = 0.4
_QUERY_SAFE, _URL_SAFE = PATH_SAFE + "?[]{}|\\^`", PATH_SAFE + "?#[]"


class HttpError(Exception):
    """There was no answer, or it is malformed or larger than allowed. The message has the reason."""


class HttpAnswer(Value):
    """Status code, reason phrase and body of the last answer, after redirects."""

    status: int
    reason: str
    body: bytes


async def http_get(
    url: str,
    headers: Mapping[str, tuple[str, ...]] | None = None,
    timeout_s: float = 10.0,
    limit: int = 10 << 20,
) -> HttpAnswer:
    """GET `url` and follow redirects. An answer with any status is returned; all failures raise HttpError.

    `headers`: each may have several values. `limit`: the most bytes of the body.
    """
    from pykubelet.net.http.exchange import FAILURES

    try:
        async with asyncio.timeout(timeout_s):
            return await _follow(_escaped(url), _header_pairs(url, headers or {}), timeout_s, limit)
    except TimeoutError as error:
        raise HttpError(f"{url}: no answer within {timeout_s:g} s") from error
    except (*FAILURES, UnsendableRequest, ValueError) as error:
        raise HttpError(f"{url}: {error or type(error).__name__}") from error


async def _follow(url: str, headers: Headers, timeout_s: float, limit: int) -> HttpAnswer:
    first = hop = make_hop(url, headers, USER_AGENT)
    for _ in range(MAX_REDIRECTS):
        answer, location = await _ask(hop, timeout_s, limit)
        if answer.status not in REDIRECTS or not location:
            return answer
        after = redirect_hop(first, hop, location, headers, USER_AGENT)
        if after is None:
            raise ValueError("a redirect leads to no HTTP URL")
        hop, headers = after
    raise ValueError(f"stopped after {MAX_REDIRECTS} redirects")


async def _ask(hop: Hop, timeout_s: float, limit: int) -> tuple[HttpAnswer, str]:
    """The answer of one server and the target of its redirect; "" without one. The body of a redirect is not read."""
    from pykubelet.net.http.dial import destination_of, dial

    destination = destination_of(hop.url)
    tls = _tls_settings() if destination.tls else None
    connection = await dial(destination, tls, connect_s=_CONNECT_SHARE * timeout_s)
    try:
        response = await connection.exchange(_for_proxy(hop.request, destination))
        location = response.headers.get("location", "") if response.status in REDIRECTS else ""
        body = bytearray()
        while not location and (part := await connection.part()) is not None:
            body += part
            if len(body) > limit:
                raise ValueError(f"the answer is larger than {limit} bytes")
        return HttpAnswer(response.status, response.reason, bytes(body)), quote(
            location.encode("latin-1"), safe=_URL_SAFE
        )
    finally:
        connection.abort()


def _for_proxy(request: bytes, destination: Destination) -> bytes:
    """The request in the form for the server, or in the form for a proxy that forwards it."""
    if not destination.is_passed_on:
        return request
    line, _, rest = request.partition(b"\r\n")
    login = f"\r\nProxy-Authorization: {destination.proxy_login}" if destination.proxy_login else ""
    target = line.removeprefix(b"GET ")
    return b"GET http://%b%b%b\r\n%b" % (destination.netloc.encode(), target, login.encode(), rest)


def _escaped(url: str) -> str:
    """The URL in ASCII. Raises ValueError if it is not an HTTP URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an HTTP URL")
    netloc = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode("ascii")
    path, query = quote(parts.path, safe=PATH_SAFE), quote(parts.query, safe=_QUERY_SAFE)
    return parts._replace(netloc=netloc, path=path, query=query, fragment="").geturl()


def _header_pairs(url: str, headers: Mapping[str, tuple[str, ...]]) -> Headers:
    """The headers, with the credentials of the URL unless others are given. They ask for an uncompressed answer."""
    pairs = tuple((name, value) for name, values in headers.items() for value in values)
    names = {name.lower() for name in headers}
    parts = urlsplit(url)
    if parts.username is not None and "authorization" not in names:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        pairs += (("Authorization", "Basic " + base64.b64encode(login.encode()).decode()),)
    return pairs if "accept-encoding" in names else (*pairs, ("Accept-Encoding", "identity"))


@cache
def _tls_settings() -> ssl.SSLContext:
    """The TLS settings with the machine's certificate authorities. Reading these takes milliseconds."""
    return ssl.create_default_context()

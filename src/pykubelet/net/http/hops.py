"""GET requests of HTTP/1.1 and their redirects, as Go's client sends them. Pure.

Rules: `Connection: close`, no compression, the caller's headers override the defaults, an empty `Accept` or `User-Agent` is
left out, `Host` replaces the URL's. Redirected requests have the headers that Go's client sends.
"""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

from pykubelet.base.kit.values import Value

MAX_REDIRECTS = 10
REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: The characters that `urllib.parse.quote` leaves unchanged in a path; existing escapes stay.
PATH_SAFE = "/:@!$&'()*+,;=-._~%"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BAD_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
#: Headers that Go's client does not send to another host.
_CREDENTIALS = frozenset(
    {"authorization", "www-authenticate", "cookie", "cookie2", "proxy-authorization", "proxy-authenticate"}
)
_OWN = frozenset({"Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Trailer", "Connection"})

Headers = tuple[tuple[str, str], ...]


class UnsendableRequest(Exception):
    """A header cannot be sent. The message is the reference's."""


class Hop(Value):
    """One request of a chain of redirects, ready to be sent."""

    url: str
    scheme: str
    host: str
    port: int
    request: bytes


def make_hop(url: str, headers: Headers, agent: str, referer: str = "") -> Hop:
    """The GET request for `url`. Raises UnsendableRequest, and ValueError if the URL cannot be parsed."""
    parts = urlsplit(url)
    default = 443 if parts.scheme == "https" else 80
    where = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    request = _render(where, parts.netloc.rpartition("@")[2], headers, agent, referer)
    return Hop(url, parts.scheme, parts.hostname or "", parts.port or default, request)


def _render(where: str, netloc: str, headers: Headers, agent: str, referer: str) -> bytes:
    given: dict[str, list[str]] = {}
    for name, value in headers:
        if not _NAME.fullmatch(name):
            raise UnsendableRequest(f'net/http: invalid header field name "{name}"')
        if _BAD_VALUE.search(value):
            raise UnsendableRequest(f'net/http: invalid header field value for "{canonical(name)}"')
        given.setdefault(canonical(name), []).append(value.strip(" \t"))
    given.setdefault("User-Agent", [agent])
    given.setdefault("Accept", ["*/*"])
    if not given["Accept"][0]:
        del given["Accept"]
    if referer:
        given.setdefault("Referer", [referer])
    lines = [f"GET {where} HTTP/1.1", f"Host: {given.get('Host', [''])[0] or netloc}"]
    if given["User-Agent"][0]:
        lines.append(f"User-Agent: {given['User-Agent'][0]}")
    lines += [f"{name}: {value}" for name in sorted(given.keys() - _OWN) for value in given[name]]
    others = [value for value in given.get("Connection", ()) if value.lower() != "close"]
    lines += [f"Connection: {value}" for value in (*others, "close")]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")


def canonical(name: str) -> str:
    """The canonical spelling of a header name: `x-my-header` -> `X-My-Header`."""
    return "-".join(part[:1].upper() + part[1:].lower() for part in name.split("-"))


def redirected(url: str, location: str) -> str | None:
    """The target of a redirect; None if it is not an HTTP URL."""
    try:
        there = urljoin(url, location)
        parts = urlsplit(there)
        _ = parts.port
    except ValueError:
        return None
    return there if parts.scheme in ("http", "https") and parts.hostname else None


def redirect_hop(first: Hop, last: Hop, location: str, headers: Headers, agent: str) -> tuple[Hop, Headers] | None:
    """The request that follows a redirect, and the headers for further redirects; None if `location` is not an HTTP URL.

    `first`: the original request. `last`: the request that was redirected. `headers`: the user's headers, without those that
    earlier redirects have dropped. Credentials are sent only to the first host and its subdomains, and not from https to http.
    Once dropped, they stay dropped. If the redirect names a host, it becomes the `Host`.
    """
    url = redirected(last.url, location)
    if url is None:
        return None
    there = urlsplit(url)
    is_open = last.scheme == "https" and there.scheme == "http"
    if is_open or not _is_within(there.hostname or "", first.host):
        headers = tuple(header for header in headers if header[0].lower() not in _CREDENTIALS)
    asked = urlsplit(location)
    sent = headers
    if asked.scheme or asked.netloc:
        sent = tuple(header for header in headers if header[0].lower() != "host")
    referer = "" if is_open else _without_user(last.url)
    return make_hop(url, sent, agent, referer), headers


def _is_within(host: str, first: str) -> bool:
    """Whether a host is the first one or, for names, a subdomain of it."""
    return host == first or (":" not in host and host.endswith(f".{first}"))


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

"""The target of an HTTP probe or hook, and its first request. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, urlsplit

from pykubelet.base.kit.values import Value
from pykubelet.edges.probing.dial import join_host_port
from pykubelet.net.http.hops import PATH_SAFE, Headers, Hop, UnsendableRequest, make_hop

#: Targets larger than this are not kept in caches, which have the targets of 4096 probes, also of pods that have gone.
_CACHED_BYTES = 512
#: Of host, path and headers together.
MAX_BYTES = 256 << 10
_QUERY_SAFE = PATH_SAFE + '?[]{}|\\^`"<>#'
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})|[\x00-\x1f\x7f]")


class HttpTarget(Value):
    """The target of a GET. `host`: without brackets. `path`: as in the manifest; it may include a query. `is_http2`: over HTTP/2."""

    scheme: str
    host: str
    port: int
    path: str = "/"
    headers: Headers = ()
    is_http2: bool = False


def target_url(target: HttpTarget) -> str:
    """The URL, as messages print it. A path that is not valid in a URL is escaped literally."""
    return _known_url(target) if _is_small(target) else _make_url(target)


def size_problem(target: HttpTarget) -> str:
    """Why the request is too large to be sent; "" if it is not. Servers read less: Go's read 1 MiB of headers, most others 64 KiB."""
    size = _size(target)
    return f"the request has {size} bytes, more than {MAX_BYTES}" if size > MAX_BYTES else ""


def _size(target: HttpTarget) -> int:
    headers = sum(len(name) + len(value) for name, value in target.headers)
    return len(target.host) + len(target.path) + headers


def _is_small(target: HttpTarget) -> bool:
    """Whether values derived from the target may be cached."""
    return _size(target) <= _CACHED_BYTES


@lru_cache(maxsize=4096)
def _known_url(target: HttpTarget) -> str:
    return _make_url(target)


def _make_url(target: HttpTarget) -> str:
    try:
        path, mark, query = _parsed_path(target.path)
    except ValueError:
        path, mark, query = quote(target.path, safe=PATH_SAFE.replace("%", "")), "", ""
    if path and not path.startswith("/"):
        path = f"/{path}"
    return f"{target.scheme}://{join_host_port(target.host, target.port)}{path}{mark}{query}"


def _parsed_path(given: str) -> tuple[str, str, str]:
    """Split into path, question mark and query, each escaped where necessary. Raises ValueError if it is not a URL."""
    if _BAD_ESCAPE.search(given):
        raise ValueError("a bad escape")
    head, mark, query = given.partition("#")[0].partition("?")
    if head.startswith("//") or "://" in head.partition("/")[0] + "//":
        head = urlsplit(head).path
    return quote(head, safe=PATH_SAFE), mark, quote(query, safe=_QUERY_SAFE)


def first_hop(target: HttpTarget, agent: str) -> Hop:
    """The first request to send. Raises UnsendableRequest if it cannot be sent."""
    return _known_first_hop(target, agent) if _is_small(target) else _make_first_hop(target, agent)


@lru_cache(maxsize=4096)
def _known_first_hop(target: HttpTarget, agent: str) -> Hop:
    return _make_first_hop(target, agent)


def _make_first_hop(target: HttpTarget, agent: str) -> Hop:
    url = target_url(target)
    try:
        return make_hop(url, target.headers, agent)
    except ValueError as error:
        raise UnsendableRequest(f'parse "{url}": {str(error).lower()}') from error

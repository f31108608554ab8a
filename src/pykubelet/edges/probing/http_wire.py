"""HTTP/1.1 as far as a probe needs it: one request rendered, one answer read. Pure.

Rules, as the reference's client has them: `Connection: close`, no compression, user headers win over the defaults, an
empty `Accept` or `User-Agent` is left out, `Host` replaces the URL's. Of the body at most 10 KiB are kept, and no more
is waited for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote, urljoin, urlsplit

from msgspec import Struct

from pykubelet.base.kit.values import Value, field
from pykubelet.edges.probing.dial import join_host_port

BODY_LIMIT = 10 << 10
HEAD_LIMIT = 1 << 20
MAX_REDIRECTS = 10
_CHUNK_LINE_LIMIT = 4096
_PATH_SAFE = "/:@!$&'()*+,;=-._~%"
_QUERY_SAFE = _PATH_SAFE + '?[]{}|\\^`"<>#'
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})|[\x00-\x1f\x7f]")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BAD_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_TELLING = frozenset({b"content-length", b"transfer-encoding", b"location"})
_VERSION = re.compile(r"HTTP/1\.[0-9]")
_OWN = frozenset({"Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Trailer", "Connection"})

Headers = tuple[tuple[str, str], ...]


class BadRequest(Exception):
    """A header cannot be sent; the message is the reference's."""


class BadAnswer(Exception):
    """Not HTTP/1.x, or cut short; the message is the reference's."""


class HttpTarget(Value):
    """What to GET. `host` without brackets; `path` as in the manifest, with a query if it likes."""

    scheme: str
    host: str
    port: int
    path: str = "/"
    headers: Headers = ()


@lru_cache(maxsize=4096)
def target_url(target: HttpTarget) -> str:
    """The URL, as messages print it. A path that is no URL at all is taken letter by letter."""
    if _BAD_ESCAPE.search(target.path):
        path, query, mark = quote(target.path, safe=_PATH_SAFE.replace("%", "")), "", ""
    else:
        head, mark, query = target.path.partition("#")[0].partition("?")
        if head.startswith("//") or "://" in head.partition("/")[0] + "//":
            head = urlsplit(head).path
        path, query = quote(head, safe=_PATH_SAFE), quote(query, safe=_QUERY_SAFE)
    if path and not path.startswith("/"):
        path = f"/{path}"
    return f"{target.scheme}://{join_host_port(target.host, target.port)}{path}{mark}{query}"


class Hop(Value):
    """One request of a chain of redirects, ready to be sent."""

    url: str
    scheme: str
    host: str
    port: int
    request: bytes


@lru_cache(maxsize=4096)
def first_hop(target: HttpTarget, agent: str) -> Hop:
    """BadRequest when it cannot be sent."""
    url = target_url(target)
    try:
        return make_hop(url, target.headers, agent)
    except ValueError as error:
        raise BadRequest(f'parse "{url}": {str(error).lower()}') from error


def make_hop(url: str, headers: Headers, agent: str, referer: str = "") -> Hop:
    parts = urlsplit(url)
    default = 443 if parts.scheme == "https" else 80
    where = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    request = _render(where, parts.netloc.rpartition("@")[2], headers, agent, referer)
    return Hop(url, parts.scheme, parts.hostname or "", parts.port or default, request)


def _render(where: str, netloc: str, headers: Headers, agent: str, referer: str) -> bytes:
    given: dict[str, list[str]] = {}
    for name, value in headers:
        if not _NAME.fullmatch(name):
            raise BadRequest(f'net/http: invalid header field name "{name}"')
        if _BAD_VALUE.search(value):
            raise BadRequest(f'net/http: invalid header field value for "{canonical(name)}"')
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


@lru_cache(maxsize=1024)
def canonical(name: str) -> str:
    """`x-my-header` -> `X-My-Header`."""
    return "-".join(part[:1].upper() + part[1:].lower() for part in name.split("-"))


def redirected(url: str, location: str) -> str | None:
    """Where a redirect leads; None when that is no URL one can GET."""
    try:
        there = urljoin(url, location)
        parts = urlsplit(there)
        _ = parts.port
    except ValueError:
        return None
    return there if parts.scheme in ("http", "https") and parts.hostname else None


def is_absolute(location: str) -> bool:
    return bool(urlsplit(location).scheme)


class AnswerReader(Struct):
    """Takes what arrives; `feed` is true when no more is needed, `end` when the peer has closed. BadAnswer on rubbish."""

    status: int = 0
    location: str = ""
    body: bytearray = field(default_factory=bytearray)
    _buffer: bytearray = field(default_factory=bytearray)
    _left: int | None = None
    _chunked: bool = False
    _done: bool = False

    def feed(self, data: bytes) -> bool:
        self._buffer += data
        while not self.status and not self._done:
            if not self._take_head():
                return False
        if not self._done:
            self._take_body()
        return self._done

    def end(self) -> None:
        """The peer has closed. BadAnswer unless that may be the end of the answer."""
        if not self.status:
            raise BadAnswer("unexpected EOF" if self._buffer else "EOF")
        if not self._done and (self._chunked or self._left is not None):
            raise BadAnswer("unexpected EOF")
        self._done = True

    @property
    def has_begun(self) -> bool:
        """The head has been read: what goes wrong from now on is about the body."""
        return self.status > 0

    def _take_head(self) -> bool:
        end = self._buffer.find(b"\n\r\n")
        bare = self._buffer.find(b"\n\n", 0, end if end >= 0 else None)
        if end < 0 and bare < 0:
            line = bytes(self._buffer[:4096]).partition(b"\n")[0]
            if b"\n" in self._buffer or len(self._buffer) > _CHUNK_LINE_LIMIT or not b"HTTP/".startswith(line[:5]):
                _status(line)
            if len(self._buffer) > HEAD_LIMIT:
                raise BadAnswer(f"net/http: server response headers exceeded {HEAD_LIMIT} bytes; aborted")
            return False
        head, blank = (bare, b"\n\n") if bare >= 0 else (end, b"\n\r\n")
        lines = bytes(self._buffer[:head]).splitlines() or [b""]
        del self._buffer[: head + len(blank)]
        status = _status(lines[0])
        if 100 <= status < 200 and status != 101:
            return True
        self._read_headers(lines[1:])
        self.status = status
        if status in (204, 304) or (status == 101 and not self._chunked):
            self._left, self._chunked = 0, False
        return True

    def _read_headers(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            name, colon, value = line.partition(b":")
            name = name.strip().lower()
            if colon and name in _TELLING:
                self._learn(name, value.strip())
            elif (not colon or not name) and line[:1] not in b" \t":
                raise BadAnswer(f'malformed MIME header: missing colon: "{_text(line)}"')

    def _learn(self, name: bytes, value: bytes) -> None:
        match name:
            case b"content-length":
                if not value.isdigit():
                    raise BadAnswer(f'bad Content-Length "{_text(value)}"')
                self._left = int(value)
            case b"transfer-encoding":
                self._chunked = value.lower() == b"chunked"
            case b"location":
                self.location = value.decode("utf-8", "replace")

    def _take_body(self) -> None:
        if self._chunked:
            self._take_chunks()
            return
        if self._left is not None:
            taken = min(self._left, len(self._buffer))
            self._keep(taken)
            self._left -= taken
            self._done = self._done or self._left == 0
        else:
            self._keep(len(self._buffer))

    def _keep(self, count: int) -> None:
        room = BODY_LIMIT - len(self.body)
        self.body += self._buffer[: min(count, room)]
        del self._buffer[:count]
        if len(self.body) >= BODY_LIMIT:
            self._done = True

    def _take_chunks(self) -> None:
        """`_left`: bytes of the present chunk with its line end, None between chunks."""
        while not self._done:
            if self._left is None:
                line, newline, _ = self._buffer.partition(b"\n")
                if not newline:
                    if len(line) > _CHUNK_LINE_LIMIT:
                        raise BadAnswer("http: chunk line too long")
                    return
                size = _chunk_size(bytes(line))
                del self._buffer[: len(line) + 1]
                if size == 0:
                    self._done = True
                    return
                self._left = size + 2
            if not self._buffer:
                return
            data = min(max(self._left - 2, 0), len(self._buffer))
            self._left -= data
            self._keep(data)
            rest = min(self._left, len(self._buffer)) if self._left <= 2 else 0
            del self._buffer[:rest]
            self._left -= rest
            if self._left:
                return
            self._left = None


@lru_cache(maxsize=256)
def _status(line: bytes) -> int:
    text = _text(line.rstrip(b"\r"))
    version, space, rest = text.partition(" ")
    if not space:
        raise BadAnswer(f'net/http: HTTP/1.x transport connection broken: malformed HTTP response "{text}"')
    code = rest.lstrip().partition(" ")[0]
    if len(code) != 3 or not (code.isascii() and code.isdigit()):
        raise BadAnswer(f'net/http: HTTP/1.x transport connection broken: malformed HTTP status code "{code}"')
    if not _VERSION.fullmatch(version):
        raise BadAnswer(f'net/http: HTTP/1.x transport connection broken: malformed HTTP version "{version}"')
    return int(code)


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    try:
        if not digits or len(digits) > 16:
            raise ValueError
        return int(digits, 16)
    except ValueError:
        raise BadAnswer("invalid byte in chunk length") from None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace").replace('"', '\\"')

"""HTTP/1.1 as far as a probe needs it: one request rendered, one answer read. Pure.

Rules, as the reference's client has them: `Connection: close`, no compression, user headers win over the defaults, an
empty `Accept` or `User-Agent` is left out, `Host` replaces the URL's. Of the body at most 10 KiB are kept, and no more
is waited for. Redirects carry what Go's client carries.

The answer comes from a container, so all of it is bounded: heads and interim answers together, header fields, the
`Location`, and what a chunked body has besides its data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote, urljoin, urlsplit

from msgspec import Struct

from pykubelet.base.kit.digits import parse_decimal
from pykubelet.base.kit.values import Value, field
from pykubelet.edges.probing.dial import join_host_port

BODY_LIMIT = 10 << 10
#: Bytes of all heads of an answer, interim answers (1xx) included.
HEAD_LIMIT = 64 << 10
MAX_FIELDS = 1000
MAX_INTERIM = 5
MAX_REDIRECTS = 10
MAX_LOCATION = 4 << 10
_CHUNK_LINE_LIMIT = 4096
#: Of a chunked body, what is no data; per chunk 16 bytes and twice its size are free. As in Go's net/http.
_CHUNK_EXCESS_LIMIT = 16 << 10
_SHOWN = 512
#: Targets larger than this are not kept in caches.
_CACHED_BYTES = 2048
_PATH_SAFE = "/:@!$&'()*+,;=-._~%"
_QUERY_SAFE = _PATH_SAFE + '?[]{}|\\^`"<>#'
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})|[\x00-\x1f\x7f]")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BAD_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}")
#: What Go's client does not send to another host.
_CREDENTIALS = frozenset(
    {"authorization", "www-authenticate", "cookie", "cookie2", "proxy-authorization", "proxy-authenticate"}
)
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


def target_url(target: HttpTarget) -> str:
    """The URL, as messages print it. A path that is no URL at all is taken letter by letter."""
    return _known_url(target) if _is_small(target) else _make_url(target)


def _is_small(target: HttpTarget) -> bool:
    """Whether what is made of it may be kept."""
    headers = sum(len(name) + len(value) for name, value in target.headers)
    return len(target.host) + len(target.path) + headers <= _CACHED_BYTES


@lru_cache(maxsize=4096)
def _known_url(target: HttpTarget) -> str:
    return _make_url(target)


def _make_url(target: HttpTarget) -> str:
    try:
        path, mark, query = _parsed_path(target.path)
    except ValueError:
        path, mark, query = quote(target.path, safe=_PATH_SAFE.replace("%", "")), "", ""
    if path and not path.startswith("/"):
        path = f"/{path}"
    return f"{target.scheme}://{join_host_port(target.host, target.port)}{path}{mark}{query}"


def _parsed_path(given: str) -> tuple[str, str, str]:
    """Path, question mark, query, each escaped as far as it needs. ValueError when it is no URL."""
    if _BAD_ESCAPE.search(given):
        raise ValueError("a bad escape")
    head, mark, query = given.partition("#")[0].partition("?")
    if head.startswith("//") or "://" in head.partition("/")[0] + "//":
        head = urlsplit(head).path
    return quote(head, safe=_PATH_SAFE), mark, quote(query, safe=_QUERY_SAFE)


class Hop(Value):
    """One request of a chain of redirects, ready to be sent."""

    url: str
    scheme: str
    host: str
    port: int
    request: bytes


def first_hop(target: HttpTarget, agent: str) -> Hop:
    """BadRequest when it cannot be sent."""
    return _known_first_hop(target, agent) if _is_small(target) else _make_first_hop(target, agent)


@lru_cache(maxsize=4096)
def _known_first_hop(target: HttpTarget, agent: str) -> Hop:
    return _make_first_hop(target, agent)


def _make_first_hop(target: HttpTarget, agent: str) -> Hop:
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


def redirect_hop(first: Hop, last: Hop, location: str, headers: Headers, agent: str) -> tuple[Hop, Headers] | None:
    """The request that follows an answer with a `Location`, and the headers for redirects after it; None for no URL.

    `first`: the request that the user asked for, `last`: the one that was answered, `headers`: the user's, as far as the
    redirects so far have left them. Credentials go neither to another host, but to a subdomain of the first one, nor
    from https to http, and where they were left out they do not come back. A redirect that names a host has that one's
    `Host`.
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


class AnswerReader(Struct):
    """Takes what arrives; `feed` is true when no more is needed, `end` when the peer has closed. BadAnswer on rubbish."""

    status: int = 0
    location: str = ""
    body: bytearray = field(default_factory=bytearray)
    _buffer: bytearray = field(default_factory=bytearray)
    _searched: int = 0
    _head_bytes: int = 0
    _interim: int = 0
    _excess: int = 0
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
        end = self._buffer.find(b"\n\r\n", self._searched)
        bare = self._buffer.find(b"\n\n", self._searched, end if end >= 0 else None)
        if end < 0 and bare < 0:
            self._searched = max(0, len(self._buffer) - 2)
            line = bytes(self._buffer[:_SHOWN]).partition(b"\n")[0]
            if b"\n" in self._buffer or len(self._buffer) > _CHUNK_LINE_LIMIT or not b"HTTP/".startswith(line[:5]):
                _status(line)
            self._check_head(len(self._buffer))
            return False
        head, blank = (bare, b"\n\n") if bare >= 0 else (end, b"\n\r\n")
        self._check_head(head + len(blank))
        self._head_bytes += head + len(blank)
        self._searched = 0
        if self._buffer.count(b"\n", 0, head) > MAX_FIELDS:
            raise BadAnswer(f"net/http: server response has more than {MAX_FIELDS} header fields; aborted")
        lines = bytes(self._buffer[:head]).splitlines() or [b""]
        del self._buffer[: head + len(blank)]
        status = _status(lines[0][:_SHOWN])
        if 100 <= status < 200 and status != 101:
            self._interim += 1
            if self._interim > MAX_INTERIM:
                raise BadAnswer("net/http: too many 1xx informational responses")
            return True
        self._read_headers(lines[1:])
        self.status = status
        if status in (204, 304) or (status == 101 and not self._chunked):
            self._left, self._chunked = 0, False
        return True

    def _check_head(self, size: int) -> None:
        if self._head_bytes + size > HEAD_LIMIT:
            raise BadAnswer(f"net/http: server response headers exceeded {HEAD_LIMIT} bytes; aborted")

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
                length = parse_decimal(value)
                if length is None:
                    raise BadAnswer(f'bad Content-Length "{_text(value)}"')
                self._left = length
            case b"transfer-encoding":
                self._chunked = value.lower() == b"chunked"
            case b"location":
                if len(value) > MAX_LOCATION:
                    raise BadAnswer(f"a Location header of more than {MAX_LOCATION} bytes")
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
                newline = self._buffer.find(b"\n", 0, _CHUNK_LINE_LIMIT + 1)
                if newline < 0:
                    if len(self._buffer) > _CHUNK_LINE_LIMIT:
                        raise BadAnswer("http: chunk line too long")
                    return
                size = _chunk_size(bytes(self._buffer[:newline]))
                del self._buffer[: newline + 1]
                self._excess = max(0, self._excess + newline + 2 - 16 - 2 * size)
                if self._excess > _CHUNK_EXCESS_LIMIT:
                    raise BadAnswer("chunked encoding contains too much non-data")
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
    if _CHUNK_SIZE.fullmatch(digits) is None:
        raise BadAnswer("invalid byte in chunk length")
    return int(digits, 16)


def _text(raw: bytes) -> str:
    """For messages: what is long is cut, whatever is to be seen of it is seen at its beginning."""
    return raw[:_SHOWN].decode("utf-8", "backslashreplace").replace('"', '\\"')

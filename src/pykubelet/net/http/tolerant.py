"""Parses a response as tolerantly as Go's client, with its error texts. Pure.

llhttp parses the response (`response.py`). If it refuses the head, the head is parsed by the rules of Go's net/http, which accept
some of them (bare LF, folded fields, equal lengths), and llhttp gets an equivalent head in strict form. All parts have limits:
heads and interim responses together, header fields, the `Location`, the overhead of a chunked body, and the body itself.

Source: RFC 9112; the behavior of Go's net/http client.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from pykubelet.base.kit.text import parse_decimal
from pykubelet.net.http.response import BadResponse, ResponseLimits, ResponseParser, ResponseProblem

#: The most bytes of all heads of an answer, including interim answers (1xx).
HEAD_LIMIT = 64 << 10
MAX_FIELDS = 1000
MAX_INTERIM = 5
MAX_LOCATION = 4 << 10
_LINE_LIMIT = 4096
_SHOWN = 512
_BLANK_LINE = re.compile(rb"\n\r?\n")
_LIMITS = ResponseLimits(head_bytes=HEAD_LIMIT, fields=MAX_FIELDS, interim=MAX_INTERIM)
_HEAD_PROBLEMS = {
    ResponseProblem.HEAD_TOO_LARGE: f"net/http: server response headers exceeded {HEAD_LIMIT} bytes; aborted",
    ResponseProblem.TOO_MANY_FIELDS: f"net/http: server response has more than {MAX_FIELDS} header fields; aborted",
    ResponseProblem.TOO_MANY_INTERIM: "net/http: too many 1xx informational responses",
}
_MALFORMED = "net/http: HTTP/1.x transport connection broken: malformed HTTP response"
#: Statuses with which a probe never passes: nothing is read after the head.
_WITHOUT_BODY = frozenset({101, *range(100)})
_KEPT_FIELDS = frozenset({b"content-length", b"transfer-encoding", b"location"})
_VERSION = re.compile(r"HTTP/1\.[0-9]")


class BadAnswer(Exception):
    """The response is not HTTP/1.x, or is incomplete. The message is that of Go's client."""


class AnswerReader:
    """Parses a response. Pass received bytes to `feed` until it returns true; call `end` if the peer closes the connection.

    `body_limit`: the bytes of the body that are wanted. `location`: the target of a redirect. Raises BadAnswer.
    """

    def __init__(self, body_limit: int) -> None:
        self._body_limit = body_limit
        self.status = 0
        self.location = ""
        self.body = bytearray()
        self._parser = _new_parser()
        #: All that has arrived, until the head is whole.
        self._head = b""
        self._is_refused = False

    @property
    def has_begun(self) -> bool:
        """Whether the head was read. Later failures concern the body."""
        return self.status > 0

    def feed(self, data: bytes) -> bool:
        """Process received bytes. Returns whether no more are needed. Raises BadAnswer."""
        if not self.status:
            self._head += data
            if self._is_refused:
                _check_head(len(self._head))
                return b"\n" in data and self._feed_refused()
        return self._feed(data)

    def end(self) -> None:
        """Process the end of the connection. Raises BadAnswer if the answer is not complete."""
        if not self.status:
            raise BadAnswer("unexpected EOF" if self._head else "EOF")
        try:
            self._parser.end()
        except BadResponse as error:
            raise BadAnswer("unexpected EOF") from error

    def _feed(self, data: bytes) -> bool:
        parser = self._parser
        try:
            parser.feed(data)
        except BadResponse as error:
            if parser.status:
                self._begin()
                raise BadAnswer(_body_problem(error, data)) from error
            if error.problem in _HEAD_PROBLEMS or self._is_refused:
                raise BadAnswer(_HEAD_PROBLEMS.get(error.problem, _MALFORMED)) from error
            self._is_refused = True
            return self._feed_refused()
        if not self.status:
            if not parser.status:
                return False
            self._begin()
        self.body += parser.take()
        del self.body[self._body_limit :]
        return parser.complete or len(self.body) >= self._body_limit

    def _begin(self) -> None:
        status = self._parser.status
        if 300 <= status < 400:
            location = self._parser.headers.get("location", "").encode("latin-1")
            if len(location) > MAX_LOCATION:
                raise BadAnswer(f"a Location header of more than {MAX_LOCATION} bytes")
            self.location = location.decode("utf-8", "replace")
        self.status = status
        self._head = b""

    def _feed_refused(self) -> bool:
        read = _plain_head(self._head) if _has_status_line(self._head) else None
        if read is None:
            return False
        status, fields, rest = read
        if status in _WITHOUT_BODY:
            self.status = status
            return True
        self._parser = _new_parser()
        return self._feed(b"HTTP/1.1 %d \r\n%b\r\n%b" % (status, fields, rest))


def _has_status_line(head: bytes) -> bool:
    """Whether the status line is complete. Raises BadAnswer if it cannot become a valid one."""
    newline = head.find(b"\n")
    if newline >= 0:
        _status(head[: min(newline, _SHOWN)])
        return True
    if len(head) > _LINE_LIMIT or not b"HTTP/".startswith(head[:5]):
        _status(head[:_SHOWN])
    _check_head(len(head))
    return False


def _new_parser() -> ResponseParser:
    return ResponseParser(_LIMITS, pads_chunks=True)


def _body_problem(error: BadResponse, data: bytes) -> str:
    if error.problem is ResponseProblem.CHUNK_OVERHEAD:
        is_long = max(map(len, data.split(b"\n"))) > _LINE_LIMIT
        return "http: chunk line too long" if is_long else "chunked encoding contains too much non-data"
    return "malformed chunked encoding" if "chunk data" in error.detail else "invalid byte in chunk length"


def _check_head(size: int) -> None:
    if size > HEAD_LIMIT:
        raise BadAnswer(_HEAD_PROBLEMS[ResponseProblem.HEAD_TOO_LARGE])


def _plain_head(data: bytes) -> tuple[int, bytes, bytes] | None:
    """Parse the final head of `data` by Go's rules: its status, the relevant fields, and the rest of `data`.

    None if the head is not complete. Interim answers are skipped. Raises BadAnswer if Go's client refuses the head too.
    """
    start = 0
    for _ in range(MAX_INTERIM + 1):
        blank = _BLANK_LINE.search(data, start)
        _check_head(len(data) if blank is None else blank.end())
        if blank is None:
            return None
        lines = [line.removesuffix(b"\r") for line in data[start : blank.start()].split(b"\n")]
        start = blank.end()
        status = _status(lines[0][:_SHOWN])
        if not 100 <= status < 200 or status == 101:
            return status, _plain_fields(lines[1:]), data[start:]
    raise BadAnswer(_HEAD_PROBLEMS[ResponseProblem.TOO_MANY_INTERIM])


def _plain_fields(lines: Sequence[bytes]) -> bytes:
    """The fields that determine the end of the body and the target of a redirect."""
    if len(lines) > MAX_FIELDS:
        raise BadAnswer(_HEAD_PROBLEMS[ResponseProblem.TOO_MANY_FIELDS])
    found: dict[bytes, bytes] = {}
    for line in lines:
        if line[:1] in (b" ", b"\t"):
            continue  # a continuation of the previous field; no relevant field has two lines
        name, colon, value = line.partition(b":")
        name, value = name.strip().lower(), value.strip()
        if not colon or not name:
            raise BadAnswer(f'malformed MIME header: missing colon: "{_text(line)}"')
        if name == b"content-length":
            length = parse_decimal(value)
            if length is None or length >= 1 << 63:
                raise BadAnswer(f'bad Content-Length "{_text(value)}"')
            value = b"%d" % length
            if found.get(name, value) != value:
                raise BadAnswer("http: message cannot contain multiple Content-Length headers")
        if name == b"location" and b"\r" in value:
            raise BadAnswer(f'malformed MIME header line: "{_text(line)}"')
        if name in _KEPT_FIELDS and (name != b"transfer-encoding" or value.lower() == b"chunked"):
            found.setdefault(name, value)
    if b"transfer-encoding" in found:
        found.pop(b"content-length", None)
    return b"".join(b"%b: %b\r\n" % field for field in found.items())


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


def _text(raw: bytes) -> str:
    """Text for messages, with quotes escaped and cut after `_SHOWN` bytes."""
    return raw[:_SHOWN].decode("utf-8", "backslashreplace").replace('"', '\\"')

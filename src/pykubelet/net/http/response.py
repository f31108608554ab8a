"""One HTTP/1.1 response, read from pieces as they arrive. Pure.

llhttp (by `httptools`) finds the parts; this module bounds them and refuses what llhttp lets pass. Nothing is kept of a body
but the parts that were not taken yet. Everything before and around the data is bounded as it arrives: bytes of heads,
interim responses included, header fields, the number of interim responses, and in a chunked body the bytes of chunk
lines and trailers.

Source: RFC 9112; https://github.com/nodejs/llhttp.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from itertools import islice

from httptools import HttpParserCallbackError, HttpParserError, HttpResponseParser

from pykubelet.base.kit.values import Value

_HTTP = b"HTTP/1."
#: Overhead of a chunked body that is free: so many bytes for each part, and twice the bytes of its data.
_FREE_BYTES, _FREE_SHARE = 16, 2


class Problem(StrEnum):
    """Kinds of unreadable responses; the value is a message."""

    NOT_HTTP = "the response is not HTTP/1.1"
    HEAD_TOO_LARGE = "the head of the response is too large"
    TOO_MANY_FIELDS = "the response has too many header fields"
    TOO_MANY_INTERIM = "too many interim responses"
    MALFORMED_HEAD = "the head of the response is malformed"
    UNKNOWN_CODING = "the body has an unknown transfer coding"
    UNEXPECTED_UPGRADE = "the server switches protocols unasked"
    MALFORMED_CHUNK = "a chunk of the body is malformed"
    CHUNK_OVERHEAD = "the chunked body has too much that is no data"
    NO_RESPONSE = "no response came"
    CUT_SHORT = "the connection ended in the middle of a response"


class BadResponse(ValueError):
    """The peer does not speak HTTP as it should; the connection is of no more use. `detail`: llhttp's reason, or ""."""

    def __init__(self, problem: Problem, detail: str = "") -> None:
        super().__init__(f"{problem}: {detail}" if detail else problem.value)
        self.problem = problem
        self.detail = detail


class ResponseLimits(Value):
    """`head_bytes`: of all heads before the body. `fields`: of one head. `interim`: 1xx responses before the final one.
    `overhead_bytes`: of a chunked body, beyond 16 bytes a part and twice its data (as Go's net/http)."""

    head_bytes: int = 64 << 10
    fields: int = 1000
    interim: int = 5
    overhead_bytes: int = 16 << 10


_DEFAULT_LIMITS = ResponseLimits()


class ResponseParser:
    """`feed` bytes as they arrive, `take` the parts of the body, `end` when the peer has closed.

    `status`: 0 until the final head has arrived. `reason`: the words after it. `parts`: pieces of the body that were not
    taken, `waiting_bytes` in all. `complete`: the whole response has arrived. `keeps_alive`: another request may follow on
    the connection. `heard`: anything at all has arrived.
    """

    # what most responses leave as it is costs them nothing
    status = 0
    reason = ""
    complete = False
    keeps_alive = True
    heard = False
    waiting_bytes = 0
    _is_chunked = False
    _ends_with_connection = False
    _start = b""
    _head_bytes = 0
    _interim_bytes = 0
    _interim = 0
    _overhead = 0
    _failure: BadResponse | None = None

    def __init__(
        self, limits: ResponseLimits = _DEFAULT_LIMITS, *, has_body: bool = True, pads_chunks: bool = False
    ) -> None:
        """`has_body`: False for the response to CONNECT, which ends with its head. `pads_chunks`: blanks may follow the size of
        a chunk (as for Go's net/http); only where no other request follows on the connection.
        """
        self.parts: list[bytes] = []
        self.on_body = self.parts.append
        self._limits = limits
        self._has_body = has_body
        self._pads_chunks = pads_chunks
        self._fields: list[tuple[bytes, bytes]] = []
        self._parser: HttpResponseParser | None = HttpResponseParser(self)

    @property
    def begun(self) -> bool:
        """The final head has arrived."""
        return self.status > 0

    @property
    def headers(self) -> Mapping[str, str]:
        """Of the final head, by lower-case name; of a repeated field the first value. Empty until it has arrived."""
        headers: dict[str, str] = {}
        for name, value in self._fields if self.status else ():
            headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1").strip(" \t"))
        return headers

    def take(self) -> bytes:
        """What has arrived of the body since the last call."""
        parts = self.parts
        taken = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self.waiting_bytes = 0
        return taken

    def feed(self, data: bytes) -> bytes:
        """What follows the head of a response to CONNECT, else b"". Raises BadResponse, and again at every later call."""
        if self._failure is not None:
            raise self._failure
        if self.complete:
            self.keeps_alive = self.keeps_alive and not data  # no request asked for more
            return b"" if self._has_body else data
        if len(self._start) < len(_HTTP):
            self._check_start(data)
        if not self._has_body:
            return self._feed_head(data)
        self._feed(data)
        return b""

    def end(self) -> None:
        """The peer has closed the connection. BadResponse where the response is not whole."""
        self.keeps_alive = False
        if self._ends_with_connection:
            self.complete = True
            self._parser = None
        elif not self.complete:
            raise BadResponse(Problem.CUT_SHORT if self.heard else Problem.NO_RESPONSE)

    def _check_start(self, data: bytes) -> None:
        """llhttp takes empty lines and other protocols' names before a version."""
        self.heard = self.heard or bool(data)
        self._start += data[: len(_HTTP) - len(self._start)]
        if not _HTTP.startswith(self._start):
            raise self._failed(Problem.NOT_HTTP)

    def _feed_head(self, data: bytes) -> bytes:
        """Byte by byte: the head is short, and its end must be found exactly."""
        for end in range(1, len(data) + 1):
            self._feed(data[end - 1 : end])
            if self.complete:
                return data[end:]
        return b""

    def _feed(self, data: bytes) -> None:
        parser, parts = self._parser, self.parts
        assert parser is not None
        had_begun, before = self.status > 0, len(parts)
        if not had_begun:
            self._head_bytes += len(data)
        try:
            parser.feed_data(data)
        except HttpParserError as error:
            if not self.complete:
                if isinstance(error, HttpParserCallbackError) and self._failure is None:
                    raise  # a bug of ours
                problem = Problem.MALFORMED_CHUNK if self.status else Problem.MALFORMED_HEAD
                raise self._failed(problem, str(error)) from error
            self.keeps_alive = False  # no request asked for what follows
        if self.complete:
            self._parser = None
        elif not self.status and self._head_bytes > self._limits.head_bytes:
            raise self._failed(Problem.HEAD_TOO_LARGE)
        arrived = len(parts) - before
        arrived_bytes = 0
        if arrived:
            arrived_bytes = len(parts[-1]) if arrived == 1 else sum(map(len, islice(parts, before, None)))
            self.waiting_bytes += arrived_bytes
        if self._is_chunked and had_begun:
            free = _FREE_BYTES * arrived + (_FREE_SHARE + 1) * arrived_bytes
            self._overhead = max(0, self._overhead + len(data) - free)
            if self._overhead > self._limits.overhead_bytes:
                raise self._failed(Problem.CHUNK_OVERHEAD)

    def _failed(self, problem: Problem, detail: str = "") -> BadResponse:
        """The failure: one that a callback found, or this one."""
        if self._failure is None:
            self._failure = BadResponse(problem, detail)
        self._parser = None  # it knows our methods: without it there is no reference cycle
        return self._failure

    # Called by llhttp

    def on_message_begin(self) -> None:
        if self.complete:
            raise _StopParsing

    def on_status(self, reason: bytes) -> None:
        self.reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        fields = self._fields
        if self.status:
            return  # trailers mean nothing here; they count as overhead
        fields.append((name, value))
        if len(fields) > self._limits.fields:
            raise self._refused(Problem.TOO_MANY_FIELDS)

    def on_headers_complete(self) -> None:
        parser = self._parser
        assert parser is not None
        status = parser.get_status_code()
        if self._head_bytes > self._limits.head_bytes:
            self._check_size()
        if 100 <= status < 200 and status != 101:
            self._pass_over()
            return
        version = parser.get_http_version()
        if status < 100 or (version != "1.1" and version != "1.0"):
            raise self._refused(Problem.NOT_HTTP)
        if status == 101:
            raise self._refused(Problem.UNEXPECTED_UPGRADE)
        ends = not self._frame_body(parser) and status != 204 and status != 304
        self.keeps_alive = not ends and version == "1.1" and parser.should_keep_alive()
        self.status = status
        if not self._has_body:
            self.complete = True
            raise _StopParsing
        self._ends_with_connection = ends

    def on_message_complete(self) -> None:
        self.complete = self.status > 0

    def _frame_body(self, parser: HttpResponseParser) -> bool:
        """Whether the fields say where the body ends."""
        coding, has_length = None, False
        for name, value in self._fields:
            if len(name) == 17 and name.lower() == b"transfer-encoding":
                coding = value if coding is None else coding + b", " + value
            elif len(name) == 14 and name.lower() == b"content-length":
                has_length = True
        if coding is None:
            return has_length
        if coding.strip(b" \t").lower() != b"chunked":
            raise self._refused(Problem.UNKNOWN_CODING, coding[:40].decode("latin-1"))
        self._is_chunked = True
        if self._pads_chunks:
            parser.set_dangerous_leniencies(lenient_spaces_after_chunk_size=True)
        return True

    def _check_size(self) -> None:
        """Part of what has arrived may be of the body."""
        size = self._interim_bytes + len(self.reason) + sum(len(name) + len(value) + 4 for name, value in self._fields)
        if size > self._limits.head_bytes:
            raise self._refused(Problem.HEAD_TOO_LARGE)

    def _pass_over(self) -> None:
        """An interim response."""
        self._interim_bytes += len(self.reason) + sum(len(name) + len(value) + 4 for name, value in self._fields)
        self._interim += 1
        self.reason = ""
        self._fields.clear()
        if self._interim > self._limits.interim:
            raise self._refused(Problem.TOO_MANY_INTERIM)

    def _refused(self, problem: Problem, detail: str = "") -> BadResponse:
        """For callbacks, whose exceptions end `feed_data`."""
        self._failure = BadResponse(problem, detail)
        return self._failure


class _StopParsing(Exception):
    """Leaves llhttp where the response has ended for us."""

"""One HTTP/1.1 response, read from pieces as they arrive. Pure.

llhttp (by `httptools`) finds the parts; this module bounds them and refuses what llhttp lets pass. Nothing is kept of a body
but the parts that were not taken yet. Everything before and around the data is bounded as it arrives: bytes of heads,
interim responses included, header fields, the number of interim responses, and in a chunked body the bytes of chunk
lines and trailers.

Source: RFC 9112; https://github.com/nodejs/llhttp.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import islice

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpResponseParser

from pykubelet.base.kit.values import Value

_HTTP = b"HTTP/1."
#: Overhead of a chunked body that is free: so many bytes for each part, and twice the bytes of its data.
_FREE_BYTES, _FREE_SHARE = 16, 2
_LISTS = frozenset({"connection", "transfer-encoding"})


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

    `status`: 0 until the final head has arrived. `headers`: by lower-case name; of a repeated field the first value, of
    `connection` and `transfer-encoding` all, joined by commas. `parts`: pieces of the body that were not taken.
    `complete`: the whole response has arrived. `keeps_alive`: another request may follow on the connection.
    """

    def __init__(
        self, limits: ResponseLimits = _DEFAULT_LIMITS, *, has_body: bool = True, is_lenient: bool = False
    ) -> None:
        """`has_body`: False for the response to CONNECT, which ends with its head. `is_lenient`: accept what Go's net/http
        accepts in heads (bare LF, folded fields, any HTTP/1.x, both lengths); only where nothing follows on the connection.
        """
        self.status = 0
        self.reason = ""
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []
        self.complete = False
        self.keeps_alive = True
        self.heard = False
        #: Bytes in `parts`.
        self.waiting_bytes = 0
        self.on_body = self.parts.append
        self._limits = limits
        self._has_body = has_body
        self._is_lenient = is_lenient
        self._is_chunked = False
        self._ends_with_connection = False
        self._fields: list[tuple[bytes, bytes]] = []
        self._start = b""
        #: Bytes that arrived in calls that ended before the final head did, and bytes of all header fields.
        self._head_bytes = self._fields_bytes = 0
        self._interim = 0
        self._overhead = 0
        self._failure: BadResponse | None = None
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        if is_lenient:
            self._parser.set_dangerous_leniencies(
                lenient_headers=True,
                lenient_chunked_length=True,
                lenient_version=True,
                lenient_data_after_close=True,
                lenient_optional_cr_before_lf=True,
                lenient_spaces_after_chunk_size=True,
            )

    @property
    def begun(self) -> bool:
        """The final head has arrived."""
        return self.status > 0

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
        if not self.status:
            self._check_start(data)
        return self._feed(data) if self._has_body else self._feed_head(data)

    def end(self) -> None:
        """The peer has closed the connection. BadResponse where the response is not whole."""
        self.keeps_alive = False
        if self._ends_with_connection:
            self._finish()
        elif not self.complete:
            raise BadResponse(Problem.CUT_SHORT if self.heard else Problem.NO_RESPONSE)

    def _check_start(self, data: bytes) -> None:
        """llhttp takes empty lines and other protocols' names before a version."""
        self.heard = self.heard or bool(data)
        if len(self._start) < len(_HTTP):
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

    def _feed(self, data: bytes) -> bytes:
        parser, parts, had_begun, before = self._parser, self.parts, self.begun, len(self.parts)
        assert parser is not None
        try:
            parser.feed_data(data)
        except HttpParserUpgrade:
            pass  # on_message_complete has been called
        except HttpParserError as error:
            if not self.complete:
                if isinstance(error, HttpParserCallbackError) and self._failure is None:
                    raise  # a bug of ours
                problem = Problem.MALFORMED_CHUNK if self.begun else Problem.MALFORMED_HEAD
                raise self._failed(problem, str(error)) from error
            self.keeps_alive = False  # no request asked for what follows
        arrived = len(parts) - before
        if arrived:
            arrived_bytes = len(parts[-1]) if arrived == 1 else sum(map(len, islice(parts, before, None)))
            self.waiting_bytes += arrived_bytes
        else:
            arrived_bytes = 0
        if not self.begun:
            self._count_head(len(data))
        elif had_begun and self._is_chunked:
            free = _FREE_BYTES * arrived + (_FREE_SHARE + 1) * arrived_bytes
            self._overhead = max(0, self._overhead + len(data) - free)
            if self._overhead > self._limits.overhead_bytes:
                raise self._failed(Problem.CHUNK_OVERHEAD)
        if self.complete:
            self._finish()
        return b""

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.head_bytes:
            raise self._failed(Problem.HEAD_TOO_LARGE)

    def _failed(self, problem: Problem, detail: str = "") -> BadResponse:
        """The failure: one that a callback found, or this one."""
        if self._failure is None:
            self._failure = BadResponse(problem, detail)
        self._finish_parser()
        return self._failure

    def _refuse(self, problem: Problem, detail: str = "") -> BadResponse:
        """For callbacks, whose exceptions end `feed_data`."""
        self._failure = BadResponse(problem, detail)
        return self._failure

    def _finish(self) -> None:
        self.complete = True
        self._finish_parser()

    def _finish_parser(self) -> None:
        """The parser knows our methods: without it there is no reference cycle."""
        self._parser = None

    # Called by llhttp

    def on_message_begin(self) -> None:
        if self.complete:
            self.keeps_alive = False
            raise _StopParsing

    def on_status(self, reason: bytes) -> None:
        self.reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            return  # trailers mean nothing here; they count as overhead
        self._fields.append((name, value))
        if len(self._fields) > self._limits.fields:
            raise self._refuse(Problem.TOO_MANY_FIELDS)

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        fields, self._fields = self._fields, []
        self._fields_bytes += len(self.reason) + sum(len(name) + len(value) + 4 for name, value in fields)
        if self._fields_bytes > self._limits.head_bytes:
            raise self._refuse(Problem.HEAD_TOO_LARGE)
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._interim += 1
            self.reason = ""
            if self._interim > self._limits.interim:
                raise self._refuse(Problem.TOO_MANY_INTERIM)
            return
        self._begin(status, fields, self._parser.get_http_version())

    def on_message_complete(self) -> None:
        self.complete = self.begun

    def _begin(self, status: int, fields: list[tuple[bytes, bytes]], version: str) -> None:
        if not version.startswith("1.") or status < 100 or (version not in ("1.0", "1.1") and not self._is_lenient):
            raise self._refuse(Problem.NOT_HTTP)
        headers = self.headers
        for raw_name, raw_value in fields:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip(" \t")
            if name in headers and name in _LISTS:
                value = f"{headers[name]}, {value}"
                headers[name] = value
            headers.setdefault(name, value)
        if status == 101 and not self._is_lenient:
            raise self._refuse(Problem.UNEXPECTED_UPGRADE)
        coding = headers.get("transfer-encoding")
        self._is_chunked = coding is not None and coding.lower() == "chunked"
        if coding is not None and not self._is_chunked and not self._is_lenient:
            raise self._refuse(Problem.UNKNOWN_CODING, coding[:40])
        self.keeps_alive = version == "1.1" and "close" not in headers.get("connection", "").lower()
        self.status = status
        if not self._has_body:
            self.complete = True
            raise _StopParsing
        if status in (101, 204, 304) or self._is_chunked or (coding is None and "content-length" in headers):
            return
        self.keeps_alive = False
        self._ends_with_connection = True


class _StopParsing(Exception):
    """Leaves llhttp where the response has ended for us."""

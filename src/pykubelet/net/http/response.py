"""Parses one HTTP/1.1 response from pieces as they arrive. Pure.

llhttp (via `httptools`) finds the parts. This module limits them and refuses what llhttp wrongly accepts. Of a body, only the
parts that were not taken yet are kept. Limits apply to everything but the data as it arrives: bytes of heads including interim
responses, header fields, the number of interim responses, and, in a chunked body, the bytes of chunk lines and trailers.

Source: RFC 9112; https://github.com/nodejs/llhttp.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpResponseParser

_HTTP = b"HTTP/1."
#: The overhead of a chunked body that does not count: this many bytes for each part, and twice the bytes of its data.
_FREE_BYTES, _FREE_SHARE = 16, 2


class ResponseProblem(StrEnum):
    """The kinds of malformed responses. The value is a message."""

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
    """The peer has sent malformed HTTP, and the connection must be closed. `detail`: llhttp's reason, or ""."""

    def __init__(self, problem: ResponseProblem, detail: str = "") -> None:
        super().__init__(f"{problem}: {detail}" if detail else problem.value)
        self.problem = problem
        self.detail = detail


class ResponseLimits(NamedTuple):
    """Limits of a response. `head_bytes`: bytes of all heads before the body. `fields`: header fields of one head.

    `interim`: 1xx responses before the final one. `overhead_bytes`: overhead of a chunked body beyond 16 bytes per part and
    twice its data (as in Go's net/http). Not a `Value`, because the commands that use this module import no msgspec.
    """

    head_bytes: int = 64 << 10
    fields: int = 1000
    interim: int = 5
    overhead_bytes: int = 16 << 10


_DEFAULT_LIMITS = ResponseLimits()


class ResponseParser:
    """Parses a response. Pass bytes to `feed` as they arrive, `take` parts of the body, and call `end` if the peer closes.

    `status`: 0 until the final head has arrived. `reason`: the text after the status. `parts`: pieces of the body that were not
    taken, `waiting_bytes` in total. `complete`: the whole response has arrived. `keeps_alive`: another request may follow on
    the connection. `heard`: any byte has arrived.
    """

    # class attributes, so that defaults that most responses do not change cost nothing
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
        self,
        limits: ResponseLimits = _DEFAULT_LIMITS,
        *,
        has_body: bool = True,
        upgrades: bool = False,
        pads_chunks: bool = False,
    ) -> None:
        """`has_body`: False for the response to CONNECT, which ends with its head. `upgrades`: another protocol was requested, so
        that a response with status 101 ends with its head, too. `pads_chunks`: blanks may follow the size of a chunk (as in Go's
        net/http); only for connections without a further request.
        """
        self.parts: list[bytes] = []
        self.on_body = self.parts.append
        self._limits = limits
        self._has_body = has_body
        self._upgrades = upgrades
        self._pads_chunks = pads_chunks
        self._fields: list[tuple[bytes, bytes]] = []
        #: Made with the first bytes: it and this object refer to each other.
        self._parser: HttpResponseParser | None = None

    @property
    def begun(self) -> bool:
        """Whether the final head has arrived."""
        return self.status > 0

    @property
    def is_switched(self) -> bool:
        """Whether the connection carries another protocol after the head: to CONNECT any response, else one with status 101."""
        return self.status == 101 or (self.status > 0 and not self._has_body)

    @property
    def headers(self) -> Mapping[str, str]:
        """The fields of the final head by lower-case name, with the first value of repeated ones. Empty until it arrives."""
        headers: dict[str, str] = {}
        for name, value in self._fields if self.status else ():
            headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1").strip(" \t"))
        return headers

    def take(self) -> bytes:
        """Take the part of the body that has arrived since the last call."""
        parts = self.parts
        taken = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self.waiting_bytes = 0
        return taken

    def feed(self, data: bytes) -> bytes:
        """Process bytes. Returns those after the head of a response to CONNECT or of a switch of protocols, else b"".

        Raises BadResponse, and raises it again at every later call.
        """
        if self._failure is not None:
            raise self._failure
        if self.complete:
            self.keeps_alive = self.keeps_alive and not data  # no request was sent that this could answer
            return data if self.is_switched else b""
        if len(self._start) < len(_HTTP):
            self._check_start(data)
        if not self._has_body:
            return self._feed_head(data)
        return self._feed(data)

    def end(self) -> None:
        """Process the end of the connection. Raises BadResponse if the response is not complete."""
        self.keeps_alive, self._parser = False, None
        if self._ends_with_connection:
            self.complete = True
        elif not self.complete:
            raise BadResponse(ResponseProblem.CUT_SHORT if self.heard else ResponseProblem.NO_RESPONSE)

    def _check_start(self, data: bytes) -> None:
        """Refuse a start that is not HTTP, because llhttp accepts empty lines and other protocol names."""
        self.heard = self.heard or bool(data)
        self._start += data[: len(_HTTP) - len(self._start)]
        if not _HTTP.startswith(self._start):
            raise self._failed(ResponseProblem.NOT_HTTP)

    def _feed_head(self, data: bytes) -> bytes:
        """Parse a head byte by byte, because its end must be found exactly. It is short."""
        for end in range(1, len(data) + 1):
            self._feed(data[end - 1 : end])
            if self.complete:
                return data[end:]
        return b""

    def _feed(self, data: bytes) -> bytes:
        """Parse. Returns what follows the head of a switch of protocols."""
        if self._parser is None:
            self._parser = HttpResponseParser(self)
        parser, parts = self._parser, self.parts
        had_begun, before = self.status > 0, len(parts)
        if not had_begun:
            self._head_bytes += len(data)
        try:
            parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._parser = None
            return data[upgrade.args[0] :]
        except HttpParserError as error:
            if not self.complete:
                if isinstance(error, HttpParserCallbackError) and self._failure is None:
                    raise  # a bug in this module
                problem = ResponseProblem.MALFORMED_CHUNK if self.status else ResponseProblem.MALFORMED_HEAD
                raise self._failed(problem, str(error)) from error
            self.keeps_alive = False  # no request was sent that the following bytes could answer
        if self.complete:
            self._parser = None
        elif not self.status and self._head_bytes > self._limits.head_bytes:
            raise self._failed(ResponseProblem.HEAD_TOO_LARGE)
        arrived = len(parts) - before
        arrived_bytes = 0
        if arrived:
            arrived_bytes = len(parts[-1]) if arrived == 1 else sum(map(len, islice(parts, before, None)))
            self.waiting_bytes += arrived_bytes
        if self._is_chunked and had_begun:
            free = _FREE_BYTES * arrived + (_FREE_SHARE + 1) * arrived_bytes
            self._overhead = max(0, self._overhead + len(data) - free)
            if self._overhead > self._limits.overhead_bytes:
                raise self._failed(ResponseProblem.CHUNK_OVERHEAD)
        return b""

    def _failed(self, problem: ResponseProblem, detail: str = "") -> BadResponse:
        """Record a failure, unless a callback has recorded one, and return it."""
        if self._failure is None:
            self._failure = BadResponse(problem, detail)
        self._parser = None  # breaks the reference cycle through this object's methods
        return self._failure

    # Called by llhttp

    def on_message_begin(self) -> None:
        """Process the start of a response. A second one, which was not requested, stops the parser."""
        if self.complete:
            raise _StopParsing

    def on_status(self, reason: bytes) -> None:
        """A part of the reason phrase."""
        self.reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field of a head, or of the trailers."""
        fields = self._fields
        if self.status:
            return  # trailers are ignored, but count as overhead
        fields.append((name, value))
        if len(fields) > self._limits.fields:
            raise self._refused(ResponseProblem.TOO_MANY_FIELDS)

    def on_headers_complete(self) -> None:
        """Process the end of a head: its status, and how the end of its body is determined."""
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
            raise self._refused(ResponseProblem.NOT_HTTP)
        if status == 101 and not (self._upgrades and parser.should_upgrade()):
            raise self._refused(ResponseProblem.UNEXPECTED_UPGRADE)
        ends = not self._frame_body(parser) and status != 204 and status != 304
        self.keeps_alive = not ends and version == "1.1" and parser.should_keep_alive()
        self.status = status
        if not self._has_body:
            self.complete = True
            raise _StopParsing
        self._ends_with_connection = ends

    def on_message_complete(self) -> None:
        """The body has ended, or there is none."""
        self.complete = self.status > 0

    def _frame_body(self, parser: HttpResponseParser) -> bool:
        """Whether the fields define the end of the body."""
        coding, has_length = None, False
        for name, value in self._fields:
            if len(name) == 17 and name.lower() == b"transfer-encoding":
                coding = value if coding is None else coding + b", " + value
            elif len(name) == 14 and name.lower() == b"content-length":
                has_length = True
        if coding is None:
            return has_length
        if coding.strip(b" \t").lower() != b"chunked":
            raise self._refused(ResponseProblem.UNKNOWN_CODING, coding[:40].decode("latin-1"))
        self._is_chunked = True
        if self._pads_chunks:
            parser.set_dangerous_leniencies(lenient_spaces_after_chunk_size=True)
        return True

    def _check_size(self) -> None:
        """Check the exact size of the heads, because some of the bytes that have arrived may belong to the body."""
        size = self._interim_bytes + len(self.reason) + sum(len(name) + len(value) + 4 for name, value in self._fields)
        if size > self._limits.head_bytes:
            raise self._refused(ResponseProblem.HEAD_TOO_LARGE)

    def _pass_over(self) -> None:
        """Skip an interim response."""
        self._interim_bytes += len(self.reason) + sum(len(name) + len(value) + 4 for name, value in self._fields)
        self._interim += 1
        self.reason = ""
        self._fields.clear()
        if self._interim > self._limits.interim:
            raise self._refused(ResponseProblem.TOO_MANY_INTERIM)

    def _refused(self, problem: ResponseProblem, detail: str = "") -> BadResponse:
        """Record a failure in a callback. The returned exception, when raised, ends `feed_data`."""
        self._failure = BadResponse(problem, detail)
        return self._failure


class _StopParsing(Exception):
    """Stops llhttp at the end of the response."""

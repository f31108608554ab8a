"""The exchange of an HTTP probe over HTTP/2 without TLS, with prior knowledge (h2c). Pure: bytes in, bytes out.

The pod's spec asks for it with `httpGet.protocol: HTTP2`. The request is that of HTTP/1.1 in other form, and the answer has what
`AnswerReader` reads of one in HTTP/1.1.
Source: KEP-5999; RFC 9113.
"""

from __future__ import annotations

from h2.errors import ErrorCodes

from pykubelet.base.kit.text import parse_decimal
from pykubelet.net.grpc.hpack import literal
from pykubelet.net.grpc.http2 import FRAME_BYTES, HTTP_1, ConnectionFault, Http2Connection, Http2Stream
from pykubelet.net.grpc.limits import Http2Limits
from pykubelet.net.http.hops import Hop, UnsendableRequest
from pykubelet.net.http.tolerant import MAX_LOCATION, BadAnswer

#: The server is the container itself and not trusted. Together these limits keep the cost of a probe below 50 ms of CPU and 1 MiB.
ANSWER_LIMITS = Http2Limits(
    header_list=16 << 10,
    message=0,
    stream_window=65535,
    connection_window=65535,
    all_headers=16 << 10,
    steps=500,
    empty_frames=100,
)
NOT_HTTP2 = "http2: failed reading the frame payload: frame too large, note that the frame header looked like an HTTP/1.1 header"
_HIGHEST_STATUS = 999


class Http2Exchange:
    """One request and its answer. Send `take_output()` at first and after each `feed`. Raises UnsendableRequest.

    `body_limit`: the bytes of the body that are wanted. `location`: the target of a redirect.
    """

    def __init__(self, hop: Hop, body_limit: int) -> None:
        self._connection = Http2Connection(ANSWER_LIMITS)
        self._stream = self._connection.request(_header_block(hop), b"")
        self._body_limit = body_limit
        self.status = 0
        self.location = ""
        self.body = bytearray()

    @property
    def has_begun(self) -> bool:
        """Whether the head was read. Later failures concern the body."""
        return self.status > 0

    def take_output(self) -> bytes:
        """The bytes to send."""
        self._connection.answer_pings()
        return self._connection.take_output()

    def feed(self, data: bytes) -> bool:
        """Process received bytes. Returns whether no more are needed. Raises BadAnswer."""
        try:
            self._connection.receive(data)
        except ConnectionFault as fault:
            raise BadAnswer(NOT_HTTP2 if fault.problem == HTTP_1 else f"http2: {fault.problem}") from fault
        stream = self._stream
        if not self.status:
            self._read_head(stream)
        self.body += b"".join(stream.body)
        stream.body.clear()
        if stream.reset:
            raise BadAnswer(f"stream error: stream ID {stream.id}; {_name(stream.reset)}")
        if stream.is_ended and not self.status:
            raise BadAnswer("http2: the server has ended the stream without an answer")
        is_enough = len(self.body) >= self._body_limit
        del self.body[self._body_limit :]
        return stream.is_ended or is_enough

    def end(self) -> None:
        """Process the end of the connection. Raises BadAnswer, because the answer is not complete."""
        raise BadAnswer("unexpected EOF" if self.status else "EOF")

    def _read_head(self, stream: Http2Stream) -> None:
        fields = dict(stream.headers or stream.trailers)
        text = fields.get(":status")
        if text is None:
            return
        status = parse_decimal(text, _HIGHEST_STATUS)
        if status is None:
            raise BadAnswer("malformed response from server: malformed non-numeric status pseudo header")
        if status >= 200:  # those below are interim answers
            self.status, self.location = status, fields.get("location", "")[:MAX_LOCATION]


def _header_block(hop: Hop) -> bytes:
    """The header block of the request, which is written as HTTP/1.1. Raises UnsendableRequest."""
    first, *lines = hop.request.decode("utf-8", "replace").rstrip("\r\n").split("\r\n")
    fields = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
    authority = next((value for name, value in fields if name == "host"), "")
    pseudo = ((":method", "GET"), (":scheme", hop.scheme), (":authority", authority), (":path", first.split(" ")[1]))
    own = (field for field in fields if field[0] not in ("host", "connection"))
    block = b"".join(literal(name, value) for name, value in (*pseudo, *own))
    if len(block) > FRAME_BYTES:
        raise UnsendableRequest(f"the request has {len(block)} bytes of headers, more than {FRAME_BYTES} over HTTP/2")
    return block


def _name(code: int) -> str:
    return ErrorCodes(code).name if code <= max(ErrorCodes) else str(code)

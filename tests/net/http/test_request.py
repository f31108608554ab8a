"""Heads of requests and chunked bodies: ambiguous ones are refused, and no byte is taken of what follows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.net.http.request import MAX_CHUNKS, BadMessage, ChunkedBody, parse_head

LINE, HOST = b"POST / HTTP/1.1\r\n", b"Host: x\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        # two ways to say how long the body is
        (LINE + HOST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (LINE + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400),
        (LINE + HOST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
        (LINE + HOST + b"Content-Length: 1\r\ncontent-length: 2\r\n\r\n", 400),
        (LINE + HOST + b"Content-Length: 1, 1\r\n\r\n", 400),
        (LINE + HOST + b"Content-Length: 0x1\r\n\r\n", 400),
        (LINE + HOST + b"Content-Length: 1 1\r\n\r\n", 400),
        (LINE + HOST + b"Content-Length:\r\n\r\n", 400),
        (LINE + HOST + b"Content-Length: -0\r\n\r\n", 400),
        (LINE + HOST + b"Content-Length: %d\r\n\r\n" % (1 << 64), 400),
        (LINE + HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (LINE + HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", 400),
        (LINE + HOST + b"Transfer-Encoding: identity\r\n\r\n", 400),
        (LINE + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 400),
        (LINE + HOST + b"Transfer-Encoding: chunked, identity\r\n\r\n", 400),
        (LINE + HOST + b"Transfer-Encoding: xchunked\r\n\r\n", 400),
        (LINE + HOST + b"Transfer-Encoding: chunked;x\r\n\r\n", 400),
        (LINE + HOST + b"Transfer-Encoding: \x0bchunked\r\n\r\n", 400),
        (LINE + HOST + b"Transfer-Encoding:\r\n\r\n", 400),
        # fields whose names others read differently
        (LINE + HOST + b"Transfer-Encoding : chunked\r\n\r\n", 400),
        (LINE + HOST + b"Content-Length\t: 1\r\n\r\n", 400),
        (LINE + HOST + b" Content-Length: 1\r\n\r\n", 400),
        (LINE + b" Host: x\r\n\r\n", 400),
        (LINE + HOST + b"X: y\r\n Content-Length: 1\r\n\r\n", 400),
        (LINE + HOST + b"X: y\r\n\tz\r\n\r\n", 400),
        (LINE + HOST + b"X: y\nContent-Length: 1\r\n\r\n", 400),
        (LINE + HOST + b"X: y\rContent-Length: 1\r\n\r\n", 400),
        (LINE + HOST + b"X: y\0z\r\n\r\n", 400),
        (LINE + HOST + b"X: y\x7f\r\n\r\n", 400),
        (LINE + HOST + b"X\0: y\r\n\r\n", 400),
        (LINE + HOST + b"X y: z\r\n\r\n", 400),
        (LINE + HOST + b"no colon\r\n\r\n", 400),
        (LINE + HOST + b": x\r\n\r\n", 400),
        (LINE + HOST + b"host: y\r\n\r\n", 400),
        (LINE + HOST + b"Authorization: a\r\nAuthorization: b\r\n\r\n", 400),
        (LINE + b"X: y\r\n\r\n", 400),
        # request lines
        (b"\r\n" + LINE + HOST + b"\r\n", 400),
        (b"\n" + LINE + HOST + b"\r\n", 400),
        (b"POST / HTTP/1.1\n" + HOST + b"\r\n", 400),
        (b"POST  / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"POST /  HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"POST\t/ HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"POST / HTTP/1.1 \r\n" + HOST + b"\r\n", 400),
        (b"POST /\xa0 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"POST /\x0b HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"POST /\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"POST / HTTP/0.9\r\n" + HOST + b"\r\n", 505),
        (b"POST / HTTP/1.2\r\n" + HOST + b"\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\n", 505),
        (b"POST / RTSP/1.0\r\n" + HOST + b"\r\n", 505),
        (b"FOO / HTTP/1.1\r\n" + HOST + b"\r\n", 501),
        (b"get / HTTP/1.1\r\n" + HOST + b"\r\n", 501),
        (b"DESCRIBE / HTTP/1.1\r\n" + HOST + b"\r\n", 501),
    ],
)
def test_what_others_could_read_differently_is_refused(head: bytes, status: int) -> None:
    with pytest.raises(BadMessage) as refused:
        parse_head(head)
    assert refused.value.status == status


@pytest.mark.parametrize(
    ("fields", "length", "keeps_alive"),
    [
        (b"", 0, True),
        (b"Content-Length: 007\r\n", 7, True),
        (b"transfer-ENCODING:Chunked \r\n", None, True),
        (b"Connection: keep-alive, Close\r\n", 0, False),
        (b"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 3\r\n", 3, True),
    ],
)
def test_a_head_states_what_follows(fields: bytes, length: int | None, keeps_alive: bool) -> None:
    head = parse_head(LINE + HOST + fields + b"X-A: 1\r\nx-a: \t2 \r\n\r\n")
    assert (head.method, head.target, head.headers["x-a"]) == ("POST", "/", "1,2")
    assert (head.body_length, head.keeps_alive) == (length, keeps_alive)


def test_a_request_of_http_1_0_is_the_last() -> None:
    head = parse_head(b"GET /x?y HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert (head.target, head.body_length, head.keeps_alive) == ("/x?y", 0, False)


def read_chunks(sent: bytes, limit: int = 1000) -> tuple[bytes, bytes]:
    """The body, and what was not read of `sent`."""
    chunks = ChunkedBody(limit)
    while not chunks.is_complete:
        end = sent.find(b"\r\n") + 2 if chunks.wanted is None else chunks.wanted
        if end < 2 or len(sent) < end:
            raise EOFError
        chunks.feed(sent[:end])
        sent = sent[end:]
    return bytes(chunks.data), sent


@given(
    st.lists(st.binary(min_size=1, max_size=50), max_size=8),
    st.sampled_from([b"", b";x", b';x="y z"']),
    st.sampled_from([b"", b"A: 1\r\n", b"Host: x\r\nhost: y\r\n"]),
    st.sampled_from([b"", b"GET / HTTP/1.1\r\n", b"\r\n\r\n", b"0\r\n\r\n"]),
)
def test_a_chunked_body_ends_exactly_where_the_next_request_begins(
    parts: list[bytes], extension: bytes, trailers: bytes, rest: bytes
) -> None:
    sent = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
    assert read_chunks(sent + b"0\r\n" + trailers + b"\r\n" + rest) == (b"".join(parts), rest)


@pytest.mark.parametrize("trailer", [b"Content-Length: 5\r\n", b"no colon\r\n", b"a: b\r\n c\r\n", b"a : b\r\n"])
def test_trailers_that_look_like_another_message_are_refused(trailer: bytes) -> None:
    with pytest.raises(BadMessage) as refused:
        read_chunks(b"0\r\n" + trailer + b"\r\n")
    assert (refused.value.status, refused.value.reason) == (400, "malformed trailer")


def test_a_chunked_body_has_bounds() -> None:
    assert read_chunks(b"a\r\n0123456789\r\n0\r\n\r\n", limit=10) == (b"0123456789", b"")
    for sent in (b"b\r\n", b"a\r\n0123456789\r\n1\r\n", b"1\r\nx\r\n" * (MAX_CHUNKS + 1)):
        with pytest.raises(BadMessage) as refused:
            read_chunks(sent, limit=10 if b"x" not in sent else 1 << 20)
        assert refused.value.status == 413


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for sent in (LINE + HOST + data, LINE + data, data):
        try:
            head = parse_head(sent.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        except BadMessage:
            continue
        assert "host" in head.headers or head.keeps_alive is False
    try:
        read_chunks(data)
    except (BadMessage, EOFError):
        return

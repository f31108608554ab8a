"""Responses in whatever pieces they arrive, what is refused of them, and what reading them may cost."""

from __future__ import annotations

import contextlib
import gc
import itertools
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cost import is_quick

from pykubelet.net.http.response import BadResponse, ResponseLimits, ResponseParser, ResponseProblem

LIMITS = ResponseLimits()
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKS = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LENGTH = OK + b"Content-Length: 5\r\nX-Y: a: b\r\n\r\nhello"
CHUNKED = CHUNKS + b"3;x=y\r\nhel\r\n002\r\nlo\r\n0\r\nTrailer: z\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH
RESPONSES = (LENGTH, CHUNKED, CONTINUED)


def problem_of(*pieces: bytes) -> ResponseProblem:
    response = ResponseParser()
    with pytest.raises(BadResponse) as refused:
        for piece in pieces:
            response.feed(piece)
    return refused.value.problem


@given(st.sampled_from(RESPONSES), st.lists(st.integers(0, len(CONTINUED)), max_size=8))
def test_a_response_is_the_same_in_all_its_pieces(data: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    response = ResponseParser()
    for start, end in itertools.pairwise(places):
        assert not response.complete
        response.feed(data[start:end])
    assert (response.status, response.reason, response.take()) == (200, "OK", b"hello")
    assert response.complete and response.keeps_alive


@pytest.mark.parametrize("data", RESPONSES)
def test_a_response_that_is_cut_anywhere_is_none(data: bytes) -> None:
    for end in range(len(data)):
        response = ResponseParser()
        response.feed(data[:end])
        with pytest.raises(BadResponse) as refused:
            response.end()
        assert refused.value.problem is (ResponseProblem.CUT_SHORT if end else ResponseProblem.NO_RESPONSE)


def test_a_body_without_length_ends_with_the_connection() -> None:
    response = ResponseParser()
    response.feed(b"HTTP/1.1 500 Oh\r\n\r\nhel")
    response.feed(b"lo")
    assert response.begun and not response.complete
    response.end()
    assert (response.status, response.take(), response.keeps_alive) == (500, b"hello", False)


def test_header_names_are_in_lower_case_and_the_first_value_counts() -> None:
    response = ResponseParser()
    response.feed(OK + b"X-Y: a: b \t\r\nx-y: c\r\nConnection: x\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n")
    assert response.headers == {"x-y": "a: b", "connection": "x", "content-length": "0"}
    assert not response.keeps_alive


@pytest.mark.parametrize("head", [b"HTTP/1.0 200 OK\r\n", OK + b"Connection: Close\r\n"])
def test_some_connections_are_not_used_again(head: bytes) -> None:
    response = ResponseParser()
    response.feed(head + b"Content-Length: 0\r\n\r\n")
    assert response.complete and not response.keeps_alive


@pytest.mark.parametrize("pieces", [(LENGTH + OK,), (LENGTH, OK), (LENGTH, b"\r\n"), (LENGTH + b"x",)])
def test_more_than_was_asked_for_spoils_the_connection(pieces: tuple[bytes, ...]) -> None:
    response = ResponseParser()
    for piece in pieces:
        response.feed(piece)
    assert response.complete and response.take() == b"hello" and not response.keeps_alive


@pytest.mark.parametrize("status", [b"204", b"304"])
def test_some_responses_have_no_body(status: bytes) -> None:
    response = ResponseParser()
    response.feed(b"HTTP/1.1 " + status + b" X\r\nContent-Length: 3\r\n\r\n")
    assert response.complete and response.keeps_alive


@pytest.mark.parametrize("rest", [b"", b"\x16\x03\x01", b"HTTP/1.1 200 OK\r\n\r\n", b"\r\n\r\n"])
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_the_response_to_connect_ends_exactly_with_its_head(rest: bytes, step: int) -> None:
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 Connection established\r\nContent-Length: 9\r\n\r\n" + rest
    response, after = ResponseParser(has_body=False), b""
    for start in range(0, len(data), step):
        after += response.feed(data[start : start + step])
    assert (response.complete, response.status, response.take(), after) == (True, 200, b"", rest)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"SSH-2.0-OpenSSH\r\n", ResponseProblem.NOT_HTTP),
        (b"HTTP/2 200 OK\r\n\r\n", ResponseProblem.NOT_HTTP),
        (b"HTTP/2.0 200 OK\r\n\r\n", ResponseProblem.NOT_HTTP),
        (b"RTSP/1.0 200 OK\r\n\r\n", ResponseProblem.NOT_HTTP),
        (b"\r\n" + LENGTH, ResponseProblem.NOT_HTTP),
        (b"HTTP/1.2 200 OK\r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (b"HTTP/1.1 ok\r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (b"HTTP/1.1 2x0 OK\r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (b"HTTP/1.1 099 OK\r\n\r\n", ResponseProblem.NOT_HTTP),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
            ResponseProblem.UNEXPECTED_UPGRADE,
        ),
        (OK + b"no colon\r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (OK + b" : x\r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (OK + b"a : x\r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (OK + b"a: x\r\n folded\r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (OK + b"a: x\ry\r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (OK + b"a: x\0y\r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (OK + b"a: x\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (b"HTTP/1.1 200 OK\n\n", ResponseProblem.MALFORMED_HEAD),
        (OK + b"Content-Length: -1\r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (OK + b"Content-Length: +1\r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (OK + b"Content-Length: \r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (OK + b"Content-Length: 1, 1\r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (OK + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (OK + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (OK + b"Transfer-Encoding: gzip\r\n\r\n", ResponseProblem.UNKNOWN_CODING),
        (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n", ResponseProblem.UNKNOWN_CODING),
        (OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", ResponseProblem.UNKNOWN_CODING),
        (OK + b"Transfer-Encoding: \x0bchunked\r\n\r\n", ResponseProblem.MALFORMED_HEAD),
        (OK + b"Transfer-Encoding: chunked\xa0\r\n\r\n", ResponseProblem.UNKNOWN_CODING),
        (CHUNKS + b"zz\r\n", ResponseProblem.MALFORMED_CHUNK),
        (CHUNKS + b"-1\r\n", ResponseProblem.MALFORMED_CHUNK),
        (CHUNKS + b"0x1\r\n", ResponseProblem.MALFORMED_CHUNK),
        (CHUNKS + b"1_0\r\n", ResponseProblem.MALFORMED_CHUNK),
        (CHUNKS + b"1 \r\nx\r\n", ResponseProblem.MALFORMED_CHUNK),
        (CHUNKS + b"1\nx\r\n", ResponseProblem.MALFORMED_CHUNK),
        (CHUNKS + b"1;a\nb\r\nx\r\n", ResponseProblem.MALFORMED_CHUNK),
        (CHUNKS + b"1\r\nab\r\n", ResponseProblem.MALFORMED_CHUNK),
        (CHUNKS + b"1\r\na\n0\r\n\r\n", ResponseProblem.MALFORMED_CHUNK),
        (CHUNKS + b"1" * 17, ResponseProblem.MALFORMED_CHUNK),
        (CHUNKS + b"0\r\nno colon\r\n\r\n", ResponseProblem.MALFORMED_CHUNK),
    ],
)
def test_what_is_ambiguous_is_refused(data: bytes, problem: ResponseProblem) -> None:
    assert problem_of(data) is problem
    assert problem_of(*(data[at : at + 1] for at in range(len(data)))) is problem


@pytest.mark.parametrize("step", [1000, 1 << 17])
@pytest.mark.parametrize(
    ("first", "again", "problem"),
    [
        (b"HTTP/1.1 200 ", b"x", ResponseProblem.HEAD_TOO_LARGE),
        (OK + b"a: ", b"x", ResponseProblem.HEAD_TOO_LARGE),
        (OK, b"x", ResponseProblem.HEAD_TOO_LARGE),
        (OK, b"a: " + b"x" * 30_000 + b"\r\n", ResponseProblem.HEAD_TOO_LARGE),
        (OK, b"a:\r\n", ResponseProblem.TOO_MANY_FIELDS),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", ResponseProblem.TOO_MANY_INTERIM),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: " + b"x" * 20_000 + b"\r\n\r\n", ResponseProblem.HEAD_TOO_LARGE),
        (CHUNKS, b"0", ResponseProblem.CHUNK_OVERHEAD),
        (CHUNKS, b"1" + b";a=b" * 500 + b"\r\nx\r\n", ResponseProblem.CHUNK_OVERHEAD),
        (CHUNKS + b"0\r\n", b"a: b\r\n", ResponseProblem.CHUNK_OVERHEAD),
        (CHUNKS + b"0\r\na: ", b"x", ResponseProblem.CHUNK_OVERHEAD),
    ],
)
def test_nothing_without_an_end_is_read_for_long(
    first: bytes, again: bytes, problem: ResponseProblem, step: int
) -> None:
    """Refused within 64 KiB and a piece, at little cost."""
    data = first + again * ((1 << 20) // len(again))

    def read() -> None:
        response = ResponseParser()
        with pytest.raises(BadResponse) as refused:
            for at in range(0, len(data), step):
                response.feed(data[at : at + step])
        assert refused.value.problem is problem
        assert at <= LIMITS.head_bytes + 2 * step

    assert is_quick(read, 0.05)


def test_heads_of_the_largest_size_are_read() -> None:
    fields = b"".join(b"X-%d: y\r\n" % number for number in range(LIMITS.fields - 1))
    response = ResponseParser()
    response.feed(b"HTTP/1.1 103 Early Hints\r\n\r\n" * LIMITS.interim + OK + fields + b"Content-Length: 0\r\n\r\n")
    assert response.complete and len(response.headers) == LIMITS.fields


def test_a_watch_goes_on_for_ever_and_keeps_nothing() -> None:
    response = ResponseParser()
    response.feed(CHUNKS)
    event = b'{"type":"BOOKMARK"}\n'
    for _ in range(10_000):
        response.feed(b"%x\r\n%b\r\n" % (len(event), event))
        assert response.waiting_bytes == len(event)
        assert response.take() == event and response.waiting_bytes == 0
    response.feed(b"1\r\nx\r\n" * 50_000)
    assert (response.waiting_bytes, len(response.take())) == (50_000, 50_000)


def test_a_broken_response_stays_broken() -> None:
    response = ResponseParser()
    for data in (b"HTTP/1.1 x", LENGTH):
        with pytest.raises(BadResponse):
            response.feed(data)


@pytest.mark.parametrize(
    "pieces", [(), (b"",), (b"lo",), (b"lo" + OK,)], ids=["unused", "cut short", "whole", "too much"]
)
def test_a_response_is_freed_without_the_garbage_collector(pieces: tuple[bytes, ...]) -> None:
    response = ResponseParser()
    for piece in pieces and (LENGTH.removesuffix(b"lo"), *pieces):
        response.feed(piece)
    with contextlib.suppress(BadResponse):
        response.end()
    left = weakref.ref(response)
    gc.disable()
    try:
        del response
        assert left() is None
    finally:
        gc.enable()


def test_blanks_after_the_size_of_a_chunk_are_read_where_they_are_allowed() -> None:
    response = ResponseParser(pads_chunks=True)
    response.feed(CHUNKS + b"5  \r\nhello\r\n0 \r\n\r\n")
    assert (response.take(), response.complete) == (b"hello", True)


@given(st.binary(max_size=200), st.booleans())
def test_nothing_but_bad_responses_comes_of_any_bytes(data: bytes, pads_chunks: bool) -> None:
    for start in (CHUNKS, OK, b"HTTP/1.1 ", b""):
        response = ResponseParser(pads_chunks=pads_chunks)
        try:
            response.feed(start + data)
            response.end()
        except BadResponse:
            continue
        assert response.complete and 100 <= response.status < 1000

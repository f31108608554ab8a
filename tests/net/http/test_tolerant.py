"""Responses that Go's client accepts: heads that the parser refuses and the reference's client accepts, and their error texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.net.http.tolerant import AnswerReader, BadAnswer

BODY_LIMIT = 10 << 10
OK = b"HTTP/1.1 200 OK\r\n"
HI = b"Content-Length: 2\r\n\r\nhi"
CHUNKS = OK + b"Transfer-Encoding: chunked\r\n\r\n"
BROKEN = "net/http: HTTP/1.x transport connection broken: "


def read(data: bytes, step: int = 1 << 16) -> AnswerReader:
    answer = AnswerReader(BODY_LIMIT)
    for at in range(0, len(data), step):
        if answer.feed(data[at : at + step]):
            return answer
    answer.end()
    return answer


@pytest.mark.parametrize("step", [1, 3, 1 << 16])
@pytest.mark.parametrize(
    "data",
    [
        OK + HI,
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi",
        b"HTTP/1.1 200\r\n" + HI,
        b"HTTP/1.1  200 OK\r\n" + HI,
        b"HTTP/1.7 200 OK\r\n" + HI,
        OK + b"Content-Length: 2\r\n" + HI,
        OK + b"Some Name: x\r\n" + HI,
        OK + b"Name : x\r\n" + HI,
        OK + b"X: a\r\n b\r\n" + HI,
        OK + b"X: a\rb\r\n" + HI,
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        OK + b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2 \r\nhi\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: gzip\r\n\r\nhi",
        OK + b"X: a\x01b\xff\r\n" + HI,
        OK + b"X: y\r\n Content-Length: 7\r\n" + HI,
        OK + b"Some Name: x\r\nTransfer-Encoding: Chunked\r\n\r\n2;a=b\r\nhi\r\n0\r\nT: 1\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 5 + OK + b"Some Name: x\r\n" + HI,
        b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nhi",
    ],
)
def test_an_answer_is_read_as_the_reference_reads_it(data: bytes, step: int) -> None:
    answer = read(data, step)
    assert (answer.status, bytes(answer.body)) == (200, b"hi")


@pytest.mark.parametrize("status", [101, 99, 7])
def test_an_answer_of_no_use_ends_with_its_head(status: int) -> None:
    answer = read(b"HTTP/1.1 %03d X\r\nConnection: upgrade\r\nUpgrade: x\r\nContent-Length: 7\r\n\r\nrest" % status)
    assert (answer.status, bytes(answer.body)) == (status, b"")


@pytest.mark.parametrize("name", [b"Location", b"location"])
@pytest.mark.parametrize("other", [b"", b"Some Name: x\r\n"])
def test_where_a_redirect_leads_is_read_of_every_head(name: bytes, other: bytes) -> None:
    answer = read(b"HTTP/1.1 302 Found\r\n" + other + name + b": /caf\xc3\xa9 \r\nContent-Length: 0\r\n\r\n")
    assert (answer.status, answer.location) == (302, "/café")


@pytest.mark.parametrize("step", [1, 1 << 16])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "EOF"),
        (b"HTTP/1.1 200 OK\r\nX: ", "unexpected EOF"),
        (b"HTTP/1.1 2x0 OK\r\n\r\n", f'{BROKEN}malformed HTTP status code "2x0"'),
        (b"HTTP/1.1 20 OK\r\n\r\n", f'{BROKEN}malformed HTTP status code "20"'),
        (b"HTTP/2.0 200 OK\r\n\r\n", f'{BROKEN}malformed HTTP version "HTTP/2.0"'),
        (b"HTTP/1.1 100 C\r\n\r\nHTTP/3.0 200 OK\r\n\r\n", f'{BROKEN}malformed HTTP version "HTTP/3.0"'),
        (OK + b"no colon\r\n\r\n", 'malformed MIME header: missing colon: "no colon"'),
        (OK + b"X: y\r\n: z\r\n\r\n", 'malformed MIME header: missing colon: ": z"'),
        (OK + b"Content-Length: no\r\n\r\n", 'bad Content-Length "no"'),
        (OK + b"Content-Length: -1\r\n\r\n", 'bad Content-Length "-1"'),
        (OK + b"Content-Length: \r\n\r\n", 'bad Content-Length ""'),
        (OK + b"Content-Length: %d\r\n\r\n" % (1 << 64), f'bad Content-Length "{1 << 64}"'),
        (
            OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "http: message cannot contain multiple Content-Length headers",
        ),
        (OK + b"Location: a\rb\r\n\r\n", 'malformed MIME header line: "Location: a\rb"'),
        (OK + b"Some Name: x\r\n" * 1001 + b"\r\n", None),
        (CHUNKS + b"zz\r\n", "invalid byte in chunk length"),
        (CHUNKS + b"2\r\nhixx\r\n", "malformed chunked encoding"),
        (CHUNKS + b"2\r\nhi\r\n0\r\n", "unexpected EOF"),
        (CHUNKS + b"2\r\nh", "unexpected EOF"),
    ],
)
def test_errors_have_the_references_wording(data: bytes, message: str | None, step: int) -> None:
    with pytest.raises(BadAnswer) as refused:
        read(data, step)
    assert str(refused.value) == (message or "net/http: server response has more than 1000 header fields; aborted")


@pytest.mark.parametrize("data", [OK + b"\r\n", OK + b"Content-Length: 99999\r\n\r\n", CHUNKS + b"ffff\r\n"])
def test_no_more_of_a_body_is_kept_than_the_limit(data: bytes) -> None:
    answer = AnswerReader(BODY_LIMIT)
    assert not answer.feed(data + b"x")
    assert answer.feed(b"x" * 16_000)
    assert bytes(answer.body) == b"x" * BODY_LIMIT


@given(st.binary(max_size=200), st.integers(1, 300))
def test_whatever_comes_is_read_or_refused_alike_in_all_pieces(data: bytes, step: int) -> None:
    for start in (CHUNKS, OK, OK + b"a b: c\r\n", b"HTTP/1.1 ", b""):
        results: list[tuple[int, bytes] | None] = []
        for size in (step, 1 << 16):
            try:
                answer = read(start + data, size)
                results.append((answer.status, bytes(answer.body)))
            except BadAnswer:
                results.append(None)
        assert results[0] == results[1]

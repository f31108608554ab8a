"""Answers in whatever pieces they come, and those that are none."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.edges.kubeapi.answer import HEAD_LIMIT, Answer, BadAnswer

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Y: a: b\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n002\r\nlo\r\n0\r\nTrailer: z\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH
ANSWERS = (LENGTH, CHUNKED, CONTINUED)


@given(st.sampled_from(ANSWERS), st.lists(st.integers(0, len(CONTINUED)), max_size=8))
def test_an_answer_is_the_same_in_all_its_pieces(data: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    answer = Answer()
    for start, end in itertools.pairwise(places):
        assert not answer.complete
        answer.feed(data[start:end])
    assert (answer.status, answer.take(), answer.complete, answer.keeps_alive) == (200, b"hello", True, True)


@pytest.mark.parametrize("data", ANSWERS)
def test_an_answer_that_is_cut_anywhere_is_no_answer(data: bytes) -> None:
    for end in range(len(data)):
        answer = Answer()
        answer.feed(data[:end])
        with pytest.raises(BadAnswer):
            answer.end()


def test_a_body_without_length_ends_with_the_connection() -> None:
    answer = Answer()
    answer.feed(b"HTTP/1.1 500 Oh\r\n\r\nhel")
    answer.feed(b"lo")
    assert answer.begun and not answer.complete
    answer.end()
    assert (answer.status, answer.take(), answer.keeps_alive) == (500, b"hello", False)


def test_headers_are_told_without_regard_to_case() -> None:
    answer = Answer()
    answer.feed(LENGTH)
    assert answer.headers == {"content-length": "5", "x-y": "a: b"}


@pytest.mark.parametrize("head", [b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 200 OK\r\nConnection: Close\r\n"])
def test_some_connections_are_not_used_again(head: bytes) -> None:
    answer = Answer()
    answer.feed(head + b"Content-Length: 0\r\n\r\n")
    assert answer.complete and not answer.keeps_alive


def test_more_than_was_asked_for_spoils_the_connection() -> None:
    answer = Answer()
    answer.feed(LENGTH + b"HTTP/1.1 200 OK")
    assert answer.complete and answer.take() == b"hello" and not answer.keeps_alive


@pytest.mark.parametrize("status", [b"204", b"304"])
def test_some_answers_have_no_body(status: bytes) -> None:
    answer = Answer()
    answer.feed(b"HTTP/1.1 " + status + b" X\r\n\r\n")
    assert answer.complete and answer.keeps_alive


def test_the_answer_to_connect_ends_with_its_head() -> None:
    answer = Answer(has_body=False)
    answer.feed(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n")
    assert answer.complete and answer.status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 ok\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n : x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5000,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (HEAD_LIMIT + 1),
    ],
)
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        Answer().feed(data)


@given(st.binary(max_size=200))
def test_nothing_but_bad_answers_comes_of_any_bytes(data: bytes) -> None:
    answer = Answer()
    try:
        answer.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + data)
        answer.end()
    except BadAnswer:
        return
    assert answer.complete

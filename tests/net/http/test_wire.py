"""Heads and bodies of requests: what is refused, and what reading them may cost."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cost import is_quick

from pykubelet.net.http.request import EXTENSION_BYTES, FIELD_BYTES, MAX_CHUNKS
from pykubelet.net.http.wire import MAX_QUERY_FIELDS, PATH_BYTES, BadRequest, Body, Head, parse_head

MIB = 1 << 20


def head_of(target: str = "/", *fields: str, version: str = "HTTP/1.1", host: str = "Host: node") -> Head:
    return parse_head("\r\n".join((f"GET {target} {version}", host, *fields, "", "")).encode("latin-1"))


def status_of(*args: str, **more: str) -> int:
    with pytest.raises(BadRequest) as refused:
        head_of(*args, **more)
    return refused.value.status


async def read_chunks(sent: bytes) -> bytes:
    reader = asyncio.StreamReader()
    reader.feed_data(sent)
    reader.feed_eof()
    return await Body(reader, None, 60.0).read()


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/a%20b?x=1&y&x=2", "/a b", {"x": ["1", "2"], "y": [""]}),
        ("/", "/", {}),
        ("/?", "/", {}),
        ("//host/exec/a", "//host/exec/a", {}),
        ("/a?b?c", "/a", {"b?c": [""]}),
        ("/a#b", "/a#b", {}),
        ("/a;b", "/a;b", {}),
        ("/a:80", "/a:80", {}),
        ("http://node:10250/pods?x", "/pods", {"x": [""]}),
        ("HTTPS://node", "/", {}),
        ("http://node?x=1", "/", {"x": ["1"]}),
        ("*", "*", {}),
    ],
)
def test_a_target_is_read_as_it_is_written(target: str, path: str, query: dict[str, list[str]]) -> None:
    request = head_of(target).request
    assert (request.path, request.query, request.target) == (path, query, target)


@pytest.mark.parametrize(
    "target", ["pods", "node:10250", "ftp://node/pods", "http://[", "http:///pods", "http://a/b@c\xa0", "?x", "/%00"]
)
def test_other_forms_of_targets_are_refused(target: str) -> None:
    assert status_of(target) == 400


def test_a_host_is_required_since_http_1_1() -> None:
    assert status_of("/", host="X: y") == 400
    assert not head_of("/", version="HTTP/1.0", host="X: y").keep


@pytest.mark.parametrize(
    "field",
    [
        "Content-Length: 4\xa0",
        "Content-Length: \x85" + "4",
        "Content-Length: +4",
        "Content-Length: " + "9" * 5000,
        "Content-Length: \xb2",
        "Transfer-Encoding: chunked\xa0",
        "Transfer-Encoding: \x0bchunked",
    ],
)
def test_a_length_is_digits_and_a_coding_is_a_word(field: str) -> None:
    assert status_of("/", field) == 400


def test_values_of_repeated_fields_are_known_one_by_one() -> None:
    head = parse_head(b"GET / HTTP/1.1\r\nHost: h\r\nA: 1, 2\r\na:\r\nB: 3,4 \r\nA: 5\r\n\r\n")
    assert head.request.headers["a"] == "1, 2,,5"
    assert head.request.repeated == {"a": ["1, 2", "", "5"]}


def test_blanks_and_tabs_around_a_value_mean_nothing() -> None:
    assert head_of("/", "Content-Length:\t 4 \t").body_length == 4


@pytest.mark.parametrize(
    ("fields", "upgrades"),
    [
        (("Connection: Upgrade", "Upgrade: x"), True),
        (("Connection: keep-alive,\tupgrade ", "Upgrade: x"), True),
        (("Connection: keep-alive", "Connection: upgrade", "Upgrade: x"), True),
        (("Connection: upgrade",), False),
        (("Connection: no-upgrade, upgraded", "Upgrade: x"), False),
    ],
)
def test_an_upgrade_is_named_in_the_connection_field(fields: tuple[str, ...], upgrades: bool) -> None:
    assert head_of("/", *fields).request.is_upgrade is upgrades


def test_large_heads_have_a_large_query_or_token_and_nothing_else() -> None:
    assert head_of("/?command=" + "x" * MIB).request.first("command") == "x" * MIB
    assert len(head_of("/", "Authorization: Bearer " + "x" * MIB).request.headers["authorization"]) == MIB + 7
    assert status_of("/" + "x" * PATH_BYTES) == 414
    assert status_of("/", "X: " + "," * FIELD_BYTES) == 431
    assert status_of("/", *["X: " + "x" * (FIELD_BYTES // 100)] * 101) == 431
    assert status_of("/", *["X: 1"] * 200) == 431  # and Host


def test_a_query_has_a_bounded_number_of_fields() -> None:
    assert len(head_of("/?" + "&".join(["a=1"] * MAX_QUERY_FIELDS)).request.query["a"]) == MAX_QUERY_FIELDS
    with pytest.raises(BadRequest) as refused:
        head_of("/?" + "&".join(["a=1"] * (MAX_QUERY_FIELDS + 1))).request.first("a")
    assert refused.value.status == 414


@pytest.mark.parametrize(
    "head",
    [
        b"GET /?" + b"a&" * (MIB // 2) + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /" + b"%41" * 21_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + b"a " * (MIB // 2) + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nUpgrade: x\r\nHost: x\r\nConnection: " + b", \t" * 21_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 200_000 + b"\r\n",
        b" " * MIB + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"A: " + b"," * 5000 + b"\r\n" for _ in range(190)) + b"\r\n",
    ],
    ids=["query", "path", "token", "connection", "fields", "blanks", "joined"],
)
def test_no_head_takes_long_to_read(head: bytes) -> None:
    """Less CPU than two dozen copies of its bytes, each checked; the old way took hundreds of milliseconds for some."""

    def read() -> None:
        try:
            assert not parse_head(head).request.is_upgrade
        except BadRequest:
            return

    assert is_quick(read, 0.05)


async def test_chunks_make_a_body() -> None:
    assert await read_chunks(b"2\r\nab\r\n1;x=y\r\nc\r\n0\r\nT: 1\r\n\r\n") == b"abc"
    assert await read_chunks(b"1\r\na\r\n" * (MAX_CHUNKS - 1) + b"0\r\n\r\n") == b"a" * (MAX_CHUNKS - 1)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"1\r\na\r\n" * MAX_CHUNKS + b"0\r\n\r\n", 413),
        ((b"1;" + b"x" * 100 + b"\r\na\r\n") * (EXTENSION_BYTES // 100 + 1) + b"0\r\n\r\n", 413),
        (b"10000\r\n" + b"a" * 0x10000 + b"\r\n1\r\na\r\n0\r\n\r\n", 413),
        (b"1\n\r\na\r\n0\r\n\r\n", 400),
        (b"\x0b1\x0c\r\na\r\n0\r\n\r\n", 400),
        (b"1 \r\na\r\n0\r\n\r\n", 400),
        (b"1;a\nb\r\na\r\n0\r\n\r\n", 400),
        (b"0x1\r\na\r\n0\r\n\r\n", 400),
        (b"123456789\r\na\r\n0\r\n\r\n", 400),
        (b"1\r\nab\r\n0\r\n\r\n", 400),
        (b"0\r\nno colon\r\n\r\n", 400),
        (b"0\r\nT: a\nb\r\n\r\n", 400),
        (b"0\r\n" + b"T: 1\r\n" * 201 + b"\r\n", 431),
        (b"0\r\n" + (b"T: " + b"x" * 1000 + b"\r\n") * 20 + b"\r\n", 431),
        (b"5\r\nab", 400),
    ],
)
async def test_bad_chunks_are_refused(sent: bytes, status: int) -> None:
    with pytest.raises(BadRequest) as refused:
        await read_chunks(sent)
    assert refused.value.status == status


@given(st.binary(max_size=300))
def test_whatever_comes_is_read_or_refused(data: bytes) -> None:
    for sent in (data + b"\r\n\r\n", b"GET /" + data + b" HTTP/1.1\r\nHost: x\r\n" + data + b"\r\n\r\n"):
        try:
            request = parse_head(sent).request
        except BadRequest:
            continue
        assert "\0" not in request.path and request.query is not None

"""Header compression, by the examples of RFC 7541 (appendix C) and by what a peer may get wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykubelet.net.grpc.hpack import HeaderReader, Headers, HeadersTooLarge, HpackError, indexed, literal

LIMIT = 8192
FIRST: Headers = ((":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com"))
SECOND: Headers = (*FIRST, ("cache-control", "no-cache"))
THIRD: Headers = (
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/index.html"),
    (":authority", "www.example.com"),
    ("custom-key", "custom-value"),
)
PLAIN = (
    "828684410f7777772e6578616d706c652e636f6d",
    "828684be58086e6f2d6361636865",
    "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
)
PACKED = (
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
)


@pytest.mark.parametrize("blocks", [PLAIN, PACKED], ids=["plain", "huffman"])
def test_requests_in_a_row(blocks: tuple[str, ...]) -> None:
    reader = HeaderReader(LIMIT)
    assert [reader.read(bytes.fromhex(block)) for block in blocks] == [FIRST, SECOND, THIRD]


def test_a_small_table_forgets_its_oldest_entries() -> None:
    reader = HeaderReader(LIMIT)
    shrink = "3fe101"  # to 256 bytes, for which the example is made
    date, location = ("date", "Mon, 21 Oct 2013 20:13:21 GMT"), ("location", "https://www.example.com")
    first = shrink + (
        "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3"
    )
    headers = ((":status", "302"), ("cache-control", "private"), date, location)
    assert reader.read(bytes.fromhex(first)) == headers
    assert reader.read(bytes.fromhex("4883640effc1c0bf")) == ((":status", "307"), *headers[1:])
    third = (
        "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f"
        "3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007"
    )
    cookie = "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
    later = ("date", "Mon, 21 Oct 2013 20:13:22 GMT")
    more = (("content-encoding", "gzip"), ("set-cookie", cookie))
    assert reader.read(bytes.fromhex(third)) == ((":status", "200"), headers[1], later, location, *more)
    assert reader.read(bytes.fromhex("be")) == (("set-cookie", cookie),)
    with pytest.raises(HpackError, match="cannot be decoded"):
        reader.read(bytes.fromhex("c1"))


def test_a_block_read_before_means_what_the_table_holds_now() -> None:
    reader = HeaderReader(LIMIT)
    newest = bytes.fromhex("be")
    reader.read(b"\x40\x01a\x011")
    assert reader.read(newest) == reader.read(newest) == (("a", "1"),)
    reader.read(b"\x40\x01a\x012")
    assert reader.read(newest) == (("a", "2"),)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([":path", "te", "x-own"]), st.text(max_size=400)), max_size=5))
def test_what_is_written_is_read_back(fields: list[tuple[str, str]]) -> None:
    reader = HeaderReader(LIMIT)
    block = indexed(":method", "POST") + b"".join(literal(name, value) for name, value in fields)
    reported = tuple((name, value.encode("latin-1", "ignore").decode("latin-1")) for name, value in fields)
    if all(value.isascii() for _, value in fields):
        assert reader.read(block) == ((":method", "POST"), *reported)
    assert [name for name, _ in reader.read(block)] == [":method", *(name for name, _ in fields)]


def test_only_whole_static_fields_are_indexed() -> None:
    assert indexed(":scheme", "http") == b"\x86"
    with pytest.raises(ValueError):
        indexed(":scheme", "ftp")


@pytest.mark.parametrize(
    "block",
    [
        "80",  # field 0
        "be",  # an entry of an empty table
        "3fe21f",  # a table larger than granted
        "ff",  # a number cut short
        "ffffffffffff01",  # a number too large
        "0005",  # a name cut short
        "000161",  # no value
        "00016182ff",  # a Huffman value cut short
        "00016184ffffffff",  # the end-of-string code
        "0001618100",  # padding with zeros
    ],
)
def test_what_cannot_be_read_is_an_error(block: str) -> None:
    with pytest.raises(HpackError):
        HeaderReader(LIMIT).read(bytes.fromhex(block))


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_rubbish_never_breaks_the_reader_otherwise(block: bytes) -> None:
    try:
        HeaderReader(LIMIT).read(block)
    except HpackError:
        pass


@pytest.mark.parametrize(
    "block",
    [
        b"\x82" * 300,  # 300 fields of one byte each, which count for 42 and more
        literal("name", "x" * LIMIT),
        literal("name", "x" * (LIMIT - 36 + 1)),
    ],
)
def test_a_block_beyond_the_limit_is_too_large(block: bytes) -> None:
    with pytest.raises(HeadersTooLarge):
        HeaderReader(LIMIT).read(block)


def test_a_block_at_the_limit_is_read() -> None:
    value = "x" * (LIMIT - 36 - 4)  # what the block needs besides the value is 8 bytes
    assert HeaderReader(LIMIT).read(literal("name", value)) == (("name", value),)


def test_a_block_changes_the_size_of_the_table_twice_at_most() -> None:
    assert HeaderReader(LIMIT).read(bytes.fromhex("20 3fe11f 82")) == ((":method", "GET"),)
    for resizes in ("20 20 20", "3fe11f" * 3, "20" * 4000):
        with pytest.raises(HpackError, match="more than 2 changes"):
            HeaderReader(LIMIT).read(bytes.fromhex(resizes + "82"))


def test_a_known_block_follows_the_size_of_the_table() -> None:
    reader = HeaderReader(LIMIT)
    reader.read(bytes.fromhex("4001610131"))
    assert reader.read(b"\xbe") == reader.read(b"\xbe") == (("a", "1"),)
    reader.read(bytes.fromhex("20 3fe11f"))
    with pytest.raises(HpackError):
        reader.read(b"\xbe")

"""SPDY/3.1 as the runtime's server sends it and wants it, by the bytes."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from net.websocket.bytes_of import control, cut, data, reply, reset

from pykubelet.net.websocket import spdy


def test_the_dictionary_is_the_one_all_others_have() -> None:
    assert len(spdy.DICTIONARY) == 1423
    assert zlib.adler32(spdy.DICTIONARY) == 0xE3C6A7C2


def test_streams_are_opened_with_their_headers() -> None:
    opener, unpacker = spdy.StreamOpener(), zlib.decompressobj(zdict=spdy.DICTIONARY)
    for stream, headers in ((1, {"streamtype": "error"}), (3, {"streamtype": "data", "port": "80"})):
        frame = opener.open(stream, headers)
        assert frame[:4] == b"\x80\x03\x00\x01"
        assert int.from_bytes(frame[4:8], "big") == len(frame) - 8
        assert frame[8:18] == stream.to_bytes(4, "big") + bytes(6)
        plain = unpacker.decompress(frame[18:])
        expected = len(headers).to_bytes(4, "big")
        for word in (word for header in headers.items() for word in header):
            expected += len(word).to_bytes(4, "big") + word.encode()
        assert plain == expected


def test_heads_of_data_and_answers() -> None:
    assert spdy.data_head(3, 0x12345) == b"\x00\x00\x00\x03\x00\x01\x23\x45"
    assert spdy.data_head(3, 0, last=True) == b"\x00\x00\x00\x03\x01\x00\x00\x00"
    assert spdy.pong(2) == b"\x80\x03\x00\x06\x00\x00\x00\x04\x00\x00\x00\x02"


def test_what_a_runtime_reports() -> None:
    output = reply(1, 3) + data(3, b"out") + control(6, b"\0\0\0\2") + data(3, b"", last=True) + reset(1)
    assert spdy.SpdyFrameReader().feed(output) == [
        spdy.Replied(1),
        spdy.Replied(3),
        spdy.Data(3, b"out"),
        spdy.Ping(2),
        spdy.StreamFinished(3),
        spdy.Reset(1),
    ]
    assert spdy.SpdyFrameReader().feed(reply(1, flags=1)) == [spdy.Replied(1), spdy.StreamFinished(1)]


def test_what_asks_for_nothing_is_passed_over() -> None:
    settings, goaway, headers, window, unheard_of = 4, 7, 8, 9, 99
    output = b"".join(control(kind, bytes(8)) for kind in (settings, goaway, headers, window, unheard_of))
    assert spdy.SpdyFrameReader().feed(output + data(5, b"x")) == [spdy.Data(5, b"x")]


@given(
    st.lists(st.tuples(st.sampled_from([3, 5]), st.binary(max_size=300), st.booleans()), max_size=10),
    st.lists(st.integers(0, 5000), max_size=20),
)
def test_data_arrives_whole_however_it_is_cut(output: list[tuple[int, bytes, bool]], places: list[int]) -> None:
    sent = b"".join(data(stream, content, last=last) + control(9, bytes(8)) for stream, content, last in output)
    reader = spdy.SpdyFrameReader()
    got: list[tuple[int, bytes]] = []
    ends: list[int] = []
    for frame in (frame for piece in cut(sent, places) for frame in reader.feed(piece)):
        if isinstance(frame, spdy.Data):
            got.append((frame.stream, frame.data))
        else:
            assert isinstance(frame, spdy.StreamFinished)
            ends.append(frame.stream)
    for stream in (3, 5):
        whole = b"".join(content for of, content, _ in output if of == stream)
        assert b"".join(content for of, content in got if of == stream) == whole
    assert ends == [stream for stream, _, last in output if last]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"\x80\x02\x00\x02\x00\x00\x00\x04abcd", "another version of SPDY"),
        (b"\xff" * 8, "another version of SPDY"),
        (b"\x80\x03\x00\x02\x00\xff\xff\xff", "a control frame that is too long"),
    ],
)
def test_what_is_no_spdy_is_the_end(sent: bytes, why: str) -> None:
    reader = spdy.SpdyFrameReader()
    assert reader.feed(data(1, b"a") + sent) == [spdy.Data(1, b"a"), spdy.Broken(why)]
    assert reader.feed(data(1, b"b")) == []


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_garbage_is_reported_once_at_most(garbage: list[bytes]) -> None:
    reader = spdy.SpdyFrameReader()
    broken = [frame for piece in garbage for frame in reader.feed(piece) if isinstance(frame, spdy.Broken)]
    assert len(broken) <= 1

"""SPDY/3.1 as clients send it and want it, by the bytes."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from net.websocket.bytes_of import control, cut, data, reset

from pykubelet.net.websocket import spdy, spdy_server
from pykubelet.net.websocket.spdy_server import MAX_HEADER_BYTES, MAX_HEADERS, ServedFrameReader


class Packer:
    """The compression state of a client."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(zdict=spdy.DICTIONARY)

    def pack(self, plain: bytes) -> bytes:
        return self._packer.compress(plain) + self._packer.flush(zlib.Z_SYNC_FLUSH)

    def syn_stream(self, stream: int, plain: bytes, flags: int = 0) -> bytes:
        return control(1, stream.to_bytes(4, "big") + bytes(6) + self.pack(plain), flags)


def counted(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def block(*headers: tuple[bytes, bytes]) -> bytes:
    return len(headers).to_bytes(4, "big") + b"".join(counted(name) + counted(value) for name, value in headers)


@given(st.lists(st.integers(0, 5000), max_size=20))
def test_streams_of_a_client(places: list[int]) -> None:
    packer = Packer()
    sent = packer.syn_stream(1, block((b"Streamtype", b"data\0second"), (b"port", b"80")))
    sent += control(8, (1).to_bytes(4, "big") + packer.pack(block((b"more", b"headers"))))
    sent += packer.syn_stream(5, block((b"streamtype", b"error")), flags=1) + data(1, b"hello", last=True)
    sent += reset(1) + control(6, b"\0\0\0\1") + control(7, bytes(8))
    reader = ServedFrameReader()
    frames = [frame for piece in cut(sent, places) for frame in reader.feed(piece) if not isinstance(frame, spdy.Data)]
    assert frames == [
        spdy.Opened(1, {"streamtype": "data", "port": "80"}),
        spdy.Opened(5, {"streamtype": "error"}),
        spdy.StreamFinished(5),
        spdy.StreamFinished(1),
        spdy.Reset(1),
        spdy.Ping(1),
        spdy.GoneAway(),
    ]


def test_our_own_client_is_understood() -> None:
    opener, reader = spdy.StreamOpener(), ServedFrameReader()
    for number in (1, 3, 5):
        headers = {"streamtype": "data", "requestid": str(number)}
        assert reader.feed(opener.open(number, headers)) == [spdy.Opened(number, headers)]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (Packer().syn_stream(1, block((b"a", b"\0" * (1 << 20)))), "headers that are too long"),
        (Packer().syn_stream(1, block((b"a", b"\0" * MAX_HEADER_BYTES))), "headers that are too long"),
        (
            Packer().syn_stream(1, block(*((b"%d" % number, b"") for number in range(MAX_HEADERS + 1)))),
            "too many headers",
        ),
        (Packer().syn_stream(1, b"\xff\xff\xff\xff"), "too many headers"),
        (Packer().syn_stream(1, b"\0\0"), "headers that are not complete"),
        (Packer().syn_stream(1, b"\0\0\0\1"), "headers that are not complete"),
        (Packer().syn_stream(1, b"\0\0\0\1\xff\xff\xff\xffa"), "headers that are not complete"),
        (Packer().syn_stream(1, block() + b"rest"), "headers with a wrong length"),
        (Packer().syn_stream(1, block((b"a", b"1"), (b"A", b"2"))), "a header that is there twice"),
        (Packer().syn_stream(2, block()), "a stream with a number that is not free"),
        (Packer().syn_stream(0, block()), "a stream with a number that is not free"),
        (control(1, bytes(10) + b"not compressed"), "headers that cannot be inflated"),
        (control(1, bytes(10) + zlib.compress(block())), "headers that end the compression"),
        (control(1, b""), "headers that are not complete"),
    ],
)
def test_headers_that_end_the_connection(sent: bytes, why: str) -> None:
    reader = ServedFrameReader()
    assert reader.feed(data(9, b"a") + sent) == [spdy.Data(9, b"a"), spdy.Broken(why)]
    assert reader.feed(data(9, b"b")) == []


def test_a_number_is_used_once() -> None:
    packer, reader = Packer(), ServedFrameReader()
    assert reader.feed(packer.syn_stream(3, block())) == [spdy.Opened(3, {})]
    assert reader.feed(packer.syn_stream(3, block())) == [spdy.Broken("a stream with a number that is not free")]


def test_answers_to_a_client() -> None:
    replier, unpacker = spdy_server.StreamReplier(), zlib.decompressobj(zdict=spdy.DICTIONARY)
    for stream in (1, 3):
        frame = replier.accept(stream)
        assert frame[:4] == b"\x80\x03\x00\x02"
        assert int.from_bytes(frame[4:8], "big") == len(frame) - 8
        assert frame[8:12] == stream.to_bytes(4, "big")
        assert unpacker.decompress(frame[12:]) == bytes(4)
    assert spdy_server.reset(5, spdy_server.CANCEL) == reset(5)
    assert spdy_server.go_away(7) == control(7, b"\0\0\0\7" + bytes(4))


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_garbage_is_reported_once_at_most(garbage: list[bytes]) -> None:
    reader = ServedFrameReader()
    broken = [frame for piece in garbage for frame in reader.feed(piece) if isinstance(frame, spdy.Broken)]
    assert len(broken) <= 1

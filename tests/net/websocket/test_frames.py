"""WebSocket frames of a client, cut anywhere, good and bad."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from net.websocket.bytes_of import cut, masked, messages

from pykubelet.net.websocket import frames


def joined(received: list[frames.ReceivedFrames]) -> list[bytes]:
    """Whole messages."""
    found: list[bytearray] = []
    for piece in (piece for batch in received for piece in batch.pieces):
        if piece.first:
            found.append(bytearray())
        found[-1] += piece.data
    return [bytes(message) for message in found]


def test_the_examples_of_the_standard() -> None:
    reader = frames.WebSocketReader()
    hello = reader.feed(bytes.fromhex("818537fa213d7f9f4d5158"))
    assert joined([hello]) == [b"Hello"] and not hello.pong and not hello.close_frame
    assert reader.feed(bytes.fromhex("898537fa213d7f9f4d5158")).pong == b"\x8a\x05Hello"
    assert frames.head(frames.BINARY, 256) == bytes.fromhex("827e0100")
    assert frames.head(frames.BINARY, 65536) == bytes.fromhex("827f0000000000010000")


@given(
    st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=4), max_size=5),
    st.binary(min_size=4, max_size=4),
    st.lists(st.integers(0, 10_000), max_size=20),
)
def test_messages_arrive_whole_however_they_are_cut(output: list[list[bytes]], mask: bytes, places: list[int]) -> None:
    sent = b""
    for fragments in output:
        for place, fragment in enumerate(fragments):
            last = place == len(fragments) - 1
            sent += masked(0 if place else 2, fragment, mask=mask, final=last)
            sent += masked(9, b"ping")  # may stand between fragments
    reader = frames.WebSocketReader()
    received = [reader.feed(piece) for piece in cut(sent, places)]
    assert joined(received) == [b"".join(fragments) for fragments in output]
    assert not any(batch.close_frame for batch in received)
    assert {batch.pong for batch in received} <= {b"", b"\x8a\x04ping"}


LARGE = b"".join(number.to_bytes(4, "big") for number in range(frames.FRAGMENT // 2))


@given(
    st.lists(st.integers(0, len(LARGE)), min_size=1, max_size=3),
    st.binary(min_size=4, max_size=4),
    st.lists(st.integers(0, 1_000_000), max_size=20),
)
@settings(max_examples=20, deadline=None)
def test_a_frame_may_have_any_size(sizes: list[int], mask: bytes, places: list[int]) -> None:
    last = len(sizes) - 1
    sent = [masked(0 if n else 2, LARGE[:size], mask=mask, final=n == last) for n, size in enumerate(sizes)]
    sent.append(masked(2, b"next"))
    reader = frames.WebSocketReader()
    received = [reader.feed(piece) for piece in cut(b"".join(sent), places)]
    assert joined(received) == [b"".join(LARGE[:size] for size in sizes), b"next"]
    assert max(len(piece.data) for batch in received for piece in batch.pieces) <= frames.FRAGMENT


def test_a_large_frame_is_passed_on_before_it_is_whole() -> None:
    reader = frames.WebSocketReader()
    begun = reader.feed(masked(2, bytes(10 * frames.FRAGMENT))[: 14 + 5 * frames.FRAGMENT + 1000])
    assert sum(len(piece.data) for piece in begun.pieces) == 5 * frames.FRAGMENT


def test_of_many_pings_the_last_is_answered() -> None:
    received = frames.WebSocketReader().feed(masked(9, b"one") + masked(9, b"two"))
    assert messages(received.pong) == [(0x8A, b"two")]


def test_a_flood_of_pings_is_the_end() -> None:
    reader = frames.WebSocketReader()
    received = reader.feed(masked(9, b"") * 10_000)
    assert messages(received.close_frame) == [(0x88, b"\x03\xf0too many pings")]
    assert reader.feed(masked(2, b"more")) == frames.ReceivedFrames()


@pytest.mark.parametrize(
    ("payload", "answer"),
    [
        (b"", b""),
        (b"\x03\xe8", b"\x03\xe8"),
        (b"\x03\xe9going away", b"\x03\xe9going away"),
        (b"\x0f\xa0", b"\x0f\xa0"),
        (b"\x03", b"\x03\xeaclose frame too short"),
        (b"\x03\xed", b"\x03\xeainvalid status code"),
        (b"\x00\x01", b"\x03\xeainvalid status code"),
    ],
)
def test_a_goodbye_is_answered_and_nothing_is_heard_after_it(payload: bytes, answer: bytes) -> None:
    reader = frames.WebSocketReader()
    received = reader.feed(masked(8, payload) + masked(2, b"unheard"))
    assert messages(received.close_frame) == [(0x88, answer)]
    assert not received.pieces


PROTOCOL_ERROR, TOO_BIG = b"\x03\xea", b"\x03\xf1"


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"\x82\x05hello", PROTOCOL_ERROR + b"incorrect masking"),
        (b"\x82\x7f\0\0\0\0\0\1\0\1hello", PROTOCOL_ERROR + b"incorrect masking"),
        (masked(0x42, b""), PROTOCOL_ERROR + b"reserved bits must be 0"),
        (masked(3, b""), PROTOCOL_ERROR + b"invalid opcode"),
        (masked(11, b""), PROTOCOL_ERROR + b"invalid opcode"),
        (masked(0, b""), PROTOCOL_ERROR + b"unexpected continuation frame"),
        (
            masked(2, b"a", final=False) + masked(2, b"b"),
            PROTOCOL_ERROR + b"expected a continuation frame",
        ),
        (masked(2, b"a", final=False) + masked(8, b""), PROTOCOL_ERROR + b"incomplete fragmented message"),
        (masked(9, bytes(126)), PROTOCOL_ERROR + b"control frame too long"),
        (masked(9, b"", final=False), PROTOCOL_ERROR + b"fragmented control frame"),
        (masked(9, bytes(frames.FRAGMENT + 1)), TOO_BIG + b"frame with 65537 bytes exceeds limit of 65536 bytes"),
        (
            b"\x82\xff" + b"\xff" * 12,
            TOO_BIG + b"frame with 18446744073709551615 bytes exceeds limit of 65536 bytes",
        ),
    ],
)
def test_what_is_not_allowed_ends_the_connection(sent: bytes, why: bytes) -> None:
    received = frames.WebSocketReader().feed(masked(2, b"before") + sent)
    assert joined([received])[0] == b"before"
    assert messages(received.close_frame) == [(0x88, why)]


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_garbage_never_breaks_more_than_its_connection(garbage: list[bytes]) -> None:
    reader = frames.WebSocketReader()
    ends = [bool(reader.feed(piece).close_frame) for piece in garbage]
    assert ends.count(True) <= 1

"""The connection's rules, as sequences of frames: what the peer sends, what we answer, which streams have news."""

from __future__ import annotations

import struct

import pytest
from h2.errors import ErrorCodes

from pykubelet.edges.cri.wire import RUNTIME_LIMITS
from pykubelet.edges.probing.grpc_health import PROBE_LIMITS
from pykubelet.net.grpc.hpack import literal
from pykubelet.net.grpc.http2 import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    MOST_PINGS,
    PADDED,
    PREFACE,
    PRIORITY,
    ConnectionFault,
    Http2Connection,
    Http2Stream,
    Kind,
    frame,
)
from pykubelet.net.grpc.limits import Http2Limits

STREAM_WINDOW, CONNECTION_WINDOW = RUNTIME_LIMITS.stream_window, RUNTIME_LIMITS.connection_window
Frame = tuple[Kind, int, int, bytes]
OK = literal(":status", "200")
DONE = literal("grpc-status", "0")


def number(value: int) -> bytes:
    return struct.pack(">L", value)


def setting(name: int, value: int) -> bytes:
    return struct.pack(">HL", name, value)


def frames(data: bytes) -> list[Frame]:
    found = []
    while data:
        size = int.from_bytes(data[:3], "big")
        found.append((Kind(data[3]), data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return found


def opened(limits: Http2Limits = RUNTIME_LIMITS) -> Http2Connection:
    """A connection whose first words are out and which was greeted."""
    connection = Http2Connection(limits)
    connection.take_output()
    connection.receive(frame(Kind.SETTINGS, 0, 0))
    assert frames(connection.take_output()) == [(Kind.SETTINGS, ACK, 0, b"")]
    return connection


def asked(connection: Http2Connection, body: bytes = b"?") -> Http2Stream:
    stream = connection.request(b"h", body)
    connection.take_output()
    return stream


def test_the_first_words() -> None:
    connection = Http2Connection(RUNTIME_LIMITS)
    stream = connection.request(b"block", b"hello")
    out = connection.take_output()
    assert out.startswith(PREFACE)
    output = frames(out.removeprefix(PREFACE))
    assert [(kind, flags, id) for kind, flags, id, _ in output] == [
        (Kind.SETTINGS, 0, 0),
        (Kind.WINDOW_UPDATE, 0, 0),
        (Kind.HEADERS, END_HEADERS, 1),
        (Kind.DATA, END_STREAM, 1),
    ]
    assert output[0][3] == setting(2, 0) + setting(4, STREAM_WINDOW) + setting(6, RUNTIME_LIMITS.header_list)
    assert (output[2][3], output[3][3]) == (b"block", b"hello")
    assert stream.id == 1 and connection.request(b"", b"").id == 3
    assert not connection.has_settings


def test_an_answer_in_one_piece_and_byte_by_byte() -> None:
    answer = (
        frame(Kind.HEADERS, END_HEADERS, 1, OK)
        + frame(Kind.DATA, 0, 1, b"ab")
        + frame(Kind.DATA, 0, 1, b"c")
        + frame(Kind.HEADERS, END_HEADERS | END_STREAM, 1, DONE)
    )
    for step in (len(answer), 1):
        connection = opened()
        stream = asked(connection)
        changed = [connection.receive(answer[at : at + step]) for at in range(0, len(answer), step)]
        assert [stream] in changed
        assert (stream.headers, b"".join(stream.body)) == (((":status", "200"),), b"abc")
        assert (stream.trailers, stream.is_ended, stream.reset) == ((("grpc-status", "0"),), True, None)
        assert connection.take_output() == b""


def test_an_answer_of_trailers_alone() -> None:
    connection = opened()
    stream = asked(connection)
    connection.receive(frame(Kind.HEADERS, END_HEADERS | END_STREAM, 1, OK + DONE))
    assert stream.is_ended and not stream.headers and len(stream.trailers) == 2


def test_headers_in_several_frames_padded_and_with_a_priority() -> None:
    connection = opened()
    stream = asked(connection)
    first = bytes((2,)) + b"\0\0\0\0\x10" + OK[:3] + b"\0\0"
    connection.receive(frame(Kind.HEADERS, PADDED | PRIORITY, 1, first))
    assert connection.receive(frame(Kind.CONTINUATION, 0, 1, OK[3:5])) == []
    connection.receive(frame(Kind.CONTINUATION, END_HEADERS, 1, OK[5:]))
    connection.receive(frame(Kind.DATA, PADDED, 1, b"\x03abc\0\0\0") + frame(Kind.DATA, PADDED | END_STREAM, 1, b"\0"))
    assert (stream.headers, stream.body, stream.is_ended) == (((":status", "200"),), [b"abc"], True)


def test_what_is_not_for_us_is_passed_over() -> None:
    connection = opened()
    unknown = frame(0x42, 0xFF, 7, b"whatever")
    connection.receive(unknown + frame(Kind.PRIORITY, 0, 1, b"12345") + frame(Kind.SETTINGS, ACK, 0))
    assert connection.take_output() == b""


def test_pings_are_answered_together() -> None:
    connection = opened()
    connection.receive(frame(Kind.PING, 0, 0, b"12345678") + frame(Kind.PING, ACK, 0, b"12345678"))
    connection.receive(frame(Kind.PING, 0, 0, b"abcdefgh"))
    assert connection.take_output() == b""
    connection.answer_pings()
    answers = [(Kind.PING, ACK, 0, b"12345678"), (Kind.PING, ACK, 0, b"abcdefgh")]
    assert (frames(connection.take_output()), connection.pings) == (answers, [])


def test_a_peer_that_pings_without_end_fills_no_memory() -> None:
    connection = opened()
    for _ in range(2 * MOST_PINGS):
        connection.receive(frame(Kind.PING, 0, 0, b"12345678"))
    assert len(connection.pings) < MOST_PINGS and len(frames(connection.take_output())) > MOST_PINGS


def test_a_large_request_waits_for_the_peer_to_read() -> None:
    connection = opened()
    body = bytes(range(256)) * 400  # 102,400 bytes, of which the first windows take 65,535
    stream = connection.request(b"h", body)
    sent = [f for f in frames(connection.take_output()) if f[0] is Kind.DATA]
    assert [len(f[3]) for f in sent] == [FRAME_BYTES, FRAME_BYTES, FRAME_BYTES, FRAME_BYTES - 1]
    connection.receive(frame(Kind.WINDOW_UPDATE, 0, 1, number(1 << 20)))
    assert connection.take_output() == b"", "the window of the connection is used up"
    connection.receive(frame(Kind.WINDOW_UPDATE, 0, 0, number(10)))
    sent += frames(connection.take_output())
    assert len(sent[-1][3]) == 10
    connection.receive(frame(Kind.WINDOW_UPDATE, 0, 0, number(1 << 20)))
    sent += frames(connection.take_output())
    assert b"".join(f[3] for f in sent) == body
    assert [bool(f[1] & END_STREAM) for f in sent] == [False] * (len(sent) - 1) + [True]
    assert not stream.is_ended


def test_settings_change_the_windows_of_open_streams_too() -> None:
    connection = opened()
    connection.receive(frame(Kind.WINDOW_UPDATE, 0, 0, number(1 << 20)))
    connection.request(b"h", bytes(70_000))
    connection.take_output()
    connection.receive(frame(Kind.SETTINGS, 0, 0, setting(4, 70_000) + setting(5, 1 << 20)))
    output = frames(connection.take_output())
    assert [(kind, len(body)) for kind, _, _, body in output] == [(Kind.SETTINGS, 0), (Kind.DATA, 70_000 - 65_535)]
    connection.receive(frame(Kind.SETTINGS, 0, 0, setting(4, 0)))
    connection.request(b"h", bytes(50_000))
    assert [f[0] for f in frames(connection.take_output())] == [Kind.SETTINGS, Kind.HEADERS]
    connection.receive(frame(Kind.WINDOW_UPDATE, 0, 3, number(50_000)))
    assert [(f[2], len(f[3])) for f in frames(connection.take_output())] == [(3, 50_000)], "in one larger frame"


def test_an_answer_before_the_end_of_the_request_ends_both() -> None:
    connection = opened()
    stream = asked(connection, bytes(100_000))
    connection.receive(frame(Kind.HEADERS, END_HEADERS | END_STREAM, 1, OK + DONE))
    assert stream.is_ended and stream.reset is None
    assert frames(connection.take_output()) == [(Kind.RST_STREAM, 0, 1, number(ErrorCodes.CANCEL))]
    connection.receive(frame(Kind.WINDOW_UPDATE, 0, 1, number(100_000)))
    assert connection.take_output() == b""


def test_a_cancelled_stream_is_never_reported_for_again() -> None:
    connection = opened()
    stream = asked(connection, bytes(100_000))
    connection.cancel(stream)
    connection.cancel(stream)
    assert frames(connection.take_output()) == [(Kind.RST_STREAM, 0, 1, number(ErrorCodes.CANCEL))]
    late = frame(Kind.HEADERS, END_HEADERS, 1, OK) + frame(Kind.DATA, END_STREAM, 1, b"late")
    assert connection.receive(late + frame(Kind.RST_STREAM, 0, 1, number(0))) == []
    connection.receive(frame(Kind.WINDOW_UPDATE, 0, 0, number(100_000)))
    assert connection.take_output() == b""
    after = asked(connection)
    connection.receive(frame(Kind.HEADERS, END_HEADERS, 3, b"\x82"))
    assert after.headers, "the table of headers has followed what came late"


def test_a_reset_stream_gives_the_reason() -> None:
    connection = opened()
    stream = asked(connection)
    assert connection.receive(frame(Kind.RST_STREAM, 0, 1, number(ErrorCodes.REFUSED_STREAM))) == [stream]
    assert (stream.is_ended, stream.reset) == (True, ErrorCodes.REFUSED_STREAM)
    assert connection.take_output() == b""


def test_windows_are_opened_again_as_they_are_read() -> None:
    connection = opened()
    long = asked(connection)
    connection.receive(frame(Kind.HEADERS, END_HEADERS, 1, OK))
    full = frame(Kind.DATA, 0, 1, bytes(FRAME_BYTES))
    output: list[Frame] = []
    for _ in range(CONNECTION_WINDOW // FRAME_BYTES):
        connection.receive(full)
        long.body.clear()
        connection.reopen(long)
        output += frames(connection.take_output())
    assert {(kind, id) for kind, _, id, _ in output} == {(Kind.WINDOW_UPDATE, 0), (Kind.WINDOW_UPDATE, 1)}
    given = {id: sum(int.from_bytes(f[3], "big") for f in output if f[2] == id) for id in (0, 1)}
    assert given[0] >= CONNECTION_WINDOW // 2 and given[1] >= CONNECTION_WINDOW - STREAM_WINDOW


def test_a_peer_that_goes_away_still_answers_what_it_has_begun() -> None:
    connection = opened()
    first, second = asked(connection), asked(connection)
    assert connection.receive(frame(Kind.GOAWAY, 0, 0, number(1) + number(0) + b"bye")) == [second]
    assert second.reset == ErrorCodes.REFUSED_STREAM
    assert not connection.is_usable and not first.is_ended
    assert connection.receive(frame(Kind.HEADERS, END_HEADERS | END_STREAM, 1, OK + DONE)) == [first]


def test_the_number_of_streams_is_the_peers_to_say() -> None:
    connection = opened()
    connection.receive(frame(Kind.SETTINGS, 0, 0, setting(3, 2)))
    asked(connection)
    assert connection.has_free_stream
    last = asked(connection)
    assert [connection.has_free_stream] == [False]
    connection.cancel(last)
    assert connection.has_free_stream


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"\x7f\xff\xff\0\0\0\0\0\0", ErrorCodes.FRAME_SIZE_ERROR),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ErrorCodes.FRAME_SIZE_ERROR),
        (frame(Kind.PING, 0, 0, b"1"), ErrorCodes.FRAME_SIZE_ERROR),
        (frame(Kind.SETTINGS, 0, 0, b"1"), ErrorCodes.FRAME_SIZE_ERROR),
        (frame(Kind.RST_STREAM, 0, 1, b"1"), ErrorCodes.FRAME_SIZE_ERROR),
        (frame(Kind.GOAWAY, 0, 0, b"1"), ErrorCodes.FRAME_SIZE_ERROR),
        (frame(Kind.WINDOW_UPDATE, 0, 0, b"1"), ErrorCodes.FRAME_SIZE_ERROR),
        (frame(Kind.WINDOW_UPDATE, 0, 0, number(0)), ErrorCodes.FLOW_CONTROL_ERROR),
        (frame(Kind.WINDOW_UPDATE, 0, 1, number(2**31 - 1)), ErrorCodes.FLOW_CONTROL_ERROR),
        (frame(Kind.SETTINGS, 0, 0, setting(4, 2**31)), ErrorCodes.FLOW_CONTROL_ERROR),
        (frame(Kind.PUSH_PROMISE, 0, 1, b""), ErrorCodes.PROTOCOL_ERROR),
        (frame(Kind.CONTINUATION, 0, 1, b""), ErrorCodes.PROTOCOL_ERROR),
        (frame(Kind.HEADERS, 0, 1, b"") + frame(Kind.PING, 0, 0, b"12345678"), ErrorCodes.PROTOCOL_ERROR),
        (frame(Kind.HEADERS, 0, 1, b"") + frame(Kind.CONTINUATION, 0, 3, b""), ErrorCodes.PROTOCOL_ERROR),
        (frame(Kind.HEADERS, END_HEADERS, 2, OK), ErrorCodes.PROTOCOL_ERROR),
        (frame(Kind.HEADERS, END_HEADERS, 3, OK), ErrorCodes.PROTOCOL_ERROR),
        (frame(Kind.HEADERS, END_HEADERS, 1, OK) * 2, ErrorCodes.PROTOCOL_ERROR),
        (frame(Kind.HEADERS, PADDED, 1, b""), ErrorCodes.PROTOCOL_ERROR),
        (frame(Kind.HEADERS, END_HEADERS, 1, b"\x80"), ErrorCodes.COMPRESSION_ERROR),
        (frame(Kind.DATA, 0, 1, b"x"), ErrorCodes.PROTOCOL_ERROR),
        (frame(Kind.DATA, 0, 5, b"x"), ErrorCodes.PROTOCOL_ERROR),
    ],
)
def test_a_breach_ends_the_connection_with_the_reason(sent: bytes, code: ErrorCodes) -> None:
    connection = opened()
    asked(connection)
    with pytest.raises(ConnectionFault) as caught:
        connection.receive(sent)
    assert caught.value.code is code
    kind, _, id, body = frames(connection.take_output())[-1]
    assert (kind, id, body[:8]) == (Kind.GOAWAY, 0, number(0) + number(code))
    assert not connection.is_usable


def test_more_data_than_allowed_is_a_breach() -> None:
    connection = opened()
    stream = asked(connection)
    connection.receive(frame(Kind.HEADERS, END_HEADERS, 1, OK))
    with pytest.raises(ConnectionFault) as caught:
        for _ in range(STREAM_WINDOW // FRAME_BYTES + 1):
            connection.receive(frame(Kind.DATA, 0, 1, bytes(FRAME_BYTES)))
            stream.body.clear()
    assert caught.value.code is ErrorCodes.FLOW_CONTROL_ERROR


def test_endless_headers_are_a_breach() -> None:
    connection = opened()
    asked(connection)
    connection.receive(frame(Kind.HEADERS, 0, 1, b""))
    with pytest.raises(ConnectionFault) as caught:
        for _ in range(100):
            connection.receive(frame(Kind.CONTINUATION, 0, 1, bytes(FRAME_BYTES)))
    assert caught.value.code is ErrorCodes.ENHANCE_YOUR_CALM


def breach(connection: Http2Connection, sent: bytes, times: int) -> str:
    """Send it so often; what the connection has to say to it, with ENHANCE_YOUR_CALM."""
    with pytest.raises(ConnectionFault) as caught:
        for _ in range(times):
            connection.receive(sent)
    assert caught.value.code is ErrorCodes.ENHANCE_YOUR_CALM
    kind, _, _, body = frames(connection.take_output())[-1]
    assert (kind, body[:8]) == (Kind.GOAWAY, number(0) + number(ErrorCodes.ENHANCE_YOUR_CALM))
    return caught.value.problem


@pytest.mark.parametrize("limits", [RUNTIME_LIMITS, PROBE_LIMITS], ids=["runtime", "probe"])
def test_the_size_of_headers_is_announced_and_kept_to(limits: Http2Limits) -> None:
    connection = Http2Connection(limits)
    first = frames(connection.take_output().removeprefix(PREFACE))[0]
    assert setting(6, limits.header_list) in first[3]
    connection = opened(limits)
    asked(connection)
    packed = b"\x82" * 16000  # a byte for a field that counts for 42 bytes
    assert "response headers larger than" in breach(connection, frame(Kind.HEADERS, END_HEADERS, 1, packed), 1)


@pytest.mark.parametrize("limits", [RUNTIME_LIMITS, PROBE_LIMITS], ids=["runtime", "probe"])
@pytest.mark.parametrize("size", [0, 1, FRAME_BYTES])
def test_continuations_are_counted(limits: Http2Limits, size: int) -> None:
    connection = opened(limits)
    asked(connection)
    connection.receive(frame(Kind.HEADERS, 0, 1, OK))
    problem = breach(connection, frame(Kind.CONTINUATION, 0, 1, bytes(size)), 100)
    assert problem.startswith("response headers larger than")


@pytest.mark.parametrize("limits", [RUNTIME_LIMITS, PROBE_LIMITS], ids=["runtime", "probe"])
@pytest.mark.parametrize(
    "sent",
    [
        frame(Kind.SETTINGS, 0, 0, setting(4, 70_000)),
        frame(Kind.SETTINGS, ACK, 0),
        frame(Kind.PING, 0, 0, b"12345678"),
        frame(Kind.PING, ACK, 0, b"12345678"),
        frame(Kind.WINDOW_UPDATE, 0, 1, number(1)),
        frame(Kind.PRIORITY, 0, 1, b"12345"),
        frame(Kind.DATA, 0, 1, b""),
        frame(0x42, 0, 1, b"unknown"),
    ],
)
def test_a_flood_of_frames_that_bring_nothing_ends_the_connection(limits: Http2Limits, sent: bytes) -> None:
    connection = opened(limits)
    asked(connection)
    connection.receive(frame(Kind.HEADERS, END_HEADERS, 1, OK))
    problem = breach(connection, sent, limits.empty_frames + 1)
    assert "frames" in problem


def test_resets_of_finished_streams_are_counted() -> None:
    connection = opened(PROBE_LIMITS)
    asked(connection)
    breach(connection, frame(Kind.RST_STREAM, 0, 1, number(0)), PROBE_LIMITS.empty_frames + 1)


def test_a_runtime_may_send_any_number_of_frames_with_data() -> None:
    connection = opened()
    stream = asked(connection)
    connection.receive(frame(Kind.HEADERS, END_HEADERS, 1, OK))
    both = frame(Kind.DATA, 0, 1, b"event") + frame(Kind.PING, 0, 0, b"12345678")
    for _ in range(RUNTIME_LIMITS.empty_frames + 1):
        connection.receive(both)
        stream.body.clear()
        connection.reopen(stream)
        connection.take_output()
    assert not stream.is_ended


def test_a_probe_ends_after_so_many_frames_of_any_kind() -> None:
    connection = opened(PROBE_LIMITS)
    asked(connection)
    connection.receive(frame(Kind.HEADERS, END_HEADERS, 1, OK))
    problem = breach(connection, frame(Kind.DATA, 0, 1, b"x") * 10, PROBE_LIMITS.steps // 10)
    assert problem == f"the server has sent more than {PROBE_LIMITS.steps} frames or pieces of frames"


def test_a_probe_ends_after_so_many_headers_of_streams_that_have_ended() -> None:
    connection = opened(PROBE_LIMITS)
    asked(connection)
    connection.receive(frame(Kind.HEADERS, END_HEADERS | END_STREAM, 1, OK))
    late = frame(Kind.HEADERS, END_HEADERS, 1, literal("x", "x" * 4000))
    assert breach(connection, late, 5) == f"response headers larger than {PROBE_LIMITS.all_headers} bytes"


def test_a_frame_of_too_many_settings_ends_the_connection() -> None:
    assert (
        breach(opened(), frame(Kind.SETTINGS, 0, 0, setting(4, 70_000) * 33), 1) == "more than 32 settings in a frame"
    )

"""Calls against gRPC's own server, and against one that follows its script, byte by byte."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import grpc
import pytest
from support.cost import no_collections

from pykubelet.edges.cri.wire import RUNTIME_LIMITS
from pykubelet.net.grpc.channel import (
    CLOSED,
    HUNG,
    LATE,
    UNREAD,
    Channel,
    ServerStream,
    Session,
    tcp_dial,
    unix_dial,
)
from pykubelet.net.grpc.hpack import literal
from pykubelet.net.grpc.http2 import ACK, END_HEADERS, END_STREAM, FRAME_BYTES, PREFACE, Kind, frame
from pykubelet.net.grpc.status import MAX_STATUS_MESSAGE, Code, RpcError, framed

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
GOOD = frame(Kind.HEADERS, END_HEADERS, 1, literal(":status", "200") + literal("content-type", "application/grpc"))


class Served:
    """gRPC's own server on a unix socket."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "rpc.sock")
        self.hanging = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.flooded = 0
        self.seen: list[dict[str, str]] = []
        self.remaining: list[float | None] = []
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        limit = ("grpc.max_receive_message_length", RUNTIME_LIMITS.message)
        self._server = grpc.aio.server(options=(limit, ("grpc.max_send_message_length", -1)))
        calls = {
            "Echo": grpc.unary_unary_rpc_method_handler(self._echo),
            "Grow": grpc.unary_unary_rpc_method_handler(self._grow),
            "Hang": grpc.unary_unary_rpc_method_handler(self._hang),
            "Fail": grpc.unary_unary_rpc_method_handler(self._fail),
            "Count": grpc.unary_stream_rpc_method_handler(self._count),
            "Flood": grpc.unary_stream_rpc_method_handler(self._flood),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.S", calls),))
        self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    async def _echo(self, request: bytes, context: Context) -> bytes:
        self.seen.append({str(name): str(value) for name, value in context.invocation_metadata() or ()})
        self.remaining.append(context.time_remaining())
        return request

    async def _grow(self, request: bytes, _: Context) -> bytes:
        return bytes(int(request))

    async def _hang(self, _request: bytes, _: Context) -> bytes:
        self.hanging.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return b""

    async def _fail(self, request: bytes, context: Context) -> bytes:
        number, _, text = request.decode().partition(" ")
        code = next(code for code in grpc.StatusCode if code.value[0] == int(number))
        await context.abort(code, text)

    async def _count(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        for number in range(int(request)):
            yield b"%d" % number
        if request == b"3":
            await context.abort(grpc.StatusCode.ABORTED, "three is enough")

    async def _flood(self, request: bytes, _: Context) -> AsyncIterator[bytes]:
        try:
            while True:
                yield request * 1024
                self.flooded += 1
        finally:
            self.cancelled.set()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    server = Served(tmp_path)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def channel(served: Served) -> AsyncIterator[Channel]:
    made = Channel(unix_dial(served.path), RUNTIME_LIMITS)
    yield made
    made.close()


async def call(channel: Channel, method: str, message: bytes = b"", timeout_s: float | None = 30.0) -> bytes:
    return await channel.unary(channel.method(f"/t.S/{method}"), message, timeout_s)


async def failure(work: Awaitable[object]) -> tuple[Code, str]:
    with pytest.raises(RpcError) as caught:
        await work
    return caught.value.code, caught.value.message


# gRPC's own server


async def test_a_call_has_its_fields_and_its_deadline(served: Served, channel: Channel) -> None:
    method = channel.method("/t.S/Echo", (("own", "value"),))
    assert await channel.unary(method, b"hello", 7.0) == b"hello"
    assert await channel.unary(method, b"", None) == b""
    assert served.seen[0]["own"] == "value" and served.seen[0]["user-agent"].startswith("pykubelet")
    assert served.remaining[0] is not None and 6 < served.remaining[0] <= 7.1
    assert served.remaining[1] is None


async def test_many_calls_at_once(channel: Channel) -> None:
    answers = await asyncio.gather(*(call(channel, "Echo", b"%d" % n, 300) for n in range(300)))
    assert answers == [b"%d" % n for n in range(300)]


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_000_003, RUNTIME_LIMITS.message])
async def test_messages_of_all_sizes_both_ways(channel: Channel, size: int) -> None:
    assert len(await call(channel, "Grow", b"%d" % size, 30)) == size
    message = bytes(range(256)) * (size // 256)
    assert await call(channel, "Echo", message, 30) == message


async def test_a_message_that_is_too_large_fails_alone(channel: Channel) -> None:
    code, message = await failure(call(channel, "Grow", b"%d" % (RUNTIME_LIMITS.message + 1), 30))
    assert (code, message) == (
        Code.RESOURCE_EXHAUSTED,
        "grpc: received message larger than max (16777217 vs. 16777216)",
    )
    assert await call(channel, "Echo", b"after") == b"after"


@pytest.mark.parametrize("text", ["plain", "", "per%cent and\nline, ümläut", "x" * 5000])
async def test_every_code_comes_with_its_words(channel: Channel, text: str) -> None:
    for code in Code:
        if code is not Code.OK:
            assert await failure(call(channel, "Fail", f"{code:d} {text}".encode())) == (code, text)


async def test_a_method_that_is_not_there(channel: Channel) -> None:
    assert (await failure(call(channel, "Nothing")))[0] is Code.UNIMPLEMENTED


async def test_a_call_that_fails_leaves_nothing_that_only_a_garbage_collection_frees(channel: Channel) -> None:
    with no_collections():
        with suppress(RpcError):
            await call(channel, "Missing")
        await asyncio.sleep(0)  # the loop has the future while it hands over the outcome
        assert not [left for left in gc.get_objects() if isinstance(left, RpcError)]


async def test_a_late_call_gets_deadline_exceeded_and_the_server_stops(served: Served, channel: Channel) -> None:
    began = time.monotonic()
    code, message = await failure(call(channel, "Hang", timeout_s=0.2))
    assert code is Code.DEADLINE_EXCEEDED and message in (LATE, "Deadline Exceeded"), "whoever is the first to say so"
    assert 0.15 < time.monotonic() - began < 10
    await asyncio.wait_for(served.cancelled.wait(), 30)
    assert await call(channel, "Echo", b"on") == b"on"


async def test_a_cancelled_caller_cancels_the_call(served: Served, channel: Channel) -> None:
    asking = asyncio.ensure_future(call(channel, "Hang"))
    await asyncio.wait_for(served.hanging.wait(), 30)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.wait_for(served.cancelled.wait(), 30)


async def test_a_stream_to_its_end(channel: Channel) -> None:
    stream = await channel.stream(channel.method("/t.S/Count"), b"2")
    assert [await stream.read(), await stream.read(), await stream.read(), await stream.read()] == [
        b"0",
        b"1",
        None,
        None,
    ]
    assert stream.end is not None and stream.end.code is Code.OK
    stream.close()


async def test_of_answers_that_have_arrived_the_newest_can_be_read_alone(channel: Channel) -> None:
    stream = await channel.stream(channel.method("/t.S/Count"), b"2")
    async with asyncio.timeout(30):
        while stream.end is None:  # noqa: ASYNC110 - nothing is to be read
            await asyncio.sleep(0)
    assert [await stream.read_newest(), await stream.read_newest()] == [(b"1", 1), None]


async def test_a_stream_that_breaks_gives_what_came_before(channel: Channel) -> None:
    stream = await channel.stream(channel.method("/t.S/Count"), b"3")
    assert [await stream.read() for _ in range(3)] == [b"0", b"1", b"2"]
    assert await failure(stream.read()) == (Code.ABORTED, "three is enough")
    assert await failure(stream.read()) == (Code.ABORTED, "three is enough")


async def test_a_stream_that_is_not_read_stops_the_server_and_no_other_stream(served: Served, channel: Channel) -> None:
    flood = await channel.stream(channel.method("/t.S/Flood"), b"0123456789abcdef")
    async with asyncio.timeout(30):
        while served.flooded < 1000:  # noqa: ASYNC110 - nearly what the window holds
            await asyncio.sleep(0)
    assert await call(channel, "Echo", b"through") == b"through"
    for _ in range(3000):  # more than the window of 17 MiB holds
        assert await flood.read() == b"0123456789abcdef" * 1024
    assert (flood.end, served.cancelled.is_set()) == (None, False)
    flood.close()
    await asyncio.wait_for(served.cancelled.wait(), 30)
    assert flood.end is not None and flood.end.code is Code.CANCELED


async def test_a_server_that_comes_back_is_used_again(served: Served, channel: Channel) -> None:
    stream = await channel.stream(channel.method("/t.S/Hang"), b"")
    hanging = asyncio.ensure_future(call(channel, "Hang"))
    assert await call(channel, "Echo", b"1") == b"1"
    lost = asyncio.ensure_future(channel.wait_lost())
    await asyncio.sleep(0)
    assert not lost.done()
    await served.stop()
    await asyncio.wait_for(lost, 30)
    assert (await failure(hanging))[0] in (Code.UNAVAILABLE, Code.CANCELED)
    assert (await failure(stream.read()))[0] in (Code.UNAVAILABLE, Code.CANCELED)
    why = f'connection error: desc = "transport: Error while dialing: dial unix {served.path}: connect: '
    assert await failure(call(channel, "Echo")) == (Code.UNAVAILABLE, f'{why}no such file or directory"')
    await served.start()
    assert await call(channel, "Echo", b"2") == b"2"


async def test_closing_ends_everything(served: Served, channel: Channel) -> None:
    stream = await channel.stream(channel.method("/t.S/Hang"), b"")
    hanging = asyncio.ensure_future(call(channel, "Hang", timeout_s=None))
    await asyncio.wait_for(served.hanging.wait(), 30)
    channel.close()
    for work in (hanging, stream.read(), call(channel, "Echo"), channel.stream(b"", b"")):
        assert await failure(work) == (Code.CANCELED, CLOSED)
    stream.close()


async def test_over_tcp() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = Channel(tcp_dial("127.0.0.1", port), RUNTIME_LIMITS, f"127.0.0.1:{port}")
    assert (await failure(call(channel, "Echo")))[0] is Code.UNIMPLEMENTED
    assert channel.has_settings
    channel.close()
    await server.stop(grace=None)


# A server that follows its script


@asynccontextmanager
async def scripted(folder: Path, *answers: bytes, hang: bool = False) -> AsyncIterator[Channel]:
    """Each connection is answered with the next of `answers`, once its request has come, and then closed."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(PREFACE))
        while (head := await reader.readexactly(9))[3] != Kind.DATA:
            await reader.readexactly(int.from_bytes(head[:3], "big"))
        writer.write(left.pop(0))
        if hang:
            await reader.read()
        writer.close()
        await writer.wait_closed()

    path = str(folder / "odd.sock")
    channel = Channel(unix_dial(path), RUNTIME_LIMITS)
    async with await asyncio.start_unix_server(serve, path):
        yield channel
        channel.close()
        await asyncio.sleep(0.02)  # the server hears of it


def trailers(*fields: tuple[str, str]) -> bytes:
    return frame(Kind.HEADERS, END_HEADERS | END_STREAM, 1, b"".join(literal(*field) for field in fields))


DONE = trailers(("grpc-status", "0"))
HELLO = frame(Kind.SETTINGS, 0, 0)


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (b"", Code.UNAVAILABLE, "error reading from server: "),
        (HELLO + GOOD, Code.UNAVAILABLE, "error reading from server: "),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Code.UNAVAILABLE, "connection error: HTTP_1_1_REQUIRED"),
        (
            HELLO + frame(Kind.DATA, 0, 1, b"x"),
            Code.UNAVAILABLE,
            "connection error: PROTOCOL_ERROR: data before headers",
        ),
        (GOOD + DONE, Code.INTERNAL, "a call was answered with 0 messages"),
        (GOOD + frame(Kind.DATA, 0, 1, framed(b"a") * 2) + DONE, Code.INTERNAL, "a call was answered with 2 messages"),
        (
            GOOD + frame(Kind.DATA, 0, 1, framed(b"abc")[:-1]) + DONE,
            Code.INTERNAL,
            "a call was answered with 0 messages",
        ),
        (GOOD + frame(Kind.DATA, 0, 1, b"\1\0\0\0\0") + DONE, Code.INTERNAL, "grpc: a compressed message"),
        (GOOD + frame(Kind.DATA, END_STREAM, 1, framed(b"a")), Code.INTERNAL, "server closed the stream without"),
        (trailers((":status", "404")), Code.UNIMPLEMENTED, "unexpected HTTP status code received from server: 404"),
        (trailers((":status", "503")), Code.UNAVAILABLE, "unexpected HTTP status code received from server: 503"),
        (trailers((":status", "302")), Code.UNKNOWN, "unexpected HTTP status code received from server: 302"),
        (trailers(("no", "status")), Code.UNKNOWN, "unexpected HTTP status code received from server: none"),
        (GOOD + trailers(("grpc-status", "99"), ("grpc-message", "odd")), Code.UNKNOWN, "odd"),
        (GOOD + trailers(("grpc-status", "x")), Code.UNKNOWN, ""),
        (GOOD + trailers(("grpc-status", "0" * 5000), ("grpc-message", "long")), Code.UNKNOWN, "long"),
        (frame(Kind.RST_STREAM, 0, 1, b"\0\0\0\x0b"), Code.RESOURCE_EXHAUSTED, "stream terminated by RST_STREAM"),
        (
            frame(Kind.RST_STREAM, 0, 1, b"\0\0\0\x08"),
            Code.CANCELED,
            "stream terminated by RST_STREAM with error code: CANC",
        ),
        (
            frame(Kind.RST_STREAM, 0, 1, b"\0\0\0\x63"),
            Code.INTERNAL,
            "stream terminated by RST_STREAM with error code: 99",
        ),
    ],
)
@pytest.mark.virtual_time
async def test_odd_answers_are_errors_and_the_next_call_is_none_the_worse(
    tmp_path: Path, answer: bytes, code: Code, message: str
) -> None:
    good = HELLO + GOOD + frame(Kind.DATA, 0, 1, framed(b"good")) + DONE
    async with scripted(tmp_path, answer, good) as channel:
        caught = await failure(call(channel, "Any"))
        assert caught[0] is code and caught[1].startswith(message)
        await asyncio.sleep(0.02)  # the connection is closed
        assert await call(channel, "Any") == b"good"


def reset_one_call(listener: socket.socket, asked: threading.Event, busy: threading.Event) -> None:
    """Answer a call with RST_STREAM CANCEL, as a server does at the deadline."""
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as received:
        received.read(len(PREFACE))
        while (head := received.read(9))[3] != Kind.DATA:
            received.read(int.from_bytes(head[:3], "big"))
        asked.set()
        busy.wait(30)
        connection.sendall(HELLO + frame(Kind.RST_STREAM, 0, 1, b"\0\0\0\x08"))


async def test_a_call_that_the_server_stops_at_the_deadline_is_late_and_not_canceled(tmp_path: Path) -> None:
    """The loop is busy until the deadline has passed and the server's answer is there; answers are handled before timers."""
    asked, busy, path = threading.Event(), threading.Event(), str(tmp_path / "deadline.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        server = threading.Thread(target=reset_one_call, args=(listener, asked, busy), daemon=True)
        server.start()
        channel = Channel(unix_dial(path), RUNTIME_LIMITS)
        deadline = asyncio.get_running_loop().time() + 0.25
        late = asyncio.ensure_future(failure(call(channel, "Any", timeout_s=0.2)))
        while not asked.is_set() and not late.done():  # noqa: ASYNC110 - set by a thread
            await asyncio.sleep(0)
        busy.set()
        server.join(30)  # the loop is busy
        while asyncio.get_running_loop().time() < deadline:
            pass
        assert await late == (Code.DEADLINE_EXCEEDED, LATE)
        channel.close()


@pytest.mark.virtual_time
async def test_of_a_long_status_message_a_part_is_kept(tmp_path: Path) -> None:
    message = "".join(f"%{byte:02X}" for byte in b"x" * 100_000)
    block = literal("grpc-status", "2") + literal("grpc-message", message[: RUNTIME_LIMITS.header_list - 200])
    parts = [block[at : at + FRAME_BYTES] for at in range(0, len(block), FRAME_BYTES)]
    answer = frame(Kind.HEADERS, END_STREAM, 1, parts[0])
    answer += b"".join(frame(Kind.CONTINUATION, 0, 1, part) for part in parts[1:-1])
    answer += frame(Kind.CONTINUATION, END_HEADERS, 1, parts[-1])
    async with scripted(tmp_path, HELLO + GOOD + answer) as channel:
        code, reported = await failure(call(channel, "Any"))
    assert code is Code.UNKNOWN and reported.startswith("xxxx") and len(reported) < MAX_STATUS_MESSAGE


@pytest.mark.virtual_time
async def test_what_was_refused_untouched_is_sent_again_once(tmp_path: Path) -> None:
    refused = HELLO + frame(Kind.GOAWAY, 0, 0, bytes(8))
    good = HELLO + GOOD + frame(Kind.DATA, 0, 1, framed(b"good")) + DONE
    async with scripted(tmp_path, refused, good) as channel:
        assert await call(channel, "Any") == b"good"
    async with scripted(tmp_path, refused, refused) as channel:
        code, message = await failure(call(channel, "Any"))
        assert (code, message[-14:]) == (Code.UNAVAILABLE, "REFUSED_STREAM")


@pytest.mark.virtual_time
async def test_a_server_that_takes_one_call_at_a_time(tmp_path: Path) -> None:
    """Its first settings have the limit; the next call waits for the end of the one before, or for its own deadline."""
    gone = asyncio.Event()
    seen: list[int] = []
    answers = asyncio.Semaphore(1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(PREFACE))
        writer.write(frame(Kind.SETTINGS, 0, 0, struct.pack(">HL", 3, 1)))
        while head := await reader.read(9):
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == Kind.DATA:
                id = int.from_bytes(head[5:], "big")
                seen.append(id)
                await answers.acquire()
                start = frame(Kind.HEADERS, END_HEADERS, id, literal(":status", "200"))
                end = frame(Kind.HEADERS, END_HEADERS | END_STREAM, id, literal("grpc-status", "0"))
                writer.write(start + frame(Kind.DATA, 0, id, framed(b"%d" % id)) + end)
        writer.close()
        gone.set()

    path = str(tmp_path / "one.sock")
    channel = Channel(unix_dial(path), RUNTIME_LIMITS)
    async with await asyncio.start_unix_server(serve, path):
        assert await call(channel, "Any") == b"1"
        calls = [asyncio.ensure_future(call(channel, "Any")) for _ in range(3)]
        async with asyncio.timeout(30):
            while len(seen) < 2:  # noqa: ASYNC110 - the calls have no event
                await asyncio.sleep(0.01)
        assert await failure(call(channel, "Any", timeout_s=0.05)) == (Code.DEADLINE_EXCEEDED, LATE)
        assert seen == [1, 3]
        for _ in calls:
            answers.release()
        assert sorted(await asyncio.gather(*calls)) == [b"3", b"5", b"7"]
        channel.close()
        await gone.wait()


@pytest.mark.virtual_time
async def test_a_server_that_never_answers(tmp_path: Path) -> None:
    async with scripted(tmp_path, b"", hang=True) as channel:
        assert await failure(call(channel, "Any", timeout_s=0.1)) == (Code.DEADLINE_EXCEEDED, LATE)
        assert not channel.has_settings


@pytest.mark.virtual_time
async def test_a_server_that_goes_away_after_the_calls_it_has(tmp_path: Path) -> None:
    leaving = HELLO + frame(Kind.GOAWAY, 0, 0, b"\x7f\xff\xff\xff" + bytes(4))
    last = GOOD + frame(Kind.DATA, 0, 1, framed(b"last")) + DONE
    new = HELLO + GOOD + frame(Kind.DATA, 0, 1, framed(b"new")) + DONE
    async with scripted(tmp_path, leaving + last, new, hang=True) as channel:
        assert await call(channel, "Any") == b"last"
        assert await call(channel, "Any") == b"new", "on a connection of its own"


@pytest.mark.virtual_time
async def test_pings_are_answered_together_a_moment_later(tmp_path: Path) -> None:
    pings = [frame(Kind.PING, 0, 0, b"%08d" % number) for number in range(2)]
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HELLO + pings[0] + pings[1])
        await reader.readuntil(frame(Kind.SETTINGS, ACK, 0))
        answered.set_result(await reader.readexactly(2 * len(pings[0])))
        writer.close()

    path = str(tmp_path / "pings.sock")
    channel = Channel(unix_dial(path), RUNTIME_LIMITS)
    async with await asyncio.start_unix_server(serve, path):
        await failure(call(channel, "Any"))
        assert answered.result() == b"".join(frame(Kind.PING, ACK, 0, ping[9:]) for ping in pings)
        channel.close()
        await asyncio.sleep(0.02)  # the server hears of it


# Signs of life


class Sent(asyncio.Transport):
    """A connection in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.is_read = True

    def get_write_buffer_size(self) -> int:
        return 0 if self.is_read else len(self.data)

    @property
    def pings(self) -> int:
        return self.data.count(frame(Kind.PING, 0, 0, bytes(8)))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += bytes(data)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    def abort(self) -> None: ...


def opened() -> tuple[Sent, Session, ServerStream]:
    """A session with one stream that has begun."""
    transport, session = Sent(), Session(asyncio.Event(), RUNTIME_LIMITS)
    session.connection_made(transport)
    session.data_received(frame(Kind.SETTINGS, 0, 0))
    stream = ServerStream(session, session.request(literal(":path", "/t.S/Count"), framed(b"")))
    session.attach(stream)
    session.data_received(GOOD)
    return transport, session, stream


@pytest.mark.looptime
async def test_a_server_that_hangs_is_found_out_by_a_ping() -> None:
    transport, session, stream = opened()
    await asyncio.sleep(RUNTIME_LIMITS.silence_s - 1)
    assert transport.pings == 0
    await asyncio.sleep(2)
    assert transport.pings == 1 and stream.end is None
    session.data_received(frame(Kind.PING, ACK, 0, bytes(8)))
    await asyncio.sleep(RUNTIME_LIMITS.silence_s + 1)
    assert transport.pings == 2 and stream.end is None
    await asyncio.sleep(RUNTIME_LIMITS.ping_s)
    assert session.is_over
    assert await failure(stream.read()) == (Code.UNAVAILABLE, HUNG)


@pytest.mark.looptime
async def test_a_server_that_speaks_is_not_pinged() -> None:
    transport, session, stream = opened()
    for _ in range(20):
        await asyncio.sleep(RUNTIME_LIMITS.silence_s / 2)
        session.data_received(frame(Kind.DATA, 0, stream.stream.id, framed(b"event")))
    assert transport.pings == 0 and not session.is_over
    session.end(Code.CANCELED, CLOSED)


@pytest.mark.looptime
async def test_a_server_of_which_nothing_is_expected_is_not_pinged() -> None:
    transport, session, stream = opened()
    stream.close()
    await asyncio.sleep(10 * RUNTIME_LIMITS.silence_s)
    assert transport.pings == 0 and not session.is_over
    session.end(Code.CANCELED, CLOSED)


@pytest.mark.looptime
@pytest.mark.parametrize("again", [frame(Kind.PING, 0, 0, b"12345678"), frame(Kind.SETTINGS, 0, 0)])
async def test_a_server_that_does_not_read_answers_is_left(again: bytes) -> None:
    transport, session, stream = opened()
    event = frame(Kind.DATA, 0, stream.stream.id, framed(b"event"))
    for _ in range(2 * RUNTIME_LIMITS.answers):
        session.data_received(again + event)
    assert [session.is_over] == [False]
    transport.is_read = False
    for _ in range(2 * RUNTIME_LIMITS.answers):
        session.data_received(again + event)
    assert session.is_over and len(transport.data) < 17 * 4 * RUNTIME_LIMITS.answers
    assert stream.end is not None and (stream.end.code, stream.end.message) == (Code.RESOURCE_EXHAUSTED, UNREAD)

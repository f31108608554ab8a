"""The gRPC server with grpcio, the usual client, and with clients that do not behave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from h2.errors import ErrorCodes

from pykubelet.net.grpc.call import typed_method
from pykubelet.net.grpc.hpack import literal
from pykubelet.net.grpc.http2 import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    PREFACE,
    PRIORITY,
    Kind,
    frame,
)
from pykubelet.net.grpc.server import RpcServer
from pykubelet.net.grpc.server_connection import (
    MAX_EMPTY_FRAMES,
    MAX_ERROR_TEXT,
    MAX_HEADER_BYTES,
    MAX_RESETS,
)
from pykubelet.net.grpc.services import MAX_CALLS, MAX_CONNECTIONS, MAX_REQUEST_BYTES, RpcLimits, Services
from pykubelet.net.grpc.status import Code, RpcError, framed


async def echo(request: bytes) -> bytes:
    return request * 2


async def refuse(_: bytes) -> bytes:
    raise RpcError(Code.NOT_FOUND, "nothing here: 100 % größer")


async def refuse_at_length(_: bytes) -> bytes:
    raise RpcError(Code.INTERNAL, "open /a\udcff: no such file" + "x" * 9999)


async def double(request: StringValue) -> StringValue:
    return StringValue(value=request.value * 2)


async def crash(what: bytes) -> bytes:
    raise OSError("a bug") if what == b"disk" else RuntimeError("a bug")


async def hang(_: bytes) -> bytes:
    await asyncio.get_running_loop().create_future()
    return b""


async def grow(request: bytes) -> bytes:
    return b"x" * int(request)


METHODS = {
    "/t.S/Long": refuse_at_length,
    "/t.S/Typed": typed_method(StringValue, double),
    "/t.S/Echo": echo,
    "/t.S/Grow": grow,
    "/t.S/Refuse": refuse,
    "/t.S/Crash": crash,
    "/t.S/Hang": hang,
}


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[str]:
    where = str(tmp_path / "s.sock")
    server = RpcServer(Services(METHODS))
    async with await asyncio.start_unix_server(server.serve, where):
        yield where


@pytest.fixture
async def channel(path: str) -> AsyncIterator[grpc.aio.Channel]:
    options = (("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", 64 << 20))
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as made:
        yield made


async def call(channel: grpc.aio.Channel, method: str, request: bytes = b"", timeout_s: float = 20.0) -> bytes:
    answer: bytes = await channel.unary_unary(f"/t.S/{method}", None, None)(request, timeout=timeout_s)
    return answer


async def test_a_message_of_an_error_has_what_can_be_sent_of_it(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(channel, "Long")
    details = caught.value.details() or ""
    assert details.startswith("open /a\\udcff: no such file") and len(details) == MAX_ERROR_TEXT


async def test_requests_of_typed_methods_are_decoded(channel: grpc.aio.Channel) -> None:
    answer = await call(channel, "Typed", StringValue(value="ab").SerializeToString())
    assert StringValue.FromString(answer).value == "abab"
    with pytest.raises(grpc.aio.AioRpcError, match="cannot read the request") as caught:
        await call(channel, "Typed", b"\x0a\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("size", [0, 5, 20_000, MAX_REQUEST_BYTES - 5])
async def test_requests_of_all_sizes(channel: grpc.aio.Channel, size: int) -> None:
    for _ in range(3):
        assert await call(channel, "Echo", b"x" * size) == b"x" * size * 2


@pytest.mark.parametrize("size", [0, 5, 20_000, 3_000_000])
async def test_answers_of_all_sizes(channel: grpc.aio.Channel, size: int) -> None:
    for _ in range(3):
        assert await call(channel, "Grow", str(size).encode()) == b"x" * size


async def test_many_calls_at_once(channel: grpc.aio.Channel) -> None:
    answers = await asyncio.gather(*(call(channel, "Echo", b"%d," % n) for n in range(80)))
    assert answers == [b"%d,%d," % (n, n) for n in range(80)]


@pytest.mark.parametrize(
    ("method", "code", "words"),
    [
        ("Refuse", grpc.StatusCode.NOT_FOUND, "nothing here: 100 % größer"),
        ("Nothing", grpc.StatusCode.UNIMPLEMENTED, "unknown method Nothing for service t.S"),
    ],
)
async def test_errors_have_code_and_words(channel: grpc.aio.Channel, method: str, code: object, words: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(channel, method)
    assert (caught.value.code(), caught.value.details()) == (code, words)


async def test_a_service_that_is_not_there_is_refused_as_by_grpc_go(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/t.Other/Echo", None, None)(b"", timeout=10)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, "unknown service t.Other")


@pytest.mark.parametrize("what", [b"", b"disk"])
async def test_a_bug_costs_one_call(channel: grpc.aio.Channel, what: bytes) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(channel, "Crash", what)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert await call(channel, "Echo", b"a") == b"aa"


async def test_a_client_that_gives_up_disturbs_no_other(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(channel, "Hang", timeout_s=0.1)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await call(channel, "Echo", b"a") == b"aa"


async def test_a_request_that_is_too_large(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(channel, "Echo", b"x" * (MAX_REQUEST_BYTES + 1))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await call(channel, "Echo", b"a") == b"aa"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b" " * 30,
        PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
        PREFACE + b"\x00\x00\x01\x09\x04\x00\x00\x00\x01x",
        PREFACE + b"\x00\x00\x05\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff\xff",
        PREFACE + b"\x00\x00\x01\x01\x05\x00\x00\x00\x02\x83",
    ],
)
async def test_who_does_not_speak_http2_is_hung_up_on(path: str, channel: grpc.aio.Channel, sent: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(sent)
    async with asyncio.timeout(5):
        await reader.read()
    writer.close()
    assert await call(channel, "Echo", b"a") == b"aa"


# Clients that mean harm


ECHO = literal(":path", "/t.S/Echo")
SLEEP = literal(":path", "/t.S/Hang")
HELLO = PREFACE + frame(Kind.SETTINGS, 0, 0)


def number(value: int) -> bytes:
    return value.to_bytes(4, "big")


class Client:
    """Sends bytes; keeps the frames that come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def next(self, kind: Kind) -> tuple[int, bytes]:
        """Stream and body of the next frame of a kind."""
        async with asyncio.timeout(60):
            while True:
                head = await self._reader.readexactly(9)
                body = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == kind and not (kind is Kind.SETTINGS and head[4] & ACK):
                    return int.from_bytes(head[5:], "big"), body

    async def goaway(self) -> tuple[ErrorCodes, str]:
        """Why the server closes the connection; waits until it has."""
        _, body = await self.next(Kind.GOAWAY)
        async with asyncio.timeout(60):
            try:
                await self._reader.read()
            except ConnectionError:
                pass  # it does not read what was sent after
        return ErrorCodes(int.from_bytes(body[4:8], "big")), body[8:].decode()

    async def is_closed(self) -> bool:
        async with asyncio.timeout(60):
            try:
                while await self._reader.read(4096):
                    pass
            except ConnectionError:
                pass
        return True

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def connected(path: str) -> AsyncIterator[Client]:
    client = Client(*await asyncio.open_unix_connection(path))
    try:
        yield client
    finally:
        client.close()


async def test_a_client_that_leaves_while_it_is_answered_is_no_error(
    path: str, channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    grow = literal(":path", "/t.S/Grow")
    wide = (
        PREFACE
        + frame(Kind.SETTINGS, 0, 0, b"\0\x04\x7f\xff\xff\xff")
        + frame(Kind.WINDOW_UPDATE, 0, 0, number(1 << 30))
    )
    ask = frame(Kind.HEADERS, END_HEADERS, 1, grow) + frame(Kind.DATA, END_STREAM, 1, framed(b"30000000"))
    for _ in range(3):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(wide + ask)
        await reader.readexactly(100_000)
        writer.transport.abort()
    assert await call(channel, "Echo", b"x") == b"xx"
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_limits_are_announced(path: str) -> None:
    async with connected(path) as client:
        await client.send(HELLO)
        _, body = await client.next(Kind.SETTINGS)
    announced = {int.from_bytes(body[at : at + 2], "big"): body[at + 2 : at + 6] for at in range(0, len(body), 6)}
    assert (announced[3], announced[6]) == (number(MAX_CALLS), number(MAX_HEADER_BYTES))


async def test_calls_that_are_cancelled_at_once_are_no_bug(
    path: str, channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    def cancelled(id: int, path: bytes) -> bytes:
        asked = frame(Kind.HEADERS, END_HEADERS | END_STREAM, id, path)
        return asked + frame(Kind.RST_STREAM, 0, id, number(ErrorCodes.CANCEL))

    async with connected(path) as client:
        half = range(1, MAX_RESETS, 2)
        await client.send(HELLO + b"".join(cancelled(id, (ECHO, SLEEP)[id // 2 % 2]) for id in half))
        body = frame(Kind.DATA, END_STREAM, 1001, framed(b"a"))
        await client.send(frame(Kind.HEADERS, END_HEADERS, 1001, ECHO) + body)
        assert await client.next(Kind.DATA) == (1001, framed(b"aa"))
    assert await call(channel, "Echo", b"a") == b"aa"
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


async def test_a_client_that_only_cancels_is_turned_away(path: str, channel: grpc.aio.Channel) -> None:
    async with connected(path) as client:
        await client.send(HELLO)
        for id in range(1, 2 * MAX_RESETS + 3, 2):
            asked = frame(Kind.HEADERS, END_HEADERS | END_STREAM, id, SLEEP)
            await client.send(asked + frame(Kind.RST_STREAM, 0, id, number(ErrorCodes.CANCEL)))
        assert await client.goaway() == (
            ErrorCodes.ENHANCE_YOUR_CALM,
            f"{MAX_RESETS} more calls were cancelled than answered",
        )
    assert await call(channel, "Echo", b"a") == b"aa"


async def test_a_client_that_cancels_some_of_its_calls_stays(path: str) -> None:
    async with connected(path) as client:
        await client.send(HELLO)
        for id in range(1, 8 * MAX_RESETS, 4):
            asked = frame(Kind.HEADERS, END_HEADERS | END_STREAM, id, SLEEP)
            await client.send(asked + frame(Kind.RST_STREAM, 0, id, number(ErrorCodes.CANCEL)))
            body = frame(Kind.DATA, END_STREAM, id + 2, framed(b"a"))
            await client.send(frame(Kind.HEADERS, END_HEADERS, id + 2, ECHO) + body)
            assert (await client.next(Kind.DATA))[0] == id + 2


async def test_calls_beyond_the_limit_are_refused(path: str) -> None:
    async with connected(path) as client:
        asked = (frame(Kind.HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, SLEEP) for n in range(MAX_CALLS + 1))
        await client.send(HELLO + b"".join(asked))
        assert await client.next(Kind.RST_STREAM) == (2 * MAX_CALLS + 1, number(ErrorCodes.REFUSED_STREAM))


@pytest.mark.parametrize(
    ("sent", "times", "code", "problem"),
    [
        (frame(Kind.PING, 0, 0, b"12345678"), MAX_EMPTY_FRAMES + 1, ErrorCodes.ENHANCE_YOUR_CALM, "frames in a row"),
        (frame(Kind.SETTINGS, ACK, 0), MAX_EMPTY_FRAMES + 1, ErrorCodes.ENHANCE_YOUR_CALM, "frames in a row"),
        (
            frame(Kind.SETTINGS, 0, 0, b"".join(id.to_bytes(2, "big") + number(1) for id in range(100, 133))),
            1,
            ErrorCodes.ENHANCE_YOUR_CALM,
            "more than 32 settings",
        ),
        (frame(Kind.SETTINGS, 0, 0, bytes(7)), 1, ErrorCodes.FRAME_SIZE_ERROR, "FrameDataMissing"),
        (frame(Kind.PING, 0, 0, bytes(FRAME_BYTES)), 1, ErrorCodes.FRAME_SIZE_ERROR, "FrameDataMissing"),
        (frame(Kind.DATA, 0, 1, b"a"), 1, ErrorCodes.PROTOCOL_ERROR, "Invalid input"),
        (b"\x00\x40\x01" + bytes(6), 1, ErrorCodes.FRAME_SIZE_ERROR, "a frame of 16385 bytes"),
        (
            frame(Kind.HEADERS, 0, 1, ECHO) + frame(Kind.CONTINUATION, 0, 1) * 65,
            1,
            ErrorCodes.PROTOCOL_ERROR,
            "Too many continuation frames",
        ),
        (
            frame(Kind.HEADERS, 0, 1, ECHO) + frame(Kind.CONTINUATION, 0, 1, bytes(4096)) * 2,
            1,
            ErrorCodes.ENHANCE_YOUR_CALM,
            "request headers larger than 8192 bytes",
        ),
        (
            frame(Kind.HEADERS, PRIORITY | END_HEADERS, 1, bytes(5) + b"\x82" * 1000),
            1,
            ErrorCodes.ENHANCE_YOUR_CALM,
            "Oversized header block",
        ),
        (frame(Kind.HEADERS, END_HEADERS, 1, b"\xff"), 1, ErrorCodes.PROTOCOL_ERROR, "Error decoding header block"),
        (frame(Kind.CONTINUATION, 0, 1), 1, ErrorCodes.PROTOCOL_ERROR, "NoSuchStreamError"),
        (
            frame(Kind.HEADERS, END_HEADERS, 3, ECHO) + frame(Kind.HEADERS, END_HEADERS, 1, ECHO),
            1,
            ErrorCodes.PROTOCOL_ERROR,
            "StreamIDTooLow",
        ),
        (frame(Kind.WINDOW_UPDATE, 0, 0, number(0x7FFFFFFF)), 1, ErrorCodes.FLOW_CONTROL_ERROR, "FlowControlError"),
    ],
)
async def test_a_client_that_sends_too_much_gets_the_reason_and_is_refused(
    path: str, sent: bytes, times: int, code: ErrorCodes, problem: str
) -> None:
    async with connected(path) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(client.send(HELLO + sent * times))
        reported = await client.goaway()
    assert reported[0] is code and problem in reported[1]


async def test_a_client_that_asks_nothing_is_turned_away(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    listening = await asyncio.start_unix_server(RpcServer(Services(METHODS), RpcLimits(idle_s=0.5)).serve, path)
    async with listening, connected(path) as silent, connected(path) as pinging:
        await silent.send(HELLO)
        await pinging.send(HELLO + frame(Kind.PING, 0, 0, b"12345678"))
        assert await silent.goaway() == (ErrorCodes.NO_ERROR, "no call within 500ms")
        assert (await pinging.goaway())[0] is ErrorCodes.NO_ERROR


async def test_a_client_that_sends_goaway_gets_the_answer_it_waits_for(path: str) -> None:
    async with connected(path) as client:
        await client.send(HELLO + frame(Kind.HEADERS, END_HEADERS, 1, ECHO) + frame(Kind.GOAWAY, 0, 0, bytes(8)))
        await client.send(frame(Kind.DATA, END_STREAM, 1, framed(b"a")))
        assert await client.next(Kind.DATA) == (1, framed(b"aa"))


async def test_of_too_many_connections_the_one_without_a_call_for_longest_is_closed(path: str) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(path)) for _ in range(MAX_CONNECTIONS)]
        for client in clients:
            await client.send(HELLO)
            await client.next(Kind.SETTINGS)
        body = frame(Kind.DATA, END_STREAM, 1, framed(b"a"))
        await clients[0].send(frame(Kind.HEADERS, END_HEADERS, 1, ECHO) + body)
        assert (await clients[0].next(Kind.DATA))[0] == 1
        late = await stack.enter_async_context(connected(path))
        await late.send(HELLO)
        await late.next(Kind.SETTINGS)
        assert await clients[1].is_closed()
        for client in (clients[0], late):
            await client.send(frame(Kind.PING, 0, 0, b"12345678"))
            assert await client.next(Kind.PING) == (0, b"12345678")


class Streams:
    """A server with a method that answers with as many messages as its request has bytes; `!` refuses, `~` never ends."""

    def __init__(self) -> None:
        self.ended: asyncio.Queue[int] = asyncio.Queue()

    async def _count(self, request: bytes) -> AsyncGenerator[bytes, None]:
        for number, byte in enumerate(request):
            if byte == ord("!"):
                raise RpcError(Code.ABORTED, "enough")
            if byte == ord("~"):
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self.ended.put_nowait(number)
            yield b"%d" % number

    async def wait_ended(self) -> int:
        async with asyncio.timeout(20):
            return await self.ended.get()

    @asynccontextmanager
    async def serve(
        self, path: str, limits: RpcLimits
    ) -> AsyncIterator[grpc.aio.UnaryStreamMultiCallable[bytes, bytes]]:
        server = RpcServer(Services({}, {"/t.S/Count": self._count}), limits)
        options = (("grpc.default_authority", "localhost"),)
        async with (
            await asyncio.start_unix_server(server.serve, path),
            grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel,
        ):
            yield channel.unary_stream("/t.S/Count", None, None)


async def test_a_stream_answers_until_its_end_an_error_or_the_client_leaves(tmp_path: Path) -> None:
    streams = Streams()
    async with streams.serve(str(tmp_path / "s.sock"), RpcLimits()) as method:
        assert [answer async for answer in method(b"abc", timeout=20)] == [b"0", b"1", b"2"]
        assert [answer async for answer in method(b"", timeout=20)] == []
        got: list[bytes] = []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for answer in method(b"ab!", timeout=20):
                got.append(answer)
        assert got == [b"0", b"1"]
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.ABORTED, "enough")

        endless = method(b"a~", timeout=20)
        assert await endless.read() == b"0"
        endless.cancel()
        assert await streams.wait_ended() == 1


async def test_an_open_stream_outlives_the_time_without_a_call(tmp_path: Path) -> None:
    streams = Streams()
    async with streams.serve(str(tmp_path / "s.sock"), RpcLimits(idle_s=0.2)) as method:
        stream = method(b"a~", timeout=20)
        assert await stream.read() == b"0"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await stream.read()
        assert await streams.wait_ended() == 1

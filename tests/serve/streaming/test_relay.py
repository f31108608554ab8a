"""Both sides of a stream: who waits for whom, deadlines and ends. Connections are in memory, time is virtual."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from net.websocket.bytes_of import control, data, masked, messages, reply

from pykubelet.net.http.proxy import Backend
from pykubelet.net.http.server import Request, Response, ServedConnection
from pykubelet.net.websocket.handshake import offered, upgrade_response
from pykubelet.serve.streaming import relay as carrying
from pykubelet.serve.streaming.command import PROTOCOL, RemoteCommand
from pykubelet.serve.streaming.relay import ANSWERS, OPEN_DEADLINE_S, PIECE, carry, serve_websocket

RESULT, STDIN, STDOUT = 1, 3, 5
IDLE_S = 600.0
SUCCESS = data(STDOUT, b"", last=True) + data(RESULT, b'{"status":"Success"}', last=True)


class Side(asyncio.Transport):
    """One connection in memory. `output`: what was written to it. `is_slow`: its buffer is full."""

    def __init__(self) -> None:
        super().__init__()
        self.received = b""
        self.is_slow = False
        self.aborted = False
        self.reader = asyncio.StreamReader()
        self.protocol = asyncio.StreamReaderProtocol(self.reader)
        self.protocol.connection_made(self)
        self.writer = asyncio.StreamWriter(self, self.protocol, self.reader, asyncio.get_running_loop())

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.received += bytes(data)

    def get_write_buffer_size(self) -> int:
        return ANSWERS if self.is_slow else 0

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def fill(self) -> None:
        """It does not read any more."""
        self.is_slow = True
        self.protocol.pause_writing()

    def drain(self) -> None:
        self.is_slow = False
        self.protocol.resume_writing()


class Pair:
    """A stream with stdin and stdout between two sides."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self.client, self.runtime = Side(), Side()
        bridge = RemoteCommand(stdin=True, stdout=True, stderr=False, tty=False)
        ours = ServedConnection(self.client.reader, self.client.writer)
        theirs = Backend(self.runtime.reader, self.runtime.writer)
        self.work = carry(ours, theirs, bridge, idle_s)

    def heard(self) -> list[tuple[int, bytes]]:
        """What the client received."""
        return messages(self.client.received)

    def status(self) -> dict[str, object]:
        (_, result), (end, _) = self.heard()[-2:]
        assert end == 0x88 and result[0] == 3
        return dict(json.loads(result[1:]))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def carried(pair: Pair, *, is_open: bool = True) -> AsyncIterator[asyncio.Task[None]]:
    if is_open:
        pair.runtime.reader.feed_data(reply(RESULT, STDIN, STDOUT))
    task = asyncio.create_task(pair.work)
    await settle()
    try:
        yield task
        async with asyncio.timeout(2 * IDLE_S):
            await task
        assert pair.runtime.aborted and not pair.client.aborted
    finally:
        task.cancel()
        pair.client.close()
        pair.runtime.close()


@pytest.mark.looptime
async def test_input_and_output_and_the_end() -> None:
    pair = Pair()
    async with carried(pair):
        pair.client.reader.feed_data(masked(2, b"\0hello") + masked(2, b"\xff\0"))
        await settle()
        assert pair.runtime.received.endswith(data(STDIN, b"hello") + data(STDIN, b"", last=True))
        pair.runtime.reader.feed_data(data(STDOUT, b"hello") + SUCCESS)
        await settle()
        pair.client.reader.feed_data(masked(8, b"\x03\xe8"))
    assert pair.heard()[:2] == [(0x82, b"\1"), (0x82, b"\1hello")]
    assert pair.status()["status"] == "Success"


@pytest.mark.looptime
async def test_a_runtime_that_does_not_open_the_streams_is_given_up() -> None:
    pair = Pair()
    started = asyncio.get_running_loop().time()
    async with carried(pair, is_open=False):
        before = pair.runtime.received
        pair.client.reader.feed_data(masked(2, b"\0hello"))
        pair.runtime.reader.feed_data(reply(RESULT, STDIN))
        await settle()
        assert pair.runtime.received == before, "input is for streams that are open"
        await asyncio.sleep(OPEN_DEADLINE_S)
        pair.client.reader.feed_eof()
    assert asyncio.get_running_loop().time() - started == pytest.approx(OPEN_DEADLINE_S, abs=1)
    assert pair.status()["message"] == "Internal error occurred: the runtime does not open the streams"


@pytest.mark.looptime
async def test_a_stream_on_which_nothing_is_output_ends_though_the_client_lives() -> None:
    pair = Pair()
    async with carried(pair) as task:
        for _ in range(50):
            pair.client.reader.feed_data(masked(2, b"\0x"))
            await asyncio.sleep(IDLE_S / 10)
        for _ in range(9):
            pair.client.reader.feed_data(masked(9, b""))
            await asyncio.sleep(IDLE_S / 10)
        assert not task.done()
        await asyncio.sleep(IDLE_S / 10)
        pair.client.reader.feed_eof()
    assert pair.status()["message"] == "Internal error occurred: no data for too long"


@pytest.mark.looptime
async def test_without_an_idle_time_a_silent_stream_stays() -> None:
    pair = Pair(idle_s=0.0)
    async with carried(pair) as task:
        await asyncio.sleep(100 * IDLE_S)
        assert not task.done()
        pair.client.reader.feed_eof()


@pytest.mark.looptime
async def test_a_client_that_does_not_read_holds_back_the_runtime() -> None:
    pair = Pair()
    async with carried(pair):
        pair.client.fill()
        pair.runtime.reader.feed_data(data(STDOUT, bytes(8 * PIECE)))
        await settle()
        assert len(pair.client.received) < 2 * PIECE
        pair.client.reader.feed_data(masked(2, b"\0still heard"))
        await settle()
        assert pair.runtime.received.endswith(data(STDIN, b"still heard"))
        pair.client.drain()
        await settle()
        assert len(pair.client.received) > 8 * PIECE
        pair.client.reader.feed_eof()


@pytest.mark.looptime
async def test_a_runtime_that_does_not_read_holds_back_the_client() -> None:
    pair = Pair()
    async with carried(pair):
        pair.runtime.fill()
        pair.client.reader.feed_data(masked(2, bytes(8 * PIECE), mask=bytes(4)))
        await settle()
        assert len(pair.runtime.received) < 2 * PIECE
        pair.runtime.reader.feed_data(data(STDOUT, b"still heard"))
        await settle()
        assert pair.heard()[-1] == (0x82, b"\1still heard")
        pair.runtime.reader.feed_data(SUCCESS)
        await settle()
        pair.client.reader.feed_eof()
    assert pair.status()["status"] == "Success"


@pytest.mark.looptime
async def test_pings_of_a_side_that_does_not_read_are_not_kept() -> None:
    pair = Pair()
    async with carried(pair):
        pair.client.fill()
        pair.runtime.fill()
        before = len(pair.client.received), len(pair.runtime.received)
        for _ in range(100):
            pair.client.reader.feed_data(masked(9, bytes(100)))
            pair.runtime.reader.feed_data(control(6, b"\0\0\0\2"))
            await settle()
        assert (len(pair.client.received), len(pair.runtime.received)) == before
        pair.client.drain()
        pair.client.reader.feed_data(masked(9, b"and now?"))
        await settle()
        assert pair.heard()[-1] == (0x8A, b"and now?")
        pair.client.reader.feed_eof()


@pytest.mark.looptime
async def test_a_runtime_that_goes_is_reported_to_the_client() -> None:
    pair = Pair()
    async with carried(pair):
        pair.runtime.reader.feed_eof()
        await settle()
        pair.client.reader.feed_eof()
    assert pair.status()["message"] == "Internal error occurred: the runtime has ended the connection"


@pytest.mark.looptime
async def test_a_runtime_that_listens_no_more_may_still_report_the_result() -> None:
    pair = Pair()
    async with carried(pair):
        pair.runtime.fill()
        pair.client.reader.feed_data(masked(2, b"\0not read by the runtime"))
        pair.client.fill()
        pair.runtime.reader.feed_data(data(STDOUT, b"the last words") + SUCCESS)
        await settle()
        pair.runtime.protocol.connection_lost(ConnectionResetError())
        await settle()
        pair.client.drain()
        await settle()
        pair.client.reader.feed_eof()
    assert (0x82, b"\1the last words") in pair.heard()
    assert pair.status()["status"] == "Success"


@pytest.mark.looptime
async def test_a_client_that_goes_ends_the_stream_at_once() -> None:
    ways: tuple[Callable[[asyncio.StreamReader], None], ...] = (
        lambda side: side.feed_eof(),
        lambda side: side.feed_data(masked(8, b"\x03\xe8")),
    )
    for goes in ways:
        pair = Pair()
        started = asyncio.get_running_loop().time()
        async with carried(pair):
            goes(pair.client.reader)
        assert asyncio.get_running_loop().time() == started


@pytest.mark.looptime
async def test_a_client_that_does_not_answer_the_farewell_is_left() -> None:
    pair = Pair()
    async with carried(pair):
        pair.runtime.reader.feed_data(SUCCESS)
        await asyncio.sleep(carrying.PARTING_S + 1)
    assert pair.status()["status"] == "Success"


# The beginning


def asked(**more: str) -> Request:
    headers = {
        "connection": "keep-alive, Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "sec-websocket-protocol": f"{PROTOCOL}, v4.channel.k8s.io",
    }
    return Request("GET", "/exec", headers=headers | {name.replace("_", "-"): value for name, value in more.items()})


def test_the_handshake_of_the_standard() -> None:
    assert offered(asked()) == [PROTOCOL, "v4.channel.k8s.io"]
    assert offered(asked(upgrade="SPDY/3.1")) == []
    head = upgrade_response(asked(), PROTOCOL)
    assert isinstance(head, bytes)
    assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in head
    assert f"Sec-WebSocket-Protocol: {PROTOCOL}\r\n".encode() in head


@pytest.mark.parametrize("wrong", [{"sec_websocket_version": "8"}, {"sec_websocket_key": ""}])
def test_a_handshake_that_is_none(wrong: dict[str, str]) -> None:
    answer = upgrade_response(asked(**wrong), PROTOCOL)
    assert isinstance(answer, Response) and answer.status == 400


async def test_a_runtime_that_does_not_upgrade_answers_itself() -> None:
    asking: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asking.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 404 Not Found\r\n\r\nno such token")
        writer.close()

    command = RemoteCommand(stdin=False, stdout=True, stderr=False, tty=False)
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/exec/token"
        answer = await serve_websocket(asked(authorization="Bearer secret"), url, command, IDLE_S)
    assert isinstance(answer, Response)
    assert (answer.status, answer.body) == (404, b"no such token")
    head = asking[0].decode()
    assert head.startswith("POST /exec/token HTTP/1.1\r\n")
    assert "Upgrade: SPDY/3.1\r\n" in head and "X-Stream-Protocol-Version: v4.channel.k8s.io\r\n" in head
    assert "secret" not in head and "websocket" not in head.lower()


@pytest.mark.looptime
async def test_many_tiny_messages_are_taken_in_several_iterations() -> None:
    pair = Pair()
    async with carried(pair):
        before = len(pair.runtime.received)
        pair.client.reader.feed_data(masked(2, b"\0x") * 20_000)
        sizes = set()
        for _ in range(1000):
            await asyncio.sleep(0)
            sizes.add(len(pair.runtime.received) - before)
        assert max(sizes) >= 20_000 and len(sizes) > 4
        pair.client.reader.feed_eof()

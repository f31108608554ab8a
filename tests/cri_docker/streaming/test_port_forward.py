"""Port-forward over SPDY, also through a WebSocket, to real ports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from cri_docker.streaming.doubles import SANDBOX, Local, SpdyPeer, connect, serving, spdy_peer
from net.websocket.bytes_of import masked, messages

from pykubelet.net.websocket import spdy
from pykubelet_cri_docker.streaming.backend import PortForwardTarget
from pykubelet_cri_docker.streaming.pairs import MAX_STREAMS

pytestmark = pytest.mark.virtual_time
PROTOCOL = "portforward.k8s.io"
WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def port(serve: Serve) -> AsyncIterator[int]:
    """A port of the sandbox."""

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await serve(reader, writer)
        writer.close()

    async with await asyncio.start_server(serve_one, "127.0.0.1", 0) as listener:
        yield listener.sockets[0].getsockname()[1]


async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer when the request has ended."""
    writer.write((await reader.read()).upper())
    await writer.drain()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


def forwarded(peer: SpdyPeer, number: int, request: str = "0") -> tuple[int, int]:
    more = {"port": str(number)} | ({"requestid": request} if request else {})
    return peer.open("error", **more), peer.open("data", **more)


@pytest.mark.parametrize("request_id", ["7", ""])
async def test_both_sides_end_their_directions(request_id: str) -> None:
    async with (
        serving(Local()) as server,
        port(upper) as number,
        spdy_peer(server.port_forward_url(SANDBOX), PROTOCOL) as peer,
    ):
        error, data = forwarded(peer, number, request_id)
        peer.send(data, b"hello ")
        peer.send(data, b"port", last=True)
        await peer.until(lambda: {error, data} <= peer.finished)
        assert peer.data == {data: b"HELLO PORT"}
        again = forwarded(peer, number, "8")
        peer.send(again[1], b"again", last=True)
        await peer.until(lambda: set(again) <= peer.finished)
        assert peer.data[again[1]] == b"AGAIN"


async def test_many_connections_with_much_data() -> None:
    async with (
        serving(Local()) as server,
        port(echo) as number,
        spdy_peer(server.port_forward_url(SANDBOX), PROTOCOL) as peer,
    ):
        pairs = [forwarded(peer, number, str(request)) for request in range(20)]
        for _ in range(4):
            for _, data in pairs:
                peer.send(data, bytes(65536))
        for _, data in pairs:
            peer.send(data, b"", last=True)
        await peer.until(lambda: len(peer.finished) == 40)
        assert {len(content) for content in peer.data.values()} == {4 * 65536}


async def test_a_port_that_nothing_serves_is_reported() -> None:
    backend = Local()
    backend.refusal = "connection refused"
    async with serving(backend) as server, spdy_peer(server.port_forward_url(SANDBOX), PROTOCOL) as peer:
        error, data = forwarded(peer, 80)
        await peer.until(lambda: data in peer.refused)
        assert peer.data[error] == b"error forwarding port 80 to pod sandbox, uid : connection refused"
        assert error in peer.finished


async def test_a_stream_that_is_reset_ends_its_connection_only() -> None:
    gone = asyncio.Event()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await echo(reader, writer)
        gone.set()

    async with (
        serving(Local()) as server,
        port(watch) as number,
        spdy_peer(server.port_forward_url(SANDBOX), PROTOCOL) as peer,
    ):
        (_, first), (_, second) = forwarded(peer, number, "1"), forwarded(peer, number, "2")
        for data in (first, second):
            peer.send(data, b"hi")
        await peer.until(lambda: len(peer.data) == 2)
        peer.writer.write(b"\x80\x03\x00\x03\x00\x00\x00\x08" + first.to_bytes(4, "big") + bytes((0, 0, 0, 5)))
        async with asyncio.timeout(5):
            await gone.wait()
        peer.send(second, b" there")
        await peer.until(lambda: peer.data[second] == b"hi there")


async def test_a_client_that_disconnects_ends_all_connections() -> None:
    gone: list[int] = []

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        with contextlib.suppress(OSError):
            await reader.read()
        gone.append(1)

    async with serving(Local()) as server, port(watch) as number:
        async with spdy_peer(server.port_forward_url(SANDBOX), PROTOCOL) as peer:
            for request in range(3):
                forwarded(peer, number, str(request))
            await peer.until(lambda: len(peer.data) == 3)
        await asyncio.sleep(1)
        assert len(gone) == 3


async def test_streams_that_are_refused_and_halves_that_expire() -> None:
    async with serving(Local()) as server, spdy_peer(server.port_forward_url(SANDBOX), PROTOCOL) as peer:
        good = peer.open("error", port="80", requestid="1")
        bad = {
            peer.open("error", port="80", requestid="1"),
            peer.open("video", port="80", requestid="2"),
            peer.open("data", port="0", requestid="3"),
            peer.open("data", port="99999", requestid="4"),
            peer.open("data", requestid="5"),
            peer.open("data", port="80", requestid="x" * 65),
        }
        await peer.until(lambda: bad <= peer.refused)
        assert peer.replied == {good}
        await peer.until(lambda: good in peer.refused)
        assert peer.data[good] == b"timed out waiting for streams"
        assert 30 <= asyncio.get_running_loop().time() - 1000 <= 61


async def test_thousands_of_streams_are_refused() -> None:
    async with serving(Local()) as server, spdy_peer(server.port_forward_url(SANDBOX), PROTOCOL) as peer:
        for request in range(5000):
            peer.open("data", port="80", requestid=str(request))
        await peer.until(lambda: len(peer.replied) + len(peer.refused) == 5000)
        assert len(peer.replied) == MAX_STREAMS


async def test_data_before_its_error_stream_is_kept_within_bounds() -> None:
    async with (
        serving(Local()) as server,
        port(upper) as number,
        spdy_peer(server.port_forward_url(SANDBOX), PROTOCOL) as peer,
    ):
        early = peer.open("data", port=str(number), requestid="1")
        peer.send(early, b"early", last=True)
        flood = peer.open("data", port=str(number), requestid="2")
        for _ in range(10):
            peer.send(flood, bytes(65536))
        peer.open("error", port=str(number), requestid="1")
        await peer.until(lambda: early in peer.finished)
        assert peer.data[early] == b"EARLY" and flood in peer.refused


async def test_a_port_that_does_not_read_holds_back_the_client() -> None:
    async def sleep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"no")
        await asyncio.sleep(3600)

    async with (
        serving(Local()) as server,
        port(sleep) as number,
        spdy_peer(server.port_forward_url(SANDBOX), PROTOCOL) as peer,
    ):
        _, data = forwarded(peer, number)
        for _ in range(512):
            peer.send(data, bytes(65536))
        await asyncio.sleep(1)
        assert peer.writer.transport.get_write_buffer_size() > 8 << 20
        await peer.until(lambda: peer.got(data) == b"no")


async def test_through_a_websocket() -> None:
    async with serving(Local()) as server, port(upper) as number:
        url = server.port_forward_url(SANDBOX)
        head, reader, writer = await connect(url, WEBSOCKET | {"Sec-WebSocket-Protocol": "SPDY/3.1+portforward.k8s.io"})
        assert "Sec-WebSocket-Protocol: SPDY/3.1+portforward.k8s.io\r\n" in head
        opener = spdy.StreamOpener()
        sent = b"".join(
            opener.open(stream, {"streamtype": kind, "port": str(number), "requestid": "0"})
            for stream, kind in ((1, "error"), (3, "data"))
        )
        sent += spdy.data_head(3, 5, last=True) + b"hello"
        writer.write(masked(2, sent[:50]) + masked(9, b"ping") + masked(2, sent[50:]))
        await asyncio.sleep(1)
        writer.write(masked(8, b"\x03\xe8"))
        found = messages(await reader.read())
        frames = spdy.SpdyFrameReader().feed(b"".join(content for opcode, content in found if opcode == 0x82))
        assert spdy.Data(3, b"HELLO") in frames and spdy.StreamFinished(1) in frames
        assert (0x8A, b"ping") in found and found[-1] == (0x88, b"\x03\xe8")
        writer.close()


async def test_over_a_websocket_without_a_tunnel() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello " + await reader.readexactly(5))

    async with serving(Local()) as server, port(greet) as first, port(greet) as second:
        url = server.port_forward_url(PortForwardTarget("sandbox", (first, second)))
        _, reader, writer = await connect(url, WEBSOCKET | {"Sec-WebSocket-Protocol": "v4.channel.k8s.io"})
        writer.write(masked(2, b"\0first") + masked(2, b"\2other"))
        await asyncio.sleep(1)
        writer.write(masked(8, b"\x03\xe8"))
        found = messages(await reader.read())
        starts = [
            bytes((channel,)) + number.to_bytes(2, "little")
            for channel, number in enumerate((first, first, second, second))
        ]
        assert [content for _, content in found[:4]] == starts
        assert {content for _, content in found[4:-1]} == {b"\0hello first", b"\2hello other"}
        assert found[-1] == (0x88, b"\x03\xe8")
        writer.close()

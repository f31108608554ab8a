"""The beginning of streams: URLs, the choice of protocols, and clients that send nonsense."""

from __future__ import annotations

import asyncio
import zlib

import pytest
from cri_docker.streaming.doubles import ALL, PLAYED, SANDBOX, V4, Local, connect, opened, serving, spdy_peer
from net.websocket.bytes_of import control, data

from pykubelet.net.websocket import spdy
from pykubelet_cri_docker.streaming.backend import AttachTarget, ExecTarget, PortForwardTarget, StreamSet
from pykubelet_cri_docker.streaming.server import InvalidTarget
from pykubelet_cri_docker.streaming.tokens import LIFETIME_S, MAX_UNUSED, TooManyTokens

pytestmark = pytest.mark.virtual_time
UPGRADE = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400),
        ({"Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": V4}, 400),
        ({"Connection": "Upgrade", "Upgrade": "h2c", "X-Stream-Protocol-Version": V4}, 400),
        (UPGRADE, 400),
        (UPGRADE | {"X-Stream-Protocol-Version": "v9.channel.k8s.io"}, 403),
        ({"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Protocol": "v9"}, 403),
        ({"Connection": "Upgrade", "Upgrade": "websocket"}, 400),
    ],
)
async def test_a_client_without_a_known_protocol_is_refused(headers: dict[str, str], status: int) -> None:
    async with serving(Local()) as server:
        head, _, writer = await connect(server.exec_url(PLAYED), headers)
        assert head.startswith(f"HTTP/1.1 {status} ")
        if "X-Stream-Protocol-Version: v9" in head:
            assert f"X-Accepted-Stream-Protocol-Versions: {V4}, v3.channel.k8s.io" in head
        writer.close()


async def test_the_client_prefers_a_version() -> None:
    async with serving(Local()) as server:
        versions = "v3.channel.k8s.io, v4.channel.k8s.io"
        head, _, writer = await connect(server.exec_url(PLAYED), UPGRADE | {"X-Stream-Protocol-Version": versions})
        assert "X-Stream-Protocol-Version: v3.channel.k8s.io\r\n" in head
        writer.close()


async def test_a_url_is_for_one_kind_of_stream() -> None:
    async with serving(Local()) as server:
        for url in (server.exec_url(PLAYED).replace("/exec/", "/attach/"), server.port_forward_url(SANDBOX) + "x"):
            head, _, writer = await connect(url, UPGRADE | {"X-Stream-Protocol-Version": V4})
            assert head.startswith("HTTP/1.1 404 ")
            writer.close()


async def test_unused_urls_are_limited_and_expire() -> None:
    async with serving(Local()) as server:
        urls = {server.exec_url(PLAYED) for _ in range(MAX_UNUSED)}
        assert len(urls) == MAX_UNUSED
        with pytest.raises(TooManyTokens):
            server.exec_url(PLAYED)
        await asyncio.sleep(LIFETIME_S + 1)
        server.exec_url(PLAYED)


async def test_calls_that_are_not_valid() -> None:
    async with serving(Local()) as server:
        for streams in (StreamSet(), StreamSet(stdout=True, stderr=True, tty=True)):
            with pytest.raises(InvalidTarget):
                server.exec_url(ExecTarget("container", ("ls",), streams))
        with pytest.raises(InvalidTarget):
            server.attach_url(AttachTarget("", ALL))
        for target in (PortForwardTarget(""), PortForwardTarget("a", (0,)), PortForwardTarget("a", (80,) * 1000)):
            with pytest.raises(InvalidTarget):
                server.port_forward_url(target)


def bomb() -> bytes:
    """Headers that are a thousand times as long when they are inflated."""
    packer = zlib.compressobj(zdict=spdy.DICTIONARY)
    packed = packer.compress(b"\0\0\0\1" + bytes(50 << 20)) + packer.flush(zlib.Z_SYNC_FLUSH)
    return control(1, bytes((0, 0, 0, 1)) + bytes(6) + packed[: 60 * 1024])


@pytest.mark.parametrize(
    "sent",
    [
        bomb(),
        b"\xff" * 100,
        control(1, b"\0\0\0\1" + bytes(6) + b"nonsense"),
        b"\x80\x03\x00\x01\x00\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n" * 9,
    ],
    ids=["bomb", "garbage", "not packed", "a long frame", "HTTP"],
)
async def test_nonsense_ends_its_connection_only(sent: bytes) -> None:
    backend = Local()
    async with serving(backend) as server, spdy_peer(server.exec_url(PLAYED)) as good:
        opened(good, "error", "stdin", "stdout", "stderr")
        async with spdy_peer(server.exec_url(PLAYED)) as bad:
            bad.writer.write(sent)
            await bad.until_end()
        backend.played.say(b"fine")
        await good.until(lambda: bool(good.data))


async def test_frames_that_never_end_and_floods_of_small_ones() -> None:
    backend = Local()
    async with serving(backend) as server, spdy_peer(server.exec_url(PLAYED)) as peer:
        peer.writer.write(data(1, b"") * 10_000 + data(3, b"before its stream") + control(6, b"\0\0\0\1") * 5000)
        _, stdin, stdout, _ = opened(peer, "error", "stdin", "stdout", "stderr")
        peer.writer.write(stdin.to_bytes(4, "big") + b"\0\xff\xff\xff" + b"begun")
        await asyncio.sleep(1)
        assert backend.played.written == b"begun"
        backend.played.say(b"fine")
        await peer.until(lambda: stdout in peer.data)
        assert len(peer.pongs) == 5000

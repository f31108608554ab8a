"""exec and attach over SPDY: who waits for whom, deadlines and ends. Connections are real, time is virtual."""

from __future__ import annotations

import asyncio
import json

import pytest
from cri_docker.streaming.doubles import (
    ALL,
    PLAYED,
    TERMINAL,
    V4,
    Local,
    command,
    opened,
    serving,
    spdy_peer,
)

from pykubelet_cri_docker.streaming.backend import AttachTarget, StreamSet
from pykubelet_cri_docker.streaming.session import StreamLimits

pytestmark = pytest.mark.virtual_time
MIB = 1 << 20


async def test_the_command_starts_when_all_streams_are_open() -> None:
    backend = Local()
    async with serving(backend) as server, spdy_peer(server.exec_url(PLAYED)) as peer:
        opened(peer, "error", "stdin", "stdout")
        await asyncio.sleep(29)
        assert not backend.executed
        peer.open("stderr")
        await asyncio.sleep(1)
        assert backend.executed == [PLAYED]


async def test_a_client_that_does_not_open_its_streams_is_left() -> None:
    backend = Local()
    async with serving(backend) as server, spdy_peer(server.exec_url(PLAYED)) as peer:
        opened(peer, "error", "stdin", "stdout")
        began = asyncio.get_running_loop().time()
        await peer.until_end()
        assert asyncio.get_running_loop().time() - began == pytest.approx(StreamLimits().open_s, abs=1)
    assert not backend.executed


async def test_a_terminal_is_resized_to_the_newest_size() -> None:
    backend = Local()
    async with serving(backend) as server, spdy_peer(server.exec_url(command(streams=TERMINAL))) as peer:
        _, stdin, stdout, resize = opened(peer, "error", "stdin", "stdout", "resize")
        peer.send(resize, b'{"Width":80,"Height":24}')
        await asyncio.sleep(1)
        peer.send(resize, b'{"Width":100,"Height":30}\n{"Width":123,"Hei')
        peer.send(resize, b'ght":45}\nno size}{"Width":-1,"Height":2}')
        await asyncio.sleep(1)
        peer.send(stdin, b"ls\r")
        backend.played.say(b"a  b\r\n")
        await peer.until(lambda: peer.got(stdout) == b"a  b\r\n")
        await asyncio.sleep(1)
        assert backend.played.sizes[0] == (80, 24) and backend.played.written == b"ls\r"
        assert set(backend.played.sizes) <= {(80, 24), (100, 30), (123, 45)}


async def test_a_command_that_cannot_start_is_reported() -> None:
    backend = Local()
    backend.refusal = "container is not running"
    async with serving(backend) as server, spdy_peer(server.exec_url(PLAYED)) as peer:
        error, *_ = opened(peer, "error", "stdin", "stdout", "stderr")
        await peer.until_end()
    status = json.loads(peer.data[error])
    assert (status["reason"], status["code"]) == ("InternalError", 500)
    assert (
        status["message"] == "Internal error occurred: error executing command in container: container is not running"
    )


async def test_attach_ends_with_a_success() -> None:
    backend = Local()
    async with serving(backend) as server:
        async with spdy_peer(server.attach_url(AttachTarget("container", ALL))) as peer:
            error, stdin, stdout, _ = opened(peer, "error", "stdin", "stdout", "stderr")
            peer.send(stdin, b"ping", last=True)
            await asyncio.sleep(1)
            assert backend.played.written == b"ping" and backend.played.has_ended_input
            backend.played.say(b"pong")
            backend.played.outputs.put_nowait(None)
            await peer.until_end()
        assert peer.data[stdout] == b"pong" and json.loads(peer.data[error])["status"] == "Success"
        backend.refusal = "no such container"
        async with spdy_peer(server.attach_url(AttachTarget("container", ALL))) as peer:
            error, *_ = opened(peer, "error", "stdin", "stdout", "stderr")
            await peer.until_end()
        assert "error attaching to container: no such container" in json.loads(peer.data[error])["message"]


@pytest.mark.parametrize("way", ["end", "reset", "go away"])
async def test_a_client_that_disconnects_ends_the_process(way: str) -> None:
    backend = Local()
    async with serving(backend) as server, spdy_peer(server.exec_url(PLAYED)) as peer:
        opened(peer, "error", "stdin", "stdout", "stderr")
        backend.played.say(b"x")
        await peer.until(lambda: bool(peer.data))
        if way == "end":
            peer.writer.write_eof()
        elif way == "reset":
            peer.writer.transport.abort()
        else:
            peer.writer.write(b"\x80\x03\x00\x07\x00\x00\x00\x08" + bytes(8))
        async with asyncio.timeout(5):
            await backend.played.closed.wait()


async def test_a_client_that_disconnects_while_its_input_waits_ends_the_process() -> None:
    backend = Local()
    backend.played.takes_input.clear()
    async with serving(backend) as server, spdy_peer(server.exec_url(PLAYED)) as peer:
        _, stdin, *_ = opened(peer, "error", "stdin", "stdout", "stderr")
        for _ in range(32):
            peer.send(stdin, bytes(65536))
        await asyncio.sleep(60)
        assert not backend.played.closed.is_set()
        peer.writer.transport.abort()
        async with asyncio.timeout(30):
            await backend.played.closed.wait()


async def test_a_process_that_does_not_read_holds_back_its_client_but_not_its_output() -> None:
    backend = Local()
    backend.played.takes_input.clear()
    async with serving(backend) as server, spdy_peer(server.exec_url(PLAYED)) as peer:
        error, stdin, stdout, _ = opened(peer, "error", "stdin", "stdout", "stderr")
        for _ in range(384):
            peer.send(stdin, bytes(65536))
        await asyncio.sleep(1)
        assert peer.writer.transport.get_write_buffer_size() > 8 * MIB
        backend.played.say(b"busy")
        await peer.until(lambda: peer.got(stdout) == b"busy")
        backend.played.takes_input.set()
        await peer.writer.drain()
        backend.played.end()
        await peer.until_end()
    assert json.loads(peer.data[error])["status"] == "Success"


async def test_a_client_that_does_not_read_holds_back_the_process() -> None:
    backend = Local()
    async with serving(backend) as server, spdy_peer(server.exec_url(PLAYED)) as peer:
        error, _, stdout, _ = opened(peer, "error", "stdin", "stdout", "stderr")
        for _ in range(384):
            backend.played.say(bytes(65536))
        backend.played.end()
        await asyncio.sleep(1)
        assert backend.played.taken < 16 * MIB
        await peer.until_end()
        assert len(peer.data[stdout]) == 24 * MIB and error in peer.finished


async def test_an_idle_stream_ends_and_one_with_data_does_not() -> None:
    backend = Local()
    async with serving(backend) as server, spdy_peer(server.exec_url(PLAYED)) as peer:
        opened(peer, "error", "stdin", "stdout", "stderr")
        for _ in range(6):
            backend.played.say(b"tick")
            await asyncio.sleep(3600)
        assert not backend.played.closed.is_set()
        await asyncio.sleep(3 * 3600 + 1)
        assert backend.played.closed.is_set()
        await peer.until_end()


async def test_streams_that_are_not_wanted_and_pings() -> None:
    backend = Local()
    only_output = StreamSet(stdout=True)
    async with serving(backend) as server, spdy_peer(server.exec_url(command(streams=only_output))) as peer:
        error, stdout, stderr, stdin, again, unknown = opened(
            peer, "error", "stdout", "stderr", "stdin", "stdout", "video"
        )
        peer.send(stdin, b"dropped")
        peer.send(99, b"of no stream")
        peer.writer.write(
            b"\x80\x03\x00\x06\x00\x00\x00\x04\x00\x00\x00\x07" + b"\x80\x03\x00\x09\x00\x00\x00\x08" + bytes(8)
        )
        await peer.until(lambda: peer.pongs == [7])
        assert (peer.replied, peer.refused) == ({error, stdout, stderr, stdin}, {again, unknown})
        assert peer.finished == {stderr}
        backend.played.end()
        await peer.until(lambda: error in peer.finished)
    assert backend.played.written == b""


async def test_a_url_works_once_and_for_a_minute() -> None:
    backend = Local()
    upgrade = V4
    async with serving(backend) as server:
        url, late = server.exec_url(PLAYED), server.exec_url(PLAYED)
        async with spdy_peer(url, upgrade):
            pass
        with pytest.raises(AssertionError, match="404"):
            async with spdy_peer(url, upgrade):
                pass
        await asyncio.sleep(61)
        with pytest.raises(AssertionError, match="404"):
            async with spdy_peer(late, upgrade):
                pass

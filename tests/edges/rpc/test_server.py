"""The gRPC server with grpcio, the usual client, and with clients that do not behave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from pykubelet.edges.rpc.http2 import PREFACE
from pykubelet.edges.rpc.server import MAX_REQUEST_BYTES, RpcServer
from pykubelet.edges.rpc.status import Code, RpcError


async def echo(request: bytes) -> bytes:
    return request * 2


async def refuse(_: bytes) -> bytes:
    raise RpcError(Code.NOT_FOUND, "nothing here: 100 % größer")


async def crash(_: bytes) -> bytes:
    raise RuntimeError("a bug")


async def sleep(_: bytes) -> bytes:
    await asyncio.sleep(30)
    return b""


METHODS = {"/t.S/Echo": echo, "/t.S/Refuse": refuse, "/t.S/Crash": crash, "/t.S/Sleep": sleep}


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[str]:
    where = str(tmp_path / "s.sock")
    server = RpcServer(METHODS)
    async with await asyncio.start_unix_server(server.serve, where):
        yield where


@pytest.fixture
async def channel(path: str) -> AsyncIterator[grpc.aio.Channel]:
    options = (("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", 64 << 20))
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as made:
        yield made


async def call(channel: grpc.aio.Channel, method: str, request: bytes = b"", timeout_s: float = 20.0) -> bytes:
    answer: bytes = await channel.unary_unary(f"/t.S/{method}")(request, timeout=timeout_s)
    return answer


@pytest.mark.parametrize("size", [0, 5, 20_000, 1_500_000])
async def test_calls_of_all_sizes(channel: grpc.aio.Channel, size: int) -> None:
    for _ in range(3):
        assert await call(channel, "Echo", b"x" * size) == b"x" * size * 2


async def test_many_calls_at_once(channel: grpc.aio.Channel) -> None:
    answers = await asyncio.gather(*(call(channel, "Echo", b"%d," % n) for n in range(80)))
    assert answers == [b"%d,%d," % (n, n) for n in range(80)]


@pytest.mark.parametrize(
    ("method", "code", "words"),
    [
        ("Refuse", grpc.StatusCode.NOT_FOUND, "nothing here: 100 % größer"),
        ("Nothing", grpc.StatusCode.UNIMPLEMENTED, "unknown method /t.S/Nothing"),
    ],
)
async def test_errors_have_code_and_words(channel: grpc.aio.Channel, method: str, code: object, words: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(channel, method)
    assert (caught.value.code(), caught.value.details()) == (code, words)


async def test_a_bug_costs_one_call(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await call(channel, "Crash")
    assert await call(channel, "Echo", b"a") == b"aa"


async def test_a_client_that_gives_up_disturbs_nobody(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(channel, "Sleep", timeout_s=0.1)
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

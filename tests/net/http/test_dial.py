"""Connections that are cancelled while they are made: each descriptor is closed, and once."""

from __future__ import annotations

import asyncio
import gc
import os
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from support.pki import Authority

from pykubelet.edges.probing.http import HttpProber
from pykubelet.edges.probing.http_target import HttpTarget
from pykubelet.net.http.dial import Destination, dial
from pykubelet.net.http.exchange import HttpConnection

LOOPS = [uvloop.new_event_loop, asyncio.new_event_loop]
STEPS = 40
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    own = Authority(tmp_path_factory.mktemp("ca")).sign("server", "/CN=server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert, own.key)
    return context


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        return
    finally:
        writer.close()


async def socks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A SOCKS5 proxy that answers itself."""
    try:
        await reader.readexactly(3)
        writer.write(b"\x05\x00")
        await reader.readexactly(10)
        writer.write(b"\x05\x00\x00\x01" + bytes(6))
    except (OSError, asyncio.IncompleteReadError):
        writer.close()
        return
    await answer(reader, writer)


@asynccontextmanager
async def serving(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]],
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def connections() -> set[str]:
    """The open sockets of this process that are connected, or are being connected."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return {link for link in found if link.startswith("socket:")}


async def cancel_at_each_step(work: Callable[[], Coroutine[Any, Any, HttpConnection | None]]) -> None:
    """Cancel the work after 0, 1, 2 ... iterations of the event loop, and wait until nothing of it is open."""
    before = connections()
    for steps in range(STEPS):
        task = asyncio.get_running_loop().create_task(work())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled() and task.exception() is None and (made := task.result()) is not None:
            made.abort()
        del task
    gc.collect()
    async with asyncio.timeout(30):
        while connections() - before:  # noqa: ASYNC110 - descriptors have no event
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("factory", LOOPS)
def test_connections_with_tls_have_one_owner(
    factory: Callable[[], asyncio.AbstractEventLoop], tls: ssl.SSLContext
) -> None:
    async def run() -> None:
        async with serving(answer, tls) as port:
            destination, context = Destination("127.0.0.1", port, True, "server"), trusting()
            await cancel_at_each_step(lambda: dial(destination, context))

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())


@pytest.mark.parametrize("factory", LOOPS)
def test_connections_through_a_proxy_have_one_owner(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def run() -> None:
        async with serving(socks) as port:
            through = Destination("192.0.2.1", 80, False, "", proxy=("127.0.0.1", port), proxy_scheme="socks5")
            connection = await dial(through, None)
            response = await connection.exchange(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (response.status, await connection.body()) == (200, b"ok")
            connection.abort()
            await asyncio.sleep(0.01)
            await cancel_at_each_step(lambda: dial(through, None))

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())


@pytest.mark.parametrize("factory", LOOPS)
def test_probes_with_tls_have_one_owner(factory: Callable[[], asyncio.AbstractEventLoop], tls: ssl.SSLContext) -> None:
    async def probe(port: int) -> None:
        await HttpProber().probe(HttpTarget("https", "127.0.0.1", port), 30.0)

    async def run() -> None:
        async with serving(answer, tls) as port:
            await cancel_at_each_step(lambda: probe(port))

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"\x05\x00\x05\x00\x00\x03\xff" + b"x" * 600, "sends something before"),
        (b"\x05\x00\x05\x00\x00\x01" + bytes(6) + b"HTTP", "sends something before"),
        (b"\x04\x00", "speaks no SOCKS5"),
        (b"", "closed the connection"),
    ],
)
async def test_a_proxy_that_misbehaves_is_an_error(sent: bytes, problem: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(3)
        writer.write(sent)
        writer.close()

    async with serving(talk) as port:
        through = Destination("192.0.2.1", 80, False, "", proxy=("127.0.0.1", port), proxy_scheme="socks5")
        with pytest.raises(OSError, match=problem):
            await dial(through, None)

"""Admission at the authenticated port: unauthenticated clients in crowds, and what they cannot take from those who were let in."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import struct
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.edges.identity.keys import make_self_signed
from pykubelet.edges.identity.server_tls import ServerTls, TlsFiles, TlsRules
from pykubelet.net.http.accept import (
    UNUSUAL_SHARE,
    AdmissionLimits,
    ConnectionQueue,
    QueuedConnection,
    serve_connections,
    source_of,
)
from pykubelet.net.http.checked_tls import MAX_SMALL_RECORDS, CheckedTls
from pykubelet.net.http.client_hello import ContextsByGroup
from pykubelet.net.http.server import Answer, Handler, HttpServer, Request, ServedConnection, ServerLimits, text
from pykubelet.serve.listen import open_port

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
ASK, KNOWN = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /known HTTP/1.1\r\nHost: x\r\n\r\n"


async def answer(request: Request, connection: ServedConnection) -> Answer:
    """Whoever asks for /known is."""
    if request.path == "/known":
        await connection.admit()
    return text(200, f"{len(request.target)} letters\n")


@pytest.fixture
async def server_tls(tmp_path: Path) -> CheckedTls:
    made = await make_self_signed("node", ("node",), ("127.0.0.1",))
    files = tmp_path / "crt", tmp_path / "key"
    files[0].write_text(made.certificate)
    files[1].write_text(made.key)
    context = CheckedTls(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    return context


@asynccontextmanager
async def admission_port(
    tls: CheckedTls | ContextsByGroup, limits: AdmissionLimits, handler: Handler = answer
) -> AsyncIterator[int]:
    server = HttpServer(handler, limits=ServerLimits(connections=100))
    with open_port("127.0.0.1", 0) as listening:
        async with Supervisor("test") as supervisor, asyncio.timeout(90):
            supervisor.start_root("port", serve_connections(listening, tls, server, limits))
            yield listening.getsockname()[1]


async def connect(port: int, address: str = "127.0.0.1") -> Ends:
    tls = ssl._create_unverified_context()
    return await asyncio.open_connection("127.0.0.1", port, ssl=tls, local_addr=(address, 0))


async def say(ends: Ends, words: bytes) -> bytes:
    """The first line of the answer, all of it read; empty at the end of the connection."""
    reader, writer = ends
    try:
        writer.write(words)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:"))
        await reader.readexactly(length)
    except (OSError, asyncio.IncompleteReadError):
        return b""
    return head.partition(b"\r\n")[0]


def client_hello() -> bytes:
    """The first message of a client."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl._create_unverified_context().wrap_bio(received, sent)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def leave(*all_ends: Ends) -> None:
    for _, writer in all_ends:
        writer.transport.abort()


async def test_many_unauthenticated_clients_keep_no_client_out_and_close_no_authenticated_connection(
    server_tls: CheckedTls,
) -> None:
    async with admission_port(server_tls, AdmissionLimits(places=3, handshakes=1, grace_s=0.1)) as port:
        known = await connect(port)
        assert await say(known, KNOWN) == b"HTTP/1.1 200 OK"
        crowd = [await connect(port) for _ in range(6)]
        late = await connect(port)
        assert await say(late, ASK) == b"HTTP/1.1 200 OK"
        assert await say(known, ASK) == b"HTTP/1.1 200 OK"
        assert [await say(ends, ASK) for ends in crowd[:4]] == [b""] * 4
        leave(known, late, *crowd)


async def test_who_comes_from_elsewhere_loses_nothing_to_a_crowd(server_tls: CheckedTls) -> None:
    """The crowd, of which many have come and gone, has all other places; half of it still waits for its TLS handshake."""
    async with admission_port(server_tls, AdmissionLimits(places=5, handshakes=1, grace_s=0.1)) as port:
        first = await connect(port, "127.0.0.2")
        crowd = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(40)]
        for end in crowd:
            end.sendall(b"\x16")
        loop = asyncio.get_running_loop()
        for end in crowd[-10:]:  # they came in first
            with contextlib.suppress(ConnectionResetError):
                assert await loop.run_in_executor(None, end.recv, 1) == b""
        second = await connect(port, "127.0.0.2")
        assert await say(second, KNOWN) == b"HTTP/1.1 200 OK"
        assert await say(first, ASK) == b"HTTP/1.1 200 OK"
        leave(first, second)
        for end in crowd:
            end.close()


async def test_where_too_many_wait_the_first_is_cut_off(server_tls: CheckedTls) -> None:
    async with admission_port(server_tls, AdmissionLimits(places=2, handshakes=1, grace_s=3600, waiting=3)) as port:
        inside = await connect(port)
        crowd = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(4)]
        loop = asyncio.get_running_loop()
        for end in crowd:
            with contextlib.suppress(OSError):
                await loop.run_in_executor(None, end.sendall, b"\x16")
        with contextlib.suppress(ConnectionResetError):  # what it sent before it was cut off decides how it looks
            assert await loop.run_in_executor(None, crowd[0].recv, 1) == b""
        assert await say(inside, ASK) == b"HTTP/1.1 200 OK"
        leave(inside)
        for end in crowd:
            end.close()


async def test_few_handshakes_are_under_way_at_a_time(server_tls: CheckedTls) -> None:
    """Their clients decide when they go on, which may be at the same moment. Those that have stopped give way to others that wait."""
    loop, hello = asyncio.get_running_loop(), client_hello()

    def open_one(port: int) -> socket.socket:
        end = ends.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        end.sendall(hello)
        return end

    async def answered(end: socket.socket) -> bytes:
        """The first byte of the server's answer."""
        return await loop.run_in_executor(None, end.recv, 1)

    limits = AdmissionLimits(unfinished=3, unfinished_s=3600)
    with contextlib.ExitStack() as ends:
        async with admission_port(server_tls, limits) as port:
            reads = {loop.create_task(answered(end)): end for end in [open_one(port) for _ in range(5)]}
            for under_way in (3, 3, 3, 2, 1):
                done: set[asyncio.Task[bytes]] = set()
                while len(done) < under_way:
                    done = {*(await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED))[0]}
                assert len(done) == under_way and {read.result() for read in done} == {b"\x16"}
                reads.pop(done.pop()).close()
        async with admission_port(server_tls, replace(limits, unfinished_s=0.05)) as port:
            crowd = [open_one(port) for _ in range(3)]
            assert await asyncio.gather(*map(answered, crowd)) == [b"\x16"] * 3
            late = await connect(port)
            assert await say(late, ASK) == b"HTTP/1.1 200 OK"
            leave(late)


@pytest.mark.virtual_time
@pytest.mark.parametrize("are_admitted", [False, True])
async def test_costly_handshakes_of_unauthenticated_clients_take_a_quarter_of_the_time(are_admitted: bool) -> None:
    loop, queue = asyncio.get_running_loop(), ConnectionQueue(AdmissionLimits())
    began, number, cost_s = loop.time(), 100, 0.010
    end, _ = ends = socket.socketpair()
    with ends[0], ends[1]:
        for _ in range(number):
            queue.enqueue(QueuedConnection(end, "10.1.2.3"))
            _, client = await queue.wait_next()
            client.finish_handshake(cost_s)
            client.unusual_cpu_s = cost_s
            if are_admitted:
                assert queue.admit(client)
    takes_s = number * cost_s / UNUSUAL_SHARE
    assert loop.time() - began == pytest.approx(0 if are_admitted else takes_s, rel=0.2)


@pytest.mark.parametrize(
    ("peer", "source"),
    [
        (("10.1.2.3", 4), "10.1.2.3"),
        (("::ffff:10.1.2.3", 4, 0, 0), "10.1.2.3"),
        (("fd00:1:2:3:4:5:6:7", 4, 0, 0), "fd00:1:2:3::/64"),
        (("fe80::1%eth0", 4, 0, 2), "fe80::/64"),
    ],
)
def test_whose_a_connection_is(peer: tuple[object, ...], source: str) -> None:
    assert source_of(peer) == source


def test_a_connection_that_is_reset_leaves_nothing_that_only_a_garbage_collection_frees(
    server_tls: CheckedTls,
) -> None:
    """With its TLS buffers, it would be some hundred KiB, and a collection comes after some hundred connections."""

    async def play() -> None:
        freed = asyncio.Event()
        kept: list[weakref.ref[asyncio.StreamReader]] = []

        async def remember(request: Request, connection: ServedConnection) -> Answer:
            kept.append(weakref.ref(connection.reader, lambda _: freed.set()))
            return await answer(request, connection)

        async with admission_port(server_tls, AdmissionLimits(), remember) as port:
            ends = await connect(port)
            assert await say(ends, KNOWN) == b"HTTP/1.1 200 OK"
            at_once = struct.pack("ii", 1, 0)
            ends[1].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            gc.disable()
            try:
                leave(ends)
                leave(await connect(port))  # the loop that serves connections refers to the last one
                async with asyncio.timeout(30):
                    await freed.wait()
            finally:
                gc.enable()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_client_sends_few_small_records_until_it_is_authorized(server_tls: CheckedTls, is_known: bool) -> None:
    """Each takes as much time as one with all of the request."""
    words = b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * MAX_SMALL_RECORDS + b"\r\n\r\n"
    async with admission_port(server_tls, AdmissionLimits()) as port:
        ends = await connect(port)
        if is_known:
            assert await say(ends, KNOWN) == b"HTTP/1.1 200 OK"
        for byte in words[:-1]:
            ends[1].write(bytes([byte]))  # a record
        assert await say(ends, words[-1:]) == (b"HTTP/1.1 200 OK" if is_known else b"")
        leave(ends)


@pytest.mark.parametrize("word", [b"", b"\x16"])
async def test_a_client_without_a_handshake_counts_as_unauthenticated(server_tls: CheckedTls, word: bytes) -> None:
    async with admission_port(server_tls, AdmissionLimits(places=4, handshakes=1, grace_s=1)) as port:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        for end in silent:
            end.sendall(word)
        late = await connect(port)
        assert await say(late, ASK) == b"HTTP/1.1 200 OK"
        leave(late)
        for end in silent:
            end.close()


async def test_unauthenticated_clients_may_have_few_large_heads_and_authenticated_ones_have_their_own(
    server_tls: CheckedTls,
) -> None:
    limits = AdmissionLimits(head=2000, large_head=50_000, large_heads=1, known_head=100_000)
    large = b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + b"x" * 40_000 + b"\r\n\r\n"
    async with admission_port(server_tls, limits) as port:
        first, second, known = [await connect(port) for _ in range(3)]
        assert await say(known, KNOWN) == b"HTTP/1.1 200 OK"
        first[1].write(large[:30_000])
        while await say(again := await connect(port), large) != (
            refused := b"HTTP/1.1 431 Request Header Fields Too Large"
        ):
            leave(again)  # the first one's has not come yet
        assert await say(second, large) == refused
        assert await say(known, large.replace(b"Bearer", b"Bearer " + b"x" * 40_000)) == b"HTTP/1.1 200 OK"
        assert await say(first, large[30_000:]) == b"HTTP/1.1 200 OK"
        leave(first, second, known, again)


async def test_the_connection_of_a_client_that_is_refused_is_closed(server_tls: CheckedTls) -> None:
    """Every attempt takes a handshake, of which there are so many a second; requests sent in advance get no answer."""
    async with admission_port(server_tls, AdmissionLimits()) as port:
        reader, writer = ends = await connect(port)
        writer.write(ASK * 100)
        answers = await reader.read()
        assert answers.count(b"HTTP/1.1 200 OK") == answers.count(b"Connection: close") == 1
        known = await connect(port)
        known[1].write(KNOWN + ASK * 100)
        for _ in range(101):
            assert await say(known, b"") == b"HTTP/1.1 200 OK"
        leave(ends, known)


async def test_a_connection_outlives_the_certificate_that_it_began_with(tmp_path: Path) -> None:
    files, clock = TlsFiles(str(tmp_path / "crt"), str(tmp_path / "key")), ManualClock()

    async def issue(name: str) -> str:
        made = await make_self_signed(name, (name,), ("127.0.0.1",))
        Path(files.key).write_text(made.key)
        Path(files.certificate).write_text(made.certificate)
        return made.certificate

    first = await issue("first")
    tls = ServerTls(files, TlsRules(), clock)
    async with admission_port(tls.context, AdmissionLimits()) as port:
        old = await connect(port)
        assert await say(old, KNOWN) == b"HTTP/1.1 200 OK"
        second = await issue("second")
        clock.advance(2)
        new = await connect(port)
        assert await say(old, ASK) == await say(new, ASK) == b"HTTP/1.1 200 OK"
        shown = [ssl.DER_cert_to_PEM_cert(w.get_extra_info("ssl_object").getpeercert(True)) for _, w in (old, new)]
        assert shown == [first, second]
        leave(old, new)


async def test_connections_are_looked_after(server_tls: CheckedTls) -> None:
    with open_port("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()) as client:
        client.sendall(b"\x16")
        end, _ = listening.accept()
        with end:
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1

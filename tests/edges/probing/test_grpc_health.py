"""The gRPC probe against real servers on loopback."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import grpc
import pytest

from pykubelet.edges.probing.grpc_health import PROBE_LIMITS, probe_grpc
from pykubelet.edges.probing.outcome import Outcome, ProbeVerdict
from pykubelet.edges.probing.transport import ConnectionTransport
from pykubelet.net.grpc.channel import Session
from pykubelet.net.grpc.hpack import literal
from pykubelet.net.grpc.http2 import END_HEADERS, END_STREAM, FRAME_BYTES, PREFACE, Kind, frame
from pykubelet.net.grpc.status import framed

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Answer = Callable[[bytes, Context], Awaitable[bytes]]


@asynccontextmanager
async def health_server(answer: Answer | None, tls: grpc.ServerCredentials | None = None) -> AsyncIterator[int]:
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    if answer is not None:
        handlers = {"Check": grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", handlers),))
    port = server.add_secure_port("127.0.0.1:0", tls) if tls else server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(grace=None)


async def ask(answer: Answer | None, service: str = "", timeout_s: float = 30.0) -> tuple[Outcome, int]:
    async with health_server(answer) as port:
        return await probe_grpc("127.0.0.1", port, service, timeout_s), port


async def test_a_probe_leaves_nothing_that_only_a_garbage_collection_frees() -> None:
    async def answer(_: bytes, __: Context) -> bytes:
        return b"\x08\x01"

    def left() -> list[object]:
        return [found for found in gc.get_objects() if isinstance(found, (ConnectionTransport, Session))]

    async with health_server(answer) as port:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                assert (await probe_grpc("127.0.0.1", port, "", 30.0)).verdict is ProbeVerdict.SUCCESS
            async with asyncio.timeout(30):
                while left():  # noqa: ASYNC110 - the end of a connection has no event
                    await asyncio.sleep(0)
        finally:
            gc.enable()


@pytest.mark.parametrize("service", ["", "db", "x" * 300])
async def test_a_serving_service_passes(service: str) -> None:
    seen: list[tuple[bytes, str]] = []

    async def answer(request: bytes, context: Context) -> bytes:
        agent = dict(context.invocation_metadata() or ())["user-agent"]
        seen.append((request, str(agent)))
        return b"\x08\x01"

    outcome, _ = await ask(answer, service)
    assert outcome.verdict is ProbeVerdict.SUCCESS
    size = {0: b"", 2: b"\x0a\x02", 300: b"\x0a\xac\x02"}[len(service)]
    assert seen[0][0] == size + service.encode()
    assert seen[0][1].startswith("kube-probe/1.37")


@pytest.mark.parametrize(
    ("reply", "name"),
    [(b"\x08\x02", "NOT_SERVING"), (b"", "UNKNOWN"), (b"\x08\x03", "SERVICE_UNKNOWN"), (b"\x08\x09", "9")],
)
async def test_what_is_not_serving_fails(reply: bytes, name: str) -> None:
    async def answer(_request: bytes, _context: Context) -> bytes:
        return reply

    outcome, _ = await ask(answer)
    assert outcome.verdict is ProbeVerdict.FAILURE
    assert outcome.output == f'service unhealthy (responded with "{name}")'


async def test_a_server_without_the_protocol_fails() -> None:
    outcome, _ = await ask(None)
    assert outcome.verdict is ProbeVerdict.FAILURE
    expected = "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): "
    assert outcome.output.startswith(expected)


async def test_an_answer_that_takes_too_long_fails() -> None:
    async def answer(_request: bytes, _context: Context) -> bytes:
        await asyncio.get_running_loop().create_future()
        return b""

    outcome, _ = await ask(answer, timeout_s=2.0)
    assert outcome.output == "timeout: health rpc did not complete within 2s"


async def test_an_unknown_service_fails_with_the_status() -> None:
    async def answer(_request: bytes, context: Context) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")

    outcome, _ = await ask(answer)
    assert outcome.output == "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service"


async def test_a_server_that_does_not_listen() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        outcome = await probe_grpc("127.0.0.1", port, "", 0.3)
    assert outcome.verdict is ProbeVerdict.FAILURE
    address = f"127.0.0.1:{port}"
    assert outcome.output == (f'timeout: failed to connect service "{address}" within 300ms: context deadline exceeded')


async def test_since_1_38_a_refused_connection_fails_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        async with asyncio.timeout(60):
            outcome = await probe_grpc("127.0.0.1", port, "", 3600.0, redials=False)
    assert outcome.verdict is ProbeVerdict.FAILURE
    dialing = f"transport: Error while dialing: dial tcp 127.0.0.1:{port}: connect: connection refused"
    unavailable = f'rpc error: code = Unavailable desc = connection error: desc = "{dialing}"'
    assert outcome.output == f"error: health rpc probe failed: {unavailable}"


async def test_since_1_38_a_server_that_never_answers_has_one_text() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        outcome = await probe_grpc("127.0.0.1", silent.getsockname()[1], "", 0.2, redials=False)
    assert outcome.output == "timeout: health rpc did not complete within 200ms"


async def test_a_server_that_does_not_speak_grpc_fails() -> None:
    async def rubbish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(rubbish, "127.0.0.1", 0)
    async with server:
        outcome = await probe_grpc("127.0.0.1", server.sockets[0].getsockname()[1], "", 0.5)
    assert outcome.verdict is ProbeVerdict.FAILURE
    assert "error" in outcome.output or "timeout" in outcome.output


async def test_other_fields_are_passed_over() -> None:
    async def answer(_request: bytes, _context: Context) -> bytes:
        return b"\x12\x03abc\x08\x01\x1d1234\x21" + b"8" * 8

    assert (await ask(answer))[0].verdict is ProbeVerdict.SUCCESS


@pytest.mark.parametrize("message", [b"\x08", b"\x08\x80", b"\x12\x05a", b"\x0b"])
async def test_an_answer_that_is_no_such_message_fails_the_probe(message: bytes) -> None:
    async def answer(_request: bytes, _context: Context) -> bytes:
        return message

    outcome, _ = await ask(answer)
    assert outcome.verdict is ProbeVerdict.FAILURE
    assert outcome.output == (
        "error: health rpc probe failed: rpc error: code = Internal desc = "
        "grpc: failed to unmarshal the received message"
    )


# Servers that mean harm


async def ask_hostile(answer: bytes, *, again_and_again: bool = False, service: str = "") -> Outcome:
    """Probe a server that sends these frames when it has been asked, once or without end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(len(PREFACE))
            while (head := await reader.readexactly(9))[3] != Kind.DATA:
                await reader.readexactly(int.from_bytes(head[:3], "big"))
            writer.write(answer)
            while again_and_again:
                writer.write(answer)
                await writer.drain()
            await writer.drain()
            await reader.read()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        return await probe_grpc("127.0.0.1", server.sockets[0].getsockname()[1], service, 60.0)


def headers_frames(block: bytes, flags: int = 0) -> bytes:
    """A header block in as many frames as it needs."""
    parts = [block[at : at + FRAME_BYTES] for at in range(0, len(block), FRAME_BYTES)]
    kinds = [Kind.HEADERS, *[Kind.CONTINUATION] * (len(parts) - 1)]
    last = [0] * (len(parts) - 1) + [END_HEADERS]
    first = [flags] + [0] * (len(parts) - 1)
    return b"".join(frame(kind, a | b, 1, part) for kind, a, b, part in zip(kinds, last, first, parts, strict=True))


HELLO = frame(Kind.SETTINGS, 0, 0)
OK = literal(":status", "200") + literal("content-type", "application/grpc")
SERVING = HELLO + headers_frames(OK) + frame(Kind.DATA, 0, 1, framed(b"\x08\x01"))
DONE = headers_frames(literal("grpc-status", "0"), END_STREAM)
#: A header field whose value is 1 MiB of the Huffman codes that are longest.
HUFFMAN_BOMB = b"\x00\x01a\xff\x81\xff\x3f" + bytes.fromhex("fffffff3fffffff3fffffff3") * (1 << 16)


async def test_a_server_that_keeps_to_the_rules_passes() -> None:
    assert (await ask_hostile(SERVING + DONE)).verdict is ProbeVerdict.SUCCESS


@pytest.mark.parametrize(
    ("answer", "again_and_again", "problem"),
    [
        (HELLO + headers_frames(OK + HUFFMAN_BOMB), False, "response headers larger than 8192 bytes"),
        (SERVING + headers_frames(HUFFMAN_BOMB, END_STREAM), False, "response headers larger than 8192 bytes"),
        (SERVING + headers_frames(b"\x82" * 8000, END_STREAM), False, "response headers larger than 8192 bytes"),
        (SERVING + frame(Kind.HEADERS, 0, 1) + frame(Kind.CONTINUATION, 0, 1) * 1000, False, "response headers larger"),
        (HELLO, True, "the server has sent more than 500 frames"),
        (frame(Kind.PING, 0, 0, b"12345678"), True, "the server has sent more than 500 frames"),
        (HELLO + frame(Kind.SETTINGS, 0, 0, b"\0\x04\0\0\xff\xff" * 2000), False, "more than 32 settings in a frame"),
    ],
)
async def test_a_server_that_sends_too_much_fails_the_probe(answer: bytes, again_and_again: bool, problem: str) -> None:
    outcome = await ask_hostile(answer, again_and_again=again_and_again)
    assert outcome.verdict is ProbeVerdict.FAILURE
    words = (
        "error: health rpc probe failed: rpc error: code = ResourceExhausted desc = connection error: ENHANCE_YOUR_CALM"
    )
    assert outcome.output.startswith(f"{words}: {problem}")


async def test_a_health_answer_that_is_too_large_fails_the_probe() -> None:
    outcome = await ask_hostile(
        HELLO + headers_frames(OK) + frame(Kind.DATA, 0, 1, b"\0" + (16 << 20).to_bytes(4, "big"))
    )
    assert outcome.verdict is ProbeVerdict.FAILURE
    assert outcome.output.endswith(f"grpc: received message larger than max ({16 << 20} vs. {PROBE_LIMITS.message})")


async def test_a_server_that_never_reads_leaves_no_connection_open() -> None:
    """The request does not fit into the connection's windows and the system's buffers."""
    taken: list[socket.socket] = []

    async def accept(listener: socket.socket) -> None:
        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        taken.append(connection)

    before = set(os.listdir("/proc/self/fd"))
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        outcome, _ = await asyncio.gather(
            probe_grpc("127.0.0.1", listener.getsockname()[1], "x" * (8 << 20), 1.0), accept(listener)
        )
        assert outcome.verdict is ProbeVerdict.FAILURE
        async with asyncio.timeout(60):
            while len(set(os.listdir("/proc/self/fd")) - before) > 2:  # noqa: ASYNC110 - two are this test's own
                await asyncio.sleep(0.05)
        taken.pop().close()


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> grpc.ServerCredentials:
    """Of another name than the server's address, and from no authority."""
    folder: Path = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subject = ["-subj", "/CN=other.example", "-days", "1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command, *subject], check=True, capture_output=True)
    return grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])


async def serving(_: bytes, context: Context) -> bytes:
    return b"\x08\x01"


async def test_tls_passes_with_any_certificate(certificate: grpc.ServerCredentials) -> None:
    async with health_server(serving, certificate) as port:
        outcome = await probe_grpc("127.0.0.1", port, "", 30.0, is_tls=True)
    assert outcome == Outcome(ProbeVerdict.SUCCESS, "service healthy")


@pytest.mark.parametrize("server_has_tls", [False, True])
async def test_tls_on_one_side_alone_fails(certificate: grpc.ServerCredentials, server_has_tls: bool) -> None:
    async with health_server(serving, certificate if server_has_tls else None) as port:
        outcome = await probe_grpc("127.0.0.1", port, "", 0.4, is_tls=not server_has_tls)
    assert outcome.verdict is ProbeVerdict.FAILURE
    if not server_has_tls:
        assert outcome.output.startswith(f'timeout: failed to connect service "127.0.0.1:{port}" within 400ms')


async def test_a_server_that_never_ends_the_handshake_is_left_at_the_deadline() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    before = len(os.listdir("/proc/self/fd"))
    with listener:
        outcome = await probe_grpc("127.0.0.1", listener.getsockname()[1], "", 0.2, is_tls=True)
        await asyncio.sleep(0)
    assert outcome.verdict is ProbeVerdict.FAILURE and outcome.late_s < 10
    assert len(os.listdir("/proc/self/fd")) <= before - 1

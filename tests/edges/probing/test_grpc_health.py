"""The gRPC probe against real servers on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import pytest

from pykubelet.edges.probing.grpc_health import decode_status, encode_request, probe_grpc
from pykubelet.edges.probing.outcome import Outcome, Verdict

Answer = Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]]


@asynccontextmanager
async def health_server(answer: Answer | None) -> AsyncIterator[int]:
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    if answer is not None:
        handlers = {"Check": grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(grace=None)


async def ask(answer: Answer | None, service: str = "", timeout_s: float = 30.0) -> tuple[Outcome, int]:
    async with health_server(answer) as port:
        return await probe_grpc("127.0.0.1", port, service, timeout_s), port


@pytest.mark.parametrize("service", ["", "db", "x" * 300])
async def test_a_serving_service_passes(service: str) -> None:
    seen: list[tuple[bytes, str]] = []

    async def answer(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        agent = dict(context.invocation_metadata() or ())["user-agent"]
        seen.append((request, str(agent)))
        return b"\x08\x01"

    outcome, _ = await ask(answer, service)
    assert outcome.verdict is Verdict.SUCCESS
    assert seen[0][0] == encode_request(service)
    assert seen[0][0].endswith(service.encode())
    assert seen[0][1].startswith("kube-probe/1.36")


@pytest.mark.parametrize(
    ("reply", "name"), [(b"\x08\x02", "NOT_SERVING"), (b"", "UNKNOWN"), (b"\x08\x03", "SERVICE_UNKNOWN")]
)
async def test_what_is_not_serving_fails(reply: bytes, name: str) -> None:
    async def answer(_request: bytes, _context: grpc.aio.ServicerContext) -> bytes:
        return reply

    outcome, _ = await ask(answer)
    assert outcome.verdict is Verdict.FAILURE
    assert outcome.output == f'service unhealthy (responded with "{name}")'


async def test_a_server_without_the_protocol_fails() -> None:
    outcome, _ = await ask(None)
    assert outcome.verdict is Verdict.FAILURE
    told = "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): "
    assert outcome.output.startswith(told)


async def test_an_answer_that_takes_too_long_fails() -> None:
    async def answer(_request: bytes, _context: grpc.aio.ServicerContext) -> bytes:
        await asyncio.sleep(30)
        return b""

    outcome, _ = await ask(answer, timeout_s=2.0)
    assert outcome.output == "timeout: health rpc did not complete within 2s"


async def test_an_unknown_service_fails_with_the_status() -> None:
    async def answer(_request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return b""

    outcome, _ = await ask(answer)
    assert outcome.output == "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service"


async def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        outcome = await probe_grpc("127.0.0.1", port, "", 0.3)
    assert outcome.verdict is Verdict.FAILURE
    address = f"127.0.0.1:{port}"
    assert outcome.output == (f'timeout: failed to connect service "{address}" within 300ms: context deadline exceeded')


async def test_a_server_that_does_not_speak_grpc_fails() -> None:
    async def rubbish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(rubbish, "127.0.0.1", 0)
    async with server:
        outcome = await probe_grpc("127.0.0.1", server.sockets[0].getsockname()[1], "", 0.5)
    assert outcome.verdict is Verdict.FAILURE
    assert "error" in outcome.output or "timeout" in outcome.output


def test_other_fields_are_passed_over() -> None:
    assert decode_status(b"\x12\x03abc\x08\x01\x1d1234\x21" + b"8" * 8) == 1


@pytest.mark.parametrize("message", [b"\x08", b"\x08\x80", b"\x12\x05a", b"\x0b"])
def test_a_broken_answer_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError):
        decode_status(message)


async def test_a_broken_answer_fails_the_probe() -> None:
    async def answer(_request: bytes, _context: grpc.aio.ServicerContext) -> bytes:
        return b"\x08"

    outcome, _ = await ask(answer)
    assert outcome.verdict is Verdict.FAILURE
    assert outcome.output.startswith("error: health rpc probe failed: rpc error: code = Internal")

"""Servers of many probes that answer at the same moment: in one iteration of the event loop, a few of the answers are processed."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

import pytest
from edges.probing.test_http import self_signed
from hostile.test_grpc_answers import GOOD

from pykubelet.edges.probing.connection import READS_AT_ONCE, TLS_READS_AT_ONCE, Connector
from pykubelet.edges.probing.grpc_health import probe_grpc
from pykubelet.edges.probing.http import HttpProber
from pykubelet.edges.probing.http_target import HttpTarget
from pykubelet.edges.probing.outcome import Outcome, ProbeVerdict
from pykubelet.net.grpc.channel import Session
from pykubelet.net.http.checked_tls import CheckedTls
from pykubelet.net.http.tolerant import AnswerReader

__all__ = ["self_signed"]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
PROBES = 3 * READS_AT_ONCE


class Pieces:
    """Counts the calls of a method by the iteration of the event loop in which they are made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cls: type, name: str) -> None:
        self._iteration = 0
        self.by_iteration: Counter[int] = Counter()
        method = getattr(cls, name)

        def counted(*args: object) -> object:
            if not getattr(args[0], "server_side", False):
                self.by_iteration[self._iteration] += 1
            return method(*args)

        monkeypatch.setattr(cls, name, counted)
        self._count()

    def _count(self) -> None:
        self._iteration += 1
        asyncio.get_running_loop().call_soon(self._count)


@contextmanager
def listening(count: int = PROBES) -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=count) as listener:
        listener.setblocking(False)
        yield listener


async def all_answered(listener: socket.socket, answer: bytes, probes: list[Awaitable[Outcome]]) -> list[Outcome]:
    """The outcomes of probes whose server answers when it has got all requests."""
    loop, clients = asyncio.get_running_loop(), list[socket.socket]()
    outcomes = asyncio.gather(*probes)
    for _ in probes:
        client, _ = await loop.sock_accept(listener)
        clients.append(client)
    for client in clients:
        await loop.sock_recv(client, 65536)
    for client in clients:
        client.send(answer)
    found = await outcomes
    for client in clients:
        client.close()
    return found


async def test_answers_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, prober = Pieces(monkeypatch, AnswerReader, "feed"), HttpProber()
    with listening() as listener:
        target = HttpTarget("http", *listener.getsockname())
        found = await all_answered(listener, OK, [prober.probe(target, 60) for _ in range(PROBES)])
    assert {outcome.output for outcome in found} == {"ok"}
    assert max(pieces.by_iteration.values()) == READS_AT_ONCE


async def test_answers_over_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, connector = Pieces(monkeypatch, Session, "data_received"), Connector()
    with listening() as listener:
        host, port = listener.getsockname()
        probes = [probe_grpc(host, port, "", 60, connector=connector) for _ in range(PROBES)]
        found = await all_answered(listener, GOOD, list(probes))
    assert {outcome.verdict for outcome in found} == {ProbeVerdict.SUCCESS}
    assert max(pieces.by_iteration.values()) == READS_AT_ONCE


async def test_handshakes_and_answers_over_grpc_with_tls(
    self_signed: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share their limits with HTTPS."""
    self_signed.set_alpn_protocols(["h2"])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.read(65536)).startswith(b"GET"):
            writer.write(OK)
        else:
            writer.write(GOOD)
        await reader.read()
        writer.close()

    steps = Pieces(monkeypatch, CheckedTls.sslobject_class, "do_handshake")
    answers = Pieces(monkeypatch, Session, "data_received")
    connector = Connector()
    prober = HttpProber(connector=connector)
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=self_signed) as server:
        host, port = server.sockets[0].getsockname()
        by_grpc = [probe_grpc(host, port, "", 60, is_tls=True, connector=connector) for _ in range(16)]
        by_http = [prober.probe(HttpTarget("https", host, port), 60) for _ in range(16)]
        found = await asyncio.gather(*by_grpc, *by_http)
    assert {outcome.output for outcome in found} == {"service healthy", "ok"}
    assert set(steps.by_iteration.values()) == {1}
    assert max(answers.by_iteration.values()) <= TLS_READS_AT_ONCE

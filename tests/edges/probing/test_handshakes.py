"""Handshakes of HTTPS probes, whose servers decide when they go on, and may choose the same moment for all."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from edges.probing.test_http import Server, ok, self_signed

from pykubelet.edges.probing.http import HANDSHAKES_OF_HOST, HttpProber
from pykubelet.edges.probing.http_target import HttpTarget
from pykubelet.edges.probing.outcome import Outcome
from pykubelet.net.http.checked_tls import CheckedTls

__all__ = ["self_signed"]


async def test_few_handshakes_are_under_way_with_a_host_at_a_time() -> None:
    """A pod's servers could all go on at the same moment. Other hosts do not wait for them."""
    hellos = asyncio.Semaphore(0)

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1):
            hellos.release()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(hang, ["127.0.0.1", "127.0.0.2"], 0) as listener:
        ports = {end.getsockname()[0]: end.getsockname()[1] for end in listener.sockets}
        prober = HttpProber()

        def probe(host: str, timeout_s: float) -> Coroutine[Any, Any, Outcome]:
            return prober.probe(HttpTarget("https", host, ports[host]), timeout_s)

        async with asyncio.TaskGroup() as tasks:
            hung = [tasks.create_task(probe("127.0.0.1", 60)) for _ in range(HANDSHAKES_OF_HOST)]
            for _ in hung:
                await hellos.acquire()
            assert "context deadline exceeded" in (await probe("127.0.0.1", 0.1)).output
            assert hellos.locked(), "it has sent nothing"
            hung.append(tasks.create_task(probe("127.0.0.2", 60)))
            await hellos.acquire()
            hung[0].cancel()
            hung.append(tasks.create_task(probe("127.0.0.1", 60)))
            await hellos.acquire()
            for task in hung:
                task.cancel()


async def test_handshakes_of_many_probes_share_no_iteration_of_the_event_loop(
    self_signed: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, steps = asyncio.get_running_loop(), list[int]()
    iterations = 0

    def count() -> None:
        nonlocal iterations
        iterations += 1
        loop.call_soon(count)

    take_step: Callable[[ssl.SSLObject], None] = CheckedTls.sslobject_class.do_handshake  # type: ignore[assignment]

    def recorded(connection: ssl.SSLObject) -> None:
        if not connection.server_side:
            steps.append(iterations)
        take_step(connection)

    monkeypatch.setattr(CheckedTls.sslobject_class, "do_handshake", recorded)
    count()
    async with await asyncio.start_server(
        Server(ok(b"tls")).serve, [f"127.0.0.{n}" for n in range(1, 9)], 0, ssl=self_signed
    ) as listener:
        prober, places = HttpProber(), [end.getsockname() for end in listener.sockets]
        probes = (prober.probe(HttpTarget("https", host, port), 60) for host, port in places)
        outcomes = await asyncio.gather(*probes)
    assert {outcome.output for outcome in outcomes} == {"tls"}
    assert len(steps) == len(set(steps)) >= 2 * 8

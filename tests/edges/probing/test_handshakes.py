"""Handshakes of HTTPS probes. The servers decide when they go on, and may choose the same moment for all."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable

import pytest
from edges.probing.test_http import Server, ok, self_signed

from pykubelet.edges.probing.connection import WAITING_OF_HOST
from pykubelet.edges.probing.http import HttpProber
from pykubelet.edges.probing.http_target import HttpTarget
from pykubelet.net.http.checked_tls import CheckedTls

__all__ = ["self_signed"]


def hanging(hello: Callable[[str], None]) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """A server that does not answer. `hello` gets its address for each client that sends something."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            if await reader.read(1):
                hello(writer.get_extra_info("sockname")[0])
            await reader.read()

    return serve


async def test_servers_that_do_not_answer_hold_up_no_probe_of_their_host(self_signed: ssl.SSLContext) -> None:
    """Many pods may share the host: those in the host's network."""
    hellos = asyncio.Semaphore(0)
    async with (
        await asyncio.start_server(hanging(lambda _: hellos.release()), "127.0.0.1", 0) as silent,
        await asyncio.start_server(Server(ok(b"tls")).serve, "127.0.0.1", 0, ssl=self_signed) as answering,
    ):
        prober, ports = HttpProber(), [server.sockets[0].getsockname()[1] for server in (silent, answering)]
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            target = HttpTarget("https", "127.0.0.1", ports[0])
            hung = [tasks.create_task(prober.probe(target, 60)) for _ in range(4 * WAITING_OF_HOST)]
            for _ in hung:
                await hellos.acquire()
            outcome = await prober.probe(HttpTarget("https", "127.0.0.1", ports[1]), 60)
            for task in hung:
                task.cancel()
    assert outcome.output == "tls"


async def test_few_steps_with_one_host_wait_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod's servers could all go on at the same moment. Other hosts do not wait for them."""
    steps = list[ssl.SSLObject]()
    take_step: Callable[[ssl.SSLObject], None] = CheckedTls.sslobject_class.do_handshake  # type: ignore[assignment]

    def recorded(connection: ssl.SSLObject) -> None:
        steps.append(connection)
        take_step(connection)

    monkeypatch.setattr(CheckedTls.sslobject_class, "do_handshake", recorded)
    begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def hello(host: str) -> None:
        if host == "127.0.0.2":
            begun.set_result(len(steps))

    async with await asyncio.start_server(hanging(hello), ["127.0.0.1", "127.0.0.2"], 0) as listener:
        ports = {end.getsockname()[0]: end.getsockname()[1] for end in listener.sockets}
        prober, many = HttpProber(), 50 * WAITING_OF_HOST
        hosts = [*["127.0.0.1"] * many, "127.0.0.2"]
        async with asyncio.TaskGroup() as tasks:
            probes = [tasks.create_task(prober.probe(HttpTarget("https", host, ports[host]), 60)) for host in hosts]
            before = await begun
            for task in probes:
                task.cancel()
    assert before < many / 2


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

"""The TCP probe against real sockets."""

from __future__ import annotations

import asyncio
import socket

from pykubelet.edges.probing.outcome import ProbeVerdict
from pykubelet.edges.probing.tcp import probe_tcp


async def test_a_listener_passes_on_both_families() -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        async with await asyncio.start_server(lambda _r, w: w.close(), host, 0) as server:
            outcome = await probe_tcp(host, server.sockets[0].getsockname()[1], 30.0)
        assert outcome.verdict is ProbeVerdict.SUCCESS


async def test_a_closed_port_fails_with_the_reference_words() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        outcome = await probe_tcp("127.0.0.1", port, 30.0)
    assert outcome.verdict is ProbeVerdict.FAILURE
    assert outcome.output == f"dial tcp 127.0.0.1:{port}: connect: connection refused"


async def test_a_listener_with_a_full_queue_runs_out_of_time() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(address)
        outcome = await probe_tcp(address[0], address[1], 0.2)
        for client in waiting:
            client.close()
    assert outcome.verdict is ProbeVerdict.FAILURE
    assert outcome.output == f"dial tcp 127.0.0.1:{address[1]}: i/o timeout"
    assert outcome.late_s < 10


async def test_an_unknown_name_fails() -> None:
    outcome = await probe_tcp("no-such-host.invalid", 80, 5.0)
    assert outcome.verdict is ProbeVerdict.FAILURE
    assert outcome.output == "dial tcp: lookup no-such-host.invalid: no such host"


async def test_a_host_longer_than_any_name_is_not_looked_up() -> None:
    """One of 1.4 MB took 270 MB of memory for a moment."""
    outcome = await probe_tcp("a" * 1_000_000, 80, 5.0)
    assert not outcome.error and len(outcome.output) < 400
    assert outcome.output.endswith("a...: the name is longer than 255 characters")

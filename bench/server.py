"""The authenticated port: logs, exec, and what monitors ask for. One scenario, `server`.

The client is plain sockets with a client certificate, in a thread of the benchmark's own; it reads and counts, no more. The baseline of
an exec is the runtime's own ExecSync, and of a stream the runtime's own streaming server.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from testbed import images

from bench.agent import manifest, runtime_name
from bench.bare import bare_server
from bench.baseline import find_pod
from bench.runtime import BenchError
from bench.scenarios import Bench
from bench.stats import Spread, spread, without_idle
from bench.table import Figure
from pykubelet.edges.cri import cri_pb2 as pb

T = TypeVar("T")
MB, MIB = 1_000_000, 1 << 20
LOG_BYTES = 100 * MIB
STREAM_BYTES = 200 * MB
TALK = f"head -c {LOG_BYTES * 3 // 4} /dev/urandom | base64; sleep 100000"
IDLE = ["sleep", "100000"]
_CROWD = 50
#: containerd 1.6 stops answering when a hundred execs start at once, also without an agent in between.
_EXECS, _EXECS_AT_ONCE = 100, 10
_THREADS = ThreadPoolExecutor(_EXECS)  # asyncio's own has six threads here: no more would be at work at once
_REST_S = 0.03
#: The last lines of a log may take so many times as long as the same bytes from a server that finds out nothing for them.
_TIMES_BARE = 2.5


class Client:
    """Requests and streams over TLS to the agent's port."""

    def __init__(self, port: int, certificate: str, key: str) -> None:
        self._port = port
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE
        self._tls.load_cert_chain(certificate, key)

    def open(self) -> contextlib.closing[http.client.HTTPSConnection]:
        """A connection for one request, or for more."""
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=60, context=self._tls)
        return contextlib.closing(connection)

    def get(self, path: str) -> bytes:
        with self.open() as connection:
            return get(connection, path)

    def count(self, path: str) -> int:
        """The bytes of an answer, read as fast as they come."""
        with self.open() as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            size, buffer = 0, bytearray(MIB)
            while got := answer.readinto(buffer):
                size += got
            return size

    def exec(self, pod: str, container: str, command: list[str]) -> int:
        """Run a command; its output, with the frames."""
        words = "&".join(f"command={word}" for word in command)
        path = f"/exec/default/{pod}/{container}?{words}&output=1&error=1"
        with self._tls.wrap_socket(self._dial()) as connection:
            return stream(connection, path)

    def shake_hands(self) -> float:
        """A new connection; the milliseconds of CPU that its TLS takes on this side."""
        plain = self._dial()
        used = time.thread_time()
        with self._tls.wrap_socket(plain):
            return (time.thread_time() - used) * 1000

    def _dial(self) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self._port), timeout=60)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as Go's clients do
        return plain


def get(connection: http.client.HTTPSConnection, path: str) -> bytes:
    """The body of an answer. On a connection that is open already it costs no handshake."""
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise BenchError(f"{path}: {answer.status} {body[:200]!r}")
    return body


def stream(connection: socket.socket, path: str) -> int:
    """Upgrade to a WebSocket and read until the command's result; the bytes read. Raises BenchError unless it is Success."""
    key = base64.b64encode(os.urandom(16)).decode()
    lines = (
        f"GET {path} HTTP/1.1",
        "Host: node",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Protocol: v4.channel.k8s.io",
    )
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
    size, buffer, tail = 0, bytearray(MIB), b""
    while got := connection.recv_into(buffer):
        if not size and not buffer.startswith(b"HTTP/1.1 101 "):
            raise BenchError(f"{path}: no stream: {bytes(buffer[: min(got, 200)])!r}")
        size += got
        tail = (tail + bytes(buffer[max(0, got - 200) : got]))[-200:]
        if b'"status":"Success"' in tail:  # the last frame states how the command ended
            return size
    raise BenchError(f"{path}: the stream ends without success: {tail!r}")


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work)


async def timed(work: Callable[[], Awaitable[object]], times: int) -> list[float]:
    """Milliseconds of each."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - began) * 1000)
    return taken


def spread_of(value: float) -> Spread:
    return spread([value])


def with_command(name: str, command: list[str]) -> dict[str, object]:
    pod = manifest(name, terminationGracePeriodSeconds=1)
    pod["spec"]["containers"][0] |= {"image": images.BUSYBOX, "command": command}
    return pod


async def server(bench: Bench) -> None:
    """Logs of 100 MiB, exec, a stream of 200 MB, and scrapes with 50 pods."""
    client = Client(bench.agent.port, *bench.agent.client_certificate)
    before = len(bench.watch.starts)
    bench.agent.place([with_command("log", ["sh", "-c", TALK]), with_command("run", IDLE)])
    await bench.watch.wait_starts(before, 4, 60)
    await _logs(bench, client)
    await _exec(bench, client)
    await _stream(bench, client)
    await bench.remove_all(["log", "run"])
    await _scrapes(bench, client)


async def _logs(bench: Bench, client: Client) -> None:
    path = f"/containerLogs/default/{runtime_name('log')}/main"
    deadline = time.monotonic() + 120
    size, grown = await in_thread(lambda: client.count(path)), -1
    while size != grown or size < LOG_BYTES:
        if time.monotonic() > deadline:
            raise BenchError("the log of 100 MiB is not written within 120 s")
        await asyncio.sleep(2)
        size, grown = await in_thread(lambda: client.count(path)), size
    await bench.agent.wait_quiet()
    speeds, costs = [], []
    for _ in range(2 if bench.quick else 5):
        used, began = bench.agent.cpu_s(), time.perf_counter()
        size = await in_thread(lambda: client.count(path))
        passed = time.perf_counter() - began
        if size < LOG_BYTES:
            raise BenchError(f"a log of {LOG_BYTES} bytes brought {size}")
        await asyncio.sleep(0.3)
        speeds.append(size / MB / passed)
        costs.append((bench.agent.cpu_s() - used) * 100 * MIB / size)
    bench.figures.append(
        Figure("logs of 100 MiB", "MB/s", spread(speeds), None, 90.0, ">= 90 MB/s", "43 MB/s", at_least=True)
    )
    bench.figures.append(Figure("agent CPU for 100 MiB of log", "s", spread(costs), None, 0.6, "<= 0.6 s", "1.9 s"))
    await _last_lines(bench, client, f"{path}?tailLines=10")


async def _last_lines(bench: Bench, client: Client, last: str) -> None:
    certificate = bench.agent.client_certificate
    least: list[float] = []
    kept: list[float] = []
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(client.open())
        port = stack.enter_context(bare_server(Path(certificate[0]).parent, get(connection, last)))
        bare = stack.enter_context(Client(port, *certificate).open())
        get(bare, "/")
        for _ in range(50 if bench.quick else 300):
            least += await timed(lambda: in_thread(lambda: get(bare, "/")), 1)
            kept += await timed(lambda: in_thread(lambda: get(connection, last)), 1)
    same = spread(least)
    target = f"<= {_TIMES_BARE} x baseline (the same bytes)"
    limit = _TIMES_BARE * same.median
    bench.figures.append(Figure("last 10 lines of it", "ms", spread(kept), same, limit, target, "0.8 ms"))
    new = await timed(lambda: in_thread(lambda: client.get(last)), 30)
    bench.figures.append(Figure("last 10 lines on a new TLS connection", "ms", spread(new), None, None, "-", "-"))


async def _exec(bench: Bench, client: Client) -> None:
    name = runtime_name("run")
    _, container = await find_pod(bench.cri, name)
    idle = await bench.idle_rate()
    baseline: list[float] = []
    direct: list[float] = []
    through: list[float] = []
    ways: tuple[tuple[list[float], Callable[[], Awaitable[object]]], ...] = (
        (baseline, lambda: bench.cri.exec_sync(container, ["true"])),
        (direct, lambda: _exec_direct(bench, container, ["true"])),
        (through, lambda: in_thread(lambda: client.exec(name, "main", ["true"]))),
    )
    for _ in range(10 if bench.quick else 40):
        for taken, work in ways:
            taken += await timed(work, 1)
            await asyncio.sleep(_REST_S)  # what the runtime clears away afterwards belongs to neither figure
    least, whole = spread(baseline), spread(through)
    bench.figures.append(
        Figure("exec round trip", "ms", whole, least, least.median + 8, "<= baseline (ExecSync) + 8 ms", "+ 6 ms")
    )
    stream_baseline = "exec round trip, against the runtime's own stream"
    bench.figures.append(Figure(stream_baseline, "ms", whole, spread(direct), None, "-", "-"))
    costs = [await _exec_cost(bench, client, name, idle) for _ in range(1 if bench.quick else 4)]
    bench.figures.append(Figure("agent CPU per exec", "ms", spread(costs), None, 6.0, "<= 6 ms", "4.2 ms"))
    own = [await in_thread(client.shake_hands) for _ in range(20)]
    bench.figures.append(Figure("the client's own TLS in it, CPU", "ms", spread(own), None, None, "-", "-"))
    memory = bench.agent.tree_rss_mib()
    for _ in range(0, _EXECS, _EXECS_AT_ONCE):
        execs = (in_thread(lambda: client.exec(name, "main", ["true"])) for _ in range(_EXECS_AT_ONCE))
        await asyncio.gather(*execs)
    await asyncio.sleep(2)
    grown = bench.agent.tree_rss_mib() - memory
    bench.figures.append(
        Figure(
            f"RSS kept after {_EXECS} execs, {_EXECS_AT_ONCE} at once",
            "MiB",
            spread_of(grown),
            None,
            10.0,
            "<= 10 MiB",
            "-",
        )
    )


async def _exec_cost(bench: Bench, client: Client, pod: str, idle: float) -> float:
    """Milliseconds of the agent's CPU for one exec, of ten in a row and what they leave to do. `idle`: CPU s per second."""
    await bench.agent.wait_quiet()
    used, began = bench.agent.cpu_s(), time.monotonic()
    for _ in range(10):
        await in_thread(lambda: client.exec(pod, "main", ["true"]))
    await asyncio.sleep(_REST_S)
    return without_idle(bench.agent.cpu_s() - used, time.monotonic() - began, idle) * 100


async def _exec_direct(bench: Bench, container: str, command: list[str]) -> int:
    """The same with no agent between: from the call for a URL to the result on the runtime's own stream."""
    asked = pb.ExecRequest(container_id=container, cmd=command, stdout=True, stderr=True)
    url = urlsplit(await bench.cri.exec_url(asked))

    def read() -> int:
        with socket.create_connection((url.hostname or "", url.port or 80), timeout=60) as connection:
            return stream(connection, url.path)

    return await in_thread(read)


async def _stream(bench: Bench, client: Client) -> None:
    name = runtime_name("run")
    _, container = await find_pod(bench.cri, name)
    command = ["head", "-c", str(STREAM_BYTES), "/dev/zero"]
    direct: list[float] = []
    through: list[float] = []
    ways: tuple[tuple[list[float], Callable[[], Awaitable[int]]], ...] = (
        (direct, lambda: _exec_direct(bench, container, command)),
        (through, lambda: in_thread(lambda: client.exec(name, "main", command))),
    )
    for _ in range(2 if bench.quick else 4):
        for taken, work in ways:
            began = time.perf_counter()
            size = await work()
            if size < STREAM_BYTES:
                raise BenchError(f"a stream of {STREAM_BYTES} bytes brought {size}")
            taken.append(size / MB / (time.perf_counter() - began))
    baseline = spread(direct)
    limit = 0.8 * baseline.median
    figure = Figure(
        "200 MB through exec", "MB/s", spread(through), baseline, limit, ">= 0.8 x the runtime's", "-", at_least=True
    )
    bench.figures.append(figure)


async def _scrapes(bench: Bench, client: Client) -> None:
    names = [f"scraped-{n}" for n in range(_CROWD)]
    before = len(bench.watch.starts)
    bench.agent.place([manifest(name) for name in names])
    await bench.watch.wait_starts(before, 2 * _CROWD, 120)
    await bench.agent.wait_quiet()
    for path, what in (("/metrics/cadvisor", "/metrics/cadvisor"), ("/stats/summary", "/stats/summary")):
        client.get(path)
        taken, costs = [], []
        for _ in range(3 if bench.quick else 8):
            await asyncio.sleep(1.2)
            used, began = bench.agent.cpu_s(), time.perf_counter()
            await in_thread(lambda path=path: client.get(path))  # type: ignore[misc]
            taken.append((time.perf_counter() - began) * 1000)
            costs.append((bench.agent.cpu_s() - used) * 1000)
        bench.figures.append(Figure(f"{what} with {_CROWD} pods", "ms", spread(taken), None, None, "-", "-"))
        bench.figures.append(Figure(f"its CPU, {what}", "ms", spread(costs), None, None, "-", "-"))
    await bench.remove_all(names)

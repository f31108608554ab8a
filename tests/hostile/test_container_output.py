"""What containers, runtimes and registries say: log lines, messages of errors, exec streams, and trees of files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hostile.servers import mutated
from net.websocket.bytes_of import data, masked, reply
from serve.streaming.test_relay import RESULT, STDIN, STDOUT, SUCCESS, Pair
from support.cost import check_cost

from pykubelet.base.kit.cells import Cell, CellWriter, Mailbox
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.kube_events import KubeEvent, Recent, warning
from pykubelet.edges.cri.log_reader import LogReader
from pykubelet.edges.cri.log_render import LogOptions
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.trees import read_disk_usage
from pykubelet.report.events.loop import EventsLoop

STAMP = b"2026-01-02T03:04:05.123456789Z"
LINE = STAMP + b" stdout F hello\n"

LOGS: dict[str, bytes] = {
    "a line of 16 MiB": STAMP + b" stdout F " + b"x" * (16 << 20),
    "200,000 empty lines": (STAMP + b" stdout F \n") * 200_000,
    "200,000 line ends": b"\n" * 200_000,
    "parts of one line without end": (STAMP + b" stdout P part\n") * 300_000,
    "no time stamps": b"hello\n" * 200_000,
    "time stamps of many digits": (b"2" * 5000 + b"-01-02T03:04:05Z stdout F x\n") * 1000,
    "odd tags": (STAMP + b" stdout " + b"F:" * 2000 + b" x\n") * 1000,
    "Docker's JSON, broken": (b'{"log":"' + b"\xff\\u00" * 50 + b'","stream":"stdout","time":"x"}\n') * 5000,
    "NUL": b"\0" * (12 << 20),
}


async def read_log(path: Path, options: LogOptions) -> int:
    reader, size = LogReader(SingleFlight("test")), 0
    try:
        async for text in reader.read(str(path), options, lambda: True, asyncio.Event()):
            size += len(text)
    except HostError:
        return -1
    return size


@pytest.mark.parametrize("options", [LogOptions(), LogOptions(tail_lines=1000, timestamps=True)], ids=["all", "tail"])
@pytest.mark.parametrize("name", LOGS)
def test_no_log_costs_much(tmp_path: Path, name: str, options: LogOptions) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(LOGS[name])
    check_cost(name, lambda: read_log(path, options))


def test_mutated_logs_cost_no_more(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"".join(mutated(seed, LINE * 3) for seed in range(5000)))
    check_cost("mutated lines", lambda: read_log(path, LogOptions()))


async def events(count: int, size: int) -> None:
    """Messages of runtimes, registries, probes and hooks end as Events; these differ from each other and are large."""
    posts: Mailbox[KubeEvent] = Mailbox("events")
    cell: Cell[Recent] = Cell("recent", Recent({}, ()))
    ref = PodRef("default", "web", PodUID("u"))
    async with Supervisor("test") as tasks:
        task = tasks.start_root("events", EventsLoop(posts, CellWriter(cell), SystemClock()).run())
        for number in range(count):
            posts.post(warning("Failed", f"{number}: " + "\x1b" * size, ref))
            if number % 8 == 0:
                await asyncio.sleep(0.03)
        await asyncio.sleep(0.1)
        task.cancel()
        KEPT.append((cell, task))


KEPT: list[object] = []


def test_large_messages_cost_little() -> None:
    check_cost("64 messages of a mebibyte", lambda: events(64, 1 << 20))
    KEPT.clear()


FROM_CLIENTS: dict[str, bytes] = {
    "frames of two bytes": masked(2, b"\0x") * 30_000,
    "frames of nothing": masked(2, b"") * 30_000,
    "pings": masked(9, b"x" * 125) * 5_000,
    "parts of one message": masked(2, b"\0x", final=False) + masked(0, b"x", final=False) * 30_000,
    "a frame of 4 MiB": b"\x82\xff" + (4 << 20).to_bytes(8, "big") + bytes(4) + b"\0" + b"x" * ((4 << 20) - 1),
    "a frame of 2 ** 62 bytes": b"\x82\xff" + (1 << 62).to_bytes(8, "big") + b"mask" + b"x" * 100_000,
    "channels that are not there": masked(2, b"\x77x") * 30_000,
    "a resize of many digits": masked(2, b'\4{"Width":' + b"9" * 60_000 + b',"Height":1}'),
    "rubbish": b"\xff\x00" * 100_000,
}
FROM_RUNTIMES: dict[str, bytes] = {
    "frames of one byte": data(STDOUT, b"x") * 30_000,
    "frames of nothing": data(STDOUT, b"") * 30_000,
    "streams that are not there": data(99, b"x") * 30_000,
    "a result of a mebibyte": data(RESULT, b'{"status":"' + b"\xff" * (1 << 20) + b'"}', last=True),
    "rubbish": b"\xff\x00" * 100_000,
}


async def streamed(from_client: bytes, from_runtime: bytes) -> None:
    pair = Pair(idle_s=0.5)
    pair.runtime.reader.feed_data(reply(RESULT, STDIN, STDOUT) + from_runtime)
    pair.client.reader.feed_data(from_client)
    task = asyncio.ensure_future(pair.work)
    await asyncio.sleep(0.1)
    pair.runtime.reader.feed_data(SUCCESS)
    pair.client.reader.feed_eof()
    pair.runtime.reader.feed_eof()
    async with asyncio.timeout(60):
        await task
    pair.client.close()
    pair.runtime.close()


@pytest.mark.parametrize("name", FROM_CLIENTS)
def test_no_frames_of_an_exec_client_cost_much(name: str) -> None:
    check_cost(name, lambda: streamed(FROM_CLIENTS[name], b""))


@pytest.mark.parametrize("name", FROM_RUNTIMES)
def test_no_frames_of_a_runtime_cost_much(name: str) -> None:
    check_cost(name, lambda: streamed(b"", FROM_RUNTIMES[name]))


def deep(root: Path) -> None:
    here = os.open(root, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def wide(root: Path) -> None:
    for number in range(20_000):
        (root / f"f{number}").touch()


def linked(root: Path) -> None:
    for number in range(5_000):
        (root / f"f{number}").touch()
        os.link(root / f"f{number}", root / f"g{number}")


def odd(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "loop").symlink_to("loop")
    (root / os.fsdecode(b"\xff\xfe\n")).touch()
    (root / "up").symlink_to("/")


@pytest.mark.parametrize("make", [deep, wide, linked, odd], ids=lambda make: make.__name__)
def test_no_tree_of_a_volume_costs_much(tmp_path: Path, make: object) -> None:
    root = tmp_path / "volume"
    root.mkdir()
    make(root)  # type: ignore[operator]

    async def walk() -> None:
        await SingleFlight("test").run("walk", lambda: read_disk_usage(str(root)), 60)

    try:
        check_cost("a tree", walk)
    finally:
        os.system(f"rm -rf {root}")

"""Short logs, which are read in one step: the text is the one that reading piece by piece gives."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.flight import Outcome, SingleFlight, Uncertain
from pykubelet.edges.cri.log_reader import LogReader
from pykubelet.edges.cri.log_render import LogOptions, LogStream
from pykubelet.edges.cri.log_short import SHORT, read_in_memory, read_short
from pykubelet.edges.cri.logs import parse_timestamp_ns
from pykubelet.edges.host.fs import libc
from pykubelet.edges.host.fs.errors import HostError

T = TypeVar("T")
STAMP = "2026-01-02T03:04:0%d.123456789Z"
LINES = st.lists(
    st.one_of(
        st.builds(
            "{} {} {} {}".format,
            st.sampled_from([STAMP % second for second in range(4)]),
            st.sampled_from(["stdout", "stderr"]),
            st.sampled_from("FFFP"),
            st.sampled_from(["", "one", "x" * 700]),
        ),
        st.sampled_from(['{"log":"json\\n","stream":"stdout","time":"2026-01-02T03:04:05Z"}', "", "no line"]),
    ),
    max_size=20,
)
OPTIONS = st.builds(
    LogOptions,
    timestamps=st.booleans(),
    tail_lines=st.none() | st.integers(0, 25),
    limit_bytes=st.none() | st.integers(1, 3000),
    since_ns=st.none() | st.just(parse_timestamp_ns((STAMP % 2).encode())),
    stream=st.sampled_from(LogStream),
)


class CountingFlight(SingleFlight):
    """Counts the pieces of work."""

    def __init__(self) -> None:
        super().__init__("test")
        self.calls = 0

    async def run(self, key: str, work: Callable[[], T], deadline_s: float) -> Outcome[T]:
        self.calls += 1
        return await super().run(key, work, deadline_s)


class HungFlight(SingleFlight):
    """The disk does not answer within the deadline."""

    async def run(self, key: str, work: Callable[[], T], deadline_s: float) -> Outcome[T]:
        return Uncertain(0.0)


async def piece_by_piece(path: Path, options: LogOptions) -> bytes:
    texts = LogReader(SingleFlight("test")).read(str(path), options, lambda: True, asyncio.Event())
    return b"".join([text async for text in texts])


@given(lines=LINES, options=OPTIONS, is_ended=st.booleans())
def test_the_text_is_that_of_the_pieces(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], options: LogOptions, *, is_ended: bool
) -> None:
    path = tmp_path_factory.mktemp("pod") / "0.log"
    path.write_text("\n".join(lines) + ("\n" if is_ended and lines else ""))
    text = asyncio.run(piece_by_piece(path, options))
    assert read_short(str(path), "", options) == text
    assert read_in_memory(str(path), options) in (text, None)


def numbered(count: int, width: int) -> bytes:
    return b"".join(b"2026-01-02T03:04:05.1Z stdout F %d %s\n" % (n, b"x" * width) for n in range(count))


@pytest.mark.parametrize("tail_lines", [1, 10, 11, 100, 300])
async def test_the_last_lines_of_a_long_log(tmp_path: Path, tail_lines: int) -> None:
    log = tmp_path / "0.log"
    log.write_bytes(numbered(3000, 370))  # a million bytes; ten lines are 4 KiB
    options = LogOptions(tail_lines=tail_lines)
    found = read_short(str(log), "", options)
    assert found is not None and found.startswith(b"%d xxx" % (3000 - tail_lines))
    assert found == await piece_by_piece(log, options)


@pytest.mark.parametrize("options", [LogOptions(), LogOptions(tail_lines=400), LogOptions(limit_bytes=5)])
def test_what_is_long_is_left_to_the_pieces(tmp_path: Path, options: LogOptions) -> None:
    log = tmp_path / "0.log"
    log.write_bytes(numbered(400, 370))
    assert log.stat().st_size > SHORT
    assert read_short(str(log), "", options) is None


def test_a_whole_log_of_the_greatest_length(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    head = b"2026-01-02T03:04:05.1Z stdout F "
    log.write_bytes(head + b"x" * (SHORT - len(head)))
    for options in (LogOptions(), LogOptions(tail_lines=1)):
        assert read_short(str(log), "", options) == b"x" * (SHORT - len(head)) + b"\n"


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    before = os.listdir("/proc/self/fd")
    for content in (b"", numbered(3, 1), numbered(400, 370)):
        log.write_bytes(content)
        read_short(str(log), "", LogOptions())
    with pytest.raises(HostError, match="no such file"):
        read_short(str(tmp_path / "none.log"), "", LogOptions())
    assert os.listdir("/proc/self/fd") == before


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    """The path of a log on a file system of which the kernel knows what it has in memory."""
    log = tmp_path / "0.log"
    log.write_bytes(numbered(3000, 370))
    with log.open("rb") as opened:
        if libc.size_on_disk(opened.fileno()) is None:
            pytest.skip(f"{tmp_path} is on no disk")
    return log


def forget(log: Path) -> None:
    """Have the kernel drop what it has of the file in memory."""
    with log.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def test_the_last_lines_take_no_blocking_work(on_disk: Path) -> None:
    flight = CountingFlight()
    found = await LogReader(flight).read_short(str(on_disk), LogOptions(tail_lines=10))
    assert found == read_short(str(on_disk), "", LogOptions(tail_lines=10))
    assert flight.calls == 0


async def test_last_lines_that_are_not_in_memory_take_one_piece_of_blocking_work(on_disk: Path) -> None:
    forget(on_disk)
    flight = CountingFlight()
    assert await LogReader(flight).read_short(str(on_disk), LogOptions(tail_lines=10)) is not None
    assert flight.calls == 1


async def test_more_lines_than_are_near_the_end_take_one_piece_of_blocking_work(on_disk: Path) -> None:
    flight = CountingFlight()
    assert await LogReader(flight).read_short(str(on_disk), LogOptions(tail_lines=100)) is not None
    assert flight.calls == 1


async def test_a_whole_log_of_some_lines_takes_no_blocking_work(on_disk: Path) -> None:
    flight = CountingFlight()
    for content in (b"", numbered(3, 1)):
        on_disk.write_bytes(content)
        assert await LogReader(flight).read_short(str(on_disk), LogOptions()) == read_short(
            str(on_disk), "", LogOptions()
        )
    assert flight.calls == 0


async def test_what_is_no_log_is_not_read_from_memory(on_disk: Path) -> None:
    link, folder, fifo = (on_disk.with_name(name) for name in ("link", "folder", "fifo"))
    link.symlink_to(on_disk)
    folder.mkdir()
    os.mkfifo(fifo)
    for path in (link, folder, fifo, on_disk.with_name("none"), Path("/dev/null"), Path("/proc/self/status")):
        assert read_in_memory(str(path), LogOptions(tail_lines=1)) is None


def test_reading_from_memory_leaves_no_descriptor_open(on_disk: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for path in (on_disk, on_disk.with_name("none"), on_disk.parent):
        read_in_memory(str(path), LogOptions(tail_lines=10))
    forget(on_disk)
    read_in_memory(str(on_disk), LogOptions(tail_lines=10))
    assert os.listdir("/proc/self/fd") == before


async def test_a_disk_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="the disk does not answer"):
        await LogReader(HungFlight("test")).read_short(str(tmp_path / "0.log"), LogOptions())

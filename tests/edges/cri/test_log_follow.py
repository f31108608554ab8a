"""Following container logs over rotations, by inotify and by looking: real files."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest
from edges.cri.sample_log import FIRST, LOG, SECOND

from pykubelet.base.kit.flight import SingleFlight
from pykubelet.edges.cri import log_reader, log_segments
from pykubelet.edges.cri.log_reader import MOST_WATCHED, LogReader
from pykubelet.edges.cri.log_render import LogOptions
from pykubelet.edges.host.fs import libc
from pykubelet.edges.host.fs.files import gzip_file

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "0.log"
    path.write_bytes(LOG)
    return path


@pytest.fixture(params=["watched", "looked at"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How changes of the log are noticed."""
    if request.param == "looked at":
        monkeypatch.setattr(log_reader, "MOST_WATCHED", 0)


@pytest.fixture
def with_only_the_writers_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotated files have no writer any more."""
    monkeypatch.setattr(log_segments, "LEFT_S", 3600.0)


class Followed:
    """A log being followed, and what came of it."""

    def __init__(self, path: Path, reader: LogReader | None = None) -> None:
        self.over = False
        self.wake = asyncio.Event()
        reader = reader or LogReader(SingleFlight("test"))
        self.texts = reader.read(str(path), LogOptions(follow=True), lambda: self.over, self.wake)
        self.output = b""

    async def until(self, expected: bytes) -> None:
        async with asyncio.timeout(30):
            while self.output != expected:
                self.output += await anext(self.texts)

    async def end(self) -> bytes:
        self.over = True
        self.wake.set()
        async with asyncio.timeout(30):
            return b"".join([text async for text in self.texts])


async def test_follow_reads_on_over_a_rotation_until_the_container_ends(log: Path) -> None:
    followed = Followed(log)
    await followed.until(b"one\ntwo\nthree\n")
    with log.open("ab") as file:
        file.write(FIRST)
    await followed.until(b"one\ntwo\nthree\none\n")
    with log.open("ab") as old:
        os.rename(log, log.with_suffix(".log.old"))
        old.write(SECOND)  # by a runtime that has not heard of the rotation yet
        old.flush()
        log.write_bytes(FIRST)
    await followed.until(b"one\ntwo\nthree\none\ntwo\none\n")
    with log.open("ab") as file:
        file.write(SECOND)
    assert await followed.end() == b"two\n"


@pytest.mark.usefixtures("with_only_the_writers_events")
async def test_follow_waits_until_the_old_file_has_no_writer_any_more(log: Path) -> None:
    """A runtime opens the new file, and then writes to the old one what it had still to write."""
    followed = Followed(log)
    await followed.until(b"one\ntwo\nthree\n")
    with log.open("ab") as old:
        os.rename(log, log.with_suffix(".log.20260102-030408"))
        log.write_bytes(FIRST)
        reading = asyncio.create_task(followed.until(b"one\ntwo\nthree\ntwo\none\n"))
        await asyncio.sleep(0.1)
        old.write(SECOND)
    await reading
    assert await followed.end() == b""


@pytest.mark.usefixtures("with_only_the_writers_events")
async def test_follow_reads_every_file_of_a_log_that_was_rotated_faster_than_it_is_read(log: Path) -> None:
    followed = Followed(log)
    await followed.until(b"one\ntwo\nthree\n")
    for number, line in enumerate((SECOND, FIRST, SECOND)):
        with log.open("ab"):
            os.rename(log, log.with_suffix(f".log.2026010{number}-030408"))
            log.write_bytes(line)
    await followed.until(b"one\ntwo\nthree\ntwo\none\ntwo\n")
    assert await followed.end() == b""


@pytest.mark.usefixtures("with_only_the_writers_events")
async def test_follow_of_a_log_that_lost_its_name_and_got_it_back_repeats_nothing(log: Path) -> None:
    followed = Followed(log)
    await followed.until(b"one\ntwo\nthree\n")
    rotated = log.with_suffix(".log.20260102-030408")
    os.rename(log, rotated)
    os.rename(rotated, log)
    with log.open("ab") as file:
        file.write(FIRST)
    await followed.until(b"one\ntwo\nthree\none\n")
    assert await followed.end() == b""


async def test_follow_goes_on_though_the_writer_never_closes_the_old_file(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_segments, "LEFT_S", 0.1)
    followed = Followed(log)
    await followed.until(b"one\ntwo\nthree\n")
    with log.open("ab"):
        os.rename(log, log.with_suffix(".log.20260102-030408"))
        log.write_bytes(FIRST)
        await followed.until(b"one\ntwo\nthree\none\n")
    assert await followed.end() == b""


async def test_follow_of_a_container_that_has_ended_ends(log: Path) -> None:
    followed = Followed(log)
    assert await followed.end() == b"one\ntwo\nthree\n"


def rotate(log: Path, number: int, line: bytes) -> None:
    """As a runtime and log rotation do it: what was rotated before is compressed first."""
    for old in sorted(log.parent.glob("0.log.2*")):
        if old.suffix != ".gz":
            gzip_file(str(old))
    with log.open("ab"):
        os.rename(log, log.with_name(f"0.log.202601{number:02d}-030408"))
        log.write_bytes(line)


def numbered(number: int) -> bytes:
    return b"2026-01-02T03:04:%02d.000000001Z stdout F line %d\n" % (number, number)


@pytest.mark.parametrize("rotations", [1, 2, 3, 7])
@pytest.mark.usefixtures("with_only_the_writers_events")
async def test_follow_reads_the_compressed_files_in_between(log: Path, rotations: int) -> None:
    followed = Followed(log)
    await followed.until(b"one\ntwo\nthree\n")
    for number in range(1, rotations + 1):
        rotate(log, number, numbered(number))
    expected = b"".join(b"line %d\n" % number for number in range(1, rotations + 1))
    await followed.until(b"one\ntwo\nthree\n" + expected)
    rotate(log, rotations + 1, numbered(rotations + 1))
    await followed.until(b"one\ntwo\nthree\n" + expected + b"line %d\n" % (rotations + 1))
    assert await followed.end() == b""


async def test_rotations_that_were_not_heard_of_lose_no_line(log: Path) -> None:
    """The kernel drops events where too many wait; it reports only that some were lost."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    followed = Followed(log)
    await followed.until(b"one\ntwo\nthree\n")
    noise = [log.with_name("a"), log.with_name("b")]
    for name in noise:
        name.write_bytes(b"x")
    for number in range(limit + 10):  # two alternating names, so that the kernel does not merge the events
        os.close(os.open(noise[number % 2], os.O_WRONLY))
    for number in range(1, 5):
        rotate(log, number, numbered(number))
    expected = b"".join(b"line %d\n" % number for number in range(1, 5))
    await followed.until(b"one\ntwo\nthree\n" + expected)
    with log.open("ab") as file:
        file.write(FIRST)
    await followed.until(b"one\ntwo\nthree\n" + expected + b"one\n")
    assert await followed.end() == b""


@pytest.mark.usefixtures("with_only_the_writers_events")
async def test_follow_goes_on_with_the_oldest_file_that_is_left(log: Path) -> None:
    followed = Followed(log)
    await followed.until(b"one\ntwo\nthree\n")
    for number in range(1, 5):
        rotate(log, number, numbered(number))
    log.with_name("0.log.20260101-030408.gz").unlink()
    log.with_name("0.log.20260102-030408.gz").unlink()
    await followed.until(b"one\ntwo\nthree\nline 2\nline 3\nline 4\n")
    assert await followed.end() == b""


@pytest.mark.parametrize("way", ["watched"], indirect=True)
async def test_many_followers_leave_inotify_instances_to_others(log: Path) -> None:
    """A user has 128 of them."""
    reader, count = LogReader(SingleFlight("test")), MOST_WATCHED + 10
    before = inotify_instances()
    async with AsyncExitStack() as stack:
        followers = [Followed(log, reader) for _ in range(count)]
        for followed in followers:
            await stack.enter_async_context(aclosing(followed.texts))
            await followed.until(b"one\ntwo\nthree\n")
        assert inotify_instances() - before == MOST_WATCHED
        with log.open("ab") as file:
            file.write(FIRST)
        for followed in followers:
            await followed.until(b"one\ntwo\nthree\none\n")
        await followers[0].texts.aclose()
        latest = Followed(log, reader)
        await stack.enter_async_context(aclosing(latest.texts))
        await latest.until(b"one\ntwo\nthree\none\n")
        assert inotify_instances() - before == MOST_WATCHED
    assert inotify_instances() == before


@pytest.mark.parametrize("way", ["watched"], indirect=True)
async def test_follow_goes_on_where_the_user_has_no_inotify_instance_left(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(libc, "inotify_init", none_left)
    followed = Followed(log)
    await followed.until(b"one\ntwo\nthree\n")
    rotate(log, 1, numbered(1))
    await followed.until(b"one\ntwo\nthree\nline 1\n")
    assert await followed.end() == b""


def inotify_instances() -> int:
    """How many inotify instances this process has."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # that of the listing itself
    return links.count("anon_inode:inotify")

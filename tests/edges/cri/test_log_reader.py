"""Reading container logs as people ask for them: real files, rotations, odd lines."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.flight import SingleFlight
from pykubelet.edges.cri import log_segments
from pykubelet.edges.cri.log_reader import LogReader
from pykubelet.edges.cri.log_render import LogOptions, LogRenderer, LogStream, fixed_width
from pykubelet.edges.cri.logs import parse_timestamp_ns
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import gzip_file

pytestmark = pytest.mark.virtual_time

FIRST = b"2026-01-02T03:04:05.123456789Z stdout F one\n"
SECOND = b"2026-01-02T03:04:06.5Z stderr F two\n"
PARTS = b"2026-01-02T03:04:07.1Z stdout P thr\n2026-01-02T03:04:08Z stdout F ee\n"
LOG = FIRST + SECOND + PARTS


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "0.log"
    path.write_bytes(LOG)
    return path


async def read(path: Path, options: LogOptions) -> bytes:
    reader = LogReader(SingleFlight("test"))
    return b"".join([text async for text in reader.read(str(path), options, lambda: True, asyncio.Event())])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (LogOptions(), b"one\ntwo\nthree\n"),
        (LogOptions(tail_lines=0), b""),
        (LogOptions(tail_lines=1), b"ee\n"),
        (LogOptions(tail_lines=3), b"two\nthree\n"),
        (LogOptions(tail_lines=99), b"one\ntwo\nthree\n"),
        (LogOptions(limit_bytes=6), b"one\ntw"),
        (LogOptions(stream=LogStream.STDERR), b"two\n"),
        (LogOptions(stream=LogStream.STDOUT), b"one\nthree\n"),
        (LogOptions(since_ns=parse_timestamp_ns(b"2026-01-02T03:04:06.5Z")), b"two\nthree\n"),
        (
            LogOptions(timestamps=True),
            b"2026-01-02T03:04:05.123456789Z one\n"
            b"2026-01-02T03:04:06.500000000Z two\n"
            b"2026-01-02T03:04:07.100000000Z three\n",
        ),
    ],
)
async def test_what_is_asked_for_is_given(log: Path, options: LogOptions, expected: bytes) -> None:
    assert await read(log, options) == expected


@pytest.mark.parametrize("tag", [b"F", b"P"])
async def test_utc_as_an_offset_of_zero_is_shown_as_z(log: Path, tag: bytes) -> None:
    """As CRI-O writes it; other offsets stay."""
    log.write_bytes(b"2026-01-02T03:04:05.1+00:00 stdout %s one\n2026-01-02T03:04:06.2+01:00 stdout F two\n" % tag)
    shown = await read(log, LogOptions(timestamps=True))
    assert shown.startswith(b"2026-01-02T03:04:05.100000000Z one")
    assert tag == b"P" or b"2026-01-02T03:04:06.200000000+01:00 two" in shown


async def test_whole_lines_with_time_stamps(log: Path) -> None:
    log.write_bytes(FIRST + SECOND)
    expected = b"2026-01-02T03:04:05.123456789Z one\n2026-01-02T03:04:06.500000000Z two\n"
    assert await read(log, LogOptions(timestamps=True)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"2026-01-02T03:04:05.1Z stdout F a\rb\x0bc\n", b"a\rb\x0bc\n"),
        (b"2026-01-02T03:04:05.1Z stdout F \n", b"\n"),
        (b"2026-01-02T03:04:05.1Z stdout F x stdout F y\n", b"x stdout F y\n"),
        (b"2026-01-02T03:04:05.1Z stdout P a stdout F b\n" + FIRST, b"a stdout F bone\n"),
        (b"2026-01-02T03:04:05.1Z stdout F:tag x\n", b"x\n"),
        (FIRST + b"not a log line\n" + SECOND, b"one\ntwo\n"),
        (FIRST + b"2026-01-02T03:04:05.1Z stdout F unended", b"one\nunended\n"),
        (b'{"log":"json\\n","stream":"stdout","time":"2026-01-02T03:04:05.1Z"}\nnonsense\n', b"json\n"),
        (b"", b""),
    ],
)
async def test_odd_lines(log: Path, line: bytes, expected: bytes) -> None:
    log.write_bytes(line)
    assert await read(log, LogOptions()) == expected


STAMPS = st.sampled_from(["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.1Z", "2026-01-02T03:04:05.123456789+01:00"])
WHOLE = st.tuples(STAMPS, st.sampled_from(["stdout", "stderr"]), st.text("ab F\t\r", max_size=9))
NO_LINE = st.sampled_from(
    [b"", b"nonsense", b"x" * 40, b"2026-01-02T03:04:05.1Z stdout X c", b"2026-01-02T03:04:05.1Z"]
)


@given(lines=st.lists(st.one_of(WHOLE, WHOLE, WHOLE, NO_LINE), max_size=70), stamped=st.booleans())
def test_any_number_of_lines_with_others_between(lines: list[tuple[str, str, str] | bytes], *, stamped: bool) -> None:
    written, expected = b"", b""
    for line in lines:
        if isinstance(line, bytes):
            written += line + b"\n"
            continue
        stamp, stream, content = line
        written += f"{stamp} {stream} F {content}\n".encode()
        expected += fixed_width(stamp.encode()) + b" " if stamped else b""
        expected += content.encode() + b"\n"
    assert LogRenderer(LogOptions(timestamps=stamped)).render(written) == expected


async def test_tail_over_many_blocks(log: Path) -> None:
    lines = [b"2026-01-02T03:04:05.1Z stdout F %d %s\n" % (n, b"x" * 300) for n in range(2000)]
    log.write_bytes(b"".join(lines))
    assert (await read(log, LogOptions(tail_lines=700))).startswith(b"1300 xxx")
    assert (await read(log, LogOptions(tail_lines=2000))).startswith(b"0 xxx")
    assert (await read(log, LogOptions(tail_lines=1))).startswith(b"1999 xxx")


async def test_the_last_lines_are_no_more_though_the_log_grows_meanwhile(log: Path) -> None:
    line = b"2026-01-02T03:04:05.1Z stdout F " + b"x" * 1000 + b"\n"
    log.write_bytes(line * 3000)
    texts = LogReader(SingleFlight("test")).read(str(log), LogOptions(tail_lines=2900), lambda: True, asyncio.Event())
    output = await anext(texts)
    with log.open("ab") as file:
        file.write(line * 10)
    output += b"".join([text async for text in texts])
    assert output.count(b"\n") == 2900


async def test_a_line_without_end_does_not_fill_the_memory(log: Path) -> None:
    log.write_bytes(b"2026-01-02T03:04:05.1Z stdout F " + b"x" * (20 << 20) + b"\n" + FIRST)
    reader = LogReader(SingleFlight("test"))
    pieces = [len(t) async for t in reader.read(str(log), LogOptions(), lambda: True, asyncio.Event())]
    assert max(pieces) <= 6 << 20


async def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="no such file"):
        await read(tmp_path / "none" / "0.log", LogOptions())


@pytest.fixture
def with_only_the_writers_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotated files have no writer any more."""
    monkeypatch.setattr(log_segments, "LEFT_S", 3600.0)


class Followed:
    """A log being followed, and what came of it."""

    def __init__(self, path: Path) -> None:
        self.over = False
        self.wake = asyncio.Event()
        reader = LogReader(SingleFlight("test"))
        self._texts: AsyncIterator[bytes] = reader.read(
            str(path), LogOptions(follow=True), lambda: self.over, self.wake
        )
        self.output = b""

    async def until(self, expected: bytes) -> None:
        async with asyncio.timeout(30):
            while self.output != expected:
                self.output += await anext(self._texts)

    async def end(self) -> bytes:
        self.over = True
        self.wake.set()
        async with asyncio.timeout(30):
            return b"".join([text async for text in self._texts])


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


async def test_json_lines_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    good = b'{"log":"%s\\n","stream":"stdout","time":"2026-01-02T03:04:05Z"}\n'
    bad = (good % b"\xff\xfe", good % b"\\ud800", b'{"log":' + b"[" * 100_000 + b"\n", b'{"log":1}\n')
    path.write_bytes(good % b"one" + b"".join(bad) + good % b"two")
    assert await read(path, LogOptions()) in (b"one\ntwo\n", b"one\n\xed\xa0\x80\ntwo\n", b"one\n\xef\xbf\xbd\ntwo\n")


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

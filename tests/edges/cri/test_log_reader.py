"""Reading container logs as people ask for them: real files, rotations, odd lines."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from edges.cri.sample_log import FIRST, LOG, SECOND
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.flight import SingleFlight
from pykubelet.edges.cri.log_reader import LogReader
from pykubelet.edges.cri.log_render import LogOptions, LogRenderer, LogStream, fixed_width
from pykubelet.edges.cri.logs import parse_timestamp_ns
from pykubelet.edges.host.fs.errors import HostError

pytestmark = pytest.mark.virtual_time


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


async def test_json_lines_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    good = b'{"log":"%s\\n","stream":"stdout","time":"2026-01-02T03:04:05Z"}\n'
    bad = (good % b"\xff\xfe", good % b"\\ud800", b'{"log":' + b"[" * 100_000 + b"\n", b'{"log":1}\n')
    path.write_bytes(good % b"one" + b"".join(bad) + good % b"two")
    assert await read(path, LogOptions()) in (b"one\ntwo\n", b"one\n\xed\xa0\x80\ntwo\n", b"one\n\xef\xbf\xbd\ntwo\n")

"""The CRI log format, and the bounded look at a log's end."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.edges.cri.logs import LogLine, parse_line, parse_timestamp_ns, read_log_tail, tail_of

STAMP = b"2016-10-06T00:17:09.669794202Z"
STAMP_NS = 1475713029_669794202


@pytest.mark.parametrize(
    ("line", "parsed"),
    [
        (STAMP + b" stdout F some text\n", LogLine(STAMP_NS, "stdout", False, b"some text")),
        (STAMP + b" stderr P part", LogLine(STAMP_NS, "stderr", True, b"part")),
        (STAMP + b" stdout P:x:y tags\n", LogLine(STAMP_NS, "stdout", True, b"tags")),
        (STAMP + b" stdout F \n", LogLine(STAMP_NS, "stdout", False, b"")),
        (STAMP + b" stdout F\n", LogLine(STAMP_NS, "stdout", False, b"")),
        (STAMP + b" stdout F  indented \xff\r\n", LogLine(STAMP_NS, "stdout", False, b" indented \xff\r")),
        (b"2016-10-06T02:17:09+02:00 stdout F x", LogLine(1475713029_000000000, "stdout", False, b"x")),
        (b"2016-10-05T20:17:09.5-04:00 stdout F x", LogLine(1475713029_500000000, "stdout", False, b"x")),
        (STAMP + b" stdin F x", None),
        (STAMP + b" stdout", None),
        (b"yesterday stdout F x", None),
        (b"2016-13-06T00:17:09Z stdout F x", None),
        (b'{"log":"docker\\n"}', None),
        (b"", None),
    ],
)
def test_parse(line: bytes, parsed: LogLine | None) -> None:
    assert parse_line(line) == parsed


@given(st.binary(max_size=60))
def test_parse_takes_anything(line: bytes) -> None:
    parse_line(line)
    parse_timestamp_ns(line)


def log(*contents: bytes, tag: bytes = b"F") -> bytes:
    return b"".join(STAMP + b" stdout " + tag + b" " + content + b"\n" for content in contents)


def test_tail_has_the_last_lines_of_both_streams(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(log(*(b"%d" % n for n in range(100))) + STAMP + b" stderr F oops\n")
    assert read_log_tail(str(path)) == "".join(f"{n}\n" for n in range(21, 100)) + "oops\n"


def test_tail_joins_partial_lines_and_skips_what_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(log(b"first ", tag=b"P") + log(b"half") + b"garbage\n" + STAMP + b" stdout F being writt")
    assert read_log_tail(str(path)) == "first half\nbeing writt\n"


def test_tail_is_cut_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(log(b"a" * 3000, b"b" * 10))
    assert read_log_tail(str(path)) == "a" * (2048 - 12) + "\n" + "b" * 10 + "\n"
    path.write_bytes(log("ä".encode() * 1500))
    text = read_log_tail(str(path))
    assert len(text) <= 2048 and text.endswith("ä\n")


def test_empty_and_missing(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"")
    assert read_log_tail(str(path)) == ""
    with pytest.raises(FileNotFoundError):
        read_log_tail(str(tmp_path / "none.log"))


def test_a_line_of_100_mb_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    with path.open("wb") as file:
        file.write(STAMP + b" stdout F ")
        file.seek(100 << 20)
        file.write(b"the end\n" + log(b"last"))
    tracemalloc.start()
    text = read_log_tail(str(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert text.endswith("the end\nlast\n")
    assert len(text) == 2048
    assert peak < 200_000


def test_a_fifo_in_place_of_the_log_does_not_hang(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    os.mkfifo(path)
    with pytest.raises(OSError, match="seek"):
        read_log_tail(str(path))


@given(st.lists(st.tuples(st.sampled_from([b"F", b"P"]), st.binary(max_size=300).map(lambda b: b.replace(b"\n", b"")))))
def test_the_window_gives_what_the_whole_file_would(lines: list[tuple[bytes, bytes]]) -> None:
    whole = b"".join(log(content, tag=tag) for tag, content in lines)
    expected = tail_of(whole, 5, 100, is_cut=False)
    window = 100 + 5 * 64
    assert tail_of(whole[-window:], 5, 100, is_cut=len(whole) > window) == expected


@pytest.mark.parametrize("present", [None, b""], ids=["not opened again", "opened again, empty"])
def test_a_log_that_was_just_rotated_has_its_end_in_the_rotated_file(present: bytes | None, tmp_path: Path) -> None:
    line = b"2026-01-01T00:00:00.000000000Z stdout F the %s\n"
    (tmp_path / "0.log.20260101-000000").write_bytes(line % b"middle")
    (tmp_path / "0.log.20260101-000010").write_bytes(line % b"end")
    (tmp_path / "0.log.20260101-000020.gz").write_bytes(b"compressed")
    if present is not None:
        (tmp_path / "0.log").write_bytes(present)
    assert read_log_tail(str(tmp_path / "0.log")) == "the end\n"

"""The CRI log format, and the bounded look at a log's end."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.opens import observed_opens

from pykubelet.edges.cri.logs import MAX_LINE, LogLine, parse_line, parse_timestamp_ns, read_log_tail, tail_of
from pykubelet.edges.host.fs.errors import HostError

STAMP = b"2016-10-06T00:17:09.669794202Z"
STAMP_NS = 1475713029_669794202
CONTAINER = "a" * 64


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
        (b"0000-01-01T00:00:00Z stdout F x", None),
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


@given(st.from_regex(r"\A[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9](Z|[+-][0-9]{2}:[0-9]{2})\Z"))
def test_any_time_is_parsed_or_refused(text: str) -> None:
    found = parse_timestamp_ns(text.encode())
    assert found is None or isinstance(found, int)


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
    with pytest.raises(HostError) as caught:
        read_log_tail(str(tmp_path / "none.log"))
    assert caught.value.is_not_found


@pytest.mark.parametrize("size", [8_000, 20_000, MAX_LINE - 1000])
def test_the_end_of_a_long_line_is_shown(tmp_path: Path, size: int) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(log(b"before") + log(b"x" * size + b"the end", tag=b"P") + log(b"last"))
    text = read_log_tail(str(path))
    assert text == "x" * (2048 - 12) + "the endlast\n"


def test_a_line_of_100_mb_is_left_out_and_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    with path.open("wb") as file:
        file.write(STAMP + b" stdout F ")
        file.seek(100 << 20)
        file.write(b"the end\n" + log(b"last"))
    tracemalloc.start()
    text = read_log_tail(str(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert text == "last\n"
    assert peak < 200_000


@pytest.mark.parametrize("begin", [b"", b"x" * 20 + b" stdout F ", b"{", STAMP + b" stdin F "])
@pytest.mark.parametrize("size", [100, 7_000, 9_000, 100_000])
def test_nothing_of_a_line_that_is_not_in_the_format_is_shown(tmp_path: Path, begin: bytes, size: int) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(begin + b"secret " * (size // 7))
    assert read_log_tail(str(path)) == ""
    path.write_bytes(log(b"first") + begin + b"secret " * (size // 7) + b"\n" + log(b"last"))
    assert read_log_tail(str(path)).replace("first\n", "") == "last\n"


def test_a_fifo_in_place_of_the_log_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0.log")
    with observed_opens(tmp_path / "0.log") as was_opened:
        with pytest.raises(HostError, match="not a regular file but a fifo"):
            read_log_tail(str(tmp_path / "0.log"))
        assert not was_opened()


@pytest.mark.parametrize("target", ["/etc/passwd", "../secret.json"])
def test_a_link_in_place_of_the_log_is_not_followed(tmp_path: Path, target: str) -> None:
    (tmp_path / "pod").mkdir()
    (tmp_path / "secret.json").write_bytes(b"secret " * 10_000)
    (tmp_path / "pod" / "0.log").symlink_to(target)
    with pytest.raises(HostError, match="symbolic link, which is not followed"):
        read_log_tail(str(tmp_path / "pod" / "0.log"), CONTAINER)


def test_a_link_to_dockers_own_log_of_the_container_is_followed(tmp_path: Path) -> None:
    theirs = tmp_path / "docker" / CONTAINER / f"{CONTAINER}-json.log"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(log(b"here"))
    (tmp_path / "0.log").symlink_to(theirs)
    assert read_log_tail(str(tmp_path / "0.log"), CONTAINER) == "here\n"
    with pytest.raises(HostError, match="symbolic link"):
        read_log_tail(str(tmp_path / "0.log"), "b" * 64)
    theirs.unlink()
    theirs.symlink_to("/etc/passwd")
    with pytest.raises(HostError, match="symbolic link"):
        read_log_tail(str(tmp_path / "0.log"), CONTAINER)


@given(
    st.lists(st.tuples(st.sampled_from([b"F", b"P"]), st.binary(max_size=300).map(lambda b: b.replace(b"\n", b"")))),
    st.booleans(),
)
def test_the_window_gives_what_the_whole_file_would(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[bytes, bytes]], is_ended: bool
) -> None:
    whole = b"".join(log(content, tag=tag) for tag, content in lines)
    path = tmp_path_factory.mktemp("logs") / "0.log"
    path.write_bytes(whole if is_ended else whole[:-1])
    assert read_log_tail(str(path), "", 5, 100) == tail_of(path.read_bytes(), 5, 100).decode(errors="replace")


@pytest.mark.parametrize("present", [None, b""], ids=["not opened again", "opened again, empty"])
def test_a_log_that_was_just_rotated_has_its_end_in_the_rotated_file(present: bytes | None, tmp_path: Path) -> None:
    line = b"2026-01-01T00:00:00.000000000Z stdout F the %s\n"
    (tmp_path / "0.log.20260101-000000").write_bytes(line % b"middle")
    (tmp_path / "0.log.20260101-000010").write_bytes(line % b"end")
    (tmp_path / "0.log.20260101-000020.gz").write_bytes(b"compressed")
    if present is not None:
        (tmp_path / "0.log").write_bytes(present)
    assert read_log_tail(str(tmp_path / "0.log")) == "the end\n"

"""The log: one line an event that people and grep can read, or JSON that machines can."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.logs import logging_restored

from pykubelet.base.kit.log import Log, flush_log, matches, set_up_logging, set_verbosity
from pykubelet.base.model.ids import PodRef, PodUID


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    with logging_restored():
        yield


def test_a_line_has_level_package_message_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(2)
    ref = PodRef("shop", "web", PodUID("u1"))
    here = sys._getframe().f_lineno
    Log("pods").info("pod is syncing", pod=ref, cause="new pod", detail=None, attempt=2, ready=True)
    line = capsys.readouterr().err
    head = r"I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ test_log\.py:\d+\] "
    rest = '"pod is syncing" logger="pods" pod="shop/web" podUID="u1" cause="new pod" attempt=2 ready=true\n'
    assert re.fullmatch(head + re.escape(rest), line)
    assert f"test_log.py:{here + 1}]" in line


def test_a_value_that_would_break_the_line_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(2)
    Log("pods").warning("odd", error='two\nlines "quoted"', empty="", equals="a=b")
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert 'err="two\\nlines \\"quoted\\"" empty="" equals="a=b"' in line


LONG = "a" * 1_000_000


def test_what_is_long_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    error = ValueError(f"{LONG}\nsecond line")
    lists = {"names": [LONG, "b"], "many": ["c"] * 500_000}
    set_up_logging(2)
    Log("pods").warning("odd", error=error, path=LONG, **lists)
    Log("pods").error(LONG, exc_info=error, stack=LONG)
    Log("pods").error("blocked", stack=LONG)
    assert f'path="{"a" * 4096}... (995904 more characters)"' in capsys.readouterr().err
    Log("pods").warning("odd", error=error, path=LONG, **lists)
    Log("pods").error(LONG, exc_info=error)
    Log("pods").error("blocked", stack=LONG)
    assert len(capsys.readouterr().err) < 40_000


def test_what_is_long_is_cut_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    error = ValueError(f"{LONG}\nsecond line")
    set_up_logging(2, json_format=True)
    Log("pods").warning("odd", error=error, path=LONG, names=[LONG, "b"], many=["c"] * 500_000)
    line = json.loads(capsys.readouterr().err)
    assert line["path"] == line["err"][:4096] + "... (995904 more characters)"
    assert all(len(line[key]) < 4200 for key in ("path", "err", "names", "many"))
    Log("pods").error(LONG, exc_info=error)
    Log("pods").error("blocked", stack=LONG)
    assert len(capsys.readouterr().err) < 20_000


def test_an_error_brings_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(2)
    try:
        raise ValueError("boom")
    except ValueError as error:
        Log("pods").error("sync crashed", exc_info=error)
    text = capsys.readouterr().err
    assert text.startswith("E")
    assert "Traceback" in text
    assert "ValueError: boom" in text


def test_an_error_brings_the_stack_that_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(2)
    Log("monitor").error("blocked", seconds=5, stack="thread MainThread\n    a.py:1 f\x1b")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith('"blocked" logger="monitor" seconds=5')
    assert lines[1:] == ["thread MainThread", "    a.py:1 f\\x1b"]


def test_a_json_error_brings_the_stack_that_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(2, json_format=True)
    Log("monitor").error("blocked", stack="a\nb")
    assert json.loads(capsys.readouterr().err)["stacktrace"] == "a\nb"


def test_details_are_logged_from_verbosity_four_on(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(3)
    Log("pods").debug("detail")
    assert capsys.readouterr().err == ""
    set_up_logging(4)
    Log("pods").debug("detail")
    assert "detail" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pattern", "is_named"),
    [
        ("loop", True),
        ("lo*", True),
        ("loop.py", True),
        ("act/pods/*", True),
        ("act/*", True),
        ("pods", False),
        ("act/pods", False),
        ("observe/*/loop", False),
    ],
)
def test_patterns_of_modules(pattern: str, is_named: bool) -> None:
    assert matches(pattern, "pykubelet.act.pods.loop") is is_named


def test_the_verbosity_of_single_modules(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log("pods")
    set_up_logging(2, vmodule=[("other", 9), ("test_l?g", 5)])
    log.at(5, "shown")
    log.at(6, "hidden")
    set_verbosity(6)
    log.at(6, "shown now")
    set_verbosity(0)
    log.debug("still a detail")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split('"')[1] for line in lines] == ["shown", "shown now", "still a detail"]


@pytest.mark.parametrize(("json_format", "failures"), [(False, ["odd", "broken"]), (True, ["broken"])])
def test_messages_and_failures_on_two_streams(
    capsys: pytest.CaptureFixture[str], json_format: bool, failures: list[str]
) -> None:
    """As in the reference, only errors are failures in JSON."""
    set_up_logging(2, json_format, split_stream=True)
    log = Log("pods")
    log.info("fine")
    log.warning("odd")
    log.error("broken")
    out, err = capsys.readouterr()
    assert [word for word in ("fine", "odd", "broken") if word in err] == failures
    assert [word for word in ("fine", "odd", "broken") if word in out] == ["fine", *{"odd"} - set(failures)]


def test_messages_are_kept_until_the_buffer_is_full(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(2, split_stream=True, buffer_bytes=200)
    log = Log("pods")
    log.info("first")
    log.error("at once")
    assert [stream.count("\n") for stream in capsys.readouterr()] == [0, 1]
    log.info("x" * 100)
    assert capsys.readouterr().out.count("\n") == 2
    log.info("third")
    flush_log()
    assert "third" in capsys.readouterr().out


def test_json_lines_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(2, json_format=True)
    ref = PodRef("shop", "web", PodUID("u1"))
    Log("pods").info("pod is syncing", pod=ref, attempt=3, nothing=None)
    entry = json.loads(capsys.readouterr().err)
    assert entry.pop("ts") > 0
    assert re.fullmatch(r"kit/test_log\.py:\d+", entry.pop("caller"))
    assert entry == {
        "logger": "pods",
        "msg": "pod is syncing",
        "v": 0,
        "pod": {"name": "web", "namespace": "shop"},
        "podUID": "u1",
        "attempt": 3,
    }


def test_a_json_error_brings_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(2, json_format=True)
    Log("pods").error("crashed", exc_info=ValueError("boom"))
    entry = json.loads(capsys.readouterr().err)
    assert "ValueError: boom" in entry["stacktrace"]
    assert entry["err"] == "boom" and "v" not in entry


def test_json_shows_verbosity_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(6, json_format=True)
    log = Log("pods")
    log.at(6, "trace", names=("a", "b"))
    log.warning("odd", error="why", uid="u1", container="c")
    trace, odd = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (trace["v"], trace["names"]) == (6, ["a", "b"])
    assert (odd["v"], odd["level"], odd["err"], odd["podUID"], odd["containerName"]) == (0, "warning", "why", "u1", "c")


def test_setting_up_twice_does_not_double_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(2)
    set_up_logging(2)
    Log("pods").info("once")
    assert capsys.readouterr().err.count("once") == 1


LOGGING = """
from pykubelet.base.kit.log import Log, set_up_logging
set_up_logging(2)
log = Log("pods")
log.info("fine")
log.warning("odd")
try:
    1 / 0
except ZeroDivisionError as error:
    log.error("broken", exc_info=error)
log.fatal("port: taken", "two\\nlines")
"""


@pytest.mark.parametrize("is_journal", [True, False])
def test_lines_for_the_journal_have_their_priority(tmp_path: Path, is_journal: bool) -> None:
    """JOURNAL_STREAM names the stream by device and inode; inherited by a redirected process, it names another one."""
    path = tmp_path / "log"
    with path.open("wb") as stream:
        found = os.fstat(stream.fileno())
        named = f"{found.st_dev}:{found.st_ino if is_journal else found.st_ino + 1}"
        env = os.environ | {"JOURNAL_STREAM": named}
        subprocess.run([sys.executable, "-c", LOGGING], stderr=stream, env=env, check=True)
    lines = path.read_text().splitlines()
    if is_journal:
        assert [line[:4] for line in lines[:3]] == ["<6>I", "<4>W", "<3>E"]
        assert len(lines) > 4 and all(line.startswith("<3>") for line in lines[2:])
        assert lines[-3:] == ["<3>Error: port: taken", "<3>Error: two", "<3>lines"]
    else:
        assert [line[0] for line in lines[:3]] == ["I", "W", "E"]
        assert lines[-3:] == ["Error: port: taken", "Error: two", "lines"]


def test_the_end_comes_after_what_was_kept_and_is_json_in_a_json_log(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(2, json_format=True, split_stream=True, buffer_bytes=1 << 20)
    Log("app").info("kept")
    Log("app").fatal("port: taken")
    written = capsys.readouterr()
    assert json.loads(written.out)["msg"] == "kept"
    last = json.loads(written.err)
    assert (last["msg"], last["err"]) == ("command failed", "port: taken") and "v" not in last


def test_control_characters_of_others_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(2)
    try:
        raise ValueError("boom \x1b[31m")
    except ValueError as error:
        Log("pods").error("odd \x9b31m", error="\x1b[31m", more="\r", last="\x9c", exc_info=error)
    text = capsys.readouterr().err
    assert not any((ord(letter) < 32 and letter != "\n") or 127 <= ord(letter) < 160 for letter in text)
    assert 'err="\\u001b[31m"' in text and "boom" in text

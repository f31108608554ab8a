"""The log: one line an event that people and grep can read, or JSON that machines can."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pykubelet.base.kit.log import Log, set_up_logging
from pykubelet.base.model.ids import PodRef, PodUID


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger("pykubelet")
    before = (root.handlers[:], root.propagate, root.level)
    yield
    root.handlers[:], root.propagate = before[0], before[1]
    root.setLevel(before[2])


def test_a_line_has_level_package_message_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(2)
    ref = PodRef("shop", "web", PodUID("u1"))
    Log("pods").info("pod is syncing", pod=ref, cause="new pod", detail=None)
    line = capsys.readouterr().err
    assert line.startswith("I")
    assert line.endswith('[pods] "pod is syncing" pod=web_shop(u1) cause="new pod"\n')


def test_a_value_that_would_break_the_line_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(2)
    Log("pods").warning("odd", error='two\nlines "quoted"', empty="", equals="a=b")
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert 'error="two\\nlines \\"quoted\\"" empty="" equals="a=b"' in line


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


def test_details_are_logged_from_verbosity_four_on(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(3)
    Log("pods").debug("detail")
    assert capsys.readouterr().err == ""
    set_up_logging(4)
    Log("pods").debug("detail")
    assert "detail" in capsys.readouterr().err


def test_json_lines_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(2, json_format=True)
    ref = PodRef("shop", "web", PodUID("u1"))
    Log("pods").info("pod is syncing", pod=ref, attempt=3, nothing=None)
    entry = json.loads(capsys.readouterr().err)
    assert entry.pop("ts") > 0
    assert entry == {
        "level": "info",
        "logger": "pods",
        "msg": "pod is syncing",
        "pod": "web_shop(u1)",
        "attempt": 3,
    }


def test_a_json_error_brings_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(2, json_format=True)
    Log("pods").error("crashed", exc_info=ValueError("boom"))
    assert "ValueError: boom" in json.loads(capsys.readouterr().err)["stacktrace"]


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
    else:
        assert [line[0] for line in lines[:3]] == ["I", "W", "E"]


def test_control_characters_of_others_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(2)
    try:
        raise ValueError("boom \x1b[31m")
    except ValueError as error:
        Log("pods").error("odd \x9b31m", error="\x1b[31m", more="\r", last="\x9c", exc_info=error)
    text = capsys.readouterr().err
    assert not any((ord(letter) < 32 and letter != "\n") or 127 <= ord(letter) < 160 for letter in text)
    assert 'error="\\u001b[31m"' in text and "boom" in text

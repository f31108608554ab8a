"""Termination messages from real files and logs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from report.samples import exited, running, view
from support.opens import observed_opens

from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.labels import CONTAINER_TERMINATION_MESSAGE_PATH, CONTAINER_TERMINATION_MESSAGE_POLICY
from pykubelet.base.model.observed import ContainerView, MountView
from pykubelet.report.status.changes import has_unread_message
from pykubelet.report.status.messages import TerminationMessages, read_message

PATH = "/dev/termination-log"


def ended(
    file: Path | None, log: Path | None = None, code: int = 1, policy: str = "File", **fields: Any
) -> ContainerView:
    annotations = {CONTAINER_TERMINATION_MESSAGE_PATH: PATH, CONTAINER_TERMINATION_MESSAGE_POLICY: policy}
    mounts = (MountView("/etc/hosts", "/nowhere"), *((MountView(PATH, str(file)),) if file else ()))
    return exited("app", code, annotations=annotations, mounts=mounts, log_path=str(log or ""), **fields)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "0.log"
    path.write_text("".join(f"2026-01-02T03:04:05.000000000Z stderr F line {n}\n" for n in range(100)))
    return path


def test_the_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("it broke")
    assert read_message(ended(tmp_path / "m")) == "it broke"


def test_only_the_end_of_a_long_message_is_kept(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("x" * 5000 + "end")
    message = read_message(ended(tmp_path / "m"))
    assert len(message) == 4096
    assert message.endswith("xend")


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"bad \xff")
    assert read_message(ended(tmp_path / "m")) == "bad \ufffd"


@pytest.mark.parametrize("make", [True, False], ids=["empty file", "no file"])
def test_the_log_stands_in_on_errors_only_when_asked_for(tmp_path: Path, log: Path, make: bool) -> None:
    file = tmp_path / "m"
    if make:
        file.touch()
    tail = "".join(f"line {n}\n" for n in range(20, 100))
    assert read_message(ended(file, log, policy="FallbackToLogsOnError")) == tail
    assert read_message(ended(file, log, policy="File")) == ""
    assert read_message(ended(file, log, policy="FallbackToLogsOnError", code=0)) == ""
    assert read_message(ended(file, log, policy="FallbackToLogsOnError", reason="ContainerCannotRun")) == ""


def test_a_written_message_wins_over_the_log(tmp_path: Path, log: Path) -> None:
    (tmp_path / "m").write_text("mine")
    assert read_message(ended(tmp_path / "m", log, policy="FallbackToLogsOnError")) == "mine"


def test_the_log_is_cut_to_its_last_2048_bytes(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text(f"2026-01-02T03:04:05.000000000Z stdout F {'y' * 5000}\n")
    message = read_message(ended(None, log, policy="FallbackToLogsOnError"))
    assert len(message) == 2048
    assert message.endswith("y\n")


def test_a_container_without_such_a_mount_left_nothing(tmp_path: Path) -> None:
    assert read_message(ended(None)) == ""


def test_what_cannot_be_read_is_reported_and_never_waited_for(tmp_path: Path, log: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    message = read_message(ended(tmp_path / "fifo", log, policy="FallbackToLogsOnError"))
    assert message.startswith(f"Error on reading termination log {tmp_path}/fifo: ")
    gone = read_message(ended(None, tmp_path / "no.log", policy="FallbackToLogsOnError"))
    assert gone.startswith("Error on reading termination message from logs: ")


def test_a_fifo_in_place_of_the_message_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with observed_opens(tmp_path / "fifo") as was_opened:
        assert "not a regular file but a fifo" in read_message(ended(tmp_path / "fifo"))
        assert not was_opened()


@pytest.mark.parametrize("behind", ["the file", "a directory"])
def test_a_link_in_the_way_of_the_message_is_not_followed(tmp_path: Path, behind: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "shadow").write_text("secret")
    link = tmp_path / "shared"
    link.symlink_to(tmp_path / "secret" / ("shadow" if behind == "the file" else ""))
    message = read_message(ended(link if behind == "the file" else link / "shadow"))
    assert "a part of the path is a symbolic link, which is not followed" in message and "secret" not in message[-30:]


def test_the_agents_own_directory_may_be_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk" / "pods" / "u1").mkdir(parents=True)
    (tmp_path / "disk" / "pods" / "u1" / "m").write_text("it broke")
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    assert read_message(ended(tmp_path / "root" / "pods" / "u1" / "m"), f"{tmp_path}/root/pods") == "it broke"


def test_no_byte_of_a_file_that_is_no_log_is_the_message(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret " * 2000)
    (tmp_path / "0.log").symlink_to(tmp_path / "secret")
    linked = read_message(ended(None, tmp_path / "0.log", policy="FallbackToLogsOnError"))
    assert linked.startswith("Error on reading termination message from logs: ") and "secret " not in linked
    copied = read_message(ended(None, tmp_path / "secret", policy="FallbackToLogsOnError"))
    assert copied == ""


async def test_each_ended_container_is_read_once_and_forgotten_with_its_pod(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("first")
    seen = view(ended(tmp_path / "m"), running("other"))
    messages = TerminationMessages(SingleFlight("test"))
    assert has_unread_message(seen, messages.known)
    await messages.read(seen)
    (tmp_path / "m").write_text("later")
    await messages.read(seen)
    assert list(messages.known.values()) == ["first"]
    assert not has_unread_message(seen, messages.known)
    messages.keep_only({})
    assert messages.known == {}

"""Writes of state that is kept over a restart, on a disk that refuses for a while and on one that does not answer."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs.files import write_atomic
from pykubelet.edges.host.fs.kept_state import RETRY_S, KeptState


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "pykubelet.test")
    logging.getLogger("pykubelet").propagate = True
    return caplog


def kept(deadline_s: float = 10.0) -> KeptState:
    return KeptState("the sizes of pods", "/sizes", SingleFlight("test"), Log("test"), deadline_s)


async def test_a_disk_that_refuses_is_logged_once_and_once_when_it_works_again(
    tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    state, folder = kept(), tmp_path / "folder"
    for _ in range(3):
        assert not await state.write(lambda: write_atomic(f"{folder}/sizes", b"1", 0o600))
        assert state.is_failing
    folder.mkdir()
    for _ in range(2):
        assert await state.write(lambda: write_atomic(f"{folder}/sizes", b"2", 0o600))
        assert not state.is_failing
    assert (folder / "sizes").read_bytes() == b"2"
    assert [record.getMessage() for record in lines.records] == [
        "the sizes of pods cannot be kept over a restart",
        "the sizes of pods can be kept again",
    ]


async def test_a_disk_that_does_not_answer_is_a_failed_write() -> None:
    state, answers = kept(deadline_s=0.05), threading.Event()
    try:
        assert not await state.write(lambda: _wait(answers))
        assert state.is_failing
    finally:
        answers.set()


async def test_a_fault_of_the_program_is_raised() -> None:
    def work() -> None:
        raise ValueError("no error of the disk")

    with pytest.raises(ValueError, match="no error of the disk"):
        await kept().write(work)


@pytest.mark.virtual_time
async def test_a_failed_write_is_repeated_although_nothing_changes(tmp_path: Path) -> None:
    loop, state, wakeup = asyncio.get_running_loop(), kept(), asyncio.Event()

    async def wait_after_write(folder: Path) -> float:
        await state.write(lambda: write_atomic(f"{folder}/sizes", b"1", 0o600))
        began = loop.time()
        await state.wait(wakeup)
        return loop.time() - began

    loop.call_later(3600, wakeup.set)
    assert await wait_after_write(tmp_path / "missing") == pytest.approx(RETRY_S, abs=1)
    assert await wait_after_write(tmp_path) > 3000, "nothing is left to be repeated"


def _wait(answers: threading.Event) -> None:
    answers.wait(10)

"""The record of the work that is under way."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.work import (
    MAX_KEY_BYTES,
    SIZE,
    SLOTS,
    WORK,
    OpenWork,
    WorkRecord,
    key_text,
    noted_key,
    open_works,
    record_key,
)


def record() -> tuple[WorkRecord, bytearray]:
    made, buffer = WorkRecord(), bytearray(SIZE)
    made.attach(memoryview(buffer))
    return made, buffer


def test_work_is_recorded_while_it_is_under_way() -> None:
    work, buffer = record()
    began = time.monotonic()
    with work.on("uid-1"):
        (found,) = open_works(buffer)
        assert (found.key, found.is_main) == ("uid-1", True)
        assert began <= found.since <= time.monotonic()
        assert work.current() == found and not work.is_idle
    assert list(open_works(buffer)) == [] and work.current() is None and work.is_idle


def test_the_innermost_work_of_the_event_loop_is_the_current_one() -> None:
    work, buffer = record()
    begun = time.monotonic()
    with work.on("outer"):
        while time.monotonic() <= begun:
            pass  # what begins later has a later time
        with work.on("inner"):
            assert {opened.key for opened in open_works(buffer)} == {"outer", "inner"}
            current = work.current()
            assert current is not None and current.key == "inner"
        current = work.current()
        assert current is not None and current.key == "outer"


def test_work_of_another_thread_is_recorded_and_is_not_the_event_loops() -> None:
    work, buffer = record()
    begun, end = threading.Event(), threading.Event()

    def run() -> None:
        with work.on("manifest /a"):
            begun.set()
            end.wait()

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    assert [(opened.key, opened.is_main) for opened in open_works(buffer)] == [("manifest /a", False)]
    assert work.current() is None
    end.set()
    thread.join()
    assert work.is_idle


def test_more_work_than_can_be_recorded_is_done_all_the_same() -> None:
    work, buffer = record()
    blocks = [work.on(f"uid-{number}") for number in range(SLOTS + 2)]
    for block in blocks:
        block.__enter__()
    assert len(list(open_works(buffer))) == SLOTS
    for block in reversed(blocks):
        block.__exit__(None, None, None)
    assert work.is_idle


@pytest.mark.parametrize("key", ["manifest /etc/\udcff.yaml", "manifest /" + "a" * 5000, "ü" * 400])
def test_any_path_can_be_a_key(key: str) -> None:
    work, buffer = record()
    with work.on(key):
        (found,) = open_works(buffer)
    assert record_key(found.key) == record_key(key) and len(record_key(key)) <= MAX_KEY_BYTES
    assert found.key == key_text(record_key(key))


def test_an_exception_notes_the_work_in_which_it_was_raised() -> None:
    work, _ = record()
    with pytest.raises(ValueError) as raised, work.on("uid-1"):
        raise ValueError("a bug")
    assert noted_key(raised.value) == "uid-1"
    try:
        raise RuntimeError("the loop has ended") from raised.value
    except RuntimeError as error:
        assert noted_key(error) == "uid-1"
    assert noted_key(ValueError("elsewhere")) == ""


@given(st.binary(max_size=SIZE + 8))
def test_a_damaged_buffer_is_read_without_an_error(data: bytes) -> None:
    for work in open_works(data):
        assert isinstance(work, OpenWork)


def test_the_process_has_a_record_from_the_start() -> None:
    with WORK.on("uid-1"):
        current = WORK.current()
    assert current is not None and current.key == "uid-1"

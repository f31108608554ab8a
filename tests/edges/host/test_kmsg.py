"""The kernel's log: records of the kernel alone, from the oldest on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc.kmsg import (
    BATCH,
    KMSG,
    KernelLog,
    KernelRecord,
    kernel_message,
    open_kernel_log,
)
from pykubelet.edges.host.proc.procfs import in_user_namespace


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"6,5632,4312110264,-;cni0: port 11 entered blocking state\n", "cni0: port 11 entered blocking state"),
        (b"4,1,2,-,caller=T1;a;b\n SUBSYSTEM=net\n DEVICE=n3\n", "a;b"),
        (b"12,1,2,-;a program wrote this: x invoked oom-killer:\n", None),
        (b"garbage", None),
        (b"3,1,2,-;\xff\n", "\ufffd"),
    ],
)
def test_a_record_of_the_kernel(record: bytes, message: str | None) -> None:
    assert kernel_message(record) == message


async def test_a_long_log_is_read_in_batches_and_new_records_wake_the_reader(tmp_path: Path) -> None:
    """A FIFO stands for the device: each write is read by itself, as each record is."""
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    log = KernelLog(str(fifo))
    writer = os.open(fifo, os.O_WRONLY)
    try:
        reading = asyncio.ensure_future(log.read())
        await asyncio.sleep(0)
        assert not reading.done()
        os.write(writer, b"6,1,1,-;first\n")
        assert await asyncio.wait_for(reading, 60) == ["first"]
    finally:
        os.close(writer)
        log.close()


@pytest.mark.skipif(not os.access(KMSG, os.R_OK) or os.geteuid() != 0, reason="needs the kernel's log")
async def test_the_log_of_this_machine() -> None:
    log = KernelLog()
    try:
        found = await asyncio.wait_for(log.read(), 60)
        assert 0 < len(found) <= BATCH
    finally:
        log.close()


def test_all_records_are_read_with_their_times(tmp_path: Path) -> None:
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    log = KernelLog(str(fifo))
    writer = os.open(fifo, os.O_WRONLY)
    try:
        assert log.read_all() == []
        os.write(writer, b"6,1,4312110264,-;Out of memory: Killed process 1\n")
        assert log.read_all() == [KernelRecord(4312.110264, "Out of memory: Killed process 1")]
        os.write(writer, b"12,2,5,-;a program wrote this\n")
        assert log.read_all() == []
    finally:
        os.close(writer)
        log.close()


def test_what_cannot_be_opened_is_an_error_outside_of_user_namespaces(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    uid_map = tmp_path / "self" / "uid_map"
    missing = str(tmp_path / "kmsg")
    uid_map.write_text("         0          0 4294967295\n")
    assert not in_user_namespace(str(tmp_path))
    with pytest.raises(HostError, match=r"open .*kmsg: no such file or directory"):
        open_kernel_log(missing, str(tmp_path))
    uid_map.write_text("         0     100000      65536\n")
    assert isinstance(open_kernel_log(missing, str(tmp_path)), HostError)

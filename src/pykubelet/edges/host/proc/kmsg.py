"""Reads the kernel's log from `/dev/kmsg`.

Only records of the kernel are returned. Records that programs write to `/dev/kmsg` have another facility, so programs cannot
forge a record of the kernel.
Source: the kernel's "ABI/testing/dev-kmsg".
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque

from pykubelet.base.kit.readiness import wait_ready
from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError, Translating, translated
from pykubelet.edges.host.proc.procfs import in_user_namespace

KMSG = "/dev/kmsg"
#: A record is always smaller than this.
_RECORD_BYTES = 16 << 10
_FACILITY_SHIFT = 3
#: The most records that are read at a time, in less than a millisecond.
BATCH = 64
#: The most records that `read_all` returns: more than the kernel's buffer usually has.
MAX_RECORDS = 20_000


class KernelRecord(Value):
    """A message of the kernel. `at`: seconds of the kernel's clock, which is close to the monotonic one."""

    at: float
    message: str


class KernelLog:
    """Reads the kernel's log from its oldest record on. The constructor raises HostError, usually for lack of CAP_SYSLOG."""

    def __init__(self, path: str = KMSG) -> None:
        self._path = path
        with Translating("open", path):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    async def read(self) -> list[str]:
        """Wait for records, and return the messages of the next ones, without their prefix and dictionary.

        Records that the kernel overwrote before they were read are skipped. Raises HostError.
        """
        while True:
            found, is_drained = self._read_batch()
            if found or not is_drained:
                await asyncio.sleep(0)  # let other tasks run between two batches of a long log
                return found
            await wait_ready(self._descriptor)

    def read_all(self) -> list[KernelRecord]:
        """The newest records that there are now, at most MAX_RECORDS. Does not wait. Raises HostError."""
        found: deque[KernelRecord] = deque(maxlen=MAX_RECORDS)
        for _ in range(10 * MAX_RECORDS):  # a program may write all the time
            if (data := self._read_record()) is None:
                break
            if data and (record := kernel_record(data)) is not None:
                found.append(record)
        return list(found)

    def close(self) -> None:
        """Close the log. No task may be reading."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read_batch(self) -> tuple[list[str], bool]:
        """Read some messages, and return them and whether there are no more records now."""
        found: list[str] = []
        for _ in range(BATCH):
            data = self._read_record()
            if data is None:
                return found, True
            if data and (message := kernel_message(data)) is not None:
                found.append(message)
        return found, False

    def _read_record(self) -> bytes | None:
        """The next record; empty if it was overwritten, None if there is none now. Raises HostError."""
        try:
            return os.read(self._descriptor, _RECORD_BYTES) or None
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EPIPE:
                return b""  # the next read begins at the oldest existing one
            raise translated("read", self._path, error) from error


def kernel_message(record: bytes) -> str | None:
    """The message of a record `<priority>,<sequence>,<microseconds>,<flags>;<message>`; None for a record of a program."""
    head, _, rest = record.partition(b";")
    priority = parse_decimal(head.partition(b",")[0].decode("ascii", "replace"))
    if priority is None or priority >> _FACILITY_SHIFT:
        return None
    return rest.partition(b"\n")[0].decode("utf-8", "replace")


def kernel_record(record: bytes) -> KernelRecord | None:
    """A record with its time; None for a record of a program."""
    message, fields = kernel_message(record), record.partition(b";")[0].split(b",")
    at = parse_decimal(fields[2].decode("ascii", "replace")) if len(fields) > 2 else None
    return KernelRecord(at / 1e6, message) if message is not None and at is not None else None


def open_kernel_log(path: str = KMSG, proc: str = "/proc") -> KernelLog | HostError:
    """Open the kernel's log. Raises HostError; in a user namespace, where the kernel refuses it, returns the error instead."""
    try:
        return KernelLog(path)
    except HostError as error:
        if in_user_namespace(proc):
            return error
        raise

"""Reads the kernel's counters of input and output by cgroup and disk, and the open files of processes.

Owns: the formats of blkio, `io.stat` and `/proc/diskstats`, and the reading of a process's descriptors. Blocks. Source: the
kernel's cgroup-v1 blkio-controller, cgroup-v2 and iostats documents, proc(5).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from pykubelet.base.model.usage import DeviceIo, DiskUse, ProcessesUse
from pykubelet.edges.host.fs.text_files import read_file

_MEMORY_DISKS = ("loop", "ram", "zram")
_SOFT_LIMIT = "Max open files"
_UNLIMITED = "unlimited"


def parse_blkio(bytes_text: str, operations_text: str) -> tuple[DeviceIo, ...]:
    """Parse the files `io_service_bytes` and `io_serviced` of cgroup v1."""
    amounts, counts = _by_device(bytes_text), _by_device(operations_text)
    return tuple(
        DeviceIo(
            number,
            amounts.get((number, "Read"), 0),
            amounts.get((number, "Write"), 0),
            counts.get((number, "Read"), 0),
            counts.get((number, "Write"), 0),
        )
        for number in dict.fromkeys(number for number, _ in (*amounts, *counts))
    )


def _by_device(text: str) -> dict[tuple[str, str], int]:
    lines = (line.split() for line in text.splitlines())
    return {(words[0], words[1]): int(words[2]) for words in lines if len(words) == 3 and words[2].isdigit()}


def parse_io_stat(text: str) -> tuple[DeviceIo, ...]:
    """Parse the file `io.stat` of cgroup v2."""
    found = []
    for line in text.splitlines():
        number, *pairs = line.split()
        counted = {key: int(value) for key, _, value in (pair.partition("=") for pair in pairs) if value.isdigit()}
        if "rbytes" in counted:
            amounts = (counted.get(key, 0) for key in ("rbytes", "wbytes", "rios", "wios"))
            found.append(DeviceIo(number, *amounts))
    return tuple(found)


def read_disks(proc: str = "/proc") -> tuple[DiskUse, ...]:
    """The counters of all block devices that are not backed by memory."""
    lines = (line.split() for line in read_file(f"{proc}/diskstats").splitlines())
    return tuple(
        DiskUse(words[2], f"{words[0]}:{words[1]}", *(int(word) for word in words[3:14]))
        for words in lines
        if len(words) >= 14 and not words[2].startswith(_MEMORY_DISKS)
    )


def device_of(path: str) -> str:
    """The number (`major:minor`) of the device of `path`; "" if the path does not exist."""
    try:
        device = os.stat(path).st_dev
    except OSError:
        return ""
    return f"{os.major(device)}:{os.minor(device)}"


def device_path(path: str) -> str:
    """The block device of `path` as mounts name it (`/dev/sda1`, `/dev/mapper/root`); "" if there is none."""
    link = f"/sys/dev/block/{device_of(path)}"
    try:
        name = os.path.basename(os.readlink(link))
    except OSError:
        return ""
    mapped = read_file(f"{link}/dm/name").strip()
    return f"/dev/mapper/{mapped}" if mapped else f"/dev/{name}"


def read_processes(pids: Iterable[int]) -> ProcessesUse:
    """The open files of these processes. Processes that have ended count no files. The limit is that of the first one."""
    count = descriptors = sockets = 0
    limit: int | None = None
    for pid in pids:
        if not count:
            limit = _open_files_limit(read_file(f"/proc/{pid}/limits"))
        count += 1
        for target in _open_targets(f"/proc/{pid}/fd"):
            descriptors += 1
            sockets += target.startswith("socket:")
    return ProcessesUse(count, descriptors, sockets, limit)


def _open_targets(directory: str) -> Iterator[str]:
    """The target of each descriptor. Descriptors that are closed in the meantime are left out."""
    with suppress(OSError):
        for name in os.listdir(directory):
            with suppress(FileNotFoundError):
                yield os.readlink(f"{directory}/{name}")


def _open_files_limit(text: str) -> int | None:
    """The soft limit of open files in the text of `/proc/<pid>/limits`; -1: no limit."""
    for line in text.splitlines():
        if line.startswith(_SOFT_LIMIT):
            soft = line[len(_SOFT_LIMIT) :].split()[0]
            return -1 if soft == _UNLIMITED else int(soft)
    return None

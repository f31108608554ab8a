"""Reads what a client requests of a log in one step, if that is little.

Most requests are for the last lines, which have just been written, so that the kernel still has them in memory: `read_in_memory` does not
wait for the disk. `read_short` does, and blocks. `log_reader.py` reads a log piece by piece, with several calls in threads.
"""

from __future__ import annotations

import os

from pykubelet.base.model.paths import log_file
from pykubelet.edges.cri.log_files import open_log
from pykubelet.edges.cri.log_render import LogOptions, LogRenderer
from pykubelet.edges.host.fs import beneath
from pykubelet.edges.host.fs.files import OpenDescriptor

#: The most bytes of a log that are read and returned at once.
SHORT = 1 << 17
#: Lines are looked for in this many bytes at the end first, which is enough for ten.
_NEAR = 1 << 12


def read_short(path: str, container: str, options: LogOptions) -> bytes | None:
    """All that is requested of the log, without following it; None if it takes more than the last SHORT bytes of the file.

    `container`: the container's ID. Raises HostError and OSError.
    """
    with OpenDescriptor(open_log(path, container)) as fd:
        lines = _wanted(fd, options.tail_lines)
    return _rendered(lines, options) if lines is not None else None


def read_in_memory(path: str, options: LogOptions) -> bytes | None:
    """As `read_short`, without blocking and of fewer bytes; None also if not all of it is in the kernel's memory, or it cannot be read."""
    if (opened := beneath.open_in_memory(log_file(path))) is None:
        return None
    fd, size = opened
    begin = max(0, size - _NEAR)
    data = bytearray(size - begin)
    try:
        got = os.preadv(fd, [data], begin, os.RWF_NOWAIT) if data else 0
    except OSError:  # EAGAIN: the disk must be read; EOPNOTSUPP: the file system never knows
        return None
    finally:
        os.close(fd)
    if got < len(data):
        return None
    start = _start_of_last(data, options.tail_lines) if options.tail_lines is not None else None
    return _rendered(bytes(data[start or 0 :]), options) if start is not None or begin == 0 else None


def _rendered(lines: bytes, options: LogOptions) -> bytes:
    renderer, end = LogRenderer(options), lines.rfind(b"\n") + 1
    return b"".join([renderer.render(part) for part in (lines[:end], lines[end:]) if part])


def _wanted(fd: int, tail_lines: int | None) -> bytes | None:
    """The last `tail_lines` lines of the file, or the whole file; None if that is more than its last SHORT bytes."""
    size = os.fstat(fd).st_size
    if tail_lines is None:
        return os.pread(fd, size, 0) if size <= SHORT else None
    for most in (_NEAR, SHORT):
        begin = max(0, size - most)
        data = os.pread(fd, size - begin, begin)
        start = _start_of_last(data, tail_lines)
        if start is not None or begin == 0:
            return data[start or 0 :]
    return None


def _start_of_last(data: bytes | bytearray, lines: int) -> int | None:
    """The offset at which the last `lines` lines begin; None if the end of the line before them is not in the data."""
    at = len(data) - data.endswith(b"\n")
    for _ in range(lines):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return None
    return at + 1

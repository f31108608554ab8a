"""Reads what a client requests of a log in one step, if that is little. Blocks.

Most requests are for the last lines. `log_reader.py` reads a log piece by piece, with several calls in threads.
"""

from __future__ import annotations

import os

from pykubelet.edges.cri.log_files import open_log
from pykubelet.edges.cri.log_render import LogOptions, LogRenderer

#: The most bytes of a log that are read and returned at once.
SHORT = 1 << 17
#: Lines are looked for in this many bytes at the end first, which is enough for ten.
_NEAR = 1 << 12


def read_short(path: str, container: str, options: LogOptions) -> bytes | None:
    """All that is requested of the log, without following it; None if it takes more than the last SHORT bytes of the file.

    `container`: the container's ID. Raises HostError and OSError.
    """
    fd = open_log(path, container)
    try:
        lines = _wanted(fd, options.tail_lines)
    finally:
        os.close(fd)
    if lines is None:
        return None
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


def _start_of_last(data: bytes, lines: int) -> int | None:
    """The offset at which the last `lines` lines begin; None if the end of the line before them is not in the data."""
    at = len(data) - data.endswith(b"\n")
    for _ in range(lines):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return None
    return at + 1

"""The memory of this process: what its objects use, and what the allocators hold of the kernel beside that.

Python has an allocator of its own for what takes up to 512 bytes, in *arenas* of 1 MiB (256 KiB before Python 3.10) that go back to the
kernel when they are empty as a whole. Anything larger, and the memory of libraries in C, is `malloc`'s: glibc has arenas of its own, of
which some are for threads, and gives back what is free at their ends, or in whole pages if it is asked to (`malloc_trim`).
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Allocated:
    """Bytes. `small`: of objects in Python's arenas, which take `small_arenas`. `malloc`: allocated by `malloc`, which holds `malloc_held`
    for it in `heaps` arenas, large blocks that are mapped by themselves included."""

    small: int
    small_arenas: int
    malloc: int
    malloc_held: int
    heaps: int

    @property
    def used(self) -> int:
        return self.small + self.malloc

    @property
    def held(self) -> int:
        return self.small_arenas + self.malloc_held


def allocated() -> Allocated:
    """What both allocators account for now. Garbage is not collected before."""
    return Allocated(*_python(), *_glibc())


def trim() -> None:
    """Let glibc give free pages of all its arenas back."""
    ctypes.CDLL(None).malloc_trim(0)


def of_process(field: str) -> int:
    """A figure of `/proc/self/status` such as `VmRSS`, in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


def _python() -> tuple[int, int]:
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            sys._debugmallocstats()  # it writes to descriptor 2
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        text = file.read()
    used = re.search(rb"# bytes in allocated blocks\s*=\s*([0-9,]+)", text)
    arenas = re.search(rb"arenas \* \d+ bytes/arena\s*=\s*([0-9,]+)", text)
    assert used is not None and arenas is not None, "this Python does not report how much of its memory is in use"
    return int(used[1].replace(b",", b"")), int(arenas[1].replace(b",", b""))


def _glibc() -> tuple[int, int, int]:
    """glibc's account of all its arenas: what they took from the system, less what is free in them."""
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    with tempfile.TemporaryFile() as file:
        stream = ctypes.c_void_p(libc.fdopen(os.dup(file.fileno()), b"w"))
        libc.malloc_info(0, stream)
        libc.fclose(stream)
        file.seek(0)
        text = file.read()
    totals = text.rpartition(b"</heap>")[2]

    def of(pattern: bytes) -> int:
        return sum(int(size) for size in re.findall(pattern + rb'[^>]* size="(\d+)"', totals))

    held = of(rb'<system type="current"') + of(rb'<total type="mmap"')
    return held - of(rb'<total type="(?:fast|rest)"'), held, text.count(b"<heap ")

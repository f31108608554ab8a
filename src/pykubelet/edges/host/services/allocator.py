"""Has the C library's allocator spare memory in a process with several threads and large short-lived buffers."""

from __future__ import annotations

import contextlib
import ctypes

#: Numbers of options of mallopt(3) in glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_THRESHOLD = 128 << 10
#: The largest process whose freed memory is given back, in bytes. All threads wait meanwhile: a millisecond in an idle process of 40 MiB,
#: and up to half a millisecond for each MiB in one that is full of gaps.
TRIMMED_BYTES = 64 << 20


def spare_memory() -> None:
    """Have all threads share one arena, and give large buffers back to the system when they are freed.

    Without it, each thread keeps an arena of its own, and buffers of a TLS connection (256 KiB) become part of the heap, which
    keeps its size when the connections are gone. Call it before threads are started. Does nothing with another C library.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    for option, value in ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _THRESHOLD), (_TRIM_THRESHOLD, _THRESHOLD)):
        mallopt(option, value)


def give_back_memory(used: int) -> None:
    """Give freed memory inside of the heap back to the system. `used`: the anonymous memory of the process, in bytes.

    By itself, the allocator does so only at the end of the heap. The start of a program and a list of many objects leave some MiB in gaps.
    Does nothing in a large process, or with another C library.
    """
    if used > TRIMMED_BYTES:
        return
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)

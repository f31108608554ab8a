"""Settings of the C library's allocator that spare memory in a process with several threads and large short-lived buffers."""

from __future__ import annotations

import ctypes

#: Numbers of options of mallopt(3) in glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_THRESHOLD = 128 << 10


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

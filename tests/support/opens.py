"""Observes whether a file is opened for reading or writing, which the kernel reports at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pykubelet.edges.host.fs import libc

IN_OPEN = 0x20


@contextmanager
def observed_opens(path: Path) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether the file was opened since. Opening it with O_PATH does not count."""
    descriptor = libc.inotify_init()
    try:
        libc.inotify_add_watch(descriptor, str(path), IN_OPEN)

        def was_opened() -> bool:
            try:
                return bool(os.read(descriptor, 4096))
            except BlockingIOError:
                return False

        yield was_opened
    finally:
        os.close(descriptor)

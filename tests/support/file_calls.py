"""Observes the file system calls of the event loop's thread, which a disk that hangs would hold up."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_CALLS = (
    "open",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.symlink",
    "os.listdir",
    "os.scandir",
    "os.chmod",
)
_observers: list[tuple[int, list[str]]] = []


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _observers and event in _CALLS:
        for thread, calls in _observers:
            if threading.get_ident() == thread:
                calls.append(f"{event} {arguments[0]!r}")


_is_installed: list[bool] = []


@contextmanager
def observed_file_calls() -> Iterator[list[str]]:
    """Yield the list of calls, by this thread, that open, make, list, rename or remove files."""
    if not _is_installed:
        sys.addaudithook(_audit)
        _is_installed.append(True)
    observer: tuple[int, list[str]] = (threading.get_ident(), [])
    _observers.append(observer)
    try:
        yield observer[1]
    finally:
        _observers.remove(observer)

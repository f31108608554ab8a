"""Observes file system calls: those of the event loop's thread, which a disk that hangs would hold up, and replaced files."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
_folders: list[tuple[str, list[str]]] = []


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _folders and event == "os.rename":
        folder, _, name = str(arguments[1]).rpartition("/")
        for observed, names in _folders:
            if folder == observed:
                names.append(name)
    if _observers and event in _CALLS:
        for thread, calls in _observers:
            if threading.get_ident() == thread:
                calls.append(f"{event} {arguments[0]!r}")


_is_installed: list[bool] = []


def _install() -> None:
    if not _is_installed:
        sys.addaudithook(_audit)
        _is_installed.append(True)


@contextmanager
def observed_file_calls() -> Iterator[list[str]]:
    """Yield the list of calls, by this thread, that open, make, list, rename or remove files."""
    _install()
    observer: tuple[int, list[str]] = (threading.get_ident(), [])
    _observers.append(observer)
    try:
        yield observer[1]
    finally:
        _observers.remove(observer)


@contextmanager
def observed_replacements(folder: Path) -> Iterator[list[str]]:
    """Yield the list of the names in `folder` that files get by a rename, of any thread: one for each write of a state file."""
    _install()
    observer: tuple[str, list[str]] = (str(folder), [])
    _folders.append(observer)
    try:
        yield observer[1]
    finally:
        _folders.remove(observer)

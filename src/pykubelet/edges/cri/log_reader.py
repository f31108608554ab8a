"""Reads a container's log file for those who want to see it, from its end or its beginning, and follows it.

Owns: the open file, how much of it is held in memory at once, and the way over a rotation: when another file takes the
name and nobody writes to the old one any more (`log_segments.py`), the old one is read to its end and the next is opened, plain
or compressed (`log_parts.py`). What the lines mean is up to `log_render.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from pykubelet.base.kit.flight import Done, Failed, Flight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.edges.cri import log_parts
from pykubelet.edges.cri.log_parts import OpenPart
from pykubelet.edges.cri.log_render import LogOptions, LogRenderer
from pykubelet.edges.cri.log_segments import CHANGES, LogSegments
from pykubelet.edges.host.fs.errors import HostError, translated
from pykubelet.edges.host.fs.files import real_path
from pykubelet.edges.host.fs.inotify import Watcher

if TYPE_CHECKING:
    from gzip import GzipFile

T = TypeVar("T")
#: What is read and rendered at a time fits into a core's own cache; a piece is what one visit to a thread brings back, and
#: the most that somebody who reads slowly makes us hold. A visit costs about 0.2 ms of CPU.
BLOCK = 1 << 17
PIECE = 1 << 21
READ_DEADLINE_S = 30.0
#: A line longer than this is handed on in pieces: the runtime cuts lines at 16 KiB.
MAX_LINE = 4 << 20
_numbers = count(1)


class _LogFile:
    """One file, read by lines, opened by the first read. With `tail_lines` its last lines; where it `grows` also what comes
    after them, else no more than these.

    Blocks; only `close` does not, so that a reader may leave in the middle of a read.
    """

    def __init__(self, path: str, tail_lines: int | None, *, grows: bool) -> None:
        self._path = path
        self._tail_lines = tail_lines
        self._grows = grows
        self._fd = -1
        self._name = ""
        self._gzip: GzipFile | None = None
        self._in_use = threading.Lock()
        self._is_over = False
        self._rest = b""
        self._at = 0
        self._end = sys.maxsize

    def lines(self) -> bytes:
        """The next whole lines, about BLOCK of them; empty at the end of what is written, or after `close`."""
        return self._using(self._lines) or b""

    def _using(self, work: Callable[[], T]) -> T | None:
        with self._in_use:
            found = None if self._is_over else work()
        if self._is_over:
            self.close()
        return found

    def open_after(self, path: str, before: _LogFile, left: str) -> OpenPart | None:
        """Open the part of the log at `path` that comes after `before`; None if there is none.

        `left`: see `log_parts.open_after`.
        """
        return self._using(lambda: before._using(lambda: self._open_after(path, before, left)))

    def _open_after(self, path: str, before: _LogFile, left: str) -> OpenPart | None:
        found = log_parts.open_after(path, before._fd, before._name, left) if before._fd >= 0 else None
        if found is None:
            return None
        self._fd, self._name = found.fd, found.name
        self._gzip = log_parts.gzip_reader(found.fd) if found.is_gzip else None
        return found

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if self._tail_lines is not None:
            size = os.fstat(self._fd).st_size
            self._at = _tail_start(self._fd, size, self._tail_lines)
            self._end = self._end if self._grows else size

    def _lines(self) -> bytes:
        if self._fd < 0:
            self._open()
        while True:
            # what a very long line already has is copied with each read: a read brings at least as much
            most = min(max(BLOCK, len(self._rest)), PIECE, self._end - self._at)
            data = log_parts.read_gzip(self._gzip, most) if self._gzip else os.pread(self._fd, most, self._at)
            if not data:
                return b""
            self._at += len(data)
            data = self._rest + data
            end = data.rfind(b"\n") + 1
            if end or len(data) > MAX_LINE:
                end = end or len(data)
                self._rest = data[end:]
                return data[:end]
            self._rest = data

    def rest(self) -> bytes:
        """The last line, where it has no end."""
        rest, self._rest = self._rest, b""
        return rest

    def close(self) -> None:
        """Give the descriptor back, at once or when the read that still uses it comes back."""
        self._is_over = True
        if self._in_use.acquire(blocking=False):
            fd, self._fd = self._fd, -1
            self._in_use.release()
            if fd >= 0:
                os.close(fd)


def _tail_start(fd: int, size: int, lines: int) -> int:
    """Where the last `lines` lines of the first `size` bytes begin."""
    at = size
    if lines <= 0:
        return size
    needed = lines
    while at > 0:
        begin = max(0, at - BLOCK)
        block = os.pread(fd, at - begin, begin)
        end = len(block)
        if at == size and block.endswith(b"\n"):
            end -= 1
        while (found := block.rfind(b"\n", 0, end)) >= 0:
            needed -= 1
            if needed == 0:
                return begin + found + 1
            end = found
        at = begin
    return 0


async def _hear(watcher: Watcher, turns: LogSegments) -> None:
    async for event in watcher:
        turns.take(event)


class LogReader:
    """`read` gives what the log at a path says. HostError when it cannot be read, also in the middle."""

    def __init__(self, flight: Flight) -> None:
        self._flight = flight

    async def read(
        self, path: str, options: LogOptions, ended: Callable[[], bool], wake: asyncio.Event
    ) -> AsyncGenerator[bytes, None]:
        """The log up to its end; with `follow`, on and on until `ended` says so and all is read.

        `wake` is set by the caller when `ended` may have changed.
        """
        reading = _Reading(self._flight, path, options)
        with contextlib.closing(reading):
            if not options.follow:
                async for text in reading.rest_of_file():
                    yield text
                yield await reading.unended_line()
                return
            path = await reading.resolve()
            with Watcher() as watcher:
                watcher.add(os.path.dirname(path), CHANGES)
                turns = LogSegments(path, wake)
                async with Supervisor("log-follow") as supervisor:
                    supervisor.start_root("log-turns", _hear(watcher, turns))
                    async for text in self._follow(reading, path, turns, ended, wake):
                        yield text

    async def _follow(
        self, reading: _Reading, path: str, turns: LogSegments, ended: Callable[[], bool], wake: asyncio.Event
    ) -> AsyncIterator[bytes]:
        while not reading.is_full:
            wake.clear()
            # both are asked before reading: what was written before them is then read to its end
            is_over, is_due = ended(), turns.is_due
            async for text in reading.rest_of_file():
                yield text
            if is_due:
                part = await reading.find_next(path, turns.go_on())
                if part is not None:
                    yield await reading.unended_line()
                    reading.begin_anew()
                    turns.begin(part.name, is_left=part.is_gzip)
            elif is_over and turns.patience_s is None:
                yield await reading.unended_line()
                return
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(turns.patience_s):
                        await wake.wait()


class _Reading:
    """The file that is read just now, off the event loop, and the renderer its lines go through."""

    def __init__(self, flight: Flight, path: str, options: LogOptions) -> None:
        self._flight = flight
        self._path = path
        self._renderer = LogRenderer(options)
        self._key = f"log-read:{next(_numbers)}:{path}"
        self._file = _LogFile(path, options.tail_lines, grows=options.follow)
        self._next_file = _LogFile(path, None, grows=True)

    @property
    def is_full(self) -> bool:
        return self._renderer.is_full

    async def resolve(self) -> str:
        """The path without symbolic links: followed once, as the file may be rotated behind them."""
        self._path = await self._run(lambda: real_path(self._path, strict=False))
        return self._path

    async def find_next(self, path: str, left: str) -> OpenPart | None:
        """The part after the one that is read: `begin_anew` then reads it. None: there is none.

        `left`: what the log was renamed to when its writer left it.
        """
        file, other = self._file, self._next_file
        return await self._run(lambda: other.open_after(path, file, left))

    def begin_anew(self) -> None:
        """From the beginning of the file that was found."""
        self._file.close()
        self._file, self._next_file = self._next_file, _LogFile(self._path, None, grows=True)

    async def rest_of_file(self) -> AsyncIterator[bytes]:
        is_at_end = False
        while not is_at_end:
            texts, is_at_end = await self._run(self._read)
            for text in texts:
                yield text

    def _read(self) -> tuple[list[bytes], bool]:
        """Pieces of text, and whether they are the last ones: the file has no more, or nothing more is wanted."""
        file = self._file
        texts: list[bytes] = []
        taken = 0
        while taken < PIECE:
            lines = b"" if self.is_full else file.lines()
            if not lines:
                return texts, True
            texts.append(self._renderer.render(lines))
            taken += len(lines)
        return texts, False

    async def unended_line(self) -> bytes:
        return await self._run(lambda: self._renderer.render(self._file.rest()))

    def close(self) -> None:
        self._file.close()
        self._next_file.close()

    async def _run(self, work: Callable[[], T]) -> T:
        outcome = await self._flight.run(self._key, work, READ_DEADLINE_S)
        if isinstance(outcome, Done):
            return outcome.value
        if isinstance(outcome, Failed) and isinstance(outcome.error, OSError):
            raise translated("read", self._path, outcome.error) from outcome.error
        if isinstance(outcome, Failed):
            raise outcome.error
        raise HostError("read", self._path, "ETIMEDOUT", "the disk does not answer")

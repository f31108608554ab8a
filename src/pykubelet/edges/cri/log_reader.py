"""Reads a container's log file for clients, from its beginning or its last lines, and follows it.

Owns: the open file, how much of it is held in memory at once, and rotations: when another file has the log's name and the
old one has no writer any more (`log_segments.py`), the old one is read to its end and the next one is opened, plain or
compressed (`log_parts.py`). `log_render.py` interprets the lines.

Each log that is followed takes an inotify instance, of which a user has 128 by default, all programs together. So only some logs are
watched; further ones are looked at once a second. (The reference takes an instance for each client, and fails without one.)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from pykubelet.base.kit.cells import within
from pykubelet.base.kit.flight import SingleFlight, value_of
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.paths import Beneath, log_file
from pykubelet.edges.cri import log_parts
from pykubelet.edges.cri.log_files import find_log
from pykubelet.edges.cri.log_parts import OpenPart
from pykubelet.edges.cri.log_render import LogOptions, LogRenderer
from pykubelet.edges.cri.log_segments import CHANGES, LogSegments
from pykubelet.edges.cri.log_short import read_in_memory, read_short
from pykubelet.edges.host.fs import beneath
from pykubelet.edges.host.fs.errors import HostError, translated
from pykubelet.edges.host.fs.inotify import Watcher

if TYPE_CHECKING:
    from gzip import GzipFile

T = TypeVar("T")
#: BLOCK bytes are read and rendered at a time; they fit into the cache of one core. PIECE bytes are returned by one call in a
#: thread, and are the most that is held in memory for a slow client. A call costs about 0.2 ms of CPU.
BLOCK = 1 << 17
PIECE = 1 << 21
READ_DEADLINE_S = 30.0
#: A longer line is returned in pieces. The runtime itself cuts lines at 16 KiB.
MAX_LINE = 4 << 20
#: So many logs are followed by inotify at once.
MOST_WATCHED = 48
#: The seconds between two looks at a log that is followed without inotify.
LOOK_S = 1.0
#: No inotify instance, no watch, or no memory for one.
_NONE_LEFT = ("EMFILE", "ENFILE", "ENOSPC", "ENOMEM")
_numbers = count(1)


class _LogFile:
    """One file that is read by lines. The first read opens it. `tail_lines`: only this many of its last lines are read.

    `grows`: bytes that are written after the opening are read too. Every method but `close` blocks; `close` may be called
    while another thread reads.
    """

    def __init__(self, path: Beneath, tail_lines: int | None, *, grows: bool) -> None:
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
        """The next whole lines, about BLOCK bytes; empty at the end of the file or after `close`."""
        return self._using(self._lines) or b""

    def _using(self, work: Callable[[], T]) -> T | None:
        with self._in_use:
            found = None if self._is_over else work()
        if self._is_over:
            self.close()
        return found

    def open_after(self, path: Beneath, before: _LogFile, left: str) -> OpenPart | None:
        """Open the part of the log at `path` that comes after `before`; None if there is none.

        `left`: see `log_parts.open_after`.
        """
        return self._using(lambda: before._using(lambda: self._open_after(path, before, left)))

    def _open_after(self, path: Beneath, before: _LogFile, left: str) -> OpenPart | None:
        found = log_parts.open_after(path, before._fd, before._name, left) if before._fd >= 0 else None
        if found is None:
            return None
        self._fd, self._name = found.fd, found.name
        self._gzip = log_parts.gzip_reader(found.fd) if found.is_gzip else None
        return found

    def _open(self) -> None:
        self._fd = beneath.open_regular(self._path)
        if self._tail_lines is not None:
            size = os.fstat(self._fd).st_size
            self._at = _tail_start(self._fd, size, self._tail_lines)
            self._end = self._end if self._grows else size

    def _lines(self) -> bytes:
        if self._fd < 0:
            self._open()
        while True:
            # each read copies the collected part of a very long line, so it reads at least as many new bytes
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
        """The last line if it has no newline, else nothing."""
        rest, self._rest = self._rest, b""
        return rest

    def has_news(self, log: Beneath) -> bool:
        """Whether there is more to read, or another file has the name `log`."""
        return self._using(lambda: self._has_news(log)) is not False

    def _has_news(self, log: Beneath) -> bool:
        if self._fd < 0 or self._gzip:
            return True
        own, named = os.fstat(self._fd), beneath.stat_file(log)
        is_same = named is not None and (named.device, named.inode) == (own.st_dev, own.st_ino)
        return not is_same or own.st_size != self._at

    def close(self) -> None:
        """Close the descriptor, at once or when the read that still uses it returns."""
        self._is_over = True
        if self._in_use.acquire(blocking=False):
            fd, self._fd = self._fd, -1
            self._in_use.release()
            if fd >= 0:
                os.close(fd)


def _tail_start(fd: int, size: int, lines: int) -> int:
    """The offset at which the last `lines` lines of the first `size` bytes begin."""
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


async def _take_events(watcher: Watcher, segments: LogSegments) -> None:
    async for event in watcher:
        segments.take(event)


class LogReader:
    """Reads and follows container logs. `read` may raise HostError at any point, if the log cannot be read."""

    def __init__(self, flight: SingleFlight) -> None:
        self._flight = flight
        self._watched = 0

    async def read_short(self, path: str, options: LogOptions, container: str = "") -> bytes | None:
        """As `read` without `follow`, if what is requested is short (see `log_short.py`); else None. Raises HostError."""
        if (text := read_in_memory(path, options)) is not None:
            return text
        work = _Work(self._flight, path)
        return await work.run(path, lambda: read_short(path, container, options))

    async def read(
        self,
        path: str,
        options: LogOptions,
        ended: Callable[[], bool],
        wake: asyncio.Event,
        container: str = "",
    ) -> AsyncGenerator[bytes, None]:
        """Yield the log up to its end; with `follow`, until `ended` returns true and everything is read.

        `container`: the container's ID. The caller sets `wake` when the result of `ended` may have changed.
        """
        reading = _Reading(self._flight, log_file(path), options)
        with contextlib.closing(reading):
            log = await reading.find(path, container)
            if not options.follow:
                async for text in reading.rest_of_file():
                    yield text
                yield await reading.unended_line()
                return
            with self._watcher(log) as watcher:
                if watcher is None:
                    async for text in self._follow_by_looking(reading, log, ended, wake):
                        yield text
                    return
                segments = LogSegments(log, wake)
                async with Supervisor("log-follow") as supervisor:
                    supervisor.start_root("log-segments", _take_events(watcher, segments))
                    async for text in self._follow(reading, log, segments, ended, wake):
                        yield text

    @contextlib.contextmanager
    def _watcher(self, log: Beneath) -> Iterator[Watcher | None]:
        """A watcher of the log's folder; None if enough logs are watched, or the kernel has nothing left for one."""
        if self._watched >= MOST_WATCHED:
            yield None
            return
        self._watched += 1
        with contextlib.ExitStack() as stack:
            stack.callback(self._count_unwatched)
            watcher: Watcher | None = None
            try:
                watcher = stack.enter_context(Watcher())
                watcher.add(log.parent, CHANGES)
            except HostError as error:
                if error.errno_name not in _NONE_LEFT:
                    raise
                watcher = None
            yield watcher

    def _count_unwatched(self) -> None:
        self._watched -= 1

    async def _follow_by_looking(
        self, reading: _Reading, log: Beneath, ended: Callable[[], bool], wake: asyncio.Event
    ) -> AsyncIterator[bytes]:
        while not reading.is_full:
            wake.clear()
            is_over = ended()
            async for text in reading.rest_of_file():
                yield text
            if await reading.find_next(log, "") is not None:
                await asyncio.sleep(LOOK_S)  # the runtime may have written to the rotated file for a moment
                async for text in reading.rest_of_file():
                    yield text
                yield await reading.unended_line()
                reading.switch_to_next()
            elif is_over:
                yield await reading.unended_line()
                return
            else:
                while not await within(LOOK_S, wake.wait()) and not await reading.has_news(log):
                    pass

    async def _follow(
        self, reading: _Reading, log: Beneath, segments: LogSegments, ended: Callable[[], bool], wake: asyncio.Event
    ) -> AsyncIterator[bytes]:
        while not reading.is_full:
            wake.clear()
            # check both before reading, so that everything written before the check is read
            is_over, is_due = ended(), segments.is_due
            async for text in reading.rest_of_file():
                yield text
            if is_due:
                part = await reading.find_next(log, segments.drop_oldest())
                if part is not None:
                    yield await reading.unended_line()
                    reading.switch_to_next()
                    segments.begin(part.name, is_left=part.is_gzip)
            elif is_over and segments.wait_s is None:
                yield await reading.unended_line()
                return
            else:
                await within(segments.wait_s, wake.wait())


class _Work:
    """The blocking work for one request, in a thread."""

    def __init__(self, flight: SingleFlight, path: str) -> None:
        self._flight = flight
        self._key = f"log-read:{next(_numbers)}:{path}"

    async def run(self, path: str, work: Callable[[], T]) -> T:
        """The result of `work`, which reads the file at `path`. Raises HostError."""
        try:
            return value_of(
                await self._flight.run(self._key, work, READ_DEADLINE_S),
                lambda _: HostError("read", path, "ETIMEDOUT", "the disk does not answer"),
            )
        except OSError as error:
            raise translated("read", path, error) from error


class _Reading:
    """The file that is currently read (in a thread), and the renderer of its lines."""

    def __init__(self, flight: SingleFlight, path: Beneath, options: LogOptions) -> None:
        self._work = _Work(flight, path)
        self._path = path
        self._options = options
        self._renderer = LogRenderer(options)
        self._file = _LogFile(path, options.tail_lines, grows=options.follow)
        self._next_file = _LogFile(path, None, grows=True)

    @property
    def is_full(self) -> bool:
        return self._renderer.is_full

    async def find(self, path: str, container: str) -> Beneath:
        """Find the file with the log, once, because a rotation may change the link to it."""
        self._path = await self._run(lambda: find_log(path, container))
        self._file = _LogFile(self._path, self._options.tail_lines, grows=self._options.follow)
        return self._path

    async def find_next(self, path: Beneath, left: str) -> OpenPart | None:
        """Open the part after the one that is read, so that `switch_to_next` can read it. None: there is none.

        `left`: see `log_parts.open_after`.
        """
        file, other = self._file, self._next_file
        return await self._run(lambda: other.open_after(path, file, left))

    def switch_to_next(self) -> None:
        """Continue with the beginning of the part that `find_next` opened."""
        self._file.close()
        self._file, self._next_file = self._next_file, _LogFile(self._path, None, grows=True)

    async def rest_of_file(self) -> AsyncIterator[bytes]:
        is_at_end = False
        while not is_at_end:
            texts, is_at_end = await self._run(self._read)
            for text in texts:
                yield text

    def _read(self) -> tuple[list[bytes], bool]:
        """Rendered text, and whether it is the last: the file has no more lines, or the client wants no more."""
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

    async def has_news(self, log: Beneath) -> bool:
        """Whether there may be more to read, in this file or in another one with the log's name."""
        file = self._file
        return await self._run(lambda: file.has_news(log))

    async def unended_line(self) -> bytes:
        return await self._run(lambda: self._renderer.render(self._file.rest()))

    def close(self) -> None:
        self._file.close()
        self._next_file.close()

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._work.run(self._path, work)

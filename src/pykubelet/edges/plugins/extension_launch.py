"""Starts the program of a process extension, and reads and writes its pipes. All buffers have limits.

The program is started by a shell that waits until it has its limits, and is then replaced by the program: nothing of it runs before. It
gets no variable but PATH, and a session of its own. Its standard error goes to the agent's log, a limited number of lines of it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import IO

from pykubelet.base.kit.bucket import TokenBucket
from pykubelet.base.kit.cells import within
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import finish
from pykubelet.edges.host.fs.errors import HostError, translated
from pykubelet.edges.host.services.process import kill_group, start_program, watch_exit
from pykubelet.edges.plugins.extension_limits import ExtensionLimits
from pykubelet.edges.plugins.extension_messages import LINE_BYTES, shown
from pykubelet.edges.plugins.extension_process import ChannelEndedError

log = Log("extensions")

_PIECE = 64 << 10
#: What may wait for a process that does not read: bytes.
QUEUE_BYTES = 4 << 20
#: A line of standard error in the log: bytes. The rest of a longer one is dropped.
LOG_LINE_BYTES = 1024
#: Lines of standard error that are logged: a second, and at once. Further ones are dropped and counted.
LOG_LINES_PER_S, LOG_LINES_AT_ONCE = 10.0, 100
#: Of the dropped ones, so many are logged after all when the process has ended: the last ones state why.
LAST_LINES = 10
#: Reads of standard error, of 64 KiB at most: a second, and at once. What is more waits in the pipe.
LOG_READS_PER_S, LOG_READS_AT_ONCE = 16.0, 64
#: A process that was asked to end, by the end of its input, is killed after so many seconds.
END_S = 1.0
#: Seconds for the end of a killed process and its children when the agent ends meanwhile.
GONE_S = 2.0
#: Seconds for making or emptying the cgroup.
LIMITS_S = 10.0
_SHELL = ("/bin/sh", "-c", 'read -r _ && exec "$0"')


class ProcessLauncher:
    """Starts the program at `path` each time it is called. `name`: the extension's."""

    def __init__(self, name: str, path: str, limits: ExtensionLimits, flight: SingleFlight, clock: Clock) -> None:
        self._name = name
        self._path = path
        self._limits = limits
        self._flight = flight
        self._clock = clock

    async def __call__(self) -> ProcessPipes:
        """Start it. Raises HostError."""
        process = LaunchedProgram(
            start_program((*_SHELL, self._path), {"PATH": os.environ.get("PATH", "")}, "/"), self._path
        )
        pipes = ProcessPipes(process, LoggedErrors(self._name, process.errors, self._clock), self._clear)
        try:
            await self._work("limit", lambda: self._limits.apply(process.pid))
        except BaseException:
            await pipes.end(at_once=True)
            raise
        pipes.send(b"\n")
        return pipes

    async def _clear(self) -> None:
        try:
            await self._work("end", self._limits.end)
        except HostError as error:
            log.warning("not all processes of an extension have ended", extension=self._name, error=error)

    async def _work(self, what: str, work: Callable[[], None]) -> None:
        outcome = await self._flight.run_next(f"extension {self._name}", work, LIMITS_S)
        match outcome:
            case Done():
                return
            case Failed(error):
                raise error
            case _:
                raise HostError(what, self._path, "ETIMEDOUT", f"the cgroup does not answer within {LIMITS_S:g} s")


class ProcessPipes:
    """The pipes of a process that runs: a `ProcessChannel`. `clear`: kills what has left its process group."""

    def __init__(self, process: LaunchedProgram, errors: LoggedErrors, clear: Callable[[], Awaitable[None]]) -> None:
        self._process = process
        self._lines = LineReader(process.output)
        self._input = LineWriter(process.input)
        self._errors = errors
        self._clear = clear

    async def read_line(self) -> bytes:
        """See `ProcessChannel.read_line`."""
        line = await self._lines.next()
        if line is not None:
            return line
        if not self._lines.problem:  # it has closed its output, or its end is about to be noticed
            raise ChannelEndedError(await self._process.how_it_ended() or "it has closed its standard output")
        raise ChannelEndedError(self._lines.problem)

    def send(self, line: bytes) -> bool:
        """See `ProcessChannel.send`."""
        return self._input.send(line)

    def fail(self, reason: str) -> None:
        """See `ProcessChannel.fail`."""
        self._lines.end(reason)

    async def end(self, *, at_once: bool) -> None:
        """See `ProcessChannel.end`."""
        try:
            self._input.close()
            if not at_once:
                await self._process.how_it_ended()
        finally:
            self._process.kill()
            self._lines.end("it was ended")
            await finish(self._gone(), GONE_S)

    async def _gone(self) -> None:
        await self._process.exited.wait()
        self._errors.close()
        self._process.reap()
        await self._clear()


class LaunchedProgram:
    """A program that was started, with its pipes."""

    def __init__(self, process: subprocess.Popen[bytes], path: str) -> None:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self.input, self.output, self.errors = process.stdin, process.stdout, process.stderr
        self.pid = process.pid
        self._process = process
        try:
            self.exited = watch_exit(process.pid)
        except OSError as error:  # no descriptor is left
            kill_group(process.pid)
            process.wait()
            for pipe in (self.input, self.output, self.errors):
                pipe.close()
            raise translated("pidfd_open", path, error) from error

    def kill(self) -> None:
        """Kill it and its process group, unless it has ended: its number may be another's then."""
        if not self.exited.is_set():
            kill_group(self.pid)

    async def how_it_ended(self) -> str:
        """Wait for its end, for `END_S` at most. Returns how it has ended, or an empty text if it has not."""
        if not await within(END_S, self.exited.wait()):
            return ""
        code = self.reap()
        return f"it has ended: {f'signal {-code}' if code < 0 else f'exit status {code}'}"

    def reap(self) -> int:
        """Its exit code, once it has ended; negative: the signal. Nothing of it is left in the kernel then."""
        return self._process.wait()


class LineReader:
    """Reads the lines of a pipe. It reads no further while a whole line waits to be taken. `problem`: why there is no next line."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self.problem = ""
        self._pipe = pipe
        self._data = bytearray()
        self._searched = 0
        self._lines: deque[bytes] = deque()
        self._is_reading = False
        self._wakeup = asyncio.Event()
        os.set_blocking(pipe.fileno(), False)
        self._set_reading(True)

    async def next(self) -> bytes | None:
        """Wait for the next line; None after the last one, or after a `problem`."""
        while not self._lines:
            if self._pipe.closed:
                return None
            self._set_reading(True)
            self._wakeup.clear()
            await self._wakeup.wait()
        return self._lines.popleft()

    def end(self, problem: str) -> None:
        """Read nothing more: there is no next line. The first problem counts."""
        if not self._pipe.closed:
            self._set_reading(False)
            self._pipe.close()
            self.problem = problem
            self._lines.clear()
        self._wakeup.set()

    def _set_reading(self, wanted: bool) -> None:
        if wanted == self._is_reading:
            return
        self._is_reading = wanted
        loop, descriptor = asyncio.get_running_loop(), self._pipe.fileno()
        if wanted:
            loop.add_reader(descriptor, self._read)
        else:
            loop.remove_reader(descriptor)

    def _read(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), _PIECE)
        except BlockingIOError:
            return
        if not data:
            self._set_reading(False)
            self._pipe.close()
            self._wakeup.set()
            return
        self._data += data
        *lines, rest = self._data[self._searched :].split(b"\n")
        if not lines:
            self._searched = len(self._data)
        else:
            lines[0] = self._data[: self._searched] + lines[0]
            self._data, self._searched = rest, len(rest)
            self._lines.extend(bytes(line) for line in lines)
            self._set_reading(False)
            self._wakeup.set()
        if len(self._data) > LINE_BYTES or any(len(line) > LINE_BYTES for line in lines[:1]):
            self.end(f"it has sent a line of more than {LINE_BYTES} bytes")


class LineWriter:
    """Writes lines to a pipe, in the background."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._queue: deque[memoryview] = deque()
        self._size = 0
        os.set_blocking(pipe.fileno(), False)

    def send(self, line: bytes) -> bool:
        """Append a line. False: the queue is full, or the pipe is closed."""
        if self._pipe.closed or self._size + len(line) > QUEUE_BYTES:
            return False
        self._queue.append(memoryview(line))
        self._size += len(line)
        if len(self._queue) == 1:
            self._write()
            if self._queue:
                asyncio.get_running_loop().add_writer(self._pipe.fileno(), self._write)
        return True

    def _write(self) -> None:
        """Write what the pipe takes now, 64 KiB at most."""
        left = _PIECE
        try:
            while self._queue and left > 0:
                sent = os.write(self._pipe.fileno(), self._queue[0][:left])
                self._size -= sent
                left -= sent
                self._queue[0] = self._queue[0][sent:]
                if not self._queue[0]:
                    self._queue.popleft()
        except BlockingIOError:
            return
        except BrokenPipeError:  # the process has ended, or has closed its input
            self.close()
            return
        if not self._queue:
            asyncio.get_running_loop().remove_writer(self._pipe.fileno())

    def close(self) -> None:
        """Send nothing more, and close the pipe. Does nothing if it is closed."""
        if not self._pipe.closed:
            asyncio.get_running_loop().remove_writer(self._pipe.fileno())
            self._pipe.close()
            self._queue.clear()
            self._size = 0


class LoggedErrors:
    """Writes the lines of a process's standard error to the agent's log, within limits."""

    def __init__(self, name: str, pipe: IO[bytes], clock: Clock) -> None:
        self._name = name
        self._pipe = pipe
        self._clock = clock
        self._line = bytearray()
        self._lines = TokenBucket(LOG_LINES_PER_S, LOG_LINES_AT_ONCE)
        self._reads = TokenBucket(LOG_READS_PER_S, LOG_READS_AT_ONCE)
        self._dropped = 0
        self._last: deque[bytearray] = deque(maxlen=LAST_LINES)
        self._timer: asyncio.TimerHandle | None = None
        os.set_blocking(pipe.fileno(), False)
        self._resume()

    def _resume(self) -> None:
        self._timer = None
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._read)

    def _read(self) -> None:
        now = self._clock.monotonic()
        if not self._reads.take(now):
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._pipe.fileno())
            self._timer = loop.call_later(self._reads.wait_s(now), self._resume)
            return
        try:
            data = os.read(self._pipe.fileno(), _PIECE)
        except BlockingIOError:
            return
        if data:
            self._take(data, now)
        else:
            self.close()

    def _take(self, data: bytes, now: float) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._add(line)
            self._log(now)
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._line += part[: LOG_LINE_BYTES - len(self._line)]

    def _log(self, now: float) -> None:
        line, self._line = self._line, bytearray()
        if not line:
            return
        if not self._lines.take(now):
            self._dropped += 1
            self._last.append(line)
            return
        self._log_dropped(self._dropped)
        self._write(line)

    def _write(self, line: bytearray) -> None:
        log.info("an extension logs", extension=self._name, line=shown(line.decode("utf-8", "replace")))

    def _log_dropped(self, lines: int) -> None:
        if lines:
            log.warning("lines of an extension were dropped", extension=self._name, lines=lines)
        self._dropped = 0
        self._last.clear()

    def close(self) -> None:
        """Log what is left, also in the pipe (64 KiB of it), and close the pipe. Does nothing if it is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._pipe.closed:
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            now = self._clock.monotonic()
            with suppress(BlockingIOError):  # it is open in another process, and empty
                self._take(os.read(self._pipe.fileno(), _PIECE), now)
            self._log(now)
            last = list(self._last)
            self._log_dropped(self._dropped - len(last))
            for line in last:
                self._write(line)
            self._pipe.close()

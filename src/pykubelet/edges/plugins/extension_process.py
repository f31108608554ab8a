"""One process extension: started, greeted, called, notified, and started again when it ends.

Owns: the cells `ExtensionProcessState` and `PodSet` of the process, its calls under way, and the limits of what it may send. The program
and its pipes are in `extension_launch.py`. A process that violates the protocol, or answers no call any more, is killed. The agent works
on without it. `docs/extensions/protocol.md` has the protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from pykubelet.base.kit.backoff import Backoff, BackoffPolicy
from pykubelet.base.kit.bucket import TokenBucket
from pykubelet.base.kit.cells import Cell, make_cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Counter
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.extension_process import ExtensionProcessState, PodSet, Point, ProcessPhase
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.plugins.extension_memory import KeptOffer
from pykubelet.edges.plugins.extension_messages import (
    LINE_BYTES,
    CallAnswer,
    HelloAnswer,
    ProtocolError,
    SentPods,
    hello_line,
    notice_line,
    parse_line,
    request_line,
)

log = Log("extensions")

#: Seconds for the answer to `hello`.
HELLO_S = 10.0
#: Calls of one process that are under way; further ones fail at once.
CALLS_AT_ONCE = 64
#: Calls in a row that a process may leave without an answer before it is killed and started again, and how long: seconds.
MAX_UNANSWERED, SILENT_S = 5, 10.0
#: The delays before a process is started again.
RESTART = BackoffPolicy(initial_s=1.0, cap_s=60.0)
#: What a process may send: units a second, and at once. A line costs one, and one more for each 4 KiB. What is too much waits in the pipe.
UNITS_PER_S, UNITS_AT_ONCE = 512.0, 2048
UNIT_BYTES = 4 << 10

STARTS = Counter("pykubelet_extension_process_starts_total", "Starts of process extensions.", ("extension",))
CALLS = Counter(
    "pykubelet_extension_process_calls_total",
    "Calls of process extensions, by their result: ok, error, late, away.",
    ("extension", "call", "result"),
)
DROPPED = Counter(
    "pykubelet_extension_process_notifications_dropped_total",
    "Notifications that a process extension did not take in time.",
    ("extension",),
)


class ExtensionProgram(Value):
    """A program that is loaded as an extension. `settings`: those of its settings file."""

    name: str
    path: str
    settings: Mapping[str, Any] = field(default_factory=dict)


class ExtensionCallError(Exception):
    """A call has no result. The text states why. `is_away`: the process is not there. `is_late`: it has not answered in time."""

    def __init__(self, text: str, *, is_away: bool = False, is_late: bool = False) -> None:
        super().__init__(text)
        self.is_away = is_away
        self.is_late = is_late


class ChannelEndedError(Exception):
    """A process has ended, or has sent what cannot be read. The text states why."""


class ProcessChannel(Protocol):
    """The pipes of a process that runs."""

    async def read_line(self) -> bytes:
        """Wait for the next line. Raises ChannelEndedError."""
        ...

    def send(self, line: bytes) -> bool:
        """Send a line, which may wait in a queue. False: the queue is full, or the process has ended."""
        ...

    def fail(self, reason: str) -> None:
        """Have `read_line` raise ChannelEndedError with this reason."""
        ...

    async def end(self, *, at_once: bool) -> None:
        """End the process and its children, and wait for their end. `at_once` False: it is asked to end first."""
        ...


class ExtensionProcess:
    """The process of one extension. `run` never returns. `node`: the node's name. `earlier`: what it offered to an earlier agent."""

    def __init__(
        self,
        program: ExtensionProgram,
        node: str,
        launch: Callable[[], Awaitable[ProcessChannel]],
        clock: Clock,
        earlier: KeptOffer | None = None,
    ) -> None:
        self.name = program.name
        first = ExtensionProcessState(program.name)
        if earlier is not None:
            first = replace(first, offers=earlier.offers, annotation=earlier.annotation, known=True)
        self.state: Cell[ExtensionProcessState]
        self.pods: Cell[PodSet]
        self.state, self._state = make_cell(f"extension-process-{program.name}", first)
        self.pods, self._pods = make_cell(f"extension-pods-{program.name}", PodSet())
        self._has_answered = False
        self._retry = asyncio.Event()
        self._hello = hello_line(node, program.settings)
        self._launch = launch
        self._clock = clock
        self._channel: ProcessChannel | None = None
        self._calls: dict[int, asyncio.Future[CallAnswer]] = {}
        self._number = 0
        self._unanswered = 0
        self._silent_since = 0.0  # when the first call without an answer was sent

    async def run(self) -> None:
        """Keep the process running until cancelled, and end it then."""
        restart: Backoff | None = None
        while True:
            before = self._state.get().error
            await self._run_once()
            now, why = self._clock.monotonic(), self._state.get().error
            restart = RESTART.raised(restart, now, now)
            if why != before:
                log.warning("an extension is away", extension=self.name, why=why, again_in_s=restart.delay_s)
            self._publish(restart_at=self._clock.wall() + restart.delay_s)
            self._retry.clear()
            try:
                async with asyncio.timeout(restart.delay_s):
                    await self._retry.wait()
                restart = None
            except TimeoutError:
                continue

    def enable(self) -> None:
        """Start the process now if it is away, and begin the delays anew."""
        self._retry.set()

    async def call(self, call: str, fields: Mapping[str, Any], deadline_s: float) -> bytes:
        """Make a request, and wait for its result, which is JSON. Raises ExtensionCallError."""
        try:
            result = await self._call(call, fields, deadline_s)
        except ExtensionCallError as error:
            CALLS.inc(self.name, call, "late" if error.is_late else "away" if error.is_away else "error")
            raise
        CALLS.inc(self.name, call, "ok")
        return result

    async def _call(self, call: str, fields: Mapping[str, Any], deadline_s: float) -> bytes:
        channel = self._channel
        if channel is None:
            raise ExtensionCallError(self._state.get().error or "it has not answered hello yet", is_away=True)
        if len(self._calls) >= CALLS_AT_ONCE:
            raise ExtensionCallError(f"{CALLS_AT_ONCE} calls of it are under way")
        self._number += 1
        number, line = self._number, request_line(self._number, call, fields)
        if len(line) > LINE_BYTES:
            raise ExtensionCallError(f"the request has {len(line)} bytes; a line has {LINE_BYTES} at most")
        if not channel.send(line):
            raise ExtensionCallError("it does not read its requests")
        future: asyncio.Future[CallAnswer] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        try:
            async with asyncio.timeout(deadline_s):
                answer = await future
        except TimeoutError:
            self._missed_answer(channel, deadline_s)
            raise ExtensionCallError(f"no answer to {call} within {deadline_s:g} s", is_late=True) from None
        finally:
            del self._calls[number]
        if answer.error:
            raise ExtensionCallError(answer.error)
        return answer.result

    def notify(self, fields: Mapping[str, Any]) -> bool:
        """Send a notification, if the process takes it now. Returns whether it was sent."""
        channel = self._channel
        if channel is None:
            return False
        line = notice_line(fields)
        is_sent = len(line) <= LINE_BYTES and channel.send(line)
        if not is_sent:
            DROPPED.inc(self.name)
        return is_sent

    async def _run_once(self) -> None:
        """Run the process to its end."""
        STARTS.inc(self.name)
        self._unanswered = 0
        self._publish(phase=ProcessPhase.STARTING, run=self._state.get().run + 1, restart_at=None)
        try:
            channel = await self._launch()
        except HostError as error:
            self._away(str(error))
            return
        at_once = True
        try:
            await self._greet(channel)
            await self._read(channel)
        except ProtocolError as error:
            self._away(f"it has sent {error}")
        except ChannelEndedError as error:
            self._away(str(error))
        except TimeoutError:
            self._away(f"it has not answered hello within {HELLO_S:g} s")
        except asyncio.CancelledError:
            at_once = False
            self._away("the agent ends")
            raise
        finally:
            await channel.end(at_once=at_once)

    def _away(self, why: str) -> None:
        """The process takes no further calls."""
        self._channel = None
        self._publish(phase=ProcessPhase.AWAY, error=why, missed=not self._has_answered)
        for future in self._calls.values():
            if not future.done():
                future.set_exception(ExtensionCallError(why, is_away=True))

    async def _greet(self, channel: ProcessChannel) -> None:
        """Send `hello` and take the answer. Raises ProtocolError, ChannelEndedError, TimeoutError."""
        channel.send(self._hello)
        async with asyncio.timeout(HELLO_S):
            answer = parse_line(await channel.read_line())
        if not isinstance(answer, HelloAnswer):
            raise ProtocolError("another message before its answer to hello")
        self._channel, self._has_answered = channel, True
        offers = sorted(answer.offers)
        log.info(
            "an extension is running", extension=self.name, offers=", ".join(offers) or None, version=answer.version
        )
        self._publish(
            phase=ProcessPhase.RUNNING,
            version=answer.version,
            offers=answer.offers,
            annotation=answer.annotation,
            known=True,
            missed=False,
            error="",
        )

    async def _read(self, channel: ProcessChannel) -> None:
        """Take what the process sends, not faster than it may. Raises ProtocolError, ChannelEndedError."""
        bucket = TokenBucket(UNITS_PER_S, UNITS_AT_ONCE)
        while True:
            line = await channel.read_line()
            self._take(parse_line(line))
            await asyncio.sleep(0)  # a process with much output delays no other work
            units, now = 1 + len(line) // UNIT_BYTES, self._clock.monotonic()
            if wait_s := bucket.wait_s(now, units - 1):
                await asyncio.sleep(wait_s)
            for _ in range(units):
                bucket.take(now + wait_s)

    def _take(self, message: HelloAnswer | CallAnswer | SentPods) -> None:
        match message:
            case CallAnswer():
                self._unanswered = 0
                future = self._calls.get(message.id)
                if future is not None and not future.done():  # else the answer is late
                    future.set_result(message)
            case SentPods(data):
                if not self._state.get().offered(Point.SOURCE):
                    raise ProtocolError('"pods", and does not offer "source"')
                if data != self._pods.get().data:
                    self._pods.publish(PodSet(self._pods.get().number + 1, data))
            case HelloAnswer():
                raise ProtocolError("a second answer to hello")

    def _missed_answer(self, channel: ProcessChannel, after_s: float) -> None:
        now = self._clock.monotonic()
        if not self._unanswered:
            self._silent_since = now - after_s
        self._unanswered += 1
        silent_s = now - self._silent_since
        if self._unanswered >= MAX_UNANSWERED and silent_s >= SILENT_S:
            channel.fail(f"it has answered none of {self._unanswered} calls for {silent_s:.0f} s")

    def _publish(self, **changes: Any) -> None:
        self._state.publish(replace(self._state.get(), **changes))

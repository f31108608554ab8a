"""Asks one extension: with limits, with its answer checked, and with the built-in decision where it fails.

A failure (an exception, too much CPU time or memory, a wrong answer) is logged, counted, shown by `pykubelet explain node` and reported as
an Event of the node. After `MAX_FAILURES` in a row the extension is off, until the agent starts again or `pykubelet extensions enable`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from pykubelet.base.kit.cells import CellWriter, Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import WORK
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Counter
from pykubelet.base.kit.text import shorten
from pykubelet.base.kit.values import replace
from pykubelet.base.model.extensions import ExtensionState, ExtensionStates, extension_key
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.reasons import EVENT_EXTENSION_FAILED
from pykubelet.edges.host.services.limited_call import CallInterrupt, LimitedCalls, LimitError

log = Log("extensions")
MAX_FAILURES = 3
MAX_ERROR = 1024
CALLS = Counter("pykubelet_extension_calls_total", "Calls of extensions.", ("extension", "point"))
SECONDS = Counter(
    "pykubelet_extension_cpu_seconds_total", "CPU time of extensions in the event loop.", ("extension", "point")
)
FAILURES = Counter(
    "pykubelet_extension_failures_total",
    "Calls of extensions that failed, so that the built-in decision counted.",
    ("extension", "point"),
)
A = TypeVar("A")
B = TypeVar("B")


class WrongAnswer(Exception):
    """An extension has given an answer that the point does not take; the text states why."""


class Board:
    """The states of all extensions, published when one changes."""

    def __init__(self, writer: CellWriter[ExtensionStates], recorder: Post[KubeEvent], clock: Clock) -> None:
        self._writer = writer
        self._states: dict[str, ExtensionState] = {}
        self.recorder = recorder
        self.clock = clock

    def put(self, state: ExtensionState) -> None:
        """Publish the state of an extension."""
        self._states[state.name] = state
        self._writer.publish(ExtensionStates(tuple(self._states.values())))


class Guard:
    """Asks one extension. `key`: what its calls are recorded as (`base/kit/flight.py`)."""

    def __init__(self, state: ExtensionState, calls: LimitedCalls, board: Board) -> None:
        self._state = state
        self._calls = calls
        self._board = board
        self._failures = 0
        self._work = WORK.on(extension_key(state.name))
        board.put(state)

    @property
    def name(self) -> str:
        """The extension's name."""
        return self._state.name

    @property
    def limits(self) -> LimitedCalls:
        """What it is called by."""
        return self._calls

    def ask(self, point: str, function: Callable[..., A], args: tuple[Any, ...], take: Callable[[A], B]) -> B | None:
        """The extension's answer, after `take` has checked and translated it; None: the built-in decision counts.

        `take` raises WrongAnswer. It runs with the limits, too, because the answer may be an object of the extension's own.
        """
        if self._state.off:
            return None
        name = self._state.name
        CALLS.inc(name, point)
        try:
            with self._work:
                answer = self._calls.call(asked, function, args, take)
        except (LimitError, WrongAnswer, ExtensionRaised) as error:
            self._failed(point, str(error))
            return None
        except MemoryError:
            self._failed(point, "it wanted more memory than it may have")
            return None
        finally:
            SECONDS.inc(name, point, by=self._calls.cpu_s)
        self._failures = 0
        return answer

    def enable(self) -> None:
        """Ask the extension again."""
        self._failures = 0
        if self._state.off:
            self._state = replace(self._state, off="")
            log.info("the extension is on again", extension=self.name)
            self._board.put(self._state)

    def _failed(self, point: str, problem: str) -> None:
        problem = shorten(problem, MAX_ERROR)
        FAILURES.inc(self.name, point)
        self._failures += 1
        is_last = self._failures >= MAX_FAILURES
        off = f"it has failed {self._failures} times in a row" if is_last else ""
        error = f"{point}: {problem}"
        self._state = replace(self._state, off=off, error=error, error_at=self._board.clock.wall())
        log.warning(
            "an extension has failed; the built-in decision counts",
            extension=self.name,
            point=point,
            why=problem,
            off=off or None,
        )
        text = f"Extension {self.name} has failed in {point}: {problem}"
        if is_last:
            text += f"; it is off until the agent starts again or `pykubelet extensions enable {self.name}`"
        self._board.recorder.post(warning(EVENT_EXTENSION_FAILED, text))
        self._board.put(self._state)


class ExtensionRaised(Exception):
    """The extension has raised an exception; the text describes it."""


def asked(function: Callable[..., A], args: tuple[Any, ...], take: Callable[[A], B]) -> B | None:
    """The answer of an extension as `take` takes it. Called within the limits. Raises WrongAnswer and ExtensionRaised."""
    try:
        answer = function(*args)
        return None if answer is None else take(answer)
    except (CallInterrupt, MemoryError, WrongAnswer):
        raise
    except BaseException as error:  # noqa: BLE001 - also SystemExit: foreign code ends nothing here
        raise ExtensionRaised(
            _describe(error)
        ) from None  # within the limits: `str` is a method of the extension's class


def _describe(error: BaseException) -> str:
    """The exception, with the line of the extension where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})" if trace is not None else ""
    return f"{type(error).__name__}: {str(error)[:MAX_ERROR]}{place}"

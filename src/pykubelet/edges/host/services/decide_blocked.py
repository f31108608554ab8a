"""Decides what is reported about an event loop that does not run. Pure.

The event loop notes every `BEAT_S` seconds that it runs. The monitor thread looks at that note.

- If it is older than `REPORT_S`, the event loop is blocked. This is reported once, with the stack of its thread.
- After a longer time the stacks of all tasks and threads are reported, once, and not more often than every `DUMP_PAUSE_S`.
- If it works on the same pod all the time, for `BLAME_S`, that pod is in the way. If the agent ends before the event loop runs again,
  the end is charged to the pod (`decide_last_run.py`).
- If the monitor thread itself did not run for `REPORT_S`, no Python code ran: the process was suspended, had no CPU, or C code kept
  the interpreter's lock. This is reported afterwards, with the CPU time used, and does not count as the event loop's.
"""

from __future__ import annotations

from pykubelet.base.kit.lag import PERIOD_S
from pykubelet.base.kit.values import Value, replace

BEAT_S = PERIOD_S
REPORT_S = 5.0
DUMP_S = 20.0
DUMP_PAUSE_S = 600.0
#: From this time on, the monitor thread looks for the pod that the event loop works on.
SUSPECT_S = 2 * BEAT_S
BLAME_S = 5.0


class MonitorSample(Value):
    """What the monitor thread sees. `at`: now; `beat_at`: the event loop's last note; both in monotonic seconds. `cpu_s`: the CPU
    time that the process has used. `pod`: the pod that the event loop works on, if the note is older than `SUSPECT_S`."""

    at: float
    beat_at: float
    cpu_s: float
    pod: str = ""


class Watched(Value):
    """The state between two looks. `since`: when the event loop can have begun to be blocked, if that was reported. `pod_since`: since
    when each look has found the same pod. `is_blamed`: the pod is in the way."""

    last: MonitorSample
    since: float | None = None
    is_dumped: bool = False
    dumped_at: float | None = None
    pod_since: float = 0.0
    is_blamed: bool = False


class ReportBlocked(Value):
    """Log that the event loop has been blocked for `seconds`, with the stack of its thread."""

    seconds: float


class DumpStacks(Value):
    """Log the stacks of all tasks and threads."""

    seconds: float


class ReportRunning(Value):
    """Log that the event loop runs again, after `seconds`."""

    seconds: float


class ReportPause(Value):
    """Log that no Python code ran for `seconds`, in which the process used `cpu_s` seconds of CPU time."""

    seconds: float
    cpu_s: float


class BlamePod(Value):
    """Record that a pod has been in the way for `seconds`."""

    pod: str
    seconds: float


class BlameNone(Value):
    """Record that no pod is in the way any more."""


Report = ReportBlocked | DumpStacks | ReportRunning | ReportPause | BlamePod | BlameNone


def look(state: Watched, now: MonitorSample, dump_s: float = DUMP_S) -> tuple[Watched, tuple[Report, ...]]:
    """The next state and the reports of one look. `dump_s`: after how many seconds all stacks are reported."""
    reports: list[Report] = []
    last, pause_s = state.last, now.at - state.last.at
    state = replace(state, last=now)
    if pause_s >= REPORT_S:
        reports.append(ReportPause(pause_s, now.cpu_s - last.cpu_s))
        if state.since is None:
            now = replace(now, beat_at=max(now.beat_at, now.at - BEAT_S))
    if state.since is not None and now.beat_at > state.since:
        reports.append(ReportRunning(now.beat_at - state.since))
        state = replace(state, since=None, is_dumped=False)
    seconds = now.at - now.beat_at
    if seconds >= REPORT_S and state.since is None:
        reports.append(ReportBlocked(seconds))
        state = replace(state, since=now.beat_at)
    is_recent = state.dumped_at is not None and now.at - state.dumped_at < DUMP_PAUSE_S
    if seconds >= dump_s and not state.is_dumped and not is_recent:
        reports.append(DumpStacks(seconds))
        state = replace(state, is_dumped=True, dumped_at=now.at)
    state, blame = _blame(state, last, now)
    return state, (*reports, *blame)


def _blame(state: Watched, last: MonitorSample, now: MonitorSample) -> tuple[Watched, tuple[Report, ...]]:
    """The pod that is in the way, after a look."""
    is_same = bool(now.pod) and now.pod == last.pod and now.beat_at == last.beat_at
    state = state if is_same else replace(state, pod_since=now.at)
    if is_same and now.at - state.pod_since >= BLAME_S:
        return replace(state, is_blamed=True), (BlamePod(now.pod, now.at - now.beat_at),)
    if state.is_blamed and not is_same:
        return replace(state, is_blamed=False), (BlameNone(),)
    return state, ()

"""The states of a pod: which there are, how they follow each other, and what always holds. Pure.

`TRANSITIONS` is the whole life of a pod. `decide.step` looks each of its steps up here while `CHECKS` is on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pykubelet.act.pods.model import (
    REMOVING,
    AbandonSync,
    CleanEnded,
    CleanUp,
    Command,
    Event,
    KillRequested,
    PodWorkerState,
    SpecChanged,
    StopEnded,
    StopPod,
    Sync,
    SyncEnded,
    Work,
)
from pykubelet.base.kit.checks import BrokenInvariantError
from pykubelet.base.kit.values import Value
from pykubelet.base.model.lifecycle import ENDED_STAGES, Stage

#: The stage of a pod and the work that runs for it.
Point = tuple[Stage, Work]


class Transition(Value):
    """One way from a point to the next. `by`: the events that lead there; empty: any. `why`: in words."""

    before: Point
    after: Point
    by: tuple[type, ...]
    why: str


_SYNCING = (Stage.SYNCING, Work.NONE)
_SYNC = (Stage.SYNCING, Work.SYNC)
_KILLED = (Stage.TERMINATING, Work.SYNC)
_STOP = (Stage.TERMINATING, Work.STOP)
_STOP_FAILED = (Stage.TERMINATING, Work.NONE)
_CLEAN = (Stage.TERMINATED, Work.CLEAN)
_TO_CLEAN = (Stage.TERMINATED, Work.NONE)
_FINISHED = (Stage.FINISHED, Work.NONE)

#: Where a pod's worker may begin: at the second if the pod has ended in the API and nothing of it runs.
BEGINNINGS = (_SYNCING, _TO_CLEAN)

#: All transitions. A step that leaves the stage and the work as they are is always permitted.
TRANSITIONS = (
    Transition(_SYNCING, _SYNC, (), "something is missing, or is to go"),
    Transition(_SYNCING, _STOP, (), "it is killed, or nothing is left to run"),
    Transition(_SYNC, _SYNCING, (SyncEnded,), "there is nothing to do, or only after a pause"),
    Transition(_SYNC, _STOP, (SyncEnded,), "nothing is left to run"),
    Transition(_SYNC, _KILLED, (KillRequested, SpecChanged), "it is killed; the sync is cancelled"),
    Transition(_KILLED, _STOP, (SyncEnded,), "the cancelled sync has ended"),
    Transition(_STOP, _STOP_FAILED, (StopEnded,), "a process still runs; there is a pause"),
    Transition(_STOP_FAILED, _STOP, (), "the pause is over"),
    Transition(_STOP, _CLEAN, (StopEnded,), "nothing runs any more"),
    Transition(_TO_CLEAN, _CLEAN, (), "the worker has begun, or the pause is over"),
    Transition(_CLEAN, _TO_CLEAN, (CleanEnded,), "something could not be given back; there is a pause"),
    Transition(_CLEAN, _FINISHED, (CleanEnded,), "its needs are given back; with a removing kill, nothing is left"),
    Transition(_FINISHED, _CLEAN, (), "it is now removed too"),
)
_PERMITTED = {(transition.before, transition.after): transition.by for transition in TRANSITIONS}
POINTS = frozenset(BEGINNINGS).union(*((transition.before, transition.after) for transition in TRANSITIONS))

_BEGINS: dict[type, Work] = {Sync: Work.SYNC, StopPod: Work.STOP, CleanUp: Work.CLEAN}
_RULES: tuple[tuple[str, Callable[[PodWorkerState], bool]], ...] = (
    ("its stage and work are in the table", lambda s: (s.stage, s.work) in POINTS),
    ("it has a kill exactly if it is not syncing", lambda s: (s.kill is None) is (s.stage is Stage.SYNCING)),
    ("it has a grace period of a second or more", lambda s: s.kill is None or s.kill.grace_s >= 1),
    ("if it has ended for good, it is not syncing", lambda s: not s.terminal or s.stage is not Stage.SYNCING),
    ("only an ended pod is removed", lambda s: not s.removed or s.stage in ENDED_STAGES),
    ("only a removing kill removes", lambda s: not s.removed or (s.kill is not None and s.kill.reason in REMOVING)),
    ("only an ended pod is known to be gone", lambda s: s.removed_at is None or s.stage in ENDED_STAGES),
    ("a finished pod has no failure", lambda s: s.failure is None or s.stage is not Stage.FINISHED),
    ("only a sync notes changed content", lambda s: not s.content_changed or s.work is Work.SYNC),
    ("only a pod that syncs restarts all", lambda s: not s.restarting_all or _may_sync(s)),
    ("only a pod that syncs restarts containers", lambda s: not s.to_restart or _may_sync(s)),
    ("its view is its own", lambda s: s.view is None or s.view.ref.uid == s.ref.uid),
)


def check_invariants(state: PodWorkerState) -> None:
    """Raise BrokenInvariantError if the state breaks a rule."""
    _raise_first(state, (rule for rule, holds in _RULES if not holds(state)))


def check_step(before: PodWorkerState, event: Event, after: PodWorkerState, commands: Sequence[Command]) -> None:
    """Raise BrokenInvariantError if the step is not in the table, or breaks a rule."""
    _raise_first(after, _broken_by_step(before, event, after, commands))
    check_invariants(after)


def _broken_by_step(
    before: PodWorkerState, event: Event, after: PodWorkerState, commands: Sequence[Command]
) -> Iterator[str]:
    start, end = (before.stage, before.work), (after.stage, after.work)
    if start != end:
        by = _PERMITTED.get((start, end))
        if by is None or (by and not isinstance(event, by)):
            yield f"{_named(start)} is not followed by {_named(end)} after {type(event).__name__}"
    begun = [_BEGINS[type(command)] for command in commands if type(command) in _BEGINS]
    if len(begun) > 1:
        yield f"one kind of work begins at a time, not {', '.join(begun)}"
    if begun and begun != [after.work]:
        yield f"the work that begins is the one that runs, not {begun[0]}"
    if after.work not in (Work.NONE, before.work) and not begun:
        yield "work that runs was begun by a command"
    if any(isinstance(command, AbandonSync) for command in commands) and before.work is not Work.SYNC:
        yield "only a sync is abandoned"
    if before.kill is not None and after.kill is not None and after.kill.grace_s > before.kill.grace_s:
        yield f"a grace period is never raised, as from {before.kill.grace_s} s to {after.kill.grace_s} s"
    if (before.kill is not None and after.kill is None) or (before.terminal and not after.terminal):
        yield "a kill and an end are never taken back"
    if before.removed and not after.removed:
        yield "a removed pod stays removed"


def _may_sync(state: PodWorkerState) -> bool:
    return state.stage is Stage.SYNCING or state.work is Work.SYNC


def _named(point: Point) -> str:
    stage, work = point
    return f"{stage} ({work})"


def _raise_first(state: PodWorkerState, broken: Iterator[str]) -> None:
    for rule in broken:
        raise BrokenInvariantError(f"pod {state.ref}, {_named((state.stage, state.work))}: broken rule: {rule}")

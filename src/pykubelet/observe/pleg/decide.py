"""Decisions of the PLEG: the reaction to hints, the handling of exits, the relist periods, and the merging of reads.

Rules:
- A view never replaces one whose read began later. A container that was seen exited stays exited.
- A hint only leads to a read. The one exception is how a container ended, which an event reports before the runtime's
  status does: that is published as a pending exit (`docs/decisions/0021-container-exits-from-events.md`).
- The runtime notes an OOM kill in a status apart from the exit, and sometimes after it. An exit that follows or precedes the hint of
  one is read until the status shows it.
- Exit hints of a container or sandbox that the agent is stopping wait for the answer of that call, for a limited time.
- A pod that a relist does not contain is first published with an empty view, and forgotten by the next relist.

Times are monotonic seconds. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID
from pykubelet.base.model.observed import (
    ContainerEnd,
    ContainerView,
    ObservedState,
    PodReadWanted,
    PodView,
    Removed,
    Stopped,
)
from pykubelet.base.model.reasons import OOM_KILLED
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.events import HintKind, RuntimeEventSource, RuntimeHint
from pykubelet.observe.pleg.views import ListedPod, state_of

#: When to read a container after an exit hint. containerd reports "stopped", about 20 ms later "reaped", and its CRI status
#: changes another 12 to 20 ms later. So the agent first waits for "reaped", and then reads. With CRI events the status is
#: correct at once. An overloaded machine may need seconds.
REAP_S = 0.08
EXIT_LAG_S: tuple[float, ...] = (0.012, 0.004, 0.004, 0.004, 0.006, 0.012, 0.02, 0.04, 0.08, 0.2, 0.4, *(0.5,) * 60)
EXIT_LAG_OF_CRI_S: tuple[float, ...] = (0.0, *EXIT_LAG_S)
SANDBOX_LAG_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0)
RESUBSCRIBE_S = (0.05, 0.1, 0.2, 0.5, 1.0)


class RelistPeriods(Value):
    """Seconds between relists, with and without an event stream.

    `first_s`: until the relist after the one that follows a subscription. The runtime may have sent an event before the subscription,
    and show its effect only after the first of these relists.
    `stopper_s`: how long an exit hint waits for the answer of the call that stops the container or sandbox.
    `unknown_s`: how long an id may stay unknown before a relist.
    """

    with_events_s: float = 10.0
    without_events_s: float = 1.0
    stopper_s: float = 5.0
    unknown_s: float = 2.0
    first_s: float = 1.0

    def period_s(self, has_events: bool, *, is_first: bool = False) -> float:
        """Seconds until the next relist. `is_first`: after the first one of a subscription."""
        period_s = self.with_events_s if has_events else self.without_events_s
        return min(period_s, self.first_s) if is_first else period_s


class ReadState(StrEnum):
    """Whether a pod is being read. `AGAIN`: a later hint needs one more read that begins after this one."""

    IDLE = "idle"
    READING = "reading"
    AGAIN = "again"


class ReadRecord(Struct):
    """The state of one pod besides its published view. Only the loop changes it."""

    ref: PodRef
    read: ReadState = ReadState.IDLE
    #: Containers whose status must be read again although their state is known.
    stale: frozenset[ContainerID] = frozenset()
    #: The last read failed, and an Event was recorded.
    failing: bool = False


# Hints


class Inspection(StrEnum):
    """The reaction to a hint of a known pod."""

    NONE = "none"  # the view already shows it
    POD = "pod"  # read the pod
    EXIT = "exit"  # read the container or sandbox until it has ended


def inspection(hint: RuntimeHint, view: PodView | None) -> Inspection:
    """The reaction to a hint of a known pod; `view` None: the pod was not read yet."""
    container = view.container(hint.id) if view is not None else None
    is_late_oom = hint.kind is HintKind.OOM and container is not None and container.state is ObservedState.EXITED
    if is_late_oom or hint.kind in (HintKind.STOPPED, HintKind.REAPED):
        return Inspection.EXIT
    if hint.kind in (HintKind.STARTED, HintKind.CREATED) and _shows_running(view, hint.id):
        return Inspection.NONE
    return Inspection.POD


def with_trusted_end(hint: RuntimeHint, is_oom_killed: bool) -> RuntimeHint:
    """The hint, without an end that must not be published.

    Exit code 0 after an OOM kill is no success; in that case only the runtime's status counts.
    """
    if is_oom_killed and hint.end is not None and hint.end.exit_code == 0:
        return replace(hint, end=None)
    return hint


def is_more_than_start(hint: RuntimeHint) -> bool:
    """Whether a hint for an unknown ID is still needed when a read shows the ID."""
    return hint.kind not in (HintKind.CREATED, HintKind.STARTED)


def _shows_running(view: PodView | None, runtime_id: str) -> bool:
    if view is None:
        return False
    state = next((c.state for c in view.containers if c.id == runtime_id), None)
    return state is ObservedState.RUNNING or any(s.id == runtime_id for s in view.sandboxes)


# Exits


class ExitStep(StrEnum):
    """The reaction to a hint that a container or sandbox has ended."""

    NONE = "none"  # the view shows the exit
    WAIT = "wait"  # the agent is stopping it: wait for the answer of that call
    REAPED = "reaped"  # it is already being read; after this second hint the status changes soon
    READ = "read"  # read it until the view shows the exit


def exit_step(
    view: PodView | None, runtime_id: str, *, is_being_stopped: bool, is_being_read: bool, is_oom_killed: bool = False
) -> ExitStep:
    """The reaction to a hint of an exit; `view` None: the pod was not read yet."""
    if is_being_stopped:
        return ExitStep.WAIT
    if is_being_read:
        return ExitStep.REAPED
    container = view.container(runtime_id) if view is not None else None
    is_shown = container is not None and _shows_end(container, is_oom_killed)
    return ExitStep.NONE if is_shown else ExitStep.READ


def exit_pauses(view: PodView | None, runtime_id: str, source: RuntimeEventSource) -> tuple[float, tuple[float, ...]]:
    """The time to wait for the hint "reaped", and then the pauses before each read, in seconds."""
    if view is not None and any(s.id == runtime_id for s in view.sandboxes):
        return 0.0, SANDBOX_LAG_S  # the code that stops a pod requests a read afterwards
    if source is RuntimeEventSource.CONTAINERD:
        return REAP_S, EXIT_LAG_S
    return 0.0, EXIT_LAG_OF_CRI_S


def has_ended(view: PodView, runtime_id: str, hinted_at: float, *, is_oom_killed: bool = False) -> bool:
    """Whether the view shows the exit, and the OOM kill if there was one. An ID that is missing in a read after `hinted_at` is gone."""
    container = view.container(runtime_id)
    if container is not None:
        return _shows_end(container, is_oom_killed)
    sandbox = next((s for s in view.sandboxes if s.id == runtime_id), None)
    return not sandbox.ready if sandbox is not None else view.read_at >= hinted_at


def with_exit(view: PodView, exited: ContainerView) -> PodView:
    """The view with this exited container instead of the running one, or of an exit that shows no OOM kill yet."""
    is_oom_killed = exited.reason == OOM_KILLED
    return replace(
        view,
        containers=tuple(
            exited if c.id == exited.id and (c.is_running or is_oom_killed) else c for c in view.containers
        ),
    )


def _shows_end(container: ContainerView, is_oom_killed: bool) -> bool:
    is_exited = container.state is ObservedState.EXITED
    return is_exited and (container.reason == OOM_KILLED or not is_oom_killed)


# Views


def view_from_answer(touch: PodReadWanted, view: PodView | None, record: ReadRecord) -> PodView | None:
    """The pod's view, if the runtime's answer to a call determines it; None: the pod must be read."""
    answer = touch.answer
    if isinstance(answer, Removed):
        return PodView(touch.ref, read_at=answer.at)
    if not isinstance(answer, Stopped) or view is None or record.read is not ReadState.IDLE:
        return None
    if any(c.state is not ObservedState.EXITED for c in view.containers):
        return None
    return replace(view, sandboxes=tuple(replace(s, ready=False) for s in view.sandboxes), read_at=answer.at)


def merge_view(known: PodView | None, view: PodView, ends: Sequence[ContainerEnd]) -> PodView:
    """The newer view `view`, merged with the older view `known`. `ends`: exits that earlier hints have reported."""
    if known is not None:
        view = _without_resurrection(known, view)
        ends = (*ends, *known.pending_exits)
    return view.add_pending_exits(ends) if ends else view


def without_stale(view: PodView | None, stale: frozenset[ContainerID]) -> PodView | None:
    """The view without the containers whose status must be read again."""
    if view is None or not stale:
        return view
    return replace(view, containers=tuple(c for c in view.containers if c.id not in stale))


def _without_resurrection(known: PodView, view: PodView) -> PodView:
    """Keep exited containers exited and OOM kills known, even if a read that began earlier shows neither."""
    exited = {c.id: c for c in known.containers if c.state is ObservedState.EXITED}

    def is_older(read: ContainerView) -> bool:
        now = exited.get(read.id)
        return now is not None and (read.is_running or (now.reason == OOM_KILLED and read.reason != OOM_KILLED))

    if not any(is_older(c) for c in view.containers):
        return view
    return replace(view, containers=tuple(exited[c.id] if is_older(c) else c for c in view.containers))


# Relists


def needs_read(view: PodView | None, listed: ListedPod, listed_at: float) -> bool:
    """Whether a list that began at `listed_at` shows changes of a pod."""
    return view is None or (view.read_at <= listed_at and not is_unchanged(view, *listed))


def is_unchanged(view: PodView, sandboxes: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]) -> bool:
    """Whether a list shows the same sandboxes and containers, in the same states, as the view."""
    if len(view.sandboxes) != len(sandboxes) or len(view.containers) != len(containers):
        return False
    ready = {str(s.id): s.ready for s in view.sandboxes}
    states = {str(c.id): c.state for c in view.containers}
    return all(ready.get(s.id) == (s.state == pb.SANDBOX_READY) for s in sandboxes) and all(
        states.get(c.id) is state_of(c) for c in containers
    )


def missing_pods(
    pods: Mapping[PodUID, PodView],
    listed: Collection[PodUID],
    listed_at: float,
    records: Mapping[PodUID, ReadRecord],
) -> dict[PodUID, PodView | None]:
    """The new views of pods that a list does not contain: first an empty view, then None (forget the pod)."""
    changed: dict[PodUID, PodView | None] = {}
    for uid, view in pods.items():
        if uid in listed or view.read_at >= listed_at:
            continue
        if not view.is_gone:
            changed[uid] = PodView(view.ref, read_at=listed_at)
        elif uid not in records or records[uid].read is ReadState.IDLE:
            changed[uid] = None
    return changed


def ids_of(pods: Iterable[ListedPod]) -> set[str]:
    """The IDs of all sandboxes and containers in a list."""
    return {s.id for sandboxes, _ in pods for s in sandboxes} | {c.id for _, containers in pods for c in containers}

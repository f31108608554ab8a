"""Decisions of the pod state machine about a sandbox that ends while its pod runs. Pure; part of `decide`.

Rules:
- A runtime that stops a sandbox ends its containers first, one after the other, and each of these ends is known before that
  of the sandbox. So a container that ended at most TOGETHER_S before its sandbox has ended with it, and so has one that ended at most
  TOGETHER_S before another one that was killed and has ended with it.
- An instance that was started for such a container in the old sandbox does not count: it is removed with its log, the
  instance in the new sandbox gets its restart count, and the back-off is not raised twice.
"""

from __future__ import annotations

from pykubelet.act.pods.model import LostSandbox, PodWorkerState, RecentEnd, Uncounted
from pykubelet.act.runtime.plan.plan import KillCause
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import SandboxID
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.observed import ContainerView, ObservedState, PodView, SandboxView
from pykubelet.base.model.reasons import OOM_KILLED

#: A busy runtime needs seconds to stop each container of a sandbox.
TOGETHER_S = 5.0
#: The exit codes of containers that end by SIGKILL or SIGTERM.
_KILLED_CODES = (137, 143)
#: The words for kills of running containers. A container whose postStart hook failed may have ended before.
_BY_WORKER = frozenset(cause.words for cause in KillCause)


def with_lost_sandbox(before: PodView | None, state: PodWorkerState, now: float) -> PodWorkerState:
    """The state after its new view has shown the end of the sandbox, and without the instances that do not count.

    `before`: the previous view.
    """
    view = state.view
    if view is None or state.stage is not Stage.SYNCING:
        return state
    lost, since = _lost_sandbox(before, view, state.lost), now
    if lost is not None:
        seen = state.lost if state.lost is not None and state.lost.id == lost else LostSandbox(lost, now)
        state, since = replace(state, lost=seen), seen.seen_at
    state = replace(state, ends=_with_new_ends(state, view, _first_together(state, view, since)))
    if lost is not None:
        state = replace(state, uncounted=_uncounted(before, state, lost))
    return replace(state, view=view.without({useless.id for useless in state.uncounted}))


def _lost_sandbox(before: PodView | None, view: PodView, known: LostSandbox | None) -> SandboxID | None:
    """The newest sandbox if it has ended, or the last one if it was removed; None: neither.

    Of a sandbox that had ended before the first view, only dates are known, and the wall clock may have been set since.
    """
    newest = next(iter(view.sandboxes or (before.sandboxes if before is not None else ())), None)
    if newest is None or (view.sandboxes and newest.ready):
        return None
    was_ready = before is not None and any(s.id == newest.id and s.ready for s in before.sandboxes)
    return newest.id if was_ready or (known is not None and known.id == newest.id) else None


def _first_together(state: PodWorkerState, view: PodView, until: float) -> float:
    """Since when the containers that end have ended together with what ends at `until`."""
    exits = state.back_offs.exits
    ended = [(exits[instance.id], instance) for instance in view.containers if instance.id in exits]
    ended += [(end.at, end.instance) for end in state.ends.values()]
    since = until - TOGETHER_S
    for at in sorted((at for at, instance in ended if _is_killed(instance)), reverse=True):
        if at < since:
            break
        since = min(since, at - TOGETHER_S)
    return since


def _with_new_ends(state: PodWorkerState, view: PodView, since: float) -> dict[str, RecentEnd]:
    """By container, the first of its ends since then; it is known after the instance was removed. Kills by the pod worker have
    another cause."""
    ends = {name: end for name, end in state.ends.items() if end.at >= since}
    for instance in reversed(view.containers):
        ended_at = state.back_offs.exits.get(instance.id)
        if ended_at is None or ended_at < since or state.killed.get(instance.id) in _BY_WORKER:
            continue
        known = ends.get(instance.name)
        if known is None or known.instance.id == instance.id or known.instance.sandbox_id != instance.sandbox_id:
            ends[instance.name] = RecentEnd(instance, ended_at)
    return ends


def _uncounted(before: PodView | None, state: PodWorkerState, lost: SandboxID) -> tuple[Uncounted, ...]:
    """The instances in the lost sandbox that were started after one of the same container had ended with the sandbox."""
    known = {useless.id: useless.instance for useless in state.uncounted}
    for view in (before, state.view):
        known.update({c.id: c for c in view.containers} if view is not None else {})
    found = []
    for instance in known.values():
        end = state.ends.get(instance.name)
        if (
            end is not None
            and instance.sandbox_id == end.instance.sandbox_id == lost
            and instance.attempt > end.instance.attempt
        ):
            found.append(Uncounted(instance, end.instance))
    return tuple(found)


def may_have_ended_with(sandbox: SandboxView, newest: ContainerView | None) -> bool:
    """Whether the end of a container may be the first sign of the end of its sandbox: it was killed, and not for its memory."""
    if newest is None or newest.state is not ObservedState.EXITED or newest.sandbox_id != sandbox.id:
        return False
    return _is_killed(newest)


def _is_killed(instance: ContainerView) -> bool:
    return instance.exit_code in _KILLED_CODES and instance.reason != OOM_KILLED

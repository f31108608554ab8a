"""The end of a sandbox while its pod runs, as a value: which instances ended with it, and which starts do not count. Pure.

Rules:
- A runtime that stops a sandbox ends its containers first, one after the other, and each of these ends is known before that
  of the sandbox. So a container that ended at most TOGETHER_S before its sandbox has ended with it, and so has one that ended at most
  TOGETHER_S before another one that was killed and has ended with it.
- An instance that was started for such a container in the old sandbox does not count: it is removed with its log, the
  instance in the new sandbox gets its restart count, and the back-off is not raised twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pykubelet.act.runtime.plan.plan import KillCause
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.ids import ContainerID, SandboxID
from pykubelet.base.model.observed import ContainerView, ObservedState, PodView, SandboxView
from pykubelet.base.model.reasons import OOM_KILLED

#: A busy runtime needs seconds to stop each container of a sandbox.
TOGETHER_S = 5.0
#: The exit codes of containers that end by SIGKILL or SIGTERM.
_KILLED_CODES = (137, 143)
#: The words for kills of running containers. A container whose postStart hook failed may have ended before.
_BY_WORKER = frozenset(cause.words for cause in KillCause)


class LostSandbox(Value):
    """A sandbox that ended while the pod was to run. `seen_at`: when a view first showed that, in monotonic seconds."""

    id: SandboxID
    seen_at: float


class RecentEnd(Value):
    """The end of an instance, and when it ended, in monotonic seconds."""

    instance: ContainerView
    at: float


class Uncounted(Value):
    """An instance that was started while its sandbox ended, after `ended`, the instance that had ended with the sandbox."""

    instance: ContainerView
    ended: ContainerView

    @property
    def id(self) -> ContainerID:
        """The instance's ID."""
        return self.instance.id


class SandboxLoss(Value):
    """The end of a sandbox while the pod was to run, and the instances that ended with it or were started meanwhile."""

    #: The last sandbox that ended so.
    lost: LostSandbox | None = None
    #: By container name, the first end that may belong to the end of a sandbox.
    ends: Mapping[str, RecentEnd] = field(default_factory=dict)
    #: Instances that were started in the lost sandbox while it ended. They are left out of the pod's view.
    uncounted: tuple[Uncounted, ...] = ()

    @property
    def uncounted_ids(self) -> frozenset[ContainerID]:
        """The instances that do not count."""
        return frozenset(useless.id for useless in self.uncounted)

    @property
    def taken_back(self) -> frozenset[ContainerID]:
        """The ended instances whose next start does not count."""
        return frozenset(useless.ended.id for useless in self.uncounted)

    def after_view(
        self,
        before: PodView | None,
        view: PodView,
        exits: Mapping[ContainerID, float],
        killed: Mapping[ContainerID, str],
        now: float,
    ) -> Self:
        """The value after a newer view. `before`: the view before it, without the instances that do not count.

        `exits`: when each ended instance has ended, in monotonic seconds. `killed`: why instances were killed one by one.
        """
        sandbox, lost, since = _lost_sandbox(before, view, self.lost), self.lost, now
        if sandbox is not None:
            lost = lost if lost is not None and lost.id == sandbox else LostSandbox(sandbox, now)
            since = lost.seen_at
        ends = _with_new_ends(self.ends, view, exits, killed, _first_together(self.ends, view, exits, since))
        loss = replace(self, lost=lost, ends=ends)
        if sandbox is None:
            return loss
        return replace(loss, uncounted=_uncounted(loss, before, view, sandbox))

    def forgotten(self) -> Self:
        """The value of a pod whose instances are all removed, those that do not count among them."""
        return replace(self, uncounted=())


def _lost_sandbox(before: PodView | None, view: PodView, known: LostSandbox | None) -> SandboxID | None:
    """The newest sandbox if it has ended, or the last one if it was removed; None: neither.

    Of a sandbox that had ended before the first view, only dates are known, and the wall clock may have been set since.
    """
    newest = next(iter(view.sandboxes or (before.sandboxes if before is not None else ())), None)
    if newest is None or (view.sandboxes and newest.ready):
        return None
    was_ready = before is not None and any(s.id == newest.id and s.ready for s in before.sandboxes)
    return newest.id if was_ready or (known is not None and known.id == newest.id) else None


def _first_together(
    ends: Mapping[str, RecentEnd], view: PodView, exits: Mapping[ContainerID, float], until: float
) -> float:
    """Since when the containers that end have ended together with what ends at `until`."""
    ended = [(exits[instance.id], instance) for instance in view.containers if instance.id in exits]
    ended += [(end.at, end.instance) for end in ends.values()]
    since = until - TOGETHER_S
    for at in sorted((at for at, instance in ended if _is_killed(instance)), reverse=True):
        if at < since:
            break
        since = min(since, at - TOGETHER_S)
    return since


def _with_new_ends(
    known_ends: Mapping[str, RecentEnd],
    view: PodView,
    exits: Mapping[ContainerID, float],
    killed: Mapping[ContainerID, str],
    since: float,
) -> dict[str, RecentEnd]:
    """By container, the first of its ends since then; it is known after the instance was removed. Kills by the pod worker have
    another cause."""
    ends = {name: end for name, end in known_ends.items() if end.at >= since}
    for instance in reversed(view.containers):
        ended_at = exits.get(instance.id)
        if ended_at is None or ended_at < since or killed.get(instance.id) in _BY_WORKER:
            continue
        known = ends.get(instance.name)
        if known is None or known.instance.id == instance.id or known.instance.sandbox_id != instance.sandbox_id:
            ends[instance.name] = RecentEnd(instance, ended_at)
    return ends


def _uncounted(loss: SandboxLoss, before: PodView | None, view: PodView, lost: SandboxID) -> tuple[Uncounted, ...]:
    """The instances in the lost sandbox that were started after one of the same container had ended with the sandbox."""
    known = {useless.id: useless.instance for useless in loss.uncounted}
    for seen in (before, view):
        known.update({c.id: c for c in seen.containers} if seen is not None else {})
    found = []
    for instance in known.values():
        end = loss.ends.get(instance.name)
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

"""Chooses the dead containers and sandboxes to remove. Pure.

Rules, as in the reference kubelet:
- A container may be removed if it does not run and was created longer ago than the minimum age. Containers of one name in
  one pod are a group; the newest `per_container` of each group are kept. All are removed if the pod is unknown, or was
  evicted and has ended.
- If more than `total` are left on the node, every group first keeps the same number, at least one; then the oldest are
  removed.
- A sandbox may be removed if it is not ready and has no container. The newest sandbox of a pod is kept unless the pod is
  unknown, or was evicted and has ended.
- When a container has ended, its group is reduced to `per_container` (at least one; 0 if the pod was evicted and has
  ended) at once, regardless of age.
Differences from the reference kubelet: a pod that is being removed is left to its worker. The newest instance of each
container of an active pod is kept, because restart counts and back-off are read from it. A container of an active pod
that was created but not started is removed only if it is not the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import assert_never

from msgspec import Struct

from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodRef, PodUID, SandboxID
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.observed import ContainerView, Observed, ObservedState, PodView, SandboxView
from pykubelet.base.model.roster import Roster

_REMOVING = frozenset({KillReason.REMOVED, KillReason.DELETED, KillReason.ORPHANED})


class GcPolicy(Value):
    """The limits of garbage collection. `min_age_s`: since creation. `per_container` and `total` below zero: no limit."""

    min_age_s: float = 0.0
    per_container: int = 1
    total: int = -1


class GcState(StrEnum):
    """The state of a pod for garbage collection. An active pod needs dead containers for decisions, an ended pod shows
    their logs and exit codes. Gone and evicted pods do not need them. The worker removes those of a pod in removal."""

    ACTIVE = "active"
    ENDED = "ended"
    EVICTED = "evicted"
    GONE = "gone"
    REMOVING = "removing"


class PodGarbage(Value):
    """The containers and sandboxes to remove of one pod: containers first, oldest first."""

    ref: PodRef
    containers: tuple[ContainerView, ...] = ()
    sandboxes: tuple[SandboxID, ...] = ()


class GcFacts(Value):
    """The pods that the agent knows."""

    lifecycles: Lifecycles
    roster: Roster

    def gc_state(self, uid: PodUID) -> GcState:
        """The state of a pod for garbage collection by its life cycle; without one, it is active if the roster has it, else gone."""
        lifecycle = self.lifecycles.pods.get(uid)
        if lifecycle is None:
            return GcState.ACTIVE if uid in self.roster.pods else GcState.GONE
        return _gc_state_of(lifecycle)


def _gc_state_of(lifecycle: PodLifecycle) -> GcState:
    if lifecycle.kill_reason in _REMOVING:
        return GcState.REMOVING
    match lifecycle.stage:
        case Stage.SYNCING | Stage.TERMINATING:
            return GcState.ACTIVE
        case Stage.TERMINATED | Stage.FINISHED:
            return GcState.EVICTED if lifecycle.kill_reason is KillReason.EVICTED else GcState.ENDED
        case _:
            assert_never(lifecycle.stage)


class _Group(Struct):
    """The containers of one name in one pod that may be removed, newest first. `needed`: how many of them must be kept."""

    view: PodView
    containers: list[ContainerView]
    needed: int


def plan_gc(
    observed: Observed, known: GcFacts, policy: GcPolicy, wall: float, *, with_ended: bool = False
) -> tuple[PodGarbage, ...]:
    """The removals of one round. `wall`: seconds since the epoch. `with_ended`: also remove all of pods that have ended."""
    going: dict[PodUID, list[ContainerView]] = {}
    groups: list[_Group] = []
    clear_out = {GcState.GONE, GcState.EVICTED} | ({GcState.ENDED} if with_ended else set())
    views = {uid: view for uid, view in observed.pods.items() if _may_touch(view, known.gc_state(uid))}
    for uid, view in views.items():
        gc_state = known.gc_state(uid)
        for group in _groups(view, gc_state, wall - policy.min_age_s):
            if gc_state in clear_out:
                going.setdefault(uid, []).extend(group.containers)
            else:
                groups.append(group)
    if policy.per_container >= 0:
        _shrink(groups, policy.per_container, going)
    if policy.total >= 0:
        _shrink_to_total(groups, policy.total, going)
    plans = []
    for uid, view in views.items():
        containers = tuple(reversed(_newest_first(going.get(uid, ()))))
        sandboxes = _dead_sandboxes(view, containers, keep_newest=known.gc_state(uid) not in clear_out)
        if containers or sandboxes:
            plans.append(PodGarbage(view.ref, containers, sandboxes))
    return tuple(plans)


def plan_ended(view: PodView, gc_state: GcState, policy: GcPolicy) -> PodGarbage | None:
    """The removals for a pod right after one of its containers has ended; None for none."""
    if gc_state is GcState.REMOVING or policy.per_container < 0:
        return None
    keep = 0 if gc_state is GcState.EVICTED else max(1, policy.per_container)
    going: list[ContainerView] = []
    for name in dict.fromkeys(c.name for c in view.containers):
        ended = [c for c in view.instances(name) if c.state is ObservedState.EXITED]
        going.extend(_newest_first(ended)[keep:])
    return PodGarbage(view.ref, tuple(reversed(_newest_first(going)))) if going else None


def _may_touch(view: PodView, gc_state: GcState) -> bool:
    if gc_state is GcState.REMOVING:
        return False
    return not (gc_state is GcState.GONE and view.is_alive)  # the pod will be stopped and then removed as an orphan


def _groups(view: PodView, gc_state: GcState, youngest: float) -> list[_Group]:
    groups = []
    for name in dict.fromkeys(c.name for c in view.containers):
        instances = _newest_first(view.instances(name))
        may_go = [c for c in instances if _may_go(c, c is instances[0], gc_state) and c.created_at / 1e9 <= youngest]
        if may_go:
            needed = 1 if gc_state is GcState.ACTIVE and may_go[0] is instances[0] else 0
            groups.append(_Group(view, may_go, needed))
    return groups


def _may_go(container: ContainerView, is_newest: bool, gc_state: GcState) -> bool:
    if container.state is ObservedState.RUNNING:
        return False
    return container.state is not ObservedState.CREATED or not is_newest or gc_state is not GcState.ACTIVE


def _newest_first(containers: Iterable[ContainerView]) -> list[ContainerView]:
    return sorted(containers, key=lambda c: (c.attempt, c.created_at), reverse=True)


def _shrink(groups: Iterable[_Group], keep: int, going: dict[PodUID, list[ContainerView]]) -> None:
    for group in groups:
        stay = max(keep, group.needed)
        going.setdefault(group.view.ref.uid, []).extend(group.containers[stay:])
        group.containers = group.containers[:stay]


def _shrink_to_total(groups: list[_Group], total: int, going: dict[PodUID, list[ContainerView]]) -> None:
    left = [group for group in groups if group.containers]
    if sum(len(group.containers) for group in left) <= total:
        return
    _shrink(left, max(1, total // len(left)), going)
    excess = sum(len(group.containers) for group in left) - total
    if excess <= 0:
        return
    spare = [(c, group) for group in left for c in group.containers[group.needed :]]
    spare.sort(key=lambda pair: (pair[0].attempt, pair[0].created_at))
    for container, group in spare[:excess]:
        group.containers.remove(container)
        going.setdefault(group.view.ref.uid, []).append(container)


def _dead_sandboxes(view: PodView, going: Iterable[ContainerView], *, keep_newest: bool) -> tuple[SandboxID, ...]:
    gone = {container.id for container in going}
    used = {container.sandbox_id for container in view.containers if container.id not in gone}
    sandboxes: list[SandboxView] = sorted(view.sandboxes, key=lambda s: (s.attempt, s.created_at), reverse=True)
    candidates = sandboxes[1:] if keep_newest else sandboxes
    return tuple(s.id for s in reversed(candidates) if not s.ready and s.id not in used)


def unknown_pod_dirs(
    names: Iterable[str], known: GcFacts, observed: Mapping[PodUID, PodView]
) -> list[tuple[str, PodUID]]:
    """The directories `<namespace>_<name>_<uid>` of unknown pods, each with the UID."""
    found = []
    for name in names:
        parts = name.split("_")
        uid = PodUID(parts[-1])
        view = observed.get(uid)
        if len(parts) == 3 and uid and known.gc_state(uid) is GcState.GONE and (view is None or view.is_gone):
            found.append((name, uid))
    return found

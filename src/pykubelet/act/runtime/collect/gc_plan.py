"""Which dead containers and sandboxes are removed. Pure.

Rules, as in the reference:
- A container may go when it does not run and was created longer ago than the least age. Containers of one name in one
  pod are a group; the newest `per_container` of each group stay. Of a pod that nobody knows, or that was evicted and
  has ended, all go.
- When more than `total` are left on the node: first every group keeps the same number, at least one; then the oldest go.
- A sandbox may go when it is not up and holds no container; the newest of a pod stays while anybody knows the pod.
- When a container has ended, its group is brought down to `per_container` (at least one) at once, whatever the ages.
Beyond the reference: a pod that is being removed is left to its actor; the newest instance of each container stays
while its pod is not over, because restart counts and back-off are read from it; one that was created but not started
goes only when it is not the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import assert_never

from msgspec import Struct

from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodRef, PodUID, SandboxID
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.observed import ContainerState, ContainerView, Observed, PodView, SandboxView
from pykubelet.base.model.roster import Roster

_REMOVING = frozenset({KillReason.REMOVED, KillReason.DELETED, KillReason.ORPHANED})


class GcPolicy(Value):
    """`min_age_s`: since creation. `per_container` and `total` below zero: no limit."""

    min_age_s: float = 0.0
    per_container: int = 1
    total: int = -1


class Standing(StrEnum):
    """What a pod's remains are worth: active pods need them, over ones show them, gone and evicted ones do not."""

    ACTIVE = "active"
    OVER = "over"
    EVICTED = "evicted"
    GONE = "gone"
    REMOVING = "removing"


class PodGarbage(Value):
    """What goes of one pod: containers first, oldest first."""

    ref: PodRef
    containers: tuple[ContainerView, ...] = ()
    sandboxes: tuple[SandboxID, ...] = ()


class Known(Value):
    """Who knows pods."""

    lifecycles: Lifecycles
    roster: Roster

    def standing(self, uid: PodUID) -> Standing:
        """How far a pod's life cycle is; a pod without one is active if the roster has it, else gone."""
        lifecycle = self.lifecycles.pods.get(uid)
        if lifecycle is None:
            return Standing.ACTIVE if uid in self.roster.pods else Standing.GONE
        return _standing_of(lifecycle)


def _standing_of(lifecycle: PodLifecycle) -> Standing:
    if lifecycle.kill_reason in _REMOVING:
        return Standing.REMOVING
    match lifecycle.stage:
        case Stage.SYNCING | Stage.TERMINATING:
            return Standing.ACTIVE
        case Stage.TERMINATED | Stage.FINISHED:
            return Standing.EVICTED if lifecycle.kill_reason is KillReason.EVICTED else Standing.OVER
        case _:
            assert_never(lifecycle.stage)


class _Group(Struct):
    """The containers of one name in one pod that may go, newest first. `needed`: how many of them must stay."""

    view: PodView
    containers: list[ContainerView]
    needed: int


def plan_gc(
    observed: Observed, known: Known, policy: GcPolicy, wall: float, *, over_too: bool = False
) -> tuple[PodGarbage, ...]:
    """What a round removes. `wall`: seconds since the epoch. `over_too`: nothing stays of pods that are over."""
    going: dict[PodUID, list[ContainerView]] = {}
    groups: list[_Group] = []
    clear_out = {Standing.GONE, Standing.EVICTED} | ({Standing.OVER} if over_too else set())
    views = {uid: view for uid, view in observed.pods.items() if _may_touch(view, known.standing(uid))}
    for uid, view in views.items():
        standing = known.standing(uid)
        for group in _groups(view, standing, wall - policy.min_age_s):
            if standing in clear_out:
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
        sandboxes = _dead_sandboxes(view, containers, keep_newest=known.standing(uid) not in clear_out)
        if containers or sandboxes:
            plans.append(PodGarbage(view.ref, containers, sandboxes))
    return tuple(plans)


def plan_ended(view: PodView, standing: Standing, policy: GcPolicy) -> PodGarbage | None:
    """What goes of a pod right after one of its containers has ended."""
    if standing is Standing.REMOVING or policy.per_container < 0:
        return None
    keep = 0 if standing is Standing.EVICTED else max(1, policy.per_container)
    going: list[ContainerView] = []
    for name in dict.fromkeys(c.name for c in view.containers):
        ended = [c for c in view.instances(name) if c.state is ContainerState.EXITED]
        going.extend(_newest_first(ended)[keep:])
    return PodGarbage(view.ref, tuple(reversed(_newest_first(going)))) if going else None


def _may_touch(view: PodView, standing: Standing) -> bool:
    if standing is Standing.REMOVING:
        return False
    return not (standing is Standing.GONE and view.is_alive)  # it is about to be stopped, and then removed


def _groups(view: PodView, standing: Standing, youngest: float) -> list[_Group]:
    groups = []
    for name in dict.fromkeys(c.name for c in view.containers):
        instances = _newest_first(view.instances(name))
        may_go = [c for c in instances if _may_go(c, c is instances[0], standing) and c.created_at / 1e9 <= youngest]
        if may_go:
            needed = 1 if standing is Standing.ACTIVE and may_go[0] is instances[0] else 0
            groups.append(_Group(view, may_go, needed))
    return groups


def _may_go(container: ContainerView, is_newest: bool, standing: Standing) -> bool:
    if container.state is ContainerState.RUNNING:
        return False
    return container.state is not ContainerState.CREATED or not is_newest or standing is not Standing.ACTIVE


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
    names: Iterable[str], known: Known, observed: Mapping[PodUID, PodView]
) -> list[tuple[str, PodUID]]:
    """Of the directories `<namespace>_<name>_<uid>` those whose pod nobody knows, with its UID."""
    found = []
    for name in names:
        parts = name.split("_")
        uid = PodUID(parts[-1])
        view = observed.get(uid)
        if len(parts) == 3 and uid and known.standing(uid) is Standing.GONE and (view is None or view.is_gone):
            found.append((name, uid))
    return found

"""Decides whether a change of inputs can alter a pod's status, because projecting a status is expensive. Pure.

Rule: in doubt it can. Stages and kill reasons rarely affect a status; published exit statuses are kept.
"""

from __future__ import annotations

from collections.abc import Collection
from operator import attrgetter

from pykubelet.base.api.core import Pod, PodStatus
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import ENDED_STAGES, KillReason, PodLifecycle, Stage
from pykubelet.base.model.observed import ObservedState, PodView
from pykubelet.base.model.roster import TERMINAL_PHASES, is_static

#: Kill reasons that do not affect the status while all containers run.
_SILENT_KILLS = frozenset({KillReason.DELETED, KillReason.REMOVED})


def is_complete(status: PodStatus, lifecycle: PodLifecycle) -> bool:
    """True if the pod was removed from its source and `status` has all exit statuses, so that no later status is needed."""
    if lifecycle.kill_reason is not KillReason.REMOVED or lifecycle.stage not in ENDED_STAGES:
        return False
    return _all_terminated(status)


def is_final(status: PodStatus, lifecycle: PodLifecycle) -> bool:
    """True if `status` is the final status of a deleted pod, so that later changes need no patch."""
    goes = lifecycle.kill_reason is KillReason.DELETED and lifecycle.stage in ENDED_STAGES
    return (
        goes and not lifecycle.pod.metadata.finalizers and status.phase in TERMINAL_PHASES and _all_terminated(status)
    )


def _all_terminated(pod_status: PodStatus) -> bool:
    statuses = (*pod_status.initContainerStatuses, *pod_status.containerStatuses)
    return all(status.state is not None and status.state.terminated is not None for status in statuses)


def starts_over(before: PodLifecycle, now: PodLifecycle) -> bool:
    """True if the pod has started again with the same UID: otherwise stages only go forward."""
    return before.stage is not Stage.SYNCING and now.stage is Stage.SYNCING and now.kill_reason is None


#: Fields that do not affect a status, except for stages and kill reasons, which `lifecycle_unchanged` compares.
_NOT_SHOWN = frozenset({"stage", "stage_since", "kill_reason", "waits", "timeline"})
_shown = attrgetter(*(name for name in PodLifecycle.__struct_fields__ if name not in _NOT_SHOWN))


def lifecycle_unchanged(before: PodLifecycle, now: PodLifecycle, view: PodView | None) -> bool:
    """True if this lifecycle change cannot alter the status of a pod with the snapshot `view`.

    A kill request alone does not change the status unless a container has already exited.
    """
    if before.stage is now.stage or (before.stage in ENDED_STAGES and now.stage in ENDED_STAGES):
        is_same = before.kill_reason is now.kill_reason
    else:
        is_same = now.stage is Stage.TERMINATING and now.kill_reason in _SILENT_KILLS and _runs_whole(now.pod, view)
    return is_same and bool(_shown(before) == _shown(now))


def _runs_whole(pod: Pod, view: PodView | None) -> bool:
    """True if all containers run in a ready sandbox with addresses, and all init containers have an instance."""
    if view is None or not view.sandboxes or not view.sandboxes[0].ready or not view.sandboxes[0].ips:
        return False
    newest = (view.newest(container.name) for container in pod.spec.containers)
    has_init = all(view.newest(container.name) is not None for container in pod.spec.initContainers)
    return has_init and all(container is not None and container.is_running for container in newest)


def view_unchanged(before: PodView | None, now: PodView | None) -> bool:
    """True if a newer snapshot shows the same sandboxes and containers."""
    if before is now:
        return True
    if before is None or now is None:
        return False
    return before.sandboxes == now.sandboxes and before.containers == now.containers


def is_cleaned_up(before: PodView | None, now: PodView | None, lifecycle: PodLifecycle) -> bool:
    """True if the remains of an ended pod were removed; its published exit statuses are kept. A static pod may start again."""
    is_gone = now is not None and now.is_gone and before is not None and not before.is_alive
    return is_gone and lifecycle.stage in ENDED_STAGES and not is_static(lifecycle.pod)


def is_absent(view: PodView | None) -> bool:
    """True if the runtime has nothing of the pod."""
    return view is None or view.is_gone


def has_unread_message(view: PodView | None, read: Collection[ContainerID]) -> bool:
    """True if the termination message of an exited container is not among those that were `read`."""
    return view is not None and any(c.state is ObservedState.EXITED and c.id not in read for c in view.containers)

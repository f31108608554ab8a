"""Whether what is new of a pod can mean anything to its status, which costs much to make. Pure.

Rules: a doubt is news. Stages, and who asked for an end, show in few statuses; ends that were told stay.
"""

from __future__ import annotations

from operator import attrgetter

from pykubelet.base.api.core import Pod, PodStatus
from pykubelet.base.model.lifecycle import KillReason, PodLifecycle, Stage
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.roster import TERMINAL_PHASES, is_static
from pykubelet.report.status.model import ENDED_STAGES

#: Ends that somebody has asked for: they change nothing of a status as long as the pod runs.
_TELL_NOTHING = frozenset({KillReason.DELETED, KillReason.REMOVED})


def has_told_all(told: PodStatus, lifecycle: PodLifecycle) -> bool:
    """Of a pod that its source has no more: nobody asks for anything after the ends of its containers."""
    if lifecycle.kill_reason is not KillReason.REMOVED or lifecycle.stage not in ENDED_STAGES:
        return False
    return _have_ended(told)


def was_last_word(told: PodStatus, lifecycle: PodLifecycle) -> bool:
    """The end was told of a deleted pod that goes for good next: nobody asks how it was taken down."""
    goes = lifecycle.kill_reason is KillReason.DELETED and lifecycle.stage in ENDED_STAGES
    return goes and not lifecycle.pod.metadata.finalizers and told.phase in TERMINAL_PHASES and _have_ended(told)


def _have_ended(told: PodStatus) -> bool:
    statuses = (*told.initContainerStatuses, *told.containerStatuses)
    return all(status.state is not None and status.state.terminated is not None for status in statuses)


def begins_anew(before: PodLifecycle, now: PodLifecycle) -> bool:
    """Stages only go forward in one life of a pod."""
    return before.stage is not Stage.SYNCING and now.stage is Stage.SYNCING and now.kill_reason is None


#: For people to ask for; no status has them. Stages and reasons of a kill mean something to a few.
_UNTOLD = frozenset({"stage", "stage_since", "kill_reason", "waits", "story"})
_telling = attrgetter(*(name for name in PodLifecycle.__struct_fields__ if name not in _UNTOLD))


def tells_the_same(before: PodLifecycle, now: PodLifecycle, view: PodView | None) -> bool:
    """Whether news of a lifecycle are none for the status of a pod that looks so.

    That a pod is to be ended is seen where something of it has ended already; otherwise only what asked for it is told.
    """
    if before.stage is now.stage or (before.stage in ENDED_STAGES and now.stage in ENDED_STAGES):
        is_same = before.kill_reason is now.kill_reason
    else:
        is_same = now.stage is Stage.TERMINATING and now.kill_reason in _TELL_NOTHING and _runs_whole(now.pod, view)
    return is_same and bool(_telling(before) == _telling(now))


def _runs_whole(pod: Pod, view: PodView | None) -> bool:
    """Its containers run in a sandbox that has addresses, and those that run before them were there."""
    if view is None or not view.sandboxes or not view.sandboxes[0].ready or not view.sandboxes[0].ips:
        return False
    newest = (view.newest(container.name) for container in pod.spec.containers)
    were_there = all(view.newest(container.name) is not None for container in pod.spec.initContainers)
    return were_there and all(container is not None and container.is_running for container in newest)


def shows_the_same(before: PodView | None, now: PodView | None) -> bool:
    """Whether a newer look at the runtime found nothing new."""
    if before is now:
        return True
    if before is None or now is None:
        return False
    return before.sandboxes == now.sandboxes and before.containers == now.containers


def is_cleared(before: PodView | None, now: PodView | None, lifecycle: PodLifecycle) -> bool:
    """What a pod that has ended has left was removed, and its ends were told: they stay. A static pod may begin anew."""
    is_gone = now is not None and now.is_gone and before is not None and not before.is_alive
    return is_gone and lifecycle.stage in ENDED_STAGES and not is_static(lifecycle.pod)


def is_nothing(view: PodView | None) -> bool:
    return view is None or view.is_gone

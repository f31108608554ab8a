"""Statuses of containers: current state, last state, and the status of containers that have vanished. Pure.

Rules:
- The newest instance determines the state, the previous instance the last state. If the runtime no longer has the previous
  instance, its published status is used. The restart count never decreases. Without an instance, the container is waiting,
  with the known count and last state.
- A container that ran and has vanished is published as terminated with exit code 137 and ContainerStatusUnknown. A
  terminated container keeps its state when its instance is removed, until there is a new instance.
- A container whose start failed is waiting, with the reason and message of that error. The end of its instance becomes the
  last state.
- When the pod has ended, every container that was ever started is terminated.
Source: the Kubernetes documentation "Pod Lifecycle", section "Container states".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pykubelet.base.api import core
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.values import replace
from pykubelet.base.model.containers import container_hash
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.labels import CONTAINER_HASH
from pykubelet.base.model.observed import ContainerView, ObservedState
from pykubelet.base.model.phase import UNKNOWN_EXIT_CODE, has_created_regular, has_initialized
from pykubelet.base.model.reasons import (
    COMPLETED,
    CONTAINER_CREATING,
    CONTAINER_STATUS_UNKNOWN,
    ERROR,
    POD_INITIALIZING,
    RESTARTING_ALL_CONTAINERS,
)
from pykubelet.base.model.restart import (
    AfterExit,
    after_init_failure,
    has_restart_all_rule,
    has_succeeded,
    init_failed,
    is_sidecar,
    should_restart,
)
from pykubelet.report.status.model import StatusFacts
from pykubelet.report.status.resources import container_resources

NOT_LOCATED_AT_END = "The container could not be located when the pod was terminated"
NOT_LOCATED = "The container could not be located when the pod was deleted.  The container used to be Running"
INIT_NOT_LOCATED = (
    "Unable to get init container status from container runtime and pod has been initialized, "
    "treat it as exited normally"
)
REMOVED_TO_RESTART = "The container is removed because RestartAllContainers in place"
REMOVED_BY_RULE = core.ContainerState(
    terminated=core.ContainerStateTerminated(
        exitCode=UNKNOWN_EXIT_CODE, reason=RESTARTING_ALL_CONTAINERS, message=REMOVED_TO_RESTART
    )
)
Statuses = tuple[core.ContainerStatus, ...]


def regular_statuses(facts: StatusFacts) -> Statuses:
    """The statuses of regular containers, sorted by name."""
    old = _by_name(facts.old.containerStatuses if facts.old is not None else ())
    found = [_status(facts, c, old.get(c.name), is_init=False) for c in facts.pod.spec.containers]
    return tuple(sorted(found, key=lambda status: status.name))


def init_statuses(facts: StatusFacts) -> Statuses:
    """The statuses of init containers, in the order of the spec."""
    old = _by_name(facts.old.initContainerStatuses if facts.old is not None else ())
    return tuple(_status(facts, c, old.get(c.name), is_init=True) for c in facts.pod.spec.initContainers)


def ephemeral_statuses(facts: StatusFacts) -> Statuses:
    """The statuses of ephemeral containers, sorted by name."""
    old = _by_name(facts.old.ephemeralContainerStatuses if facts.old is not None else ())
    found = [
        _status(facts, _as_container(c), old.get(c.name), is_init=False, restarts=False)
        for c in facts.pod.spec.ephemeralContainers
    ]
    return tuple(sorted(found, key=lambda status: status.name))


def _as_container(ephemeral: core.EphemeralContainer) -> core.Container:
    return core.Container(
        name=ephemeral.name,
        image=ephemeral.image,
        resources=ephemeral.resources,
        volumeMounts=ephemeral.volumeMounts,
    )


def _by_name(statuses: Sequence[core.ContainerStatus]) -> dict[str, core.ContainerStatus]:
    return {status.name: status for status in reversed(statuses)}


def _state(status: core.ContainerStatus | None) -> core.ContainerState:
    found = status.state if status is not None else None
    return found if found is not None else core.ContainerState()


def _last(status: core.ContainerStatus | None) -> core.ContainerStateTerminated | None:
    return status.lastState.terminated if status is not None and status.lastState is not None else None


def _status(
    facts: StatusFacts,
    container: core.Container,
    old: core.ContainerStatus | None,
    *,
    is_init: bool,
    restarts: bool = True,
) -> core.ContainerStatus:
    instances = facts.view.instances(container.name) if facts.view is not None else ()
    if instances and old is not None and _is_outdated(facts, instances[0], old):
        instances = ()  # its successor was removed, and this one is not there to stay either
    if old is not None and _has_lost_unstarted(facts, instances, old):
        status = old
    elif not instances:
        status = _without_instance(facts, container, old, is_init=is_init)
    else:
        status = _following(facts, _of_instance(facts, container, instances[0], old), old)
        status = _after(facts, status, instances, old)
    if restarts or not instances:
        status = _with_start_error(facts, container, instances[0] if instances else None, status, is_init=is_init)
    return replace(status, volumeMounts=mount_statuses(facts, container))


def _after(
    facts: StatusFacts,
    status: core.ContainerStatus,
    instances: tuple[ContainerView, ...],
    old: core.ContainerStatus | None,
) -> core.ContainerStatus:
    """The status with the last state from the instance before the newest one, if the runtime has that."""
    earlier = next((instance for instance in instances[1:] if instance.state is not ObservedState.CREATED), None)
    if earlier is None or (_last(status) is not None and earlier.restart_count + 1 < instances[0].restart_count):
        return status  # it was removed, or an instance between the two
    # a view may still have an instance that was removed before the next one was started
    before = REMOVED_BY_RULE if earlier.id in facts.lifecycle.reset else _instance_state(facts, earlier, old)
    return replace(status, lastState=before if before.terminated is not None else None)


def _is_outdated(facts: StatusFacts, newest: ContainerView, old: core.ContainerStatus) -> bool:
    """True if an instance that has ended is older than the published one."""
    published = instance_of(old)
    if newest.state is not ObservedState.EXITED or newest.id == published or newest.restart_count >= old.restartCount:
        return False
    if published in facts.lifecycle.uncounted or published in facts.lifecycle.reset:
        return False
    began = _began_at(old)
    return not published or (bool(began) and _time(newest.finished_at) <= began)


def _has_lost_unstarted(facts: StatusFacts, instances: tuple[ContainerView, ...], old: core.ContainerStatus) -> bool:
    """True if the published instance was created, never started, and removed: its successor has the restart count that was published."""
    if facts.has_ended or facts.lifecycle.restarting_all or not _is_unstarted_after_end(facts, old):
        return False
    last = _last(old)
    return not instances or (last is not None and instances[0].id == _instance(last.containerID))


def _is_unstarted_after_end(facts: StatusFacts, old: core.ContainerStatus) -> bool:
    """Whether the published instance was created after the end of another one, which is the last state, and never started."""
    published, last = instance_of(old), _last(old)
    if not published or last is None or _state(old).waiting is None:
        return False
    return published != _instance(last.containerID) and published not in facts.lifecycle.reset


def _began_at(status: core.ContainerStatus) -> str:
    """When the published instance was started; empty if unknown. The end of one in back-off is the last state."""
    found, last = _state(status).running or _state(status).terminated, _last(status)
    if found is None and last is not None and last.containerID == status.containerID:
        found = last
    return found.startedAt if found is not None else ""


def _following(
    facts: StatusFacts, status: core.ContainerStatus, old: core.ContainerStatus | None
) -> core.ContainerStatus:
    """The status with the last state and restart count from the published status, in case the runtime lacks the predecessor."""
    if old is None:
        return status
    last, count = _last(old), max(status.restartCount, old.restartCount)
    if last is not None and (
        last == _state(status).terminated or _instance(last.containerID) in facts.lifecycle.uncounted
    ):
        last = None  # the next start, which has failed or does not count, had made this end the last state
    is_behind = _state(status).terminated is None and status.restartCount <= old.restartCount
    if old.containerID != status.containerID and (ended := _end_of_predecessor(facts, old)) is not None:
        last = ended
        if is_behind and not _is_repeated(facts, instance_of(old)):
            count = old.restartCount + 1
    elif (
        last is not None
        and is_behind
        and _is_removed_end(old, last)
        and not _is_repeated(facts, _instance(last.containerID))
    ):
        count = old.restartCount + 1
    return replace(
        status, lastState=core.ContainerState(terminated=last) if last is not None else None, restartCount=count
    )


def _is_repeated(facts: StatusFacts, ended: str) -> bool:
    """Whether the start after the end of this instance did not count, so that the one that follows it was counted already."""
    return any(instance.id == ended for instance in facts.lifecycle.uncounted.values())


def _is_removed_end(old: core.ContainerStatus, last: core.ContainerStateTerminated) -> bool:
    """Whether the published status is that of a container without an instance, and its restart after the last end does not count yet.

    The end of an instance that has vanished, or was removed by a rule, has counted when it was published.
    """
    is_counted = last.reason == CONTAINER_STATUS_UNKNOWN or last == REMOVED_BY_RULE.terminated
    return _state(old).waiting is not None and not old.containerID and not is_counted


def _end_of_predecessor(facts: StatusFacts, reported: core.ContainerStatus) -> core.ContainerStateTerminated | None:
    """The end of the instance in a published status. The end of one that was still running is unknown, or due to a restart of all.

    None: it has not ended, or does not count.
    """
    if instance_of(reported) in facts.lifecycle.uncounted:
        return None
    before = _state(reported)
    if _was_reset(facts, reported) or (before.running is not None and _may_have_been_reset(facts, reported)):
        return REMOVED_BY_RULE.terminated
    if before.running is None:
        return before.terminated
    return core.ContainerStateTerminated(
        exitCode=UNKNOWN_EXIT_CODE, reason=CONTAINER_STATUS_UNKNOWN, message=NOT_LOCATED
    )


def _was_reset(facts: StatusFacts, reported: core.ContainerStatus) -> bool:
    """True if the instance was removed with all others by a restart rule, even if no snapshot shows the pod without it."""
    return instance_of(reported) in facts.lifecycle.reset


def _may_have_been_reset(facts: StatusFacts, reported: core.ContainerStatus) -> bool:
    """True if an instance without a known end may have been removed by a restart rule, which keeps the sandbox."""
    sandboxes = facts.view.sandboxes if facts.view is not None else ()
    is_kept = bool(sandboxes) and _time(sandboxes[0].created_at) <= _began_at(reported)
    return is_kept and has_restart_all_rule(facts.pod)


# No instance


def _without_instance(
    facts: StatusFacts, container: core.Container, old: core.ContainerStatus | None, *, is_init: bool
) -> core.ContainerStatus:
    is_seen = facts.view is not None or (is_init and not is_sidecar(container))
    keeps = facts.has_ended or (is_seen and not facts.lifecycle.restarting_all)
    if old is not None and keeps and _state(old).terminated is not None:
        return old
    reason = POD_INITIALIZING if facts.pod.spec.initContainers else CONTAINER_CREATING
    status = core.ContainerStatus(
        name=container.name,
        image=container.image,
        state=core.ContainerState(waiting=core.ContainerStateWaiting(reason=reason)),
        restartCount=old.restartCount if old is not None else 0,
        lastState=old.lastState if old is not None else None,
    )
    if is_init and not is_sidecar(container) and _has_succeeded_unseen(facts, old):
        ended = core.ContainerStateTerminated(exitCode=0, reason=COMPLETED, message=INIT_NOT_LOCATED)
        return replace(status, state=core.ContainerState(terminated=ended))
    if facts.view is None:
        return status
    return _vanished(facts, old, status)


def _has_succeeded_unseen(facts: StatusFacts, old: core.ContainerStatus | None) -> bool:
    """True for an init container without an instance in a pod with regular containers. One that ran again in a new sandbox, and
    was not published as ended, has succeeded only if these have been started there."""
    sandboxes = facts.view.sandboxes if facts.view is not None else ()
    is_initialized = bool(sandboxes) and sandboxes[0].ready and has_initialized(facts.pod, facts.view)
    before = _state(old)
    ran_again = before.running is not None or (before.waiting is not None and _last(old) is not None)
    return has_created_regular(facts.pod, facts.view) and (is_initialized or not ran_again)


def _vanished(
    facts: StatusFacts, old: core.ContainerStatus | None, status: core.ContainerStatus
) -> core.ContainerStatus:
    """The status after the instance of a container has vanished. `status`: that of a container that never ran."""
    before = _state(old)
    if facts.lifecycle.restarting_all:
        waiting = core.ContainerStateWaiting(reason=RESTARTING_ALL_CONTAINERS, message=REMOVED_TO_RESTART)
        was_there = before.running is not None or before.terminated is not None
        if old is not None and _is_unstarted_after_end(facts, old):
            # the rule removes what ended before; the restart count was that of the instance which never started
            return replace(status, state=core.ContainerState(waiting=waiting), lastState=REMOVED_BY_RULE)
        if not (was_there or (old is not None and _was_reset(facts, old))):
            return replace(status, state=core.ContainerState(waiting=waiting)) if _was_removed(status) else status
        return replace(
            status,
            state=core.ContainerState(waiting=waiting),
            lastState=REMOVED_BY_RULE,
            restartCount=status.restartCount + 1,
        )
    if old is not None and _was_reset(facts, old):
        return replace(status, lastState=REMOVED_BY_RULE, restartCount=status.restartCount + 1)
    if before.running is None:
        return status
    ended = core.ContainerStateTerminated(
        exitCode=UNKNOWN_EXIT_CODE, reason=CONTAINER_STATUS_UNKNOWN, message=NOT_LOCATED
    )
    count = status.restartCount + (0 if facts.pod.metadata.deletionTimestamp else 1)
    return replace(status, lastState=core.ContainerState(terminated=ended), restartCount=count)


# An instance


def _of_instance(
    facts: StatusFacts, container: core.Container, newest: ContainerView, old: core.ContainerStatus | None
) -> core.ContainerStatus:
    count = newest.restart_count
    if newest.state is ObservedState.UNKNOWN and _state(old).running is not None and old is not None:
        count = old.restartCount + 1
    resources = container_resources(container, newest, old, container_id(facts, newest))
    user = newest.user
    return core.ContainerStatus(
        name=container.name,
        image=_image(container, newest),
        imageID=newest.image_ref,
        containerID=container_id(facts, newest),
        restartCount=count,
        state=_instance_state(facts, newest, old),
        resources=resources,
        allocatedResources=container.resources.requests if container.resources is not None else {},
        user=(
            core.ContainerUser(
                linux=core.LinuxContainerUser(uid=user.uid, gid=user.gid, supplementalGroups=user.supplemental_groups)
            )
            if user is not None
            else None
        ),
        stopSignal=newest.stop_signal if facts.reports_stop_signals else "",
    )


def _image(container: core.Container, instance: ContainerView) -> str:
    """The runtime's name of the instance's image; the name in the spec if the runtime reports another tag of the same image."""
    given, found = container.image, instance.image
    tagged = given if ":" in given.rpartition("/")[2] else f"{given}:latest"
    if f"/{found}".endswith(f"/{tagged}") or "@" in given:
        return found
    if found.startswith("sha256:") or instance.annotations.get(CONTAINER_HASH) != container_hash(container):
        return found  # the name belongs to another image by now
    return given


def container_id(facts: StatusFacts, container: ContainerView) -> str:
    """The container ID as in a status: `containerd://<id>`."""
    return f"{facts.runtime}://{container.id}"


def is_success(end: core.ContainerStateTerminated | None) -> bool:
    """Whether an init container has ended with success."""
    return end is not None and has_succeeded(end.exitCode, end.reason)


def instance_of(status: core.ContainerStatus) -> ContainerID:
    """The instance in a status; empty if there is none."""
    return _instance(status.containerID)


def _instance(container_id: str) -> ContainerID:
    return ContainerID(container_id.partition("://")[2])


def _instance_state(
    facts: StatusFacts, container: ContainerView, old: core.ContainerStatus | None
) -> core.ContainerState:
    match container.state:
        case ObservedState.RUNNING:
            return core.ContainerState(running=core.ContainerStateRunning(startedAt=_time(container.started_at)))
        case ObservedState.EXITED:
            return core.ContainerState(terminated=_terminated(facts, container))
        case ObservedState.UNKNOWN if _state(old).running is not None:
            restarts = facts.lifecycle.restarting_all
            return core.ContainerState(
                terminated=_unknown_end(RESTARTING_ALL_CONTAINERS if restarts else CONTAINER_STATUS_UNKNOWN)
            )
        case _:
            return core.ContainerState(waiting=core.ContainerStateWaiting())


def _terminated(facts: StatusFacts, container: ContainerView) -> core.ContainerStateTerminated:
    from_container = facts.messages.get(container.id, "")
    message = ": ".join(part for part in (container.message, from_container) if part)
    return core.ContainerStateTerminated(
        exitCode=container.exit_code,
        reason=container.reason or (COMPLETED if container.exit_code == 0 else ERROR),
        message=message,
        startedAt=_time(container.started_at),
        finishedAt=_time(container.finished_at),
        containerID=container_id(facts, container),
    )


def _unknown_end(reason: str = CONTAINER_STATUS_UNKNOWN) -> core.ContainerStateTerminated:
    return core.ContainerStateTerminated(exitCode=UNKNOWN_EXIT_CODE, reason=reason, message=NOT_LOCATED_AT_END)


def _time(nanos: int) -> str:
    return format_time(nanos / 1e9) if nanos > 0 else ""


def _with_start_error(
    facts: StatusFacts,
    container: core.Container,
    newest: ContainerView | None,
    status: core.ContainerStatus,
    *,
    is_init: bool,
) -> core.ContainerStatus:
    error = facts.lifecycle.start_errors.get(container.name)
    if newest is not None and newest.is_running:
        return status  # it is being killed; the next start waits for its end
    is_owed = newest is not None and newest.id in facts.lifecycle.to_restart
    if error is None or not (is_owed or _is_to_start(facts.pod, container, newest, is_init=is_init)):
        return status
    last = status.lastState
    ended = _state(status).terminated
    if ended is not None:
        last = core.ContainerState(terminated=ended)
    waiting = core.ContainerStateWaiting(reason=error.reason, message=error.message)
    return replace(status, state=core.ContainerState(waiting=waiting), lastState=last)


def _is_to_start(pod: core.Pod, container: core.Container, newest: ContainerView | None, *, is_init: bool) -> bool:
    """Whether the container waits to be started. The reference kubelet does not report that of a sidecar that exited with 0."""
    if not is_init or newest is None or newest.state is not ObservedState.EXITED:
        return should_restart(pod, container, newest)
    if not init_failed(newest):
        return False
    return is_sidecar(container) or after_init_failure(pod, container, newest) is not AfterExit.STAY


def mount_statuses(facts: StatusFacts, container: core.Container) -> tuple[core.VolumeMountStatus, ...]:
    """The volume mounts of the spec. Whether read-only mounts are recursively read-only depends on the runtime."""
    if not container.volumeMounts:
        return ()
    handler = facts.view.sandboxes[0].runtime_handler if facts.view is not None and facts.view.sandboxes else ""
    features = facts.handlers.get(handler)
    supported = features is not None and features.recursive_read_only_mounts
    return tuple(_mount_status(mount, supported) for mount in container.volumeMounts)


def _mount_status(mount: core.VolumeMount, supported: bool) -> core.VolumeMountStatus:
    recursive = ""
    if mount.readOnly:
        asked = mount.recursiveReadOnly == "Enabled" or mount.recursiveReadOnly == "IfPossible"
        recursive = "Enabled" if asked and supported else "Disabled"
    return core.VolumeMountStatus(
        name=mount.name, mountPath=mount.mountPath, readOnly=mount.readOnly or None, recursiveReadOnly=recursive
    )


# The end of the pod


def all_ended(pod: core.Pod, init: Statuses, regular: Statuses) -> tuple[Statuses, Statuses]:
    """Init and regular statuses of a pod that has ended: all are terminated, except those that never began."""
    if _has_begun(pod, init, regular):
        regular = tuple(_ended(status) for status in regular)
    begun = 1 if init else 0
    for number, status in enumerate(init, 1):
        if _state(status).waiting is None or _last(status) is not None:
            begun = number
    return tuple(_ended(s) if n < begun else s for n, s in enumerate(init)), regular


def _ended(status: core.ContainerStatus) -> core.ContainerStatus:
    if _state(status).terminated is not None:
        return status
    return replace(status, state=core.ContainerState(terminated=_unknown_end()))


def _has_begun(pod: core.Pod, init: Statuses, regular: Statuses) -> bool:
    """Whether regular containers were started, or all init containers had finished so that they were about to be."""
    if not pod.spec.initContainers:
        return True
    if any(_last(s) is not None or _state(s).waiting is None for s in regular):
        return True
    container, status = pod.spec.initContainers[-1], init[-1]
    if is_sidecar(container):
        return _state(status).running is not None and bool(status.started)
    return is_success(_state(status).terminated) or is_success(_last(status))


def published_exit_codes(facts: StatusFacts, statuses: Statuses) -> dict[str, int]:
    """The published exit codes of containers that have no started instance in the runtime."""
    instances = facts.view.containers if facts.view is not None else ()
    started = {c.name for c in instances if c.state is not ObservedState.CREATED}
    ends = {s.name: _reported_end(facts, s) for s in statuses if s.name not in started}
    return {name: end.exitCode for name, end in ends.items() if end is not None}


def _reported_end(facts: StatusFacts, status: core.ContainerStatus) -> core.ContainerStateTerminated | None:
    """The terminated state, or else the last one. The current state counts only after the runtime was read."""
    ended = _state(status).terminated if facts.view is not None else None
    return ended or _last(status)


def _was_removed(status: core.ContainerStatus) -> bool:
    last = _last(status)
    return last is not None and last.reason == RESTARTING_ALL_CONTAINERS


def limited_messages(statuses: Statuses, limit: int) -> Statuses:
    """The statuses with each termination message cut to `limit` bytes."""
    return tuple(_limited(status, limit) for status in statuses)


def _limited(status: core.ContainerStatus, limit: int) -> core.ContainerStatus:
    changes: dict[str, Any] = {}
    for name, state in (("state", status.state), ("lastState", status.lastState)):
        ended = state.terminated if state is not None else None
        if ended is not None and len(ended.message.encode()) > limit:
            cut = ended.message.encode()[:limit].decode(errors="ignore")
            changes[name] = core.ContainerState(terminated=replace(ended, message=cut))
    return replace(status, **changes) if changes else status


def by_name(statuses: Statuses) -> Mapping[str, core.ContainerStatus]:
    """The statuses by container name."""
    return {status.name: status for status in statuses}

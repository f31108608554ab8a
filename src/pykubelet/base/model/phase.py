"""The phase of a pod, from what runs and what has ended. Pure; used where the pod's end is decided and where it is told.

Source: the Kubernetes documentation "Pod Lifecycle", section "Pod phase".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from msgspec import Struct

from pykubelet.base.api.core import Container, Pod
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import StartError
from pykubelet.base.model.observed import ContainerState, ContainerView, PodView
from pykubelet.base.model.restart import AfterExit, after_exit, is_sidecar, should_restart
from pykubelet.base.model.roster import is_static

UNKNOWN_EXIT_CODE = 137


class Phase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def is_terminal(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED)


class _Count(Struct):
    waiting: int = 0
    running: int = 0
    stopped: int = 0
    succeeded: int = 0
    restartable: int = 0


def has_initialized(pod: Pod, view: PodView | None) -> bool:
    """Whether init containers are behind this sandbox: one of its regular containers was started.

    Only instances of the newest sandbox count, because a new sandbox runs the init containers again.
    """
    if view is None or not view.sandboxes:
        return False
    newest = view.sandboxes[0].id
    names = {c.name for c in pod.spec.containers}
    return any(
        c.name in names and c.sandbox_id == newest and c.state is not ContainerState.CREATED for c in view.containers
    )


def _regular(
    pod: Pod,
    container: Container,
    view: PodView | None,
    held: bool,
    is_vanished: bool,
    owed: Collection[ContainerID],
    count: _Count,
) -> None:
    instances = view.instances(container.name) if view is not None else ()
    newest = instances[0] if instances else None
    if newest is None and is_vanished:
        count.stopped += 1
        count.restartable += after_exit(pod, container, UNKNOWN_EXIT_CODE) is not AfterExit.STAY
    elif newest is None:
        count.waiting += 1
    elif newest.state is ContainerState.RUNNING:
        count.running += 1
    elif newest.state is ContainerState.CREATED:
        if len(instances) > 1:
            count.stopped += 1
            count.restartable += 1
        else:
            count.waiting += 1
    elif newest.id in owed:
        count.stopped += 1
        count.restartable += 1
    else:
        count.stopped += 1
        code = newest.exit_code if newest.state is ContainerState.EXITED else UNKNOWN_EXIT_CODE
        again = after_exit(pod, container, code) is not AfterExit.STAY
        count.restartable += again
        if code == 0 and not (held and should_restart(pod, container, newest)):
            count.succeeded += 1


def _init_failed(pod: Pod, container: Container, newest: ContainerView | None) -> bool:
    if newest is None or newest.state is not ContainerState.EXITED or newest.exit_code == 0:
        return False
    return after_exit(pod, container, newest.exit_code) is AfterExit.STAY


def _init_pending(container: Container, view: PodView | None, any_started: bool, initialized: bool) -> bool:
    """Whether an init container has yet to begin or to end. One that failed is not pending: the others wait for it."""
    instances = view.instances(container.name) if view is not None else ()
    newest = instances[0] if instances else None
    if is_sidecar(container):
        return not any_started and (newest is None or newest.state is ContainerState.CREATED)
    if newest is None:
        return not initialized
    if newest.state is ContainerState.RUNNING:
        return True
    return newest.state is not ContainerState.EXITED and len(instances) == 1


def _sidecar_runs(container: Container, view: PodView | None) -> bool:
    newest = view.newest(container.name) if view is not None and is_sidecar(container) else None
    return newest is not None and newest.state is ContainerState.RUNNING


def pod_phase(
    pod: Pod,
    view: PodView | None,
    start_errors: Mapping[str, StartError],
    ended: bool,
    vanished: Collection[str] = (),
    owed: Collection[ContainerID] = (),
) -> Phase:
    """`ended`: the agent has stopped the pod for good and nothing of it runs.

    `vanished`: names of containers that have run and of which the runtime knows nothing any more; regular ones count as
    failed, init ones as not pending: they were removed to start again. `owed`: instances that were killed to be started
    again, whatever the restart policy says. A pod whose sidecars still run has not ended.
    """
    initialized = has_initialized(pod, view)
    for container in pod.spec.initContainers:
        newest = view.newest(container.name) if view is not None else None
        if not is_sidecar(container) and _init_failed(pod, container, newest):
            return Phase.FAILED
    count = _Count()
    for container in pod.spec.containers:
        _regular(pod, container, view, container.name in start_errors, container.name in vanished, owed, count)
    any_started = initialized or count.running > 0 or count.stopped > 0
    inits = [c for c in pod.spec.initContainers if c.name not in vanished]
    pending_init = any(_init_pending(c, view, any_started, initialized) for c in inits)
    if ended and not is_static(pod):
        done = count.succeeded == len(pod.spec.containers)
        return Phase.SUCCEEDED if done else Phase.FAILED
    if pending_init or count.waiting:
        return Phase.PENDING
    if count.running or any(_sidecar_runs(c, view) for c in pod.spec.initContainers):
        return Phase.RUNNING
    if count.stopped:
        if count.restartable:
            return Phase.RUNNING
        return Phase.SUCCEEDED if count.succeeded == count.stopped else Phase.FAILED
    return Phase.PENDING

"""Computes the phase of a pod from the states of its containers. Pure.

The code that decides whether a pod has ended and the code that reports its status both use it.

Source: the Kubernetes documentation "Pod Lifecycle", section "Pod phase".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from msgspec import Struct

from pykubelet.base.api.core import Container, Pod
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import StartError
from pykubelet.base.model.observed import ContainerView, ObservedState, PodView
from pykubelet.base.model.restart import (
    AfterExit,
    after_exit,
    after_init_failure,
    init_failed,
    is_sidecar,
    restart_all_trigger,
    should_restart,
)
from pykubelet.base.model.roster import is_static

UNKNOWN_EXIT_CODE = 137


class Phase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def is_terminal(self) -> bool:
        """Whether no container of the pod will start again: Succeeded or Failed."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


class ReportedContainers(Value):
    """What the status reports about a pod's containers and the runtime does not show.

    `ends`: reported exit codes (in state or last state) of containers that have no instance left that was ever started.
    `starting`: sidecars that run and were not reported as started yet.
    """

    ends: Mapping[str, int] = field(default_factory=dict)
    starting: frozenset[str] = frozenset()


NOTHING_REPORTED = ReportedContainers()


class _Count(Struct):
    waiting: int = 0
    running: int = 0
    stopped: int = 0
    succeeded: int = 0
    restartable: int = 0


def has_initialized(pod: Pod, view: PodView | None) -> bool:
    """Whether the newest sandbox has finished its init containers: one of its regular containers was started.

    Only instances of the newest sandbox count, because a new sandbox runs the init containers again.
    """
    if view is None or not view.sandboxes:
        return False
    newest = view.sandboxes[0].id
    names = {c.name for c in pod.spec.containers}
    return any(
        c.name in names and c.sandbox_id == newest and c.state is not ObservedState.CREATED for c in view.containers
    )


def has_created_regular(pod: Pod, view: PodView | None) -> bool:
    """Whether a regular container was created in any sandbox: then an init container without an instance had succeeded."""
    names = {c.name for c in pod.spec.containers}
    return view is not None and any(c.name in names for c in view.containers)


def _has_begun(pod: Pod, view: PodView | None) -> bool:
    """Whether the newest sandbox is ready and has a regular container: then sidecars start beside these, not before them."""
    sandbox = view.sandboxes[0] if view is not None and view.sandboxes else None
    if view is None or sandbox is None or not sandbox.ready:
        return False
    names = {c.name for c in pod.spec.containers}
    return any(c.name in names and c.sandbox_id == sandbox.id for c in view.containers)


def _regular(
    pod: Pod,
    container: Container,
    view: PodView | None,
    held: bool,
    reported: ReportedContainers,
    to_restart: Collection[ContainerID],
    count: _Count,
) -> None:
    instances = view.instances(container.name) if view is not None else ()
    newest = instances[0] if instances else None
    if newest is None and container.name in reported.ends:
        code = reported.ends[container.name]
        count.stopped += 1
        count.restartable += after_exit(pod, container, code) is not AfterExit.STAY
        count.succeeded += code == 0
    elif newest is None:
        count.waiting += 1
    elif newest.state is ObservedState.RUNNING:
        count.running += 1
    elif newest.state is ObservedState.CREATED:
        if len(instances) > 1 or container.name in reported.ends:
            count.stopped += 1
            count.restartable += 1
        else:
            count.waiting += 1
    elif newest.id in to_restart:
        count.stopped += 1
        count.restartable += 1
    else:
        count.stopped += 1
        code = newest.exit_code if newest.state is ObservedState.EXITED else UNKNOWN_EXIT_CODE
        again = after_exit(pod, container, code) is not AfterExit.STAY
        count.restartable += again
        if code == 0 and not (held and should_restart(pod, container, newest)):
            count.succeeded += 1


def failed_init(pod: Pod, view: PodView | None, to_restart: Collection[ContainerID] = ()) -> ContainerView | None:
    """The init container that has failed and is not restarted; None: there is none."""
    for container in pod.spec.initContainers:
        newest = view.newest(container.name) if view is not None else None
        if newest is None or is_sidecar(container) or not init_failed(newest) or newest.id in to_restart:
            continue
        if after_init_failure(pod, container, newest) is AfterExit.STAY:
            return newest
    return None


def _never_started(container: Container, view: PodView | None, reported: ReportedContainers) -> bool:
    """Whether the container still waits for its first start. A container with a reported exit was started before."""
    instances = view.instances(container.name) if view is not None else ()
    if container.name in reported.ends:
        return False
    return not instances or (len(instances) == 1 and instances[0].state is ObservedState.CREATED)


def _init_pending(pod: Pod, container: Container, view: PodView | None, reported: ReportedContainers) -> bool:
    """Whether an init container has not begun or not ended yet. A failed one is not pending."""
    newest = view.newest(container.name) if view is not None else None
    if newest is None:
        return not has_created_regular(pod, view) and container.name not in reported.ends
    if newest.state is ObservedState.RUNNING:
        return True
    return _never_started(container, view, reported)


def _sidecar_runs(container: Container, view: PodView | None) -> bool:
    newest = view.newest(container.name) if view is not None and is_sidecar(container) else None
    return newest is not None and newest.state is ObservedState.RUNNING


def _inits_pending(pod: Pod, view: PodView | None, reported: ReportedContainers, is_over: bool) -> bool:
    """Whether the regular containers still wait for init containers. `is_over`: they have ended and are not restarted."""
    regular = [c for c in pod.spec.initContainers if not is_sidecar(c)]
    sidecars = [c for c in pod.spec.initContainers if is_sidecar(c)]
    if any(_init_pending(pod, c, view, reported) for c in regular):
        return True
    if not is_over and any(_never_started(c, view, reported) for c in sidecars):
        return True
    return bool(reported.starting) and not _has_begun(pod, view)


def pod_phase(
    pod: Pod,
    view: PodView | None,
    start_errors: Mapping[str, StartError],
    ended: bool,
    reported: ReportedContainers = NOTHING_REPORTED,
    to_restart: Collection[ContainerID] = (),
) -> Phase:
    """The phase of the pod.

    `ended`: the agent has stopped the pod for good and nothing of it runs. `to_restart`: instances that were killed in order to be
    started again, whatever the restart policy is.

    In a new sandbox, the exits of the previous one count until the containers run again. An init container that succeeded
    there makes the pod Pending only once it runs again. A sidecar that runs but has not started makes the pod Pending as long
    as the sandbox has no regular container. A pod has not ended while
    sidecars run, or if the exit of a container restarts all.
    """
    if failed_init(pod, view, to_restart) is not None:
        return Phase.FAILED
    count = _Count()
    for container in pod.spec.containers:
        _regular(pod, container, view, container.name in start_errors, reported, to_restart, count)
    if view is not None and view.sandboxes and restart_all_trigger(pod, view, to_restart):
        count.restartable += 1
    if ended and not is_static(pod):
        done = count.succeeded == len(pod.spec.containers)
        return Phase.SUCCEEDED if done else Phase.FAILED
    is_over = count.stopped == len(pod.spec.containers) and not count.restartable
    if count.waiting or _inits_pending(pod, view, reported, is_over):
        return Phase.PENDING
    if count.running or any(_sidecar_runs(c, view) for c in pod.spec.initContainers):
        return Phase.RUNNING
    if count.restartable:
        return Phase.RUNNING
    return Phase.SUCCEEDED if count.succeeded == count.stopped else Phase.FAILED

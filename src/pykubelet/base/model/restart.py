"""Decides which containers are restarted after they exit. Pure.

Source: the Kubernetes documentation "Pod Lifecycle" (container restarts), KEP-753 (sidecars: init containers with
restartPolicy Always), KEP-5307 (restart policy and rules of single containers) and KEP-5532 (restart of all containers).
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from pykubelet.base.api.core import Container, ContainerRestartRule, Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.observed import ContainerView, ObservedState, PodView
from pykubelet.base.model.reasons import OOM_KILLED

ALWAYS = "Always"
ON_FAILURE = "OnFailure"
NEVER = "Never"
ACTION_RESTART_ALL = "RestartAllContainers"


class AfterExit(StrEnum):
    """What happens after an exit."""

    RESTART = "restart"
    STAY = "stay"
    RESTART_ALL = "restart-all"


def is_sidecar(container: Container) -> bool:
    """Whether an init container keeps running beside the regular ones (restartPolicy Always)."""
    return container.restartPolicy == ALWAYS


def _matches(rule: ContainerRestartRule, exit_code: int) -> bool:
    if rule.exitCodes is None:
        return False
    listed = exit_code in rule.exitCodes.values
    return listed if rule.exitCodes.operator == "In" else not listed


def after_exit(pod: Pod, container: Container, exit_code: int) -> AfterExit:
    """The outcome of an exit, by the container's first matching rule, else its own restart policy, else the pod's."""
    for rule in container.restartPolicyRules:
        if _matches(rule, exit_code):
            return AfterExit.RESTART_ALL if rule.action == ACTION_RESTART_ALL else AfterExit.RESTART
    policy = container.restartPolicy or pod.spec.restartPolicy or ALWAYS
    if policy == ALWAYS or (policy == ON_FAILURE and exit_code != 0):
        return AfterExit.RESTART
    return AfterExit.STAY


def should_restart(pod: Pod, container: Container, newest: ContainerView | None) -> bool:
    """Whether a regular container should be started or restarted now."""
    if pod.metadata.deletionTimestamp:
        return False
    if newest is None or newest.state in (ObservedState.CREATED, ObservedState.UNKNOWN):
        return True
    if newest.state is ObservedState.RUNNING:
        return False
    return after_exit(pod, container, newest.exit_code) is not AfterExit.STAY


def restartable_pod(pod: Pod, view: PodView | None, stays: Collection[ContainerID]) -> Pod:
    """The pod with restartPolicy Never for the containers whose newest instance is one of `stays`: extensions do not let them start."""
    if not stays or view is None:
        return pod
    names = {found.name for found in view.containers if found.id in stays and view.newest(found.name) is found}
    if not names:
        return pod
    init, regular = (
        tuple(
            replace(c, restartPolicy=NEVER, restartPolicyRules=()) if c.name in names and not is_sidecar(c) else c
            for c in containers
        )
        for containers in (pod.spec.initContainers, pod.spec.containers)
    )
    return replace(pod, spec=replace(pod.spec, initContainers=init, containers=regular))


def has_succeeded(exit_code: int, reason: str) -> bool:
    """Whether an init container that ended so has succeeded: with exit code 0, and not OOM-killed.

    The exit code may be 0 after an OOM kill, because the kernel may kill a child of the container's first process.
    """
    return exit_code == 0 and reason != OOM_KILLED


def init_failed(newest: ContainerView) -> bool:
    """Whether an init container has ended without success."""
    return newest.state is ObservedState.EXITED and not has_succeeded(newest.exit_code, newest.reason)


def after_init_failure(pod: Pod, container: Container, newest: ContainerView) -> AfterExit:
    """As `after_exit`, for an init container that failed: OnFailure restarts it whatever its exit code is."""
    outcome = after_exit(pod, container, newest.exit_code)
    policy = container.restartPolicy or pod.spec.restartPolicy or ALWAYS
    return AfterExit.RESTART if outcome is AfterExit.STAY and policy == ON_FAILURE else outcome


def doubtful_successes(pod: Pod) -> frozenset[str]:
    """The init containers whose exit code 0 is no success until the runtime has reported that memory did not run out."""
    whole = pod.spec.resources
    is_whole = whole is not None and bool(whole.limits.get("memory"))
    return frozenset(
        c.name
        for c in pod.spec.initContainers
        if not is_sidecar(c) and (is_whole or (c.resources is not None and bool(c.resources.limits.get("memory"))))
    )


def may_ever_restart(pod: Pod, container: Container) -> bool:
    """Whether the restart policy allows a restart after a failed probe. Restart rules apply later, to the exit code."""
    return (container.restartPolicy or pod.spec.restartPolicy or ALWAYS) != NEVER


def asks_for_all(pod: Pod, container: Container, instance: ContainerView) -> bool:
    """Whether an instance ended with an exit code for which a rule restarts all containers."""
    if instance.state is not ObservedState.EXITED:
        return False
    return after_exit(pod, container, instance.exit_code) is AfterExit.RESTART_ALL


def restart_all_trigger(pod: Pod, view: PodView, to_restart: Collection[ContainerID] = ()) -> str:
    """The container whose exit in the newest sandbox requires a restart of all; empty if there is none.

    Exits of `to_restart` instances do not count. A sidecar that ended after the pod's work was done does not restart it, in
    whatever order the exits became known.
    """
    over_at = _over_at(pod, view)
    for container in (*pod.spec.initContainers, *pod.spec.containers):
        newest = view.newest(container.name)
        if newest is None or newest.sandbox_id != view.sandboxes[0].id or newest.id in to_restart:
            continue
        is_late = over_at is not None and is_sidecar(container) and newest.finished_at > over_at
        if asks_for_all(pod, container, newest) and not is_late:
            return container.name
    return ""


def _over_at(pod: Pod, view: PodView) -> int | None:
    """When the last regular container ended, if all have ended and none may start again; None: the pod's work is not done."""
    ends: list[int] = []
    for container in pod.spec.containers:
        newest = view.newest(container.name)
        if newest is None or newest.state is not ObservedState.EXITED:
            return None
        if after_exit(pod, container, newest.exit_code) is not AfterExit.STAY:
            return None
        ends.append(newest.finished_at)
    return max(ends, default=None)


def has_restart_all_rule(pod: Pod) -> bool:
    """Whether any container has a restart rule with the action RestartAllContainers."""
    return any(
        rule.action == ACTION_RESTART_ALL
        for container in (*pod.spec.initContainers, *pod.spec.containers)
        for rule in container.restartPolicyRules
    )

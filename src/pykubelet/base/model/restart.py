"""Decides which containers are restarted after they exit. Pure.

Source: the Kubernetes documentation "Pod Lifecycle" (container restarts), KEP-753 (sidecars: init containers with
restartPolicy Always) and KEP-5307 (restart policy and rules of single containers).
"""

from __future__ import annotations

from enum import StrEnum

from pykubelet.base.api.core import Container, ContainerRestartRule, Pod
from pykubelet.base.model.observed import ContainerView, ObservedState
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


def init_failed(newest: ContainerView) -> bool:
    """Whether an init container has failed: with an exit code other than 0, or OOM-killed.

    The exit code may be 0 after an OOM kill, because the kernel may kill a child of the container's first process.
    """
    return newest.state is ObservedState.EXITED and (newest.exit_code != 0 or newest.reason == OOM_KILLED)


def after_init_failure(pod: Pod, container: Container, newest: ContainerView) -> AfterExit:
    """As `after_exit`, for an init container that failed: OnFailure restarts it whatever its exit code is."""
    outcome = after_exit(pod, container, newest.exit_code)
    policy = container.restartPolicy or pod.spec.restartPolicy or ALWAYS
    return AfterExit.RESTART if outcome is AfterExit.STAY and policy == ON_FAILURE else outcome


def may_ever_restart(pod: Pod, container: Container) -> bool:
    """Whether the restart policy allows a restart after a failed probe. Restart rules apply later, to the exit code."""
    return (container.restartPolicy or pod.spec.restartPolicy or ALWAYS) != NEVER


def has_restart_all_rule(pod: Pod) -> bool:
    """Whether any container has a restart rule with the action RestartAllContainers."""
    return any(
        rule.action == ACTION_RESTART_ALL
        for container in (*pod.spec.initContainers, *pod.spec.containers)
        for rule in container.restartPolicyRules
    )

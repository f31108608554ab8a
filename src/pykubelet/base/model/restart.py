"""Which containers run again after they ended. Pure.

Source: the Kubernetes documentation "Pod Lifecycle" (container restarts), KEP-753 (sidecars: init containers with
restartPolicy Always) and KEP-5307 (restart policy and rules of single containers).
"""

from __future__ import annotations

from enum import StrEnum

from pykubelet.base.api.core import Container, ContainerRestartRule, Pod
from pykubelet.base.model.observed import ContainerState, ContainerView
from pykubelet.base.model.reasons import OOM_KILLED

ALWAYS = "Always"
ON_FAILURE = "OnFailure"
NEVER = "Never"
ACTION_RESTART_ALL = "RestartAllContainers"


class AfterExit(StrEnum):
    """What an exit code leads to."""

    RESTART = "restart"
    STAY = "stay"
    RESTART_ALL = "restart-all"


def is_sidecar(container: Container) -> bool:
    """True for an init container that stays beside the regular ones."""
    return container.restartPolicy == ALWAYS


def _matches(rule: ContainerRestartRule, exit_code: int) -> bool:
    if rule.exitCodes is None:
        return False
    listed = exit_code in rule.exitCodes.values
    return listed if rule.exitCodes.operator == "In" else not listed


def after_exit(pod: Pod, container: Container, exit_code: int) -> AfterExit:
    """First matching rule of the container, else its own policy, else the pod's."""
    for rule in container.restartPolicyRules:
        if _matches(rule, exit_code):
            return AfterExit.RESTART_ALL if rule.action == ACTION_RESTART_ALL else AfterExit.RESTART
    policy = container.restartPolicy or pod.spec.restartPolicy or ALWAYS
    if policy == ALWAYS or (policy == ON_FAILURE and exit_code != 0):
        return AfterExit.RESTART
    return AfterExit.STAY


def should_restart(pod: Pod, container: Container, newest: ContainerView | None) -> bool:
    """Whether a regular container that is not running is to be started (again)."""
    if pod.metadata.deletionTimestamp:
        return False
    if newest is None or newest.state in (ContainerState.CREATED, ContainerState.UNKNOWN):
        return True
    if newest.state is ContainerState.RUNNING:
        return False
    return after_exit(pod, container, newest.exit_code) is not AfterExit.STAY


def init_failed(newest: ContainerView) -> bool:
    """Whether an init container has ended without success: with another exit code than 0, or OOM-killed.

    The kernel may kill a child of the container's first process, which then ends with 0 all the same.
    """
    return newest.state is ContainerState.EXITED and (newest.exit_code != 0 or newest.reason == OOM_KILLED)


def after_init_failure(pod: Pod, container: Container, newest: ContainerView) -> AfterExit:
    """As `after_exit`, for an init container that failed: to OnFailure it is a failure whatever its exit code."""
    outcome = after_exit(pod, container, newest.exit_code)
    policy = container.restartPolicy or pod.spec.restartPolicy or ALWAYS
    return AfterExit.RESTART if outcome is AfterExit.STAY and policy == ON_FAILURE else outcome


def may_ever_restart(pod: Pod, container: Container) -> bool:
    """Whether a failed probe restarts the container rather than ending it. Rules are asked once there is an exit code."""
    return (container.restartPolicy or pod.spec.restartPolicy or ALWAYS) != NEVER


def has_restart_all_rule(pod: Pod) -> bool:
    return any(
        rule.action == ACTION_RESTART_ALL
        for container in (*pod.spec.initContainers, *pod.spec.containers)
        for rule in container.restartPolicyRules
    )

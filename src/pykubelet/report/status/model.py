"""The inputs of the projection of one pod's status (`StatusFacts`). Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import Pod, PodStatus
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import PodLifecycle, Stage
from pykubelet.base.model.node import HandlerFeatures
from pykubelet.base.model.observed import ContainerState, ContainerView, PodView
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.sizing import PendingResize

ENDED_STAGES = (Stage.TERMINATED, Stage.FINISHED)


def reported_view(view: PodView | None, lifecycle: PodLifecycle) -> PodView | None:
    """The snapshot of a pod, as its status may show it.

    A container is hidden before its postStart hook has ended. One that was killed to be restarted is shown running until the
    next instance is there, or its start has failed: a container that is terminated for good must not come back.
    """
    if view is None:
        return None
    if lifecycle.post_starting:
        newest = [view.newest(name) for name in lifecycle.post_starting]
        hidden = {container.id for container in newest if container is not None and container.is_running}
        view = replace(view, containers=tuple(c for c in view.containers if c.id not in hidden))
    if lifecycle.owed:
        view = replace(view, containers=tuple(_going_on(c, view, lifecycle) for c in view.containers))
    return view


def _going_on(container: ContainerView, view: PodView, lifecycle: PodLifecycle) -> ContainerView:
    if container.id not in lifecycle.owed or container.name in lifecycle.start_errors:
        return container
    if view.newest(container.name) is not container:  # it was restarted, and the lifecycle does not show it yet
        return container
    return replace(container, state=ContainerState.RUNNING)


class StatusFacts(Value):
    """All inputs of one pod's status. `pod`: the newest spec. `view` None: the runtime was not read yet.

    `host_ips`: the node's, primary family first. `runtime`: its name, as in `containerd://<id>`. `handlers`: features
    by runtime handler. `messages`: termination messages by container. `old`: the previous status, None at first.
    `now_wall`: seconds. `pending`: a size that the node has not given the pod. `tells_stop_signals`: gate ContainerStopSignals.
    `tells_sandbox`: gate PodReadyToStartContainersCondition.
    """

    pod: Pod
    lifecycle: PodLifecycle
    view: PodView | None = None
    probes: ProbeResults = field(default_factory=ProbeResults)
    host_ips: tuple[str, ...] = ()
    runtime: str = ""
    handlers: Mapping[str, HandlerFeatures] = field(default_factory=dict)
    messages: Mapping[ContainerID, str] = field(default_factory=dict)
    old: PodStatus | None = None
    now_wall: float = 0.0
    pending: PendingResize | None = None
    tells_stop_signals: bool = False
    tells_sandbox: bool = True

    @property
    def has_ended(self) -> bool:
        """The agent has stopped the pod for good."""
        return self.lifecycle.stage in ENDED_STAGES

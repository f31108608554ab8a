"""The inputs of the projection of one pod's status (`StatusFacts`). Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import Pod, PodStatus
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import ENDED_STAGES, PodLifecycle, Stage
from pykubelet.base.model.node import HandlerFeatures
from pykubelet.base.model.observed import ContainerView, ObservedState, PodView
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.restart import AfterExit, after_exit, after_init_failure, init_failed, is_sidecar
from pykubelet.base.model.sizing import PendingResize
from pykubelet.report.status.device_health import NO_HEALTH, ContainerHealth


def reported_view(view: PodView | None, lifecycle: PodLifecycle) -> PodView | None:
    """The snapshot of a pod in the form that its status may show.

    A container is hidden until its postStart hook has ended, also before its start: what was shown must not be hidden
    again. One that is created ahead is hidden until its start. An instance that was started while its sandbox ended is
    hidden. A container that was killed to be restarted is shown as running until the next instance exists or its start has
    failed, because a terminated container must not become running again. So is an init container that is restarted although
    it exited with 0.
    """
    if view is None:
        return None
    if lifecycle.uncounted:
        view = _with_counted(view, lifecycle.uncounted)
    if lifecycle.post_starting:
        newest = [(view.newest(name), attempt) for name, attempt in lifecycle.post_starting.items()]
        hidden = {c.id for c, attempt in newest if c is not None and _is_starting(c, attempt)}
        view = replace(view, containers=tuple(c for c in view.containers if c.id not in hidden))
    if lifecycle.ahead:
        view = replace(view, containers=tuple(c for c in view.containers if not _is_made_ahead(c, lifecycle)))
    owed = lifecycle.to_restart | _owed_inits(view, lifecycle)
    if owed:
        view = replace(view, containers=tuple(_going_on(c, view, lifecycle, owed) for c in view.containers))
    return view


def _is_made_ahead(container: ContainerView, lifecycle: PodLifecycle) -> bool:
    return container.state is ObservedState.CREATED and container.name in lifecycle.ahead


def _owed_inits(view: PodView, lifecycle: PodLifecycle) -> frozenset[ContainerID]:
    """The init containers that exited with 0, OOM-killed, and are restarted. The API server takes exit code 0 for their end."""
    pod, owed = lifecycle.pod, set()
    for container in pod.spec.initContainers if lifecycle.stage is Stage.SYNCING else ():
        newest = view.newest(container.name)
        if newest is None or is_sidecar(container) or not init_failed(newest):
            continue
        is_end = after_exit(pod, container, newest.exit_code) is AfterExit.STAY
        if is_end and after_init_failure(pod, container, newest) is not AfterExit.STAY:
            owed.add(newest.id)
    return frozenset(owed)


def _with_counted(view: PodView, uncounted: Mapping[ContainerID, ContainerView]) -> PodView:
    """The view without the instances that do not count. It has the instances before them, until these are history."""
    view = view.without(uncounted)
    missing: dict[ContainerID, ContainerView] = {}
    for ended in uncounted.values():
        newest = view.newest(ended.name)
        if newest is None or (newest.attempt == ended.attempt + 1 and len(view.instances(ended.name)) == 1):
            missing[ended.id] = ended
    return replace(view, containers=(*view.containers, *missing.values())) if missing else view


def _is_starting(container: ContainerView, attempt: int) -> bool:
    """Whether its hook runs or will run. False for the instance before that one: this view may not show its end yet."""
    return container.state in (ObservedState.RUNNING, ObservedState.CREATED) and container.attempt >= attempt


def _going_on(
    container: ContainerView, view: PodView, lifecycle: PodLifecycle, owed: frozenset[ContainerID]
) -> ContainerView:
    if container.id not in owed or container.name in lifecycle.start_errors:
        return container
    if view.newest(container.name) is not container:  # it was restarted, but the lifecycle does not show that yet
        return container
    return replace(container, state=ObservedState.RUNNING)


class StatusFacts(Value):
    """All inputs of one pod's status. `pod`: the newest spec. `view` None: the runtime was not read yet.

    `host_ips`: the node's, primary family first. `runtime`: its name, as in `containerd://<id>`. `handlers`: features
    by runtime handler. `messages`: termination messages by container. `old`: the previous status, None at first.
    `now_wall`: seconds. `pending`: a requested size that is not allocated. `reports_stop_signals`: gate ContainerStopSignals.
    `reports_sandbox`: gate PodReadyToStartContainersCondition. `explains_sandbox`: as in `Behavior`. `health`: of the devices of its
    containers.
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
    reports_stop_signals: bool = False
    reports_sandbox: bool = True
    explains_sandbox: bool = True
    health: ContainerHealth = NO_HEALTH

    @property
    def has_ended(self) -> bool:
        """Whether the agent has stopped the pod for good."""
        return self.lifecycle.stage in ENDED_STAGES

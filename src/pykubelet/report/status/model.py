"""The values of this room: all that one pod's status is made from. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pykubelet.base.api.core import Pod, PodStatus
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import PodLifecycle, Stage
from pykubelet.base.model.node import HandlerFeatures
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.sizing import PendingResize

ENDED_STAGES = (Stage.TERMINATED, Stage.FINISHED)


def told_view(view: PodView | None, post_starting: frozenset[str]) -> PodView | None:
    """A look at a pod, as its status may tell it: a container is not there before its postStart hook has ended."""
    if view is None or not post_starting:
        return view
    hidden = {newest.id for name in post_starting if (newest := view.newest(name)) is not None and newest.is_running}
    return replace(view, containers=tuple(c for c in view.containers if c.id not in hidden))


@dataclass(frozen=True, slots=True)
class StatusFacts:
    """One pod, from all sides. `pod`: the newest spec. `view` None: the runtime was not looked at yet.

    `host_ips`: the node's, primary family first. `runtime`: its name, as in `containerd://<id>`. `handlers`: features
    by runtime handler. `messages`: termination messages by container. `old`: the status told before, None at first.
    `now_wall`: seconds. `pending`: a size that the node has not given the pod. `tells_stop_signals`: gate ContainerStopSignals.
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

    @property
    def has_ended(self) -> bool:
        """The agent has stopped the pod for good."""
        return self.lifecycle.stage in ENDED_STAGES

"""What the workers of all pods share: other packages of `act`, runtime calls, and the cells that they read."""

from __future__ import annotations

from typing import Protocol

from pykubelet.act.pods.ahead import AheadSlots
from pykubelet.act.pods.hooks import HookRecords
from pykubelet.act.pods.need import PodNeed
from pykubelet.act.runtime.lifecycle.resize import ContainerResizer
from pykubelet.act.runtime.lifecycle.sandbox import Sandboxes
from pykubelet.act.runtime.lifecycle.start import ContainerStarter
from pykubelet.act.runtime.lifecycle.stop import ContainerStopper
from pykubelet.base.kit.cells import Cell, CellWriter, Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.claims import Claims
from pykubelet.base.model.content import Content
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import Starts
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.node import NodeView, RuntimeReady
from pykubelet.base.model.observed import Observed, PodView
from pykubelet.base.model.placement import Placements
from pykubelet.base.model.statuses import Statuses
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.provide.cgroups.execute import PodCgroups
from pykubelet.provide.images.execute import ImagePuller
from pykubelet.provide.placement.devices.device_plugins import NodeDevicePlugins
from pykubelet.provide.volumes.subpath import Subpaths

ASK_AGAIN = "ask the runtime again"


class PodCells(Value):
    """The cells that pod workers read."""

    mounts: Cell[Mounts]
    observed: Cell[Observed]
    node: Cell[NodeView]
    runtime: Cell[RuntimeReady]
    statuses: Cell[Statuses]
    content: Cell[Content]
    claims: Cell[Claims]
    placements: Cell[Placements] = field(default_factory=lambda: Cell("placements", Placements()))


class MakeNeed(Protocol):
    """Makes a need of one pod: a class of `needs.py`."""

    def __call__(self, tools: PodTools, ref: PodRef, /) -> PodNeed: ...


class PodTools(Value):
    """The objects that every pod worker uses. `needs`: what each pod needs, in order.

    `extended_claims`: pods may have a claim behind their extended resources. `devices` None: there are no device plugins.
    `reports_secrets_at_once`: as in `Behavior`. `asks_again`: extensions are asked for the values of what an earlier run has started.
    """

    clock: Clock
    flight: SingleFlight
    cells: PodCells
    sandboxes: Sandboxes
    starter: ContainerStarter
    stopper: ContainerStopper
    resizer: ContainerResizer
    images: ImagePuller
    subpaths: Subpaths
    cgroups: PodCgroups
    supervisor: Supervisor
    starts: CellWriter[Starts]
    recorder: Post[KubeEvent]
    hook_records: HookRecords
    needs: tuple[MakeNeed, ...]
    extended_claims: bool = True
    devices: NodeDevicePlugins | None = None
    ahead: AheadSlots = field(default_factory=AheadSlots)
    reports_secrets_at_once: bool = False
    asks_again: bool = False


def runtime_wait(now: RuntimeReady) -> Wait:
    """The wait for a runtime that does not answer or is not ready."""
    problem = now.runtime_error or now.answer_error
    return Wait("container runtime", Owner.RUNTIME_STATUS, 0.0, "", "RuntimeNotReady", problem, ASK_AGAIN)


def pod_ip(view: PodView | None) -> str:
    """The first IP address of the pod's sandboxes; empty while there is none."""
    return next((ip for s in view.sandboxes for ip in s.ips), "") if view is not None else ""

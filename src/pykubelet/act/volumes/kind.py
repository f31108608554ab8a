"""The interface of a volume kind: what a kind declares, what its planning gets and returns.

A kind is one module in `kinds/` that exports `KIND`, a `VolumeKind`. `registry.py` finds it; nothing else names it. How to add one:
`docs/recipes/volume-kind.md`.

Rules:
 1. `keys`, `plan` and `needs_refresh` are pure: they decide, and touch neither the host nor the clock.
 2. `set_up` and `tear_down` block and run in a thread. Each may be repeated, and may be cut off at any point by the end of the agent.
 3. `tear_down` knows only the directory, not the plan: after a restart the disk is all there is. A kind that needs more
    writes it into the volume's directories before it mounts anything.
Source: the Kubernetes documentation "Volumes".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from pykubelet.act.volumes.directories import VolumeDirs, release_volume
from pykubelet.base.api.core import Pod, Volume
from pykubelet.base.kit.values import Value
from pykubelet.base.model.content import Content, ContentKey
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.paths import Paths


class VolumesError(Exception):
    """Planning, setting up, tearing down or checking a volume failed; the text is shown to users."""


class VolumePlan(Value):
    """What `set_up` has to do, the base of every kind's own plan. `mounted`: what containers bind once it is done."""

    mounted: MountedVolume

    @property
    def kind(self) -> str:
        """The name of the kind that made the plan."""
        return self.mounted.kind

    @property
    def path(self) -> str:
        return self.mounted.host_path


class InPlacePlan(VolumePlan):
    """The volume is there already: nothing is done on the host."""


class RefusedPlan(Value):
    """The volume cannot be provided until its pod, the node or its content changes."""

    error: str


class UndecidedPlan(Value):
    """`missing` must be known first, or an answer about each of `awaited`."""

    missing: str
    awaited: tuple[ContentKey, ...] = ()


Plan = VolumePlan | RefusedPlan | UndecidedPlan
NODE_UNKNOWN = UndecidedPlan("what the node can allocate is not known yet")

P = TypeVar("P", bound=VolumePlan)


class PlanInputs(Value):
    """One volume of one pod, and everything that its plan may depend on."""

    kind: VolumeKind[Any]
    pod: Pod
    volume: Volume
    node: NodeView
    content: Content
    paths: Paths

    @property
    def dirs(self) -> VolumeDirs:
        """The volume's directories below the pod's own."""
        return VolumeDirs.of(self.paths, PodUID(self.pod.metadata.uid), self.kind.directory, self.volume.name)

    @property
    def fs_group(self) -> int | None:
        context = self.pod.spec.securityContext
        return context.fsGroup if context is not None else None

    def mounted(
        self, host_path: str, *, read_only: bool = False, supports_relabel: bool = False, is_measured: bool = True
    ) -> MountedVolume:
        """What containers bind. The flags are those of `MountedVolume`."""
        return MountedVolume(
            self.volume.name,
            self.kind.name,
            host_path,
            read_only=read_only,
            supports_relabel=supports_relabel,
            is_measured=is_measured,
        )


class SetUpContext(Value):
    """What `set_up` may use besides its plan. `wall`: seconds now."""

    wall: float


def no_keys(_pod: Pod, _volume: Volume) -> Iterable[ContentKey]:
    """The volume refers to no object of the API server."""
    return ()


class VolumeKind(Value, Generic[P]):
    """One kind of volume.

    `name`: its field in a pod's volume, `emptyDir`.
    `plugin`: its name in metrics, `kubernetes.io/empty-dir`; "" keeps it out of them.
    `has_directory`: each volume has a directory, `pods/<uid>/volumes/kubernetes.io~empty-dir/<name>`, by which it is found after a restart.
    `keys`: the objects of the API server that the plan reads from `Content`.
    `plan`: VolumesError or QuantityError refuse the volume with their text. None: no volume of this kind is set up, but one that another
    kubelet has left on disk is removed.
    `set_up`: carries the plan out; harmless when that was done before. HostError and VolumesError are failures, tried again later.
    None: every plan is an `InPlacePlan`.
    `needs_refresh`: whether a volume set up by the first plan is to be set up again by the second. None: it stays as it is.
    `holds_sandbox`: the pod's sandbox is made after the volume is set up; False where that takes a moment only.
    `tear_down`: unmounts and removes the volume. `delete_volume` deletes its data with the pod; the default leaves data alone.
    """

    name: str
    plugin: str = ""
    has_directory: bool = True
    keys: Callable[[Pod, Volume], Iterable[ContentKey]] = no_keys
    plan: Callable[[PlanInputs], P | InPlacePlan | RefusedPlan | UndecidedPlan] | None = None
    set_up: Callable[[P, SetUpContext], None] | None = None
    needs_refresh: Callable[[P, P], bool] | None = None
    holds_sandbox: bool = True
    tear_down: Callable[[VolumeDirs], None] = release_volume

    @property
    def directory(self) -> str:
        """The directory of the kind below a pod's `volumes`; "" for kinds without one."""
        return self.plugin.replace("/", "~") if self.has_directory else ""

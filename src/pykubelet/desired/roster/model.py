"""The private values of the roster: what each source wants, and what was decided about each pod. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.node import NodeView, RuntimeReady
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.reasons import RESIZE_DEFERRED
from pykubelet.base.model.roster import ManifestProblem, RosterPod, SourceChanged
from pykubelet.config.settings import Settings
from pykubelet.desired.roster.kept_size import KeptSize


class AdmissionRules(Value):
    """What the node lets in, from the configuration and the machine.

    `kernel`: major and minor version. `max_pods` counts where `NodeView.allocatable` has no `pods`. `app_armor`: the
    kernel has it switched on. `resize_containers`, `resize_pods`, `resize_init_containers`: gates
    InPlacePodVerticalScaling, InPlacePodLevelResourcesVerticalScaling and InPlacePodVerticalScalingInitContainers.
    `static_cpus`, `static_memory`: CPUs and memory are given away exclusively. `limited_swap`: containers have a share of
    the swap. `pod_level_resources`: gate PodLevelResources. `features`: what the node declares that pods may need
    (KEP-5328); None: it declares nothing, and nobody is refused for that.
    """

    allowed_unsafe_sysctls: tuple[str, ...] = ()
    kernel: tuple[int, int] = (1 << 16, 0)
    max_pods: int = 110
    app_armor: bool = False
    resize_containers: bool = True
    resize_pods: bool = True
    resize_init_containers: bool = True
    static_cpus: bool = False
    static_memory: bool = False
    limited_swap: bool = False
    pod_level_resources: bool = True
    features: frozenset[str] | None = None


def admission_rules(settings: Settings, kernel: tuple[int, int], *, app_armor: bool) -> AdmissionRules:
    """`kernel`: major and minor version. `app_armor`: the kernel has it switched on."""
    config = settings.config
    return AdmissionRules(
        allowed_unsafe_sysctls=tuple(config.allowedUnsafeSysctls),
        kernel=kernel,
        max_pods=config.maxPods,
        app_armor=app_armor,
        resize_containers=settings.enabled("InPlacePodVerticalScaling"),
        resize_pods=settings.enabled("InPlacePodLevelResourcesVerticalScaling"),
        resize_init_containers=settings.enabled("InPlacePodVerticalScalingInitContainers"),
        static_cpus=config.cpuManagerPolicy == "static",
        static_memory=config.memoryManagerPolicy == "Static",
        limited_swap=config.memorySwap.swapBehavior == "LimitedSwap",
        pod_level_resources=settings.enabled("PodLevelResources"),
        features=frozenset(settings.declared_features) if settings.enabled("NodeDeclaredFeatures") else None,
    )


class HostPort(Value):
    """A port of the node; `ip` 0.0.0.0 means all its addresses."""

    protocol: str
    port: int
    ip: str

    def clashes(self, other: HostPort) -> bool:
        if (self.protocol, self.port) != (other.protocol, other.port):
            return False
        return self.ip == other.ip or "0.0.0.0" in (self.ip, other.ip)


class Demand(Value):
    """What a pod takes of the node: `cpu` in milli, the others in whole units."""

    requests: Mapping[str, int] = field(default_factory=dict)
    ports: frozenset[HostPort] = frozenset()

    def of(self, resource: str) -> int:
        return 1 if resource == "pods" else self.requests.get(resource, 0)


class Verdict(StrEnum):
    """open: not looked at yet. preempting: taken, once the pods in its place have ended."""

    OPEN = "open"
    PREEMPTING = "preempting"
    ADMITTED = "admitted"
    REJECTED = "rejected"


class Entry(Value):
    """One desired pod and what was decided. `order`: how many came before it.

    `victims`: the pods that end to make room; `short_of`: the resource that lacked first. `until`: the monotonic second
    when that is no longer waited for.
    `asked_at`: the monotonic second from which on the Node is read anew, because the one known does not suit the pod.
    `was_over`: at first sight its containers had already ended for good. `wanted`: the pod as its source tells it, which
    may ask for another size than `item.pod` was given.
    """

    item: RosterPod
    ref: PodRef
    demand: Demand
    order: int
    verdict: Verdict = Verdict.OPEN
    victims: frozenset[PodUID] = frozenset()
    until: float = 0.0
    asked_at: float | None = None
    was_over: bool = False
    wanted: Pod | None = None
    short_of: str = ""

    @property
    def is_resizing(self) -> bool:
        """Something is still to be decided or to be heard about the pod's size."""
        pending = self.item.pending
        return self.item.change is not None or (pending is not None and pending.reason == RESIZE_DEFERRED)


class RosterState(Value):
    """`kept`: sizes given before the agent's start. `owners`: which source holds a full name. `clashes`: pods that were
    left out for another's name or UID.

    `mirrors`: as in `Roster`.
    """

    sources: Mapping[str, SourceChanged] = field(default_factory=dict)
    entries: Mapping[PodUID, Entry] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    clashes: Mapping[tuple[str, PodRef], ManifestProblem] = field(default_factory=dict)
    arrivals: int = 0
    kept: Mapping[PodUID, KeptSize] = field(default_factory=dict)
    mirrors: Mapping[str, Pod] | None = None

    @property
    def node_asked_at(self) -> float | None:
        """The last monotonic second at which a pod began to wait for the Node as it is now; None: none does."""
        asked = (e.asked_at for e in self.entries.values() if e.verdict is Verdict.OPEN and e.asked_at is not None)
        return max(asked, default=None)

    @property
    def is_settled(self) -> bool:
        return all(entry.item.held is None and not entry.is_resizing for entry in self.entries.values())


class Facts(Value):
    """What the other rooms say at the moment of a decision."""

    node: NodeView
    runtime: RuntimeReady
    observed: Observed
    lifecycles: Lifecycles
    rules: AdmissionRules

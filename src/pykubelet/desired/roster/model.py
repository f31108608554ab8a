"""The private values of the roster: the pods of each source, the decision on each pod, and what the pods that count take. Pure.

The load of the node is what all pods that count against its capacity request together. A pod may have 10,000 ports and as many resources.
So the sums are kept from one decision to the next, and a pod is added to them or taken away: the cost of a decision depends on the pods
that it is about, and not on the specs of all others. Adding to a plain mapping would copy all of it. The sum of a `Totals` costs as much
as what is added to it. Source: H. Baker, "Shallow Binding Makes Functional Arrays Fast" (1991).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import repeat
from operator import add, neg
from typing import Generic, TypeVar

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.backoff import Backoff, BackoffPolicy
from pykubelet.base.kit.values import Derived, Value, VersionMark, field, replace, with_changes
from pykubelet.base.model.evictions import NodePressure
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.node import NodeView, RuntimeReady
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.placement import Placements
from pykubelet.base.model.reasons import RESIZE_DEFERRED, VOLUME_ATTACHMENT_LIMIT_EXCEEDED
from pykubelet.base.model.roster import ManifestProblem, NameHolder, Rejection, RosterPod, SourceChanged, is_static
from pykubelet.base.model.sysctls import SAFE_1_37, Safe
from pykubelet.base.model.waits import Wait
from pykubelet.config.settings import Settings
from pykubelet.desired.roster.kept_size import KeptSize
from pykubelet.desired.roster.objects import CountedObjects

# The load of the node

K = TypeVar("K", bound=Hashable)


class Totals(Generic[K]):
    """Amounts by key, as an immutable value; 0 for a key that has none. For use by a single thread.

    All versions share one table, which has the amounts of the version that was used last; each other version keeps only its difference
    from the next. A version that nothing refers to any more is freed with its difference. To use another version than the last costs as
    much as what lies between the two.
    """

    __slots__ = ("_difference", "_next", "_table")

    def __init__(self) -> None:
        self._table: dict[K, int] | None = {}
        self._next: Totals[K] | None = None
        self._difference: dict[K, int] = {}

    def __getitem__(self, key: K) -> int:
        return self._amounts().get(key, 0)

    def of_each(self, keys: Iterable[K]) -> Iterator[int]:
        """The amounts of these keys, in their order. Read them before the next use of another version."""
        return map(self._amounts().get, keys, repeat(0))

    def plus(self, amounts: Mapping[K, int]) -> Totals[K]:
        """These totals with more; amounts may be negative."""
        if not amounts:
            return self
        table = self._amounts()
        before = dict(zip(amounts, self.of_each(amounts), strict=True))
        _put(table, dict(zip(amounts, map(add, before.values(), amounts.values()), strict=True)))
        newer = Totals[K]()
        newer._table = table
        self._table, self._next, self._difference = None, newer, before
        return newer

    def minus(self, amounts: Mapping[K, int]) -> Totals[K]:
        """These totals with less."""
        return self.plus(dict(zip(amounts, map(neg, amounts.values()), strict=True)))

    def _amounts(self) -> dict[K, int]:
        """The shared table, with the amounts of this version."""
        if self._table is not None:
            return self._table
        versions = [self]
        while versions[-1]._next is not None:
            versions.append(versions[-1]._next)
        owner = versions.pop()
        table = owner._table
        assert table is not None
        for version in reversed(versions):
            undo = dict(zip(version._difference, map(table.get, version._difference, repeat(0)), strict=True))
            _put(table, version._difference)
            owner._table, owner._next, owner._difference = None, version, undo
            version._table, version._next, version._difference = table, None, {}
            owner = version
        return table


def _put(table: dict[K, int], amounts: Mapping[K, int]) -> None:
    """Set these amounts; a key with the amount 0 is left out."""
    table.update(amounts)
    if 0 in amounts.values():
        for key in [key for key, amount in amounts.items() if not amount]:
            del table[key]


ALL_ADDRESSES = "0.0.0.0"


class HostPort(Value):
    """A port of the node. `number`: number and protocol, as 80/TCP. `ip`: 0.0.0.0 means all addresses."""

    number: str
    ip: str = ALL_ADDRESSES


class Demand(Value):
    """What a pod requests from the node: `cpu` in millicores, other resources in whole units."""

    requests: Mapping[str, int] = field(default_factory=dict)
    ports: frozenset[HostPort] = frozenset()

    def of(self, resource: str) -> int:
        """The amount of a resource; 1 for `pods`."""
        return 1 if resource == "pods" else self.requests.get(resource, 0)


#: Added to the amount of a number for each pod that has it on all addresses.
_ON_ALL = 1 << 32
_PortKey = HostPort | str


class Load(Value):
    """The sum of demands.

    `ports`: under a number, how many pods have it on one address, and `_ON_ALL` for each that has it on all addresses; under a port of one
    address, how many pods have it.
    """

    pods: int = 0
    requests: Totals[str] = field(default_factory=Totals[str])
    ports: Totals[_PortKey] = field(default_factory=Totals[_PortKey])

    def plus(self, demand: Demand) -> Load:
        """The load with one more pod."""
        return Load(self.pods + 1, self.requests.plus(demand.requests), self.ports.plus(_amounts(demand)))

    def minus(self, demand: Demand) -> Load:
        """The load with one pod less."""
        return Load(self.pods - 1, self.requests.minus(demand.requests), self.ports.minus(_amounts(demand)))

    def has_taken(self, wanted: Demand) -> bool:
        """Whether a wanted port is taken: ports of one number and protocol clash if their addresses are the same, or one means all."""
        used = self.ports.of_each([port.number for port in wanted.ports])
        shared = [(port, amount) for port, amount in zip(wanted.ports, used, strict=True) if amount]
        if any(port.ip == ALL_ADDRESSES or amount >= _ON_ALL for port, amount in shared):
            return True
        return any(self.ports.of_each([port for port, _ in shared]))


def _amounts(demand: Demand) -> dict[_PortKey, int]:
    """What a demand adds to `Load.ports`."""
    amounts: dict[_PortKey, int] = {}
    for port in demand.ports:
        if port.ip == ALL_ADDRESSES:
            amounts[port.number] = amounts.get(port.number, 0) + _ON_ALL
        else:
            amounts[port.number] = amounts.get(port.number, 0) + 1
            amounts[port] = 1
    return amounts


class CountedPods(Value):
    """The pods that count against the capacity, and their load. `marks`: the versions of the roster's entries and of the lifecycles that
    this follows from; None: not known."""

    demands: Mapping[PodUID, Demand] = field(default_factory=dict)
    load: Load = field(default_factory=Load)
    marks: tuple[VersionMark[PodUID], VersionMark[PodUID]] | None = None

    def with_demands(
        self, changed: Mapping[PodUID, Demand | None], marks: tuple[VersionMark[PodUID], VersionMark[PodUID]] | None
    ) -> CountedPods:
        """With these demands instead; None: the pod does not count."""
        load = self.load
        for uid, new in changed.items():
            old = self.demands.get(uid)
            if old is new:
                continue
            if old is not None:
                load = load.minus(old)
            if new is not None:
                load = load.plus(new)
        return CountedPods(with_changes(self.demands, changed), load, marks)

    def plus(self, uid: PodUID, demand: Demand) -> CountedPods:
        """These pods and one that does not count yet."""
        return replace(self, demands=with_changes(self.demands, {uid: demand}), load=self.load.plus(demand))

    def load_without(self, uid: PodUID) -> Load:
        """The load of all pods but this one, for its resize: its ports stay, because it keeps them."""
        demand = self.demands.get(uid)
        if demand is None:
            return self.load
        return Load(self.load.pods - 1, self.load.requests.minus(demand.requests), self.load.ports)


# Pods and the decisions on them


class AdmissionHold(Value):
    """An extension neither admits nor rejects a pod yet. `again_s`: after how many seconds it is asked again."""

    wait: Wait
    again_s: float


#: Asks the extensions about a pod that would be admitted; the last two arguments are the pods that count, and wall seconds.
AskExtensions = Callable[[Pod, "AdmissionFacts", CountedPods, float], "Rejection | AdmissionHold | None"]


class AdmissionRules(Value):
    """The rules by which the node admits pods, from the configuration and the machine.

    `kernel`: major and minor version. `max_pods`: used if `NodeView.allocatable` has no `pods`. `app_armor`: it is enabled in
    the kernel. `resize_containers`, `resize_pods`, `resize_init_containers`: gates InPlacePodVerticalScaling,
    InPlacePodLevelResourcesVerticalScaling and InPlacePodVerticalScalingInitContainers. `resize_volumes`:
    InPlacePodVerticalScalingMemoryBackedVolumes. `static_cpus`, `static_memory`: the CPU
    and Memory Manager policies are static. `places_guaranteed`: Guaranteed pods are placed, because one of these or the Topology Manager
    has a policy; other pods only if they request resources of device plugins. `places_pods`: pods with pod-level resources are placed as a
    whole (gate PodLevelResourceManagers). `limited_swap`: containers get a part of the swap.
    `pod_level_resources`: gate PodLevelResources. `features`: the features that the node declares (KEP-5328); None: no pod is
    rejected for a missing one. `safe_sysctls`: those that need no `allowedUnsafeSysctls`. `ask_extensions`: None: no extension admits pods.
    """

    allowed_unsafe_sysctls: tuple[str, ...] = ()
    kernel: tuple[int, int] = (1 << 16, 0)
    max_pods: int = 110
    app_armor: bool = False
    resize_containers: bool = True
    resize_pods: bool = True
    resize_init_containers: bool = True
    resize_volumes: bool = False
    static_cpus: bool = False
    static_memory: bool = False
    places_guaranteed: bool = False
    places_pods: bool = False
    limited_swap: bool = False
    pod_level_resources: bool = True
    compares_taints: bool = False
    features: frozenset[str] | None = None
    safe_sysctls: Safe = SAFE_1_37
    ask_extensions: AskExtensions | None = None


def admission_rules(
    settings: Settings, kernel: tuple[int, int], ask_extensions: AskExtensions | None = None, *, app_armor: bool
) -> AdmissionRules:
    """The rules from the configuration. `kernel`: major and minor version. `app_armor`: it is enabled in the kernel."""
    config = settings.config
    return AdmissionRules(
        allowed_unsafe_sysctls=tuple(config.allowedUnsafeSysctls),
        kernel=kernel,
        max_pods=config.maxPods,
        app_armor=app_armor,
        resize_containers=settings.enabled("InPlacePodVerticalScaling"),
        resize_pods=settings.enabled("InPlacePodLevelResourcesVerticalScaling"),
        resize_init_containers=settings.enabled("InPlacePodVerticalScalingInitContainers"),
        resize_volumes=settings.enabled("InPlacePodVerticalScalingMemoryBackedVolumes"),
        static_cpus=config.cpuManagerPolicy != "none",
        static_memory=config.memoryManagerPolicy != "None",
        places_guaranteed=settings.has_placement_policy,
        places_pods=settings.enabled("PodLevelResourceManagers")
        and config.topologyManagerPolicy != "none"
        and config.topologyManagerScope == "pod",
        limited_swap=config.memorySwap.swapBehavior == "LimitedSwap",
        pod_level_resources=settings.enabled("PodLevelResources"),
        compares_taints=settings.enabled("TaintTolerationComparisonOperators"),
        features=frozenset(settings.declared_features) if settings.enabled("NodeDeclaredFeatures") else None,
        safe_sysctls=settings.behavior.safe_sysctls,
        ask_extensions=ask_extensions,
    )


#: The pauses between attempts to admit a static pod that the resource managers or an extension have rejected.
RETRY = BackoffPolicy(10.0, 300.0)


class AdmissionVerdict(StrEnum):
    """open: not decided yet. preempting: admitted once its victims have ended. placing: admitted once it is placed. quarantined: not
    decided for a time."""

    OPEN = "open"
    PREEMPTING = "preempting"
    PLACING = "placing"
    ADMITTED = "admitted"
    REJECTED = "rejected"
    QUARANTINED = "quarantined"


class Entry(Value):
    """One desired pod and the decision on it. `order`: the number of pods that came before it.

    `victims`: the pods that are preempted for it; `short_of`: the first resource that was short. `until`: when the wait for
    the victims ends, or when an extension that holds the pod is asked again, in monotonic seconds.
    `asked_at`: when a new read of the Node was requested, in monotonic seconds, because the known Node does not match the pod.
    `was_over`: its containers had already ended for good when it was admitted. `wanted`: the pod as its source has it, which
    may request another size than `item.pod` has. `placing_number`: the order of admission of pods that are being placed.
    `refusal`: why the pod is rejected even if it can be placed. `origin`: where its source has read it. `tried`, `retry`: the placements
    with which the resource managers rejected it, and the back-off of its next attempt; `is_refused`: an extension has rejected it;
    `rejected_since`: since when an admitted pod had been rejected before, in wall seconds (`readmission.py`).
    `unusable`: a text of its spec that nothing can use, "" for none.
    """

    item: RosterPod
    ref: PodRef
    demand: Demand
    order: int
    verdict: AdmissionVerdict = AdmissionVerdict.OPEN
    victims: frozenset[PodUID] = frozenset()
    until: float = 0.0
    asked_at: float | None = None
    was_over: bool = False
    wanted: Pod | None = None
    short_of: str = ""
    placing_number: int = 0
    refusal: Rejection | None = None
    origin: str = ""
    tried: Placements | None = None
    retry: Backoff | None = None
    rejected_since: float | None = None
    unusable: str = ""
    is_refused: bool = False

    @property
    def is_held(self) -> bool:
        """Whether an extension holds the pod."""
        return self.verdict is AdmissionVerdict.OPEN and self.until > 0

    @property
    def is_resizing(self) -> bool:
        """Whether a resize of the pod is deferred, or is allocated and not applied yet."""
        pending = self.item.pending
        return self.item.change is not None or (pending is not None and pending.reason == RESIZE_DEFERRED)

    @property
    def may_resize(self) -> bool:
        """Whether the pod may get another size, or is getting it."""
        item = self.item
        return item.change is not None or item.pending is not None or (self.wanted or item.pod) is not item.pod

    @property
    def is_readmissible(self) -> bool:
        """Whether the pod is rejected and may be admitted later (`readmission.py`)."""
        rejection = self.item.rejection
        if self.verdict is not AdmissionVerdict.REJECTED or rejection is None or not is_static(self.item.pod):
            return False
        return rejection.reason != VOLUME_ATTACHMENT_LIMIT_EXCEEDED


class RosterState(Value):
    """The state of the roster. `kept`: allocated sizes from before the agent's start. `holders`: as in `Roster`; at first those from
    before the agent's start. `clashes`: pods that were left out because another pod has their name or UID. `quarantined`: the pods that
    are not decided for a time.

    `mirrors`: as in `Roster`. `counted`: the pods that counted against the capacity at the last decision. `counted_objects`: the objects of
    manifests that count.
    """

    sources: Mapping[str, SourceChanged] = field(default_factory=dict)
    entries: Mapping[PodUID, Entry] = field(default_factory=dict)
    holders: Mapping[str, NameHolder] = field(default_factory=dict)
    clashes: Mapping[tuple[str, PodRef], ManifestProblem] = field(default_factory=dict)
    arrivals: int = 0
    kept: Mapping[PodUID, KeptSize] = field(default_factory=dict)
    mirrors: Mapping[str, Pod] | None = None
    quarantined: frozenset[PodUID] = frozenset()
    counted: CountedPods = field(default_factory=CountedPods)
    counted_objects: CountedObjects = CountedObjects()

    @property
    def node_asked_at(self) -> float | None:
        """When a pod last requested a new read of the Node, in monotonic seconds; None: no pod waits for one."""
        asked = (
            e.asked_at for e in unusual(self.entries) if e.verdict is AdmissionVerdict.OPEN and e.asked_at is not None
        )
        return max(asked, default=None)

    @property
    def has_readmissible(self) -> bool:
        """Whether a rejected pod may be admitted later."""
        return any(entry.is_readmissible for entry in unusual(self.entries))

    @property
    def awaits_only_placement(self) -> bool:
        """Whether pods wait for their placement, and none for anything else."""
        waiting = [
            entry for entry in unusual(self.entries) if entry.item.admission_wait is not None or entry.is_resizing
        ]
        settled = (AdmissionVerdict.PLACING, AdmissionVerdict.QUARANTINED)
        return bool(waiting) and all(entry.verdict in settled and not entry.is_resizing for entry in waiting)

    @property
    def may_resize(self) -> bool:
        """Whether a pod may get another size, or is getting it."""
        return any(entry.may_resize for entry in unusual(self.entries))

    @property
    def is_settled(self) -> bool:
        """Whether no pod waits for a decision and no resize is in progress or deferred."""
        return all(
            (entry.item.admission_wait is None or entry.verdict is AdmissionVerdict.QUARANTINED)
            and not entry.is_resizing
            for entry in unusual(self.entries)
        )


def _if_unusual(entry: Entry) -> Entry | None:
    return (
        entry
        if entry.verdict is not AdmissionVerdict.ADMITTED
        or (entry.wanted or entry.item.pod) is not entry.item.pod
        or entry.item.admission_wait is not None
        or entry.item.change is not None
        or entry.item.pending is not None
        else None
    )


_unusual: Derived[PodUID, Entry, Entry] = Derived(_if_unusual)


def unusual(entries: Mapping[PodUID, Entry]) -> Collection[Entry]:
    """The pods that are not simply admitted with the size of their spec: most questions about all pods are about these."""
    return _unusual(entries).values()


class AdmissionFacts(Value):
    """The snapshots of other components at the time of a decision."""

    node: NodeView
    runtime: RuntimeReady
    observed: Observed
    lifecycles: Lifecycles
    rules: AdmissionRules
    shutting_down: bool = False
    pressure: NodePressure = NodePressure()
    placements: Placements = Placements()

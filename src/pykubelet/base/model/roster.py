"""The pods that should run here, as snapshots and events. `Roster` is written by desired/roster alone.

A pod in quarantine, because the agent has ended at it, is desired and neither admitted nor rejected: nothing of it is started, changed
or removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Derived, Value, field
from pykubelet.base.model.content import ManifestObject
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.labels import CONFIG_MIRROR, CONFIG_SOURCE, SOURCE_API
from pykubelet.base.model.reasons import QUARANTINED
from pykubelet.base.model.remarks import Remark
from pykubelet.base.model.sizing import PendingResize, SizeChange
from pykubelet.base.model.waits import Wait

#: Pods of this priority and above belong to the system.
SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
TERMINAL_PHASES = ("Succeeded", "Failed")


class ManifestProblem(Value):
    """One manifest that cannot be used: its origin, the field, and why. `document`: which one of several in it, as text."""

    origin: str
    field_path: str
    reason: str
    document: str = ""


class SourceChanged(Value):
    """Posted by a source: its full set of pods and objects, the problems with its other manifests, and remarks about any of them.

    `origins`: where each pod was read, in the order of `pods`; empty if all come from the source itself.
    `known`: False while the source does not know its full set of pods yet, only the problems that prevent it.
    `quarantined`: what the pods in quarantine wait for; `pods` has stubs of them.
    `awaited` False, with `known` False: the roster is ready without this source, and keeps its pods of before as they are.
    `by_uid`: the same pods as in `pods`, and in the same order, by UID, from a source with unique UIDs. A reader that has the mapping of
    before looks only at what differs.
    """

    source: str
    pods: Collection[Pod]
    problems: tuple[ManifestProblem, ...] = ()
    origins: tuple[str, ...] = ()
    known: bool = True
    objects: tuple[ManifestObject, ...] = ()
    remarks: tuple[Remark, ...] = ()
    quarantined: Mapping[PodUID, Wait] = field(default_factory=dict)
    awaited: bool = True
    by_uid: Mapping[PodUID, Pod] | None = None


class Rejection(Value):
    """Why the node rejects a pod: status reason and message (in the status, `Pod was rejected: ` goes before it)."""

    reason: str
    message: str


class RosterPod(Value):
    """One desired pod. `seen_at`: the wall second at which the agent first saw it.

    `rejection` may also come later, when a more important pod preempts this one (reason `Preempting`).
    `admission_wait`: why the pod is neither admitted nor rejected yet; nothing of it may be started or removed.
    `pod` has the size that the node has allocated. `pending`: a size that its spec asks for and the node has not allocated.
    `change`: the previous size, until act/pods has applied the new one; it survives a restart of the agent.
    """

    pod: Pod
    source: str
    seen_at: float
    rejection: Rejection | None = None
    admission_wait: Wait | None = None
    pending: PendingResize | None = None
    change: SizeChange | None = None


class NameHolder(Value):
    """The manifest that has the name of a static pod: its source, and where that has read it."""

    source: str
    origin: str


class Roster(Value):
    """All desired pods by UID. Before `sources_ready`, nothing may be deleted because it is missing here.

    `mirrors`: the API server's mirror pods by the full name (`name_namespace`) of their static pod, even if that static pod
    is gone. They are shown, never run. None: the API server has not listed its pods yet.
    `awaiting_placement`: pods that are admitted but for their placement, which provide/placement decides, in the order of admission.
    `rejected_anyway`: those of them that admission rejects, whatever placement answers; nothing is kept for them. A reason of the
    placement comes before theirs.
    `missing`: the sources whose set of pods is not known yet. `silent`: those of them that have not reported a reason in
    `problems` either; None before the first publication.
    `objects`: those of all manifests, sorted by key and origin. Several may have the same key.
    `holders`: the manifest of each static pod, by the pod's full name (`name_namespace`). One that has become wrong keeps the name.
    `withheld`: the full names of static pods with a manifest in quarantine, or of a source that is not awaited. Nothing of them may be
    deleted because they are missing.
    """

    pods: Mapping[PodUID, RosterPod] = field(default_factory=dict)
    sources_ready: bool = False
    problems: tuple[ManifestProblem, ...] = ()
    mirrors: Mapping[str, Pod] | None = None
    missing: tuple[str, ...] = ()
    silent: tuple[str, ...] | None = None
    awaiting_placement: tuple[PodUID, ...] = ()
    rejected_anyway: frozenset[PodUID] = frozenset()
    objects: tuple[ManifestObject, ...] = ()
    remarks: tuple[Remark, ...] = ()
    holders: Mapping[str, NameHolder] = field(default_factory=dict)
    withheld: frozenset[str] = frozenset()


class ApiPods(Value):
    """The API server's pods of this node by UID, including mirror pods, with their statuses as the API server has them.

    Written by desired/sources. `synced`: they were listed once, so a pod that is missing here does not exist in the API.
    """

    pods: Mapping[PodUID, Pod] = field(default_factory=dict)
    synced: bool = False


def pod_ref(pod: Pod) -> PodRef:
    """The pod's namespace, name and UID."""
    return PodRef(pod.metadata.namespace, pod.metadata.name, PodUID(pod.metadata.uid))


def is_static(pod: Pod) -> bool:
    """True for pods that do not come from the API server."""
    return pod.metadata.annotations.get(CONFIG_SOURCE, SOURCE_API) != SOURCE_API


_static: Derived[PodUID, RosterPod, RosterPod] = Derived(lambda entry: entry if is_static(entry.pod) else None)


def static_pods(pods: Mapping[PodUID, RosterPod]) -> Mapping[PodUID, RosterPod]:
    """Those of a roster's pods that do not come from the API server."""
    return _static(pods)


def has_ended_in_api(pod: Pod) -> bool:
    """Whether the phase in the API is terminal, so that the pod is never started again. Static pods have no such status."""
    return pod.status.phase in TERMINAL_PHASES


def is_mirror(pod: Pod) -> bool:
    """Whether the pod is the API server's mirror of a static pod."""
    return CONFIG_MIRROR in pod.metadata.annotations


#: The least priority of each bucket of `priority_bucket`, from high to low.
_PRIORITY_BUCKETS = (
    (SYSTEM_CRITICAL_PRIORITY, "system-critical"),
    (100_000, "high"),
    (1, "medium"),
    (0, "normal"),
    (-999, "low"),
)


def priority_bucket(pod: Pod) -> str:
    """The label `priority_bucket` of metrics about resizes."""
    priority = pod.spec.priority or 0
    return next((name for least, name in _PRIORITY_BUCKETS if priority >= least), "very-low")


def is_critical(pod: Pod) -> bool:
    """Whether the pod is static, a mirror pod, or has a system priority class: the node keeps it as long as it can."""
    return is_static(pod) or is_mirror(pod) or (pod.spec.priority or 0) >= SYSTEM_CRITICAL_PRIORITY


#: How the reason of a manifest in quarantine begins.
OF_MANIFEST = "in quarantine: "


def is_quarantine(problem: ManifestProblem) -> bool:
    """Whether a manifest is not used because it is in quarantine."""
    return problem.reason.startswith(OF_MANIFEST)


def is_quarantined(entry: RosterPod) -> bool:
    """Whether a desired pod is in quarantine. Its `pod` then has only the fields that show what it is."""
    return entry.admission_wait is not None and entry.admission_wait.reason == QUARANTINED

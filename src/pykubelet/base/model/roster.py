"""The pods that should run here, as snapshots and events. `Roster` is written by desired/roster alone."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.labels import CONFIG_MIRROR, CONFIG_SOURCE, SOURCE_API
from pykubelet.base.model.sizing import PendingResize, SizeChange
from pykubelet.base.model.waits import Wait

TERMINAL_PHASES = ("Succeeded", "Failed")


class ManifestProblem(Value):
    """One manifest that cannot be used: where it came from, which field, and why."""

    origin: str
    field_path: str
    reason: str


class SourceChanged(Value):
    """Posted by a source: its full set of pods, and what was wrong with the rest.

    `origins`: where each pod was read, in the order of `pods`; empty where the source is the only place.
    `known`: False while the source cannot tell its set yet, only the problems that keep it from that.
    """

    source: str
    pods: tuple[Pod, ...]
    problems: tuple[ManifestProblem, ...] = ()
    origins: tuple[str, ...] = ()
    known: bool = True


class Rejection(Value):
    """The node refuses the pod: status reason and message (`Pod was rejected: ` is put before it in the status)."""

    reason: str
    message: str


class RosterPod(Value):
    """One desired pod. `seen_at`: wall seconds of its first sight.

    `rejection` may come later too, when a more important pod takes this one's place (reason `Preempting`).
    `held`: it is not decided yet whether the node takes the pod; nothing of it may be started, and nothing removed.
    `pod` has the size that the node gave it. `pending`: its spec asks for another one. `change`: from which size to this
    one, until act/pods has made it so; it lasts over a restart of the agent.
    """

    pod: Pod
    source: str
    seen_at: float
    rejection: Rejection | None = None
    held: Wait | None = None
    pending: PendingResize | None = None
    change: SizeChange | None = None


class Roster(Value):
    """All desired pods by UID. Before `sources_ready` nothing may be deleted because it is missing here.

    `mirrors`: the API's mirror pods by the full name (`name_namespace`) of the static pod they stand for, also where
    that static pod is gone. They are shown, never run. None: the API server was not heard yet.
    `missing`: the sources whose set is not known yet. `silent`: those of them that have not told a reason either (in
    `problems`); None before the first publication.
    """

    pods: Mapping[PodUID, RosterPod] = field(default_factory=dict)
    sources_ready: bool = False
    problems: tuple[ManifestProblem, ...] = ()
    mirrors: Mapping[str, Pod] | None = None
    missing: tuple[str, ...] = ()
    silent: tuple[str, ...] | None = None


class ApiPods(Value):
    """The API server's pods of this node, mirror pods included, with their statuses as it has them. By UID.

    Written by desired/sources. `synced`: they were listed once; what is missing then is not in the API.
    """

    pods: Mapping[PodUID, Pod] = field(default_factory=dict)
    synced: bool = False


def pod_ref(pod: Pod) -> PodRef:
    return PodRef(pod.metadata.namespace, pod.metadata.name, PodUID(pod.metadata.uid))


def is_static(pod: Pod) -> bool:
    """True for pods that do not come from the API server."""
    return pod.metadata.annotations.get(CONFIG_SOURCE, SOURCE_API) != SOURCE_API


def has_ended_in_api(pod: Pod) -> bool:
    """The API says that the pod has ended for good: it is never started again. A static pod has no status of its own."""
    return pod.status.phase in TERMINAL_PHASES


def is_mirror(pod: Pod) -> bool:
    return CONFIG_MIRROR in pod.metadata.annotations

"""Metrics of pod starts, pod worker operations and resizes.

The start durations are counted once for each pod that is new to the node. The "SLI" durations begin with the pod's
creation in the API server, so pods from manifests have none; they exclude image pulls and init containers. Source: the
Kubernetes documentation "Kubernetes Metrics Reference".
"""

from __future__ import annotations

from pykubelet.base.api.core import Pod
from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.metrics import Counter, Gauge, Histogram
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.restart import is_sidecar

_START_BOUNDS_S = (
    *(0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300),
    *(360, 480, 600, 900, 1200, 1800, 2700, 3600),
)
_RESIZE_BOUNDS_MS = (10, 50, 100, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000)
WORK_DURATIONS = Histogram(
    "kubelet_pod_worker_duration_seconds",
    "Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync",
    ("operation_type",),
)
WORK_BEGINS = Histogram(
    "kubelet_pod_worker_start_duration_seconds",
    "Duration in seconds from kubelet seeing a pod to starting a worker.",
)
START_DURATIONS = Histogram(
    "kubelet_pod_start_duration_seconds",
    "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
    (),
    _START_BOUNDS_S,
)
START_TOTALS = Histogram(
    "kubelet_pod_start_total_duration_seconds",
    "Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured"
    " from pod creation timestamp to when all its containers are reported as started and observed via watch",
    (),
    _START_BOUNDS_S,
)
START_SLIS = Histogram(
    "kubelet_pod_start_sli_duration_seconds",
    "Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod"
    " creation timestamp to when all its containers are reported as started and observed via watch",
    (),
    _START_BOUNDS_S,
)
FIRST_NETWORK_START = Gauge(
    "kubelet_first_network_pod_start_sli_duration_seconds",
    "Duration in seconds to start the first network pod, excluding time to pull images and run init containers, measured"
    " from pod creation timestamp to when all its containers are reported as started and observed via watch",
)
CONTAINERS = Histogram(
    "kubelet_containers_per_pod_count", "The number of containers per pod.", (), (1.0, 2.0, 4.0, 8.0, 16.0)
)
RESTARTED = Counter(
    "kubelet_restarted_pods_total",
    "Number of pods that have been restarted because they were deleted and recreated with the same UID while the kubelet"
    " was watching them (common for static pods, extremely uncommon for API pods)",
    ("static",),
)
for _is_static in ("", "true"):  # both exist from the start
    RESTARTED.inc(_is_static, by=0.0)
ORPHANED = Counter(
    "kubelet_orphaned_runtime_pods_total",
    "Number of pods that have been detected in the container runtime without being already known to the pod worker."
    " This typically indicates the kubelet was restarted while a pod was force deleted in the API or in the local"
    " configuration, which is unusual.",
)
RESIZE_DURATIONS = Histogram(
    "kubelet_pod_resize_duration_milliseconds",
    "Duration in milliseconds to actuate a pod resize",
    ("success",),
    _RESIZE_BOUNDS_MS,
)
#: Volume kinds that the agent sets up without other systems. Pods with other volumes have no start SLI.
_STATELESS = ("secret", "configMap", "downwardAPI", "emptyDir", "projected")


class PullTime:
    """The time from the start of a pod's first image pull to the end of its last, in monotonic seconds."""

    def __init__(self) -> None:
        self._span: tuple[float, float] | None = None

    def add(self, began: float, ended: float) -> None:
        """Extend the span to cover `began` to `ended`, both in seconds of one clock."""
        first, last = self._span or (began, ended)
        self._span = min(first, began), max(last, ended)

    @property
    def seconds(self) -> float:
        """The span from the earliest begin to the latest end in seconds; 0.0 if nothing was added."""
        return self._span[1] - self._span[0] if self._span is not None else 0.0


class StartCount:
    """Counts one pod's start. `seen_at`: wall seconds. `is_new`: nothing of the pod existed when its worker started."""

    def __init__(self, seen_at: float, *, is_new: bool) -> None:
        self._seen_at = seen_at
        self._is_begun = not is_new
        self._is_over = not is_new

    def begins(self, pod: Pod, cause: str, wall: float) -> str:
        """Count the begin of a sync; return its operation type for metrics: create, update or sync."""
        if self._is_begun:
            return "update" if cause == "manifest changed" else "sync"
        self._is_begun = True
        WORK_BEGINS.observe(max(0.0, wall - self._seen_at))
        CONTAINERS.observe(len(pod.spec.containers))
        return "create"

    def saw(self, pod: Pod, view: PodView, wall: float, pulled: PullTime) -> None:
        """Count the pod's start if this newer view is the first in which all containers have started."""
        if self._is_over or not has_started(pod, view):
            return
        self._is_over = True
        START_DURATIONS.observe(max(0.0, wall - self._seen_at))
        if not pod.metadata.creationTimestamp or not all_run(pod, view):
            return
        total = max(0.0, wall - parse_time(pod.metadata.creationTimestamp))
        START_TOTALS.observe(total)
        if is_stateless(pod):
            sli = max(0.0, total - pulled.seconds - init_seconds(pod, view))
            START_SLIS.observe(sli)
            if not pod.spec.hostNetwork and not FIRST_NETWORK_START.value():
                FIRST_NETWORK_START.set(sli)


def has_started(pod: Pod, view: PodView) -> bool:
    """Whether every regular container was started at least once. Pure."""
    newest = (view.newest(container.name) for container in pod.spec.containers)
    return all(found is not None and found.started_at for found in newest)


def all_run(pod: Pod, view: PodView) -> bool:
    """Whether the newest instance of every regular container runs. Pure."""
    newest = (view.newest(container.name) for container in pod.spec.containers)
    return all(found is not None and found.is_running for found in newest)


def init_seconds(pod: Pod, view: PodView) -> float:
    """The sum of the durations of all init containers except sidecars, in seconds. Pure."""
    newest = (view.newest(init.name) for init in pod.spec.initContainers if not is_sidecar(init))
    return sum(
        (found.finished_at - found.started_at) / 1e9
        for found in newest
        if found is not None and found.finished_at > found.started_at > 0
    )


def is_stateless(pod: Pod) -> bool:
    """Whether all volumes of the pod are of the kinds that the start SLI counts. Pure."""
    return all(any(getattr(volume, kind) is not None for kind in _STATELESS) for volume in pod.spec.volumes)

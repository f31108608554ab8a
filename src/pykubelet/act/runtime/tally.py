"""Counts of what was started, for `/metrics`."""

from __future__ import annotations

from pykubelet.act.runtime.context import AnyContainer
from pykubelet.base.api.core import EphemeralContainer, Pod
from pykubelet.base.kit.metrics import Counter

STARTED_PODS = Counter("kubelet_started_pods_total", "Cumulative number of pods started")
STARTED_PODS_ERRORS = Counter("kubelet_started_pods_errors_total", "Cumulative number of errors when starting pods")
STARTED_CONTAINERS = Counter(
    "kubelet_started_containers_total", "Cumulative number of containers started", ("container_type",)
)
STARTED_CONTAINERS_ERRORS = Counter(
    "kubelet_started_containers_errors_total",
    "Cumulative number of errors when starting containers",
    ("container_type", "code"),
)


def container_kind(pod: Pod, container: AnyContainer) -> str:
    """What metrics call the kind of a container. Pure."""
    if isinstance(container, EphemeralContainer):
        return "ephemeral_container"
    is_init = any(init.name == container.name for init in pod.spec.initContainers)
    return "init_container" if is_init else "container"

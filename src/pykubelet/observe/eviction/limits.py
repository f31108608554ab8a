"""Finds pods that exceed a limit of local storage: of an emptyDir, of the whole pod, or of a container. Pure.

Rules: the checks are made in this order, and the first exceeded limit evicts the pod. Usage that was not measured exceeds
no limit. The strings are those of the reference kubelet, and part of the API. Source: the Kubernetes documentation "Local
ephemeral storage", section "Setting requests and limits for local ephemeral storage", and "Volumes", emptyDir.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pykubelet.base.api.core import Pod
from pykubelet.base.api.quantity import NANO, Amount, parse
from pykubelet.base.kit.values import Value
from pykubelet.base.model.restart import is_sidecar
from pykubelet.base.model.roster import is_critical
from pykubelet.base.model.sizing import pod_limits
from pykubelet.base.model.usage import ContainerUse, PodUse, bytes_on_disk
from pykubelet.observe.eviction.model import Candidate, FsLayout

#: Values of the label `eviction_signal` of `kubelet_evictions`.
EMPTY_DIR_LIMIT = "emptydirfs.limit"
POD_LIMIT = "ephemeralpodfs.limit"
CONTAINER_LIMIT = "ephemeralcontainerfs.limit"
STORAGE = "ephemeral-storage"


class Excess(Value):
    """A limit that a pod exceeds. `message`: for its status and Event. `signal`: `EMPTY_DIR_LIMIT` and so on."""

    pod: Pod
    signal: str
    message: str


def has_storage_limits(pod: Pod) -> bool:
    """Whether the pod has any limit of local storage and may be evicted."""
    if is_critical(pod):
        return False
    if any(True for _ in _size_limits(pod)):
        return True
    every = (*pod.spec.initContainers, *pod.spec.containers)
    return any(container.resources is not None and STORAGE in container.resources.limits for container in every)


def excesses(candidates: Iterable[Candidate], layout: FsLayout) -> Iterator[Excess]:
    """The first limit that each pod exceeds, in the order of the pods; critical pods are left out."""
    for candidate in candidates:
        if candidate.use is None or not has_storage_limits(candidate.pod):
            continue
        found = next(_checks(candidate.pod, candidate.use, layout), None)
        if found is not None:
            yield Excess(candidate.pod, *found)


def _checks(pod: Pod, use: PodUse, layout: FsLayout) -> Iterator[tuple[str, str]]:
    """The signal and message of every exceeded limit."""
    volumes = {volume.name: volume.fs.used for volume in use.volumes}
    for name, limit in _size_limits(pod):
        if _is_above(volumes.get(name), limit):
            yield EMPTY_DIR_LIMIT, f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}". '
    total = _pod_limit(pod)
    if total is not None and _is_above(bytes_on_disk(use), total):
        yield POD_LIMIT, f"Pod ephemeral local storage usage exceeds the total limit of containers {total}. "
    limits = dict(_container_limits(pod))
    for container in use.containers:
        own = limits.get(container.name)
        if own is not None and _is_above(_container_use(container, layout), own):
            text = f'Container {container.name} exceeded its local ephemeral storage limit "{own}". '
            yield CONTAINER_LIMIT, text


def _size_limits(pod: Pod) -> Iterator[tuple[str, Amount]]:
    """Names and limits of emptyDir volumes. A limit of 0 counts as none."""
    for volume in pod.spec.volumes:
        stated = volume.emptyDir.sizeLimit if volume.emptyDir is not None else None
        if stated is not None and (limit := parse(stated)).nano > 0:
            yield volume.name, limit


def _pod_limit(pod: Pod) -> Amount | None:
    """The limit of the whole pod: the sum of the containers' limits. None: no container has one."""
    return pod_limits(pod).get(STORAGE)


def _container_limits(pod: Pod) -> Iterator[tuple[str, Amount]]:
    """Names and limits of sidecars and regular containers. A limit of 0 counts as none."""
    sidecars = (container for container in pod.spec.initContainers if is_sidecar(container))
    for container in (*sidecars, *pod.spec.containers):
        stated = container.resources.limits.get(STORAGE) if container.resources is not None else None
        if stated is not None and (limit := parse(stated)).nano > 0:
            yield container.name, limit


def _container_use(container: ContainerUse, layout: FsLayout) -> int:
    """Bytes of the logs, and of the writable layer if it is on the node's root file system."""
    parts = [container.logs, container.rootfs if layout is FsLayout.SHARED else None]
    return sum(fs.used for fs in parts if fs is not None and fs.used is not None)


def _is_above(used: int | None, limit: Amount) -> bool:
    return used is not None and used * NANO > limit.nano

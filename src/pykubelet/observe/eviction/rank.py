"""The order in which pods are evicted. Pure.

Source: the Kubernetes documentation "Node-pressure Eviction", section "Pod selection for kubelet eviction", KEP-2837
(pod-level requests).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pykubelet.base.api.core import Pod, Volume
from pykubelet.base.api.quantity import is_pod_level, parse, sum_container_requests, value
from pykubelet.base.kit.values import Value
from pykubelet.base.model.usage import FileSystemUse, PodUse
from pykubelet.observe.eviction.model import Candidate

RankKey = tuple[float, ...]


class DiskParts(Value):
    """The parts of a pod that are on the file system of a signal."""

    rootfs: bool = False
    logs: bool = False
    volumes: bool = False


def requested(pod: Pod, resource: str) -> int:
    """The pod's request in whole units. Overhead is added only to a request above 0."""
    stated = pod.spec.resources
    names = (*stated.requests, *stated.limits) if stated is not None else ()
    if stated is not None and any(is_pod_level(name) for name in names):
        amount = value(stated.requests.get(resource))
    else:
        found = sum_container_requests(pod.spec).get(resource)
        amount = found.value() if found is not None else 0
    overhead = pod.spec.overhead.get(resource)
    return amount + parse(overhead).value() if amount and overhead is not None else amount


def rank_by_memory(candidate: Candidate) -> RankKey:
    """The order: without statistics first; usage above the request first; lower priority first; more above the request first."""
    use, priority = candidate.use, candidate.pod.spec.priority or 0
    if use is None or use.group is None:
        return (0, 0, priority, 0)
    above = use.group.memory.working_set - requested(candidate.pod, "memory")
    return (1, above <= 0, priority, -above)


def rank_by_pids(candidate: Candidate) -> RankKey:
    """The order: lower priority first; without statistics first; more processes first."""
    use, priority = candidate.use, candidate.pod.spec.priority or 0
    count = use.group.processes if use is not None and use.group is not None else None
    return (priority, 0, 0) if count is None else (priority, 1, -count)


def rank_by_disk(candidate: Candidate, parts: DiskParts, *, inodes: bool) -> RankKey:
    """The order is that of `rank_by_memory`. Inodes cannot be requested: any use is above the request."""
    use, priority = candidate.use, candidate.pod.spec.priority or 0
    if use is None:
        return (0, 0, priority, 0)
    used = disk_use(candidate.pod, use, parts, inodes=inodes)
    request = requested(candidate.pod, "ephemeral-storage")
    exceeds = used > (0 if inodes else request)
    return (1, not exceeds, priority, request - used)


def rank_by_stall(candidate: Candidate, resource: str) -> RankKey:
    """The order: without statistics first; lower priority first; longer stalled first, if cgroups report it; then by memory."""
    by_memory = rank_by_memory(candidate)
    use, priority = candidate.use, candidate.pod.spec.priority or 0
    if use is None or use.group is None:
        return by_memory
    pair = use.group.pressure.get(resource)
    return (1, priority, -pair.some.avg10 if pair is not None else 0, *by_memory)


def disk_use(pod: Pod, use: PodUse, parts: DiskParts, *, inodes: bool) -> int:
    """Bytes or inodes of these parts of the pod. Parts that were not measured count as 0."""
    found: list[FileSystemUse | None] = []
    for container in use.containers:
        found += [container.rootfs] if parts.rootfs else []
        found += [container.logs] if parts.logs else []
    if parts.volumes:
        local = {volume.name for volume in pod.spec.volumes if is_local_volume(volume)}
        found += [volume.fs for volume in use.volumes if volume.name in local]
    amounts = ((fs.inodes_used if inodes else fs.used) for fs in found if fs is not None)
    return sum(amount for amount in amounts if amount is not None)


def is_local_volume(volume: Volume) -> bool:
    """Whether the volume's files are on the node's file system and count for the pod."""
    if volume.emptyDir is not None:
        return not volume.emptyDir.medium
    return volume.hostPath is not None or volume.configMap is not None or volume.gitRepo is not None


def rank(candidates: Iterable[Candidate], key: Callable[[Candidate], RankKey]) -> list[Candidate]:
    """The candidates in the order of eviction; the sort is stable."""
    return sorted(candidates, key=key)

"""Pods, what they use and thresholds for the tests of eviction."""

from __future__ import annotations

from typing import Any

import msgspec

from pykubelet.base.api.core import Pod
from pykubelet.base.api.quantity import parse_text
from pykubelet.base.kit.durations import duration
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.usage import (
    ContainerUse,
    CpuUse,
    FileSystemUse,
    GroupUse,
    MemoryUse,
    PodUse,
    PsiData,
    PsiStats,
    VolumeUse,
)
from pykubelet.config.eviction import Limit, Threshold
from pykubelet.observe.eviction.model import Candidate, Observation

GI, MI = 1 << 30, 1 << 20
AT = 1000.0


def threshold(signal: str, value: str, *, grace: str = "0s", reclaim: str = "") -> Threshold:
    return Threshold(signal, _limit(value), duration(grace), _limit(reclaim) if reclaim else None)


def _limit(value: str) -> Limit:
    if value.endswith("%"):
        return Limit(fraction=float(value[:-1]) / 100)
    return Limit(amount=parse_text(value))


def seen(available: int, capacity: int = 10 * GI, at: float = AT) -> Observation:
    return Observation(available, capacity, at)


def make_pod(name: str, spec: dict[str, Any] | None = None, *, priority: int = 0, **requests: str) -> Pod:
    """A pod of one container `main` with these requests (`memory`, `storage`)."""
    asked = {{"storage": "ephemeral-storage"}.get(key, key): amount for key, amount in requests.items()}
    document: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [{"name": "main", "resources": {"requests": asked}}], "priority": priority},
    }
    document["spec"] |= spec or {}
    return msgspec.convert(document, Pod)


def fs(used: int, inodes: int = 0) -> FileSystemUse:
    return FileSystemUse(AT, used=used, inodes_used=inodes)


def group(memory: int = 0, processes: int = 1, stalled: float = 0.0) -> GroupUse:
    pressure = {"memory": PsiStats(PsiData(0, stalled, 0, 0)), "io": PsiStats(PsiData(0, stalled, 0, 0))}
    return GroupUse(AT, CpuUse(), MemoryUse(usage=memory, working_set=memory), processes, pressure)


def make_use(
    name: str,
    *,
    memory: int = 0,
    processes: int = 1,
    rootfs: int = 0,
    logs: int = 0,
    volume: int = 0,
    inodes: int = 0,
    stalled: float = 0.0,
) -> PodUse:
    """Of one container `main` and a volume `data`; `inodes` are of the root file system."""
    made = group(memory, processes, stalled)
    main = ContainerUse("main", "id", "image", "/x", AT, made, fs(rootfs, inodes), fs(logs))
    ref = PodRef("default", name, PodUID(name))
    return PodUse(ref, "/p", AT, made, (main,), volumes=(VolumeUse("data", fs(volume)),))


def candidate(pod: Pod, **used: Any) -> Candidate:
    return Candidate(pod, make_use(pod.metadata.name, **used))

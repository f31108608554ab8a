"""The rules of each eviction signal: how it is measured, how it ranks pods, and what is reclaimed first. Pure.

To add a signal: one entry of the table in `base/model/evictions.py`, and one entry of `SIGNAL_RULES` here. Source: the
Kubernetes documentation "Node-pressure Eviction", KEP-4191 (split image file systems), the kernel's PSI document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.evictions import STALL_SCALE
from pykubelet.base.model.usage import FileSystemUse, PsiData, PsiStats
from pykubelet.observe.eviction.model import Candidate, FsLayout, NodeMeasures, Observation, Reclaim
from pykubelet.observe.eviction.rank import (
    DiskParts,
    RankKey,
    disk_use,
    rank_by_disk,
    rank_by_memory,
    rank_by_pids,
    rank_by_stall,
)

#: After so long an average over 10 s has less than 2 % left of what was before.
STALLS_FADE_S = 40.0
Measure = Callable[[NodeMeasures], Observation | None]
_BOTH = (Reclaim.CONTAINERS, Reclaim.IMAGES)


class SignalRules(Value):
    """The rules of one signal. `used`: a pod's usage of the resource, in the signal's unit. `needs_files`: pods are ranked by
    their usage of disks. `counts_layers`: also by their writable layers. `reclaims`: what is removed before a pod is evicted,
    by layout; nothing for a layout that is absent."""

    measure: Measure
    rank: Callable[[Candidate, FsLayout], RankKey]
    used: Callable[[Candidate, FsLayout], int | None]
    needs_files: bool = False
    counts_layers: Callable[[FsLayout], bool] = lambda _: False
    reclaims: Mapping[FsLayout, tuple[Reclaim, ...]] = field(default_factory=dict)


def observe(measures: NodeMeasures) -> dict[str, Observation]:
    """The observations by signal, without those that could not be measured."""
    found = {name: rules.measure(measures) for name, rules in SIGNAL_RULES.items()}
    return {name: seen for name, seen in found.items() if seen is not None}


# Measuring


def _node_memory(measures: NodeMeasures) -> Observation | None:
    memory, capacity = measures.memory, measures.memory_capacity
    if memory is None:
        return None
    return Observation(max(0, capacity - measures.huge_pages - memory.working_set), capacity, measures.at)


def _pods_memory(measures: NodeMeasures) -> Observation | None:
    memory = measures.pods
    if memory is None or memory.limit is None:
        return None
    return Observation(max(0, memory.limit - memory.working_set), memory.limit, measures.at)


def _bytes(which: Callable[[NodeMeasures], FileSystemUse | None], measures: NodeMeasures) -> Observation | None:
    fs = which(measures)
    if fs is None or fs.available is None or fs.capacity is None:
        return None
    return Observation(fs.available, fs.capacity, fs.at)


def _inodes(which: Callable[[NodeMeasures], FileSystemUse | None], measures: NodeMeasures) -> Observation | None:
    """The free inodes. None for file systems that create inodes dynamically: they report 0 inodes in total."""
    fs = which(measures)
    if fs is None or fs.inodes_free is None or not fs.inodes:
        return None
    return Observation(fs.inodes_free, fs.inodes, fs.at)


def _pids(measures: NodeMeasures) -> Observation | None:
    if not measures.max_pids or measures.running_pids is None:
        return None
    return Observation(measures.max_pids - measures.running_pids, measures.max_pids, measures.at)


def _stall(resource: str, kind: str, measures: NodeMeasures) -> Observation | None:
    """The available amount is the share of the last 10 s in which tasks did not wait."""
    pair = measures.stalls.get(resource)
    stalled = None if pair is None else pair.full if kind == "full" else pair.some
    if stalled is None:
        return None
    whole = 100 * STALL_SCALE
    return Observation(whole - round(stalled.avg10 * STALL_SCALE), whole, measures.at)


def stalls_since(mark: NodeMeasures, measures: NodeMeasures) -> NodeMeasures:
    """`measures` with no more stalls than there were since `mark`.

    The kernel's averages fall slowly: a pod that stalled the node shows in them for half a minute after it has ended.
    """
    passed = measures.at - mark.at
    if not 0 <= passed < STALLS_FADE_S:
        return measures
    return replace(
        measures,
        stalls={
            name: PsiStats(
                _since(before.some, pair.some, passed),
                _since(before.full, pair.full, passed) if before.full is not None and pair.full is not None else None,
            )
            for name, pair in measures.stalls.items()
            if (before := mark.stalls.get(name)) is not None
        },
    )


def _since(before: PsiData, now: PsiData, passed_s: float) -> PsiData:
    share = 100 * (now.total_us - before.total_us) / 1e6 / max(passed_s, 1.0)
    return replace(now, avg10=min(now.avg10, max(0.0, share)))


# Ranking


def _node_parts(layout: FsLayout) -> DiskParts:
    return DiskParts(rootfs=layout is not FsLayout.DEDICATED, logs=True, volumes=True)


def _image_parts(layout: FsLayout) -> DiskParts:
    if layout is FsLayout.SHARED:
        return DiskParts(rootfs=True, logs=True, volumes=True)
    return DiskParts(rootfs=layout is FsLayout.DEDICATED)


def _container_parts(layout: FsLayout) -> DiskParts:
    return DiskParts(rootfs=True) if layout is FsLayout.DEDICATED else DiskParts(rootfs=True, logs=True, volumes=True)


def _memory_of(candidate: Candidate, _: FsLayout) -> int | None:
    group = candidate.use.group if candidate.use is not None else None
    return group.memory.working_set if group is not None else None


def _pids_of(candidate: Candidate, _: FsLayout) -> int | None:
    group = candidate.use.group if candidate.use is not None else None
    return group.processes if group is not None else None


def _stall_of(resource: str, candidate: Candidate, _: FsLayout) -> int | None:
    group = candidate.use.group if candidate.use is not None else None
    pair = group.pressure.get(resource) if group is not None else None
    return round(pair.some.avg10 * STALL_SCALE) if pair is not None else None


def _memory(measure: Measure) -> SignalRules:
    return SignalRules(measure, lambda candidate, _: rank_by_memory(candidate), _memory_of)


def _disk(
    which: Callable[[NodeMeasures], FileSystemUse | None],
    parts: Callable[[FsLayout], DiskParts],
    reclaims: Mapping[FsLayout, tuple[Reclaim, ...]],
    *,
    inodes: bool,
) -> SignalRules:
    def used(candidate: Candidate, layout: FsLayout) -> int | None:
        use = candidate.use
        return None if use is None else disk_use(candidate.pod, use, parts(layout), inodes=inodes)

    return SignalRules(
        measure=partial(_inodes if inodes else _bytes, which),
        rank=lambda candidate, layout: rank_by_disk(candidate, parts(layout), inodes=inodes),
        used=used,
        needs_files=True,
        counts_layers=lambda layout: parts(layout).rootfs,
        reclaims=reclaims,
    )


def _stall_rules(resource: str, kind: str) -> SignalRules:
    return SignalRules(
        measure=partial(_stall, resource, kind),
        rank=lambda candidate, _: rank_by_stall(candidate, resource),
        used=partial(_stall_of, resource),
    )


def _node_fs(measures: NodeMeasures) -> FileSystemUse | None:
    return measures.node_fs


def _image_fs(measures: NodeMeasures) -> FileSystemUse | None:
    return measures.image_fs


def _container_fs(measures: NodeMeasures) -> FileSystemUse | None:
    return measures.container_fs


_SHARED, _DEDICATED, _SPLIT = FsLayout
_OF_NODE = {_SHARED: _BOTH, _SPLIT: (Reclaim.CONTAINERS,)}
_OF_IMAGES = {_SHARED: _BOTH, _DEDICATED: _BOTH, _SPLIT: (Reclaim.IMAGES,)}
_OF_CONTAINERS = {_SHARED: _BOTH, _DEDICATED: _BOTH, _SPLIT: (Reclaim.CONTAINERS,)}

SIGNAL_RULES: Mapping[str, SignalRules] = {
    "memory.available": _memory(_node_memory),
    "allocatableMemory.available": _memory(_pods_memory),
    "nodefs.available": _disk(_node_fs, _node_parts, _OF_NODE, inodes=False),
    "nodefs.inodesFree": _disk(_node_fs, _node_parts, _OF_NODE, inodes=True),
    "imagefs.available": _disk(_image_fs, _image_parts, _OF_IMAGES, inodes=False),
    "imagefs.inodesFree": _disk(_image_fs, _image_parts, _OF_IMAGES, inodes=True),
    "containerfs.available": _disk(_container_fs, _container_parts, _OF_CONTAINERS, inodes=False),
    "containerfs.inodesFree": _disk(_container_fs, _container_parts, _OF_CONTAINERS, inodes=True),
    "pid.available": SignalRules(_pids, lambda candidate, _: rank_by_pids(candidate), _pids_of),
    "memory.stall.some": _stall_rules("memory", "some"),
    "memory.stall.full": _stall_rules("memory", "full"),
    "io.stall.some": _stall_rules("io", "some"),
    "io.stall.full": _stall_rules("io", "full"),
}

"""The sizes of pods (CPU and memory) that are kept over a restart of the agent. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from pykubelet.base.kit.values import changed_keys, replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.roster import RosterPod, is_static
from pykubelet.base.model.sizing import PodSize, SizeChange, size_of


class KeptSize(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The allocated size of a pod. `before`, `at`: the old size and the time (wall seconds) of a resize that is not applied yet."""

    size: PodSize
    before: PodSize | None = None
    at: float = 0.0

    @property
    def change(self) -> SizeChange | None:
        """The resize that was not applied yet; None: there was none."""
        return SizeChange(self.before, self.at) if self.before is not None else None


def with_kept_sizes(
    sizes: Mapping[PodUID, KeptSize], before: Mapping[PodUID, object], now: Mapping[PodUID, RosterPod]
) -> dict[PodUID, KeptSize]:
    """The allocated sizes of the pods whose resize is not done, after the roster changed from `before` to `now`. Pure.

    A pod that waits for its admission keeps the size that it has in `sizes`.
    """
    changed = dict(sizes)
    for uid in changed_keys(before, now):
        item = now.get(uid)
        kept = _kept(item) if item is not None else None
        if kept is not None:
            changed[uid] = kept
        elif item is None or item.admission_wait is None or item.rejection is not None:
            changed.pop(uid, None)
    return changed


def merged_sizes(
    kept: Mapping[PodUID, KeptSize],
    allocated: Mapping[PodUID, PodSize],
    actuated: Mapping[PodUID, PodSize],
    now: float,
) -> dict[PodUID, KeptSize]:
    """The sizes of the reference's files, with the times in `kept` of resizes that are not applied yet. Pure.

    A resize of the reference has no time there: as of `now` (wall seconds), everything that runs has the old size. A pod that is
    only in `kept` is gone, or a power cut has undone the write of the other files. The reference's files have no sizes of volumes.
    """
    merged = {uid: known for uid, known in kept.items() if uid not in allocated}
    for uid, found in allocated.items():
        if not _is_resizable(found):
            continue
        before, known = actuated.get(uid), kept.get(uid)
        size = replace(found, volumes=known.size.volumes) if known is not None else found
        is_applied = before is None or before == found
        at = known.at if known is not None and known.size == size and known.before is not None else now
        if is_applied:
            merged[uid] = KeptSize(size=size)
        else:
            merged[uid] = KeptSize(size=size, before=before, at=at)
    return merged


def has_waiting(sizes: Mapping[PodUID, KeptSize], pods: Mapping[PodUID, RosterPod]) -> bool:
    """Whether one of the resizes has to wait (Deferred, Infeasible), or has sizes that the reference's two files do not have. Pure."""
    return any(
        kept.before is None
        or kept.before.volumes != kept.size.volumes
        or ((item := pods.get(uid)) is not None and item.pending is not None)
        for uid, kept in sizes.items()
    )


def _kept(item: RosterPod) -> KeptSize | None:
    if is_static(item.pod) or item.admission_wait is not None or item.rejection is not None:
        return None
    change = item.change
    if item.pending is None and change is None:
        return None  # the pod has the size of its spec
    size = size_of(item.pod)
    return KeptSize(size=size, before=change.before if change else None, at=change.at if change else 0.0)


def has_other_size(before: Mapping[PodUID, PodSize] | None, now: Mapping[PodUID, PodSize]) -> bool:
    """Whether a pod has another size in `now` than `before`, if it was there; None: the sizes before are not known. Pure."""
    if before is None:
        return bool(now)
    return any(uid in before and uid in now and before[uid] != now[uid] for uid in changed_keys(before, now))


def _is_resizable(size: PodSize) -> bool:
    """Whether a pod has resources, without which it cannot be resized."""
    return size.whole is not None or any(
        container.requests or container.limits for container in size.containers.values()
    )

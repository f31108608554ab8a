"""Takes up rejected static pods again when the node would admit them. Pure.

A pod of the API that was rejected stays so: its controller makes another one. A static pod has no controller, so it is admitted again
once the reason is gone: a port or resources have become free, the Node has other labels, the runtime can do more, a shutdown was
called off. It then is as new: it has another first-seen time, as if its manifest had been away.

Rules:
- A pod is taken up only if it fits: nothing is preempted for it.
- What the resource managers answer is known only when they are asked, which shows the pod as pending. So a pod that they have
  rejected is tried again only when another one has left its place or there are other devices, and with back-off.
- An extension that has rejected a pod is asked again with back-off.
- Whether more volumes can be attached is known only when that is tried. Such a pod stays rejected.
"""

from __future__ import annotations

from pykubelet.base.kit.values import edited, replace
from pykubelet.base.model.lifecycle import PodLifecycle, Stage
from pykubelet.base.model.placement import Placements
from pykubelet.desired.roster.decide import counted_now, would_admit
from pykubelet.desired.roster.model import RETRY, AdmissionFacts, AdmissionVerdict, Entry, RosterState, unusual

#: Added to a first-seen time that would be the same as the earlier one.
_LATER_S = 0.001


def readmit(state: RosterState, facts: AdmissionFacts, now: float, wall: float) -> RosterState:
    """The state in which rejected pods that fit now are to be decided anew. `now`: monotonic seconds; `wall`: since the epoch."""
    waiting = [entry for entry in unusual(state.entries) if entry.is_readmissible]
    if not facts.node.allocatable:
        return state
    entries, counted = edited(state.entries), counted_now(state.counted, state.entries, facts)
    load = counted.load
    for entry in sorted(waiting, key=lambda entry: entry.order):
        uid = entry.ref.uid
        lifecycle = facts.lifecycles.pods.get(uid)
        if lifecycle is None or lifecycle.stage is not Stage.FINISHED:
            continue
        if _is_misplaced(entry, facts.placements):
            if entry.tried is None:
                entries[uid] = replace(entry, tried=facts.placements)
                continue
            if not _has_more_capacity(entry.tried, facts.placements) or now < free_at(entry):
                continue
            entry = replace(entry, retry=RETRY.raised(entry.retry, now, now))
        if entry.is_refused and now < free_at(entry):
            continue
        if would_admit(entry, load, facts):
            entries[uid] = _anew(entry, lifecycle, wall)
            load = load.plus(entry.demand)
    return replace(state, entries=entries, counted=counted)


def free_at(entry: Entry) -> float:
    """When the pod may be tried again, in monotonic seconds."""
    return entry.retry.updated_at + entry.retry.delay_s if entry.retry is not None else 0.0


def _is_misplaced(entry: Entry, placements: Placements) -> bool:
    """Whether the resource managers have rejected the pod."""
    found = placements.pods.get(entry.ref.uid)
    return found is not None and found.seen_at == entry.item.seen_at and found.rejection is not None


def _has_more_capacity(before: Placements, now: Placements) -> bool:
    """Whether there may be more to place pods on than before."""
    if before.devices is not now.devices or before.machine is not now.machine:
        return True
    return any(placement.rejection is None and uid not in now.pods for uid, placement in before.pods.items())


def _anew(entry: Entry, lifecycle: PodLifecycle, wall: float) -> Entry:
    seen_at = wall if wall != entry.item.seen_at else wall + _LATER_S
    return replace(
        entry,
        item=replace(entry.item, rejection=None, admission_wait=None, seen_at=seen_at),
        verdict=AdmissionVerdict.OPEN,
        refusal=None,
        asked_at=None,
        tried=None,
        is_refused=False,
        short_of="",
        rejected_since=lifecycle.stage_since,
    )

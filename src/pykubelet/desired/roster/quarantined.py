"""Keeps pods in quarantine desired without a decision on them. Pure.

The sources post stubs of such pods (`desired/sources/quarantine.py`). A stub counts against the capacity, because its containers may
run, and nothing else is done with it. When the quarantine ends, the sources post the pod itself, and it is decided like a new one.
"""

from __future__ import annotations

from pykubelet.base.kit.values import replace
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.reasons import QUARANTINED
from pykubelet.desired.roster.model import AdmissionVerdict, RosterState


def apply_quarantine(state: RosterState) -> tuple[RosterState, tuple[KubeEvent, ...]]:
    """The state with the quarantine of its sources, and an Event for each pod that has come into it."""
    waits = {uid: wait for source in state.sources.values() for uid, wait in source.quarantined.items()}
    waits = {uid: wait for uid, wait in waits.items() if uid in state.entries}
    if not waits and not state.quarantined:
        return state, ()
    entries = dict(state.entries)
    for uid, wait in waits.items():
        entry = entries[uid]
        if entry.verdict is not AdmissionVerdict.QUARANTINED or entry.item.held != wait:
            item = replace(entry.item, held=wait, rejection=None)
            entries[uid] = replace(entry, item=item, verdict=AdmissionVerdict.QUARANTINED)
    for uid in state.quarantined - waits.keys():
        left = entries.get(uid)
        if left is not None and left.verdict is AdmissionVerdict.QUARANTINED:
            entries[uid] = replace(left, item=replace(left.item, held=None), verdict=AdmissionVerdict.OPEN)
    came = [uid for uid in waits if uid not in state.quarantined]
    events = tuple(warning(QUARANTINED, waits[uid].detail, entries[uid].ref) for uid in came)
    return replace(state, entries=entries, quarantined=frozenset(waits)), events

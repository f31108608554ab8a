"""Rejects admitted pods that cannot start because no more volumes can be attached to the node. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.mounts import AttachLimit
from pykubelet.base.model.reasons import VOLUME_ATTACHMENT_LIMIT_EXCEEDED
from pykubelet.base.model.roster import Rejection
from pykubelet.desired.roster.decide import rejected
from pykubelet.desired.roster.model import AdmissionVerdict, RosterState


def reject_at_limit(
    state: RosterState, limits: Mapping[PodUID, AttachLimit]
) -> tuple[RosterState, tuple[KubeEvent, ...]]:
    """The state with these pods rejected, and the Events."""
    entries, events = dict(state.entries), []
    for uid, limit in limits.items():
        entry = entries.get(uid)
        if entry is None or entry.verdict is not AdmissionVerdict.ADMITTED:
            continue
        rejection = Rejection(VOLUME_ATTACHMENT_LIMIT_EXCEEDED, limit.message)
        entries[uid] = rejected(entry, rejection)
        events.append(warning(rejection.reason, rejection.message, entry.ref))
    return (replace(state, entries=entries), tuple(events)) if events else (state, ())

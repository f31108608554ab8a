"""Pods that are not worked on for a time because the agent has ended at them.

A pod in quarantine is desired and neither admitted nor rejected: nothing of it is started, changed or removed.
"""

from __future__ import annotations

from pykubelet.base.model.reasons import QUARANTINED
from pykubelet.base.model.roster import ManifestProblem, RosterPod

#: How the reason of a manifest in quarantine begins.
OF_MANIFEST = "in quarantine: "


def is_quarantine(problem: ManifestProblem) -> bool:
    """Whether a manifest is not used because it is in quarantine."""
    return problem.reason.startswith(OF_MANIFEST)


def is_quarantined(entry: RosterPod) -> bool:
    """Whether a desired pod is in quarantine. Its `pod` then has only the fields that show what it is."""
    return entry.held is not None and entry.held.reason == QUARANTINED

"""Gives the files of a volume to the pod's group (`fsGroup`), and reports on volumes with many files. Blocks.

However long the walk over the files takes, it does not miss a deadline as long as it makes progress.
Source: KEP-695 (fsGroupChangePolicy); the texts are those of the reference kubelet.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pykubelet.base.kit.values import Value
from pykubelet.base.model import reasons
from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.fs import beneath, trees
from pykubelet.provide.volumes.kind import Note, Reports
from pykubelet.provide.volumes.metrics import count

#: When the first Event about a long walk is recorded, and the time between the next ones: seconds.
FIRST_NOTE_S, NEXT_NOTE_S = 30.0, 60.0
_RENEW_S = 1.0
_ADVICE = (
    "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"
    "#configure-volume-permission-and-ownership-change-policy-for-pods"
)


class GroupChange(Value):
    """What is given to a group. `path`: the top directory, below one of the agent's except for a local volume. `shown`: the pod's
    directory of the volume, for Events.

    `only_on_mismatch`: nothing is done if the top directory belongs to the group already (`OnRootMismatch`). `plugin`: as in
    metrics.
    """

    path: str
    gid: int
    shown: str
    plugin: str
    only_on_mismatch: bool = False
    is_migrated: bool = False


def change_group(change: GroupChange, reports: Reports, clock: Callable[[], float] = time.monotonic) -> None:
    """Give all files to the group. HostError if the directories cannot be read; files that cannot be changed are logged."""
    began, is_done = clock(), False
    try:
        if not (change.only_on_mismatch and _is_applied(change)):
            _apply(change, _Progress(change, reports, clock).see)
        is_done = True
    finally:
        took = clock() - began
        count(change.plugin, "volume_apply_access_control", took, is_done=is_done, is_migrated=change.is_migrated)


def _is_applied(change: GroupChange) -> bool:
    path = change.path
    if isinstance(path, Beneath):
        return beneath.group_is_applied(path, change.gid)
    return trees.group_is_applied(path, change.gid)


def _apply(change: GroupChange, progress: Callable[[int], None]) -> None:
    path = change.path
    if isinstance(path, Beneath):
        beneath.apply_group(path, change.gid, progress=progress)
    else:
        trees.apply_group(path, change.gid, progress=progress)


class _Progress:
    """Reports on one walk."""

    def __init__(self, change: GroupChange, reports: Reports, clock: Callable[[], float]) -> None:
        self._shown = shown_directory(change.shown)
        self._reports = reports
        self._clock = clock
        now = clock()
        self._note_at = now + FIRST_NOTE_S
        self._renew_at = now + _RENEW_S
        self._is_known = False

    def see(self, files: int) -> None:
        """The walk has come past so many files."""
        now = self._clock()
        if now < self._renew_at:
            return
        self._renew_at = now + _RENEW_S
        self._reports.progress()
        if now < self._note_at:
            return
        text = f"Setting volume ownership for {self._shown}"
        text += (
            f", processed {files} files."
            if self._is_known
            else f" is taking longer than expected, consider using OnRootMismatch - {_ADVICE}"
        )
        self._note_at, self._is_known = now + NEXT_NOTE_S, True
        self._reports.note(Note(reasons.EVENT_PERMISSION_CHANGE, text))


def shown_directory(path: str) -> str:
    """The pod's directory of a volume from the pod's UID on."""
    _, mark, below = path.partition("/pods/")
    return below if mark else path

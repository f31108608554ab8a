"""Finds the pod that the event loop works on, by the record of work or else by the local variables of the functions that run.

Reads another thread's frames, so it may only be called while that thread is stuck.
"""

from __future__ import annotations

import sys

from msgspec import Struct

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.work import WORK
from pykubelet.base.model.ids import PodRef

#: The calls that are searched, from the innermost on.
MAX_CALLS = 40


def pod_in_work(thread: int) -> str:
    """The key of the pod, or of the source of pods, that a thread works on; empty if there is none or it is not clear."""
    work = WORK.current()
    if work is not None:
        return work.key
    frame = sys._current_frames().get(thread)
    for _ in range(MAX_CALLS):
        if frame is None:
            break
        found = {uid for value in list(frame.f_locals.values()) if (uid := _uid_of(value))}
        if len(found) == 1:
            return found.pop()
        frame = frame.f_back
    return ""


def _uid_of(value: object) -> str:
    """The UID of a pod, or of a value that belongs to one pod; empty for other values."""
    if isinstance(value, PodRef):
        return value.uid
    if isinstance(value, Pod):
        return value.metadata.uid
    if not isinstance(value, Struct):
        return ""
    inner = getattr(value, "ref", None) or getattr(value, "pod", None)
    return _uid_of(inner) if isinstance(inner, (PodRef, Pod)) else ""

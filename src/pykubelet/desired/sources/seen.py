"""Annotates the pods of a source with the time when each was first seen. Keeps the times as state, so it is not pure."""

from __future__ import annotations

from collections.abc import Iterable, Set

from pykubelet.base.api.core import Pod
from pykubelet.base.api.times import format_nano_time
from pykubelet.base.kit.values import Value
from pykubelet.base.model.labels import CONFIG_SEEN
from pykubelet.desired.sources.static import with_seen


class _Marked(Value):
    """A pod as in its source, and with the annotation."""

    given: Pod
    annotated: Pod


class FirstSeen:
    """Adds the annotation `kubernetes.io/config.seen`. A pod that was away and returns gets a new time."""

    def __init__(self) -> None:
        self._pods: dict[tuple[str, str], _Marked] = {}

    def forget(self, uids: Set[str]) -> None:
        """Forget pods that were away between two scans."""
        if uids:
            self._pods = {key: known for key, known in self._pods.items() if known.given.metadata.uid not in uids}

    def mark(self, pods: Iterable[Pod], wall_s: float) -> tuple[Pod, ...]:
        """The annotated pods; unchanged pods are the same objects as in the last call."""
        now = format_nano_time(int(wall_s * 1_000_000_000))
        marked = [_mark(pod, self._pods.get(_key(pod)), now) for pod in pods]
        self._pods = {_key(known.given): known for known in marked}
        return tuple(known.annotated for known in marked)


def _key(pod: Pod) -> tuple[str, str]:
    return pod.metadata.uid, pod.metadata.name


def _mark(pod: Pod, before: _Marked | None, now: str) -> _Marked:
    if before is None:
        return _Marked(pod, with_seen(pod, now))
    if before.given is pod:
        return before
    annotated = with_seen(pod, before.annotated.metadata.annotations[CONFIG_SEEN])
    return _Marked(pod, before.annotated if annotated == before.annotated else annotated)

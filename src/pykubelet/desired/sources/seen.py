"""When each pod of a source was first seen: the annotation stays the same while the pod stays. Not pure: a memory."""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.base.api.core import Pod
from pykubelet.base.api.times import format_nano_time
from pykubelet.base.model.labels import CONFIG_SEEN
from pykubelet.desired.sources.static import with_seen


class FirstSeen:
    """Gives pods their `kubernetes.io/config.seen`; a pod that went away and returns is seen anew."""

    def __init__(self) -> None:
        self._pods: dict[tuple[str, str], Pod] = {}

    def mark(self, pods: Iterable[Pod], wall_s: float) -> tuple[Pod, ...]:
        """The same pods, annotated; unchanged ones are the very objects of the last time."""
        now = format_nano_time(int(wall_s * 1_000_000_000))
        marked: dict[tuple[str, str], Pod] = {}
        result: list[Pod] = []
        for pod in pods:
            key = (pod.metadata.uid, pod.metadata.name)
            before = self._pods.get(key)
            seen = _seen_of(before) if before is not None else now
            annotated = with_seen(pod, seen)
            if annotated == before:
                annotated = before
            marked[key] = annotated
            result.append(annotated)
        self._pods = marked
        return tuple(result)


def _seen_of(pod: Pod) -> str:
    return pod.metadata.annotations[CONFIG_SEEN]

"""The objects as they were at one moment, for decisions in other threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pykubelet_local_api.objects import Json


class ObjectSnapshot:
    """Implements `View`. `objects`: by resource, and by namespace and name; nothing changes them. `now`: the wall-clock time then."""

    def __init__(self, objects: Mapping[str, Mapping[tuple[str, str], Json]], now: float) -> None:
        self._objects = objects
        self.now = now

    def get(self, resource: str, namespace: str, name: str) -> Json | None:
        """The object; None if there is none."""
        return self._objects.get(resource, {}).get((namespace, name))

    def list(self, resource: str, namespace: str = "") -> Iterator[Json]:
        """The objects of a namespace, or of all, in the order of their namespaces and names."""
        objects = self._objects.get(resource, {})
        for key in sorted(objects):
            if not namespace or key[0] == namespace:
                yield objects[key]

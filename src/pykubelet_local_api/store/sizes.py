"""How much is stored: of each object, and in all. Pure.

Objects are kept in memory, in several times the bytes of their JSON text, so that both have a bound.
"""

from __future__ import annotations

from pykubelet_local_api.store.database import StoredKey

#: No object has more bytes of JSON: patches may add to one for ever. It is as much as a body may have.
MAX_OBJECT_BYTES = 3 << 20
#: Clients that are neither administrators nor the node store no more than this, in bytes of JSON and `OBJECT_BYTES` for each object.
MAX_STORED_BYTES = 128 << 20
OBJECT_BYTES = 1024
#: Decisions about objects with so many bytes of JSON take longer than the event loop may be held.
LARGE_BYTES = 16 << 10


class StoredSizes:
    """The sizes of all objects. `total`: in all, as `MAX_STORED_BYTES` counts."""

    def __init__(self) -> None:
        self.total = 0
        self._sizes: dict[StoredKey, int] = {}
        self._by_resource: dict[str, int] = {}

    def of(self, key: StoredKey) -> int:
        """What an object counts; 0 for none."""
        size = self._sizes.get(key)
        return 0 if size is None else counted(size)

    def of_resource(self, resource: str) -> int:
        """What the objects of a resource count."""
        return self._by_resource.get(resource, 0)

    def is_large(self, key: StoredKey) -> bool:
        """Whether decisions about this object take so long that they run in a thread."""
        return self._sizes.get(key, 0) > LARGE_BYTES

    def note(self, key: StoredKey, size: int | None) -> None:
        """An object has this many bytes of JSON now; None: it is gone."""
        growth = -self.of(key)
        if size is None:
            self._sizes.pop(key, None)
        else:
            self._sizes[key] = size
            growth += counted(size)
        self.total += growth
        self._by_resource[key.resource] = self.of_resource(key.resource) + growth


def counted(size: int) -> int:
    """What an object with so many bytes of JSON counts."""
    return size + OBJECT_BYTES

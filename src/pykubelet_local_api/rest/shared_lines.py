"""The lines of the newest changes, made once for all watches that send the same ones. Bounded in number and bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

#: So many stretches of changes are kept, each with so many bytes at most.
KEPT, LARGEST = 8, 256 << 10


class WatchedStretch(NamedTuple):
    """What a watch without selectors sends after the version `after`. `namespace` "": of all; `name` "": all objects."""

    resource: str
    namespace: str
    name: str
    after: int


class SharedLines:
    """The lines of a stretch, and the version that they reach to. Those of older states of the store are not used."""

    def __init__(self) -> None:
        self._version = 0
        self._kept: OrderedDict[WatchedStretch, tuple[bytes, int]] = OrderedDict()

    def find(self, stretch: WatchedStretch, version: int) -> tuple[bytes, int] | None:
        """What was kept for the stretch while the store has this version."""
        if version != self._version:
            self._kept.clear()
            self._version = version
        return self._kept.get(stretch)

    def keep(self, stretch: WatchedStretch, lines: bytes, reached: int) -> None:
        """Keep the lines, which were made after `find`."""
        if len(lines) <= LARGEST:
            self._kept[stretch] = (lines, reached)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)

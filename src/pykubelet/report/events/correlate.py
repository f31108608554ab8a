"""Counting repeated Events up, and joining similar ones. Pure.

Rules:
- The same Event again (object, type, reason, message) counts up.
- From the tenth message on that differs from the others in nothing but its text, within ten minutes, one Event stands
  for all further ones, its message marked.
Nothing is dropped here: what is kept is bounded by its reader.
Source: the Event correlator that the Kubernetes documentation describes for client-go recorders.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pykubelet.base.model.happenings import Happening
from pykubelet.base.model.recent import Occurrence

K = TypeVar("K")
V = TypeVar("V")
SIMILAR_MAX = 10
SIMILAR_WINDOW_S = 600.0
MEMORY = 4096
COMBINED = "(combined from similar events): "

Object = tuple[str, str]
Similar = tuple[Object, str, str]
Same = tuple[Similar, str]


@dataclass(slots=True)
class _Group:
    """Messages of similar Events. `last_at`: monotonic seconds."""

    messages: set[str] = field(default_factory=set)
    last_at: float = 0.0


class Correlator:
    """`see` takes Events in order of time. Remembers the newest 4096 of them."""

    def __init__(self) -> None:
        self._groups: OrderedDict[Similar, _Group] = OrderedDict()
        self._known: OrderedDict[Same, Occurrence] = OrderedDict()

    def see(self, happening: Happening, now: float, wall: float) -> Occurrence:
        """The Event with its count. `now`: monotonic seconds, `wall`: those of the date."""
        about: Object = (happening.pod.uid if happening.pod is not None else "", happening.field_path)
        similar: Similar = (about, happening.type, happening.reason)
        message = happening.message
        key: Same = (similar, message)
        if self._is_one_of_many(similar, message, now):
            message, key = COMBINED + message, (similar, "")
        known = self._known.get(key)
        if known is None:
            found = Occurrence(happening, message, wall, wall)
        else:
            found = replace(known, happening=happening, message=message, last_at=wall, count=known.count + 1)
        _remember(self._known, key, found)
        return found

    def _is_one_of_many(self, similar: Similar, message: str, now: float) -> bool:
        group = self._groups.get(similar)
        if group is None or now - group.last_at > SIMILAR_WINDOW_S:
            group = _Group()
        group.last_at = now
        _remember(self._groups, similar, group)
        if message in group.messages or len(group.messages) < SIMILAR_MAX - 1:
            group.messages.add(message)
            return False
        return True


def _remember(memory: OrderedDict[K, V], key: K, value: V) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > MEMORY:
        memory.popitem(last=False)

"""Counts repeated Events, combines similar ones, and limits the Events of each object. Pure.

Rules:
- A repeated Event (same object, type, reason and message) increases the count.
- If Events of an object, type and reason have ten different messages, with less than ten minutes between them, the tenth
  and all further ones are combined into one Event with a prefix in its message.
- Messages are cut to 4,096 characters everywhere, like termination messages. The reference kubelet does not cut them, but
  messages of probes quote what a container has sent.
- An object may have a burst of 25 Events of a type, and one more every five minutes. Further ones are counted but not
  sent. Normal Events do not count against the limit of Warnings.
Nothing is dropped here; the reader limits how many Events are kept.
Source: the Event correlator that the Kubernetes documentation describes for client-go recorders.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import TypeVar

from msgspec import Struct

from pykubelet.base.kit.bucket import TokenBucket
from pykubelet.base.kit.text import shorten
from pykubelet.base.kit.values import field, replace
from pykubelet.base.model.kube_events import KubeEvent, Occurrence

K = TypeVar("K")
V = TypeVar("V")
SIMILAR_MAX = 10
SIMILAR_WINDOW_S = 600.0
MEMORY = 4096
MESSAGE_LIMIT = 4096
COMBINED = "(combined from similar events): "

SPAM_BURST = 25
SPAM_REFILL_S = 300.0

Object = str
Similar = tuple[Object, str, str]
Same = tuple[Similar, str, str]


class _Group(Struct):
    """The hashes of the messages of similar Events. `last_at`: monotonic seconds."""

    messages: set[int] = field(default_factory=set)
    last_at: float = 0.0


class Correlator:
    """Counts and combines Events. `see` takes them in order of time. Remembers the newest 4096."""

    def __init__(self) -> None:
        self._groups: OrderedDict[Similar, _Group] = OrderedDict()
        self._known: OrderedDict[Same, Occurrence] = OrderedDict()
        self._serials = itertools.count(1)

    def see(self, kube_event: KubeEvent, now: float, wall: float) -> Occurrence:
        """The Event with its count. `now`: monotonic seconds. `wall`: the time of the Event, in wall seconds."""
        similar: Similar = (about(kube_event), kube_event.type, kube_event.reason)
        message = shorten(kube_event.message, MESSAGE_LIMIT)
        if message != kube_event.message:
            kube_event = replace(kube_event, message=message)
        key: Same = (similar, kube_event.field_path, message)
        if self._is_one_of_many(similar, message, now):
            message, key = shorten(COMBINED + message, MESSAGE_LIMIT), (similar, "", "")
        known = self._known.get(key)
        if known is None:
            found = Occurrence(kube_event, message, wall, wall, serial=next(self._serials))
        else:
            found = replace(known, kube_event=kube_event, message=message, last_at=wall, count=known.count + 1)
        _remember(self._known, key, found)
        return found

    def _is_one_of_many(self, similar: Similar, message: str, now: float) -> bool:
        group = self._groups.get(similar)
        if group is None or now - group.last_at > SIMILAR_WINDOW_S:
            group = _Group()
        group.last_at = now
        _remember(self._groups, similar, group)
        if hash(message) in group.messages or len(group.messages) < SIMILAR_MAX - 1:
            group.messages.add(hash(message))
            return False
        return True


class SpamFilter:
    """Limits Events. `lets_pass` takes them in order of time. Remembers the 4096 objects and types with the newest Events."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[Object, str], TokenBucket] = OrderedDict()

    def lets_pass(self, kube_event: KubeEvent, now: float) -> bool:
        """Whether the Event may be sent; if so, it counts against the limit. `now`: monotonic seconds."""
        key = about(kube_event), kube_event.type
        bucket = self._buckets.get(key) or TokenBucket(1.0 / SPAM_REFILL_S, SPAM_BURST)
        _remember(self._buckets, key, bucket)
        return bucket.take(now)


def about(kube_event: KubeEvent) -> Object:
    """The object of an Event: its UID, empty for the node."""
    found = kube_event.about or kube_event.pod
    return found.uid if found is not None else ""


def _remember(memory: OrderedDict[K, V], key: K, value: V) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > MEMORY:
        memory.popitem(last=False)

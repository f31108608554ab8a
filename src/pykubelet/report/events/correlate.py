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
from pykubelet.base.kit.values import replace
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
#: Of what Events have in common. The texts themselves would take several times the memory, for pods that have gone long ago.
Hash = int


class _Group(Struct, gc=False):
    """The messages of similar Events. `last_at`: monotonic seconds."""

    messages: tuple[Hash, ...] = ()
    last_at: float = 0.0


class _Count(Struct, gc=False):
    """What `Occurrence` has beside the Event itself, at its last repetition."""

    first_at: float
    count: int
    serial: int


class Correlator:
    """Counts and combines Events. `see` takes them in order of time. Remembers the newest 4096."""

    def __init__(self) -> None:
        self._groups: OrderedDict[Hash, _Group] = OrderedDict()
        self._known: OrderedDict[Hash, _Count] = OrderedDict()
        self._serials = itertools.count(1)

    def see(self, kube_event: KubeEvent, now: float, wall: float) -> Occurrence:
        """The Event with its count. `now`: monotonic seconds. `wall`: the time of the Event, in wall seconds."""
        similar = hash((about(kube_event), kube_event.type, kube_event.reason))
        message = shorten(kube_event.message, MESSAGE_LIMIT)
        if message != kube_event.message:
            kube_event = replace(kube_event, message=message)
        key = hash((similar, kube_event.field_path, message))
        if self._is_one_of_many(similar, message, now):
            message, key = shorten(COMBINED + message, MESSAGE_LIMIT), hash((similar, "", ""))
        known = self._known.get(key) or _Count(wall, 0, next(self._serials))
        counted = _Count(known.first_at, known.count + 1, known.serial)
        _remember(self._known, key, counted)
        return Occurrence(kube_event, message, counted.first_at, wall, counted.count, counted.serial)

    def _is_one_of_many(self, similar: Hash, message: str, now: float) -> bool:
        while self._groups and now - next(iter(self._groups.values())).last_at > SIMILAR_WINDOW_S:
            self._groups.popitem(last=False)
        group = self._groups.get(similar, _Group())
        messages, text = group.messages, hash(message)
        is_new = text not in messages
        is_one_of_many = is_new and len(messages) >= SIMILAR_MAX - 1
        if is_new and not is_one_of_many:
            messages = (*messages, text)
        _remember(self._groups, similar, _Group(messages, now))
        return is_one_of_many


class SpamFilter:
    """Limits Events. `lets_pass` takes them in order of time. Remembers the 4096 objects and types with the newest Events."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[Hash, TokenBucket] = OrderedDict()

    def lets_pass(self, kube_event: KubeEvent, now: float) -> bool:
        """Whether the Event may be sent; if so, it counts against the limit. `now`: monotonic seconds."""
        key = hash((about(kube_event), kube_event.type))
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

"""Bounds how many API objects and tokens are read for one pod, how many of them are watched, and how many are read at once.

Owns: for each pod, the keys that are not requested, because the pod refers to too many.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AbstractAsyncContextManager, nullcontext

from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import ContentKey, ObjectKey
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.needs import Needs
from pykubelet.provide.objects.model import ContentSettings, Strategy

#: So many keys of one pod are requested. The objects of a pod with more than `MANY` keys are read now and then, and not watched:
#: each watch is a connection. All such pods together have so many requests at once, because requests are sent in their order.
MAX_KEYS, MANY, REQUESTS_OF_MANY = 2000, 100, 4
TOO_MANY = f"not read, because the pod refers to more than {MAX_KEYS} objects and tokens"


class ExcessKeys:
    """The keys of pods that refer to many."""

    def __init__(self, most: int = MAX_KEYS) -> None:
        self._most = most
        self._excess: dict[PodUID, frozenset[ContentKey]] = {}
        self._users: Counter[ContentKey] = Counter()
        self._of_many: dict[PodUID, Needs] = {}
        self._slots = asyncio.Semaphore(REQUESTS_OF_MANY)

    def bound(self, uid: PodUID, needs: Needs) -> tuple[Needs, frozenset[ContentKey], frozenset[ContentKey]]:
        """What is requested of the needs of a pod, then the keys that begin and cease to be in excess."""
        kept, excess = _bounded(needs, self._most)
        before = self._excess.get(uid, frozenset())
        if excess:
            self._excess[uid] = excess
        else:
            self._excess.pop(uid, None)
        if len(kept.objects) + len(kept.tokens) > MANY:
            self._of_many[uid] = kept
        else:
            self._of_many.pop(uid, None)
        added = frozenset(key for key in excess - before if not self._users[key])
        self._users.update(excess - before)
        self._users.subtract(before - excess)
        dropped = frozenset(key for key in before - excess if not self._users[key])
        for key in dropped:
            del self._users[key]
        return kept, added, dropped

    @property
    def has_many(self) -> bool:
        """Whether a pod refers to more than `MANY`."""
        return bool(self._of_many)

    def is_of_many(self, key: ContentKey) -> bool:
        """Whether a pod refers to the key and to more than `MANY`."""
        return any(key in needs.objects or key in needs.tokens for needs in self._of_many.values())

    def settings(self, key: ObjectKey, settings: ContentSettings) -> ContentSettings:
        """How the object is kept up to date."""
        if settings.strategy is Strategy.WATCH and self.is_of_many(key):
            return replace(settings, strategy=Strategy.CACHE)
        return settings

    def slot(self, key: ContentKey) -> AbstractAsyncContextManager[object]:
        """What is entered for each request."""
        return self._slots if self.is_of_many(key) else nullcontext()


def _bounded(needs: Needs, most: int) -> tuple[Needs, frozenset[ContentKey]]:
    if len(needs.objects) + len(needs.tokens) <= most:
        return needs, frozenset()
    objects = frozenset(sorted(needs.objects)[:most])
    tokens = frozenset(sorted(needs.tokens, key=lambda key: key.audience)[: most - len(objects)])
    return Needs(objects, tokens, needs.certificates), (needs.objects - objects) | (needs.tokens - tokens)

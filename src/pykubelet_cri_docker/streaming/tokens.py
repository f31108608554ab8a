"""Single-use tokens for the URLs of streams. Pure except for the randomness of tokens.

Who knows a token may use its stream, once and within LIFETIME_S. Unused ones are limited in number.
Source: the streaming server of the kubelet's CRI library.
"""

from __future__ import annotations

import secrets
from typing import Generic, TypeVar

from pykubelet.base.kit.values import Value

T = TypeVar("T")
LIFETIME_S = 60.0
MAX_UNUSED = 1000
_TOKEN_BYTES = 16


class TooManyTokens(Exception):
    """As many streams as permitted wait for their clients. CRI's code for it is RESOURCE_EXHAUSTED."""


class _Entry(Value, Generic[T]):
    target: T
    until: float


class Tokens(Generic[T]):
    """The unused tokens, the oldest first. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry[T]] = {}

    def issue(self, target: T, now: float) -> str:
        """A new token for `target`. Raises TooManyTokens."""
        self._forget_old(now)
        if len(self._entries) >= MAX_UNUSED:
            raise TooManyTokens("maximum number of in-flight requests exceeded")
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._entries[token] = _Entry(target, now + LIFETIME_S)
        return token

    def take(self, token: str, now: float) -> T | None:
        """The target of a token, which is used up; None if it is unknown, used or too old."""
        self._forget_old(now)
        entry = self._entries.pop(token, None)
        return entry.target if entry is not None else None

    def _forget_old(self, now: float) -> None:
        while self._entries:
            oldest = next(iter(self._entries))
            if self._entries[oldest].until > now:
                return
            del self._entries[oldest]

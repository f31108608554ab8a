"""Which connections a server has open, and whose they are, so that no client's address keeps others out."""

from __future__ import annotations

import asyncio
from collections import Counter
from operator import itemgetter


class OpenConnections:
    """The open connections with the addresses of their clients, the oldest one first."""

    def __init__(self) -> None:
        self._addresses: dict[asyncio.StreamWriter, str] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._addresses)

    def writers(self) -> tuple[asyncio.StreamWriter, ...]:
        """All of them."""
        return tuple(self._addresses)

    def add(self, writer: asyncio.StreamWriter, address: str) -> None:
        """Add the newest one."""
        self._addresses[writer] = address
        self._counts[address] += 1

    def discard(self, writer: asyncio.StreamWriter) -> None:
        """Forget one, if it is there."""
        address = self._addresses.pop(writer, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def crowding(self, address: str) -> asyncio.StreamWriter | None:
        """The oldest connection of the address that has the most; None if a client of `address` has about as many itself."""
        crowd, most = max(self._counts.items(), key=itemgetter(1), default=("", 0))
        if most <= self._counts[address] + 1:
            return None
        return next(writer for writer, other in self._addresses.items() if other == crowd)

"""The file `dra_manager_state`: read once at the start, replaced atomically on every change of the cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import read_bytes, write_atomic
from pykubelet.provide.claims.model import Cache, ClaimError, ClaimInfo, ClaimKey
from pykubelet.provide.claims.state import StateError, decode_state, encode_state

STATE_FILE = "dra_manager_state"
_LIMIT = 64 << 20
_DEADLINE_S = 20.0


class ClaimStore:
    """The state file at `path`."""

    def __init__(self, path: str, flight: SingleFlight) -> None:
        self._path = path
        self._flight = flight
        self._written: bytes | None = None
        self._lock = asyncio.Lock()

    def load(self) -> dict[ClaimKey, ClaimInfo]:
        """The claims in the file; none if it does not exist. Raises StateError with what to do about it."""
        try:
            data = read_bytes(self._path, _LIMIT)
            cache = decode_state(data)
        except (HostError, StateError) as error:
            if isinstance(error, HostError) and error.is_not_found:
                return {}
            raise StateError(
                "could not initialize checkpoint manager, please drain node and remove DRA state file, "
                f"err: {error} (the file is {self._path})"
            ) from error
        self._written = data
        return cache

    async def save(self, read: Callable[[], Cache], purpose: str) -> None:
        """Write the cache as it is at that moment, unless the file has it already. Raises ClaimError, which begins with `purpose`."""
        async with self._lock:
            cache = read()
            outcome = await self._flight.run_next("claims", lambda: self._replace(cache), _DEADLINE_S)
        if isinstance(outcome, Done):
            return
        if isinstance(outcome, Failed) and not isinstance(outcome.error, HostError):
            raise outcome.error
        why = outcome.error if isinstance(outcome, Failed) else "the disk does not answer"
        raise ClaimError(f"{purpose}: {why}")

    def _replace(self, cache: Cache) -> None:
        """Write the file, in a worker thread: a driver may have given many devices."""
        data = encode_state(cache)
        if data != self._written:
            self._written = None
            write_atomic(self._path, data, 0o600, durable=True)
            self._written = data

"""Keeps over restarts of the agent what process extensions offer.

Owns the file `<root>/extension_offers`. A program that prepares pods and is away when the agent starts is still waited for by its
pods; without the file, they would start without it. The file changes when a program first offers something, or something else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.kit.cells import Cell, set_on_change
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.base.model.extension_process import ExtensionProcessState, Point
from pykubelet.edges.host.fs.checkpoint import Checkpoint
from pykubelet.edges.host.fs.kept_state import KeptState

log = Log("extensions")
SAVE_DEADLINE_S = 10.0


class KeptOffer(Value):
    """What a process offers. `annotation`: as in `ExtensionProcessState`."""

    offers: frozenset[Point]
    annotation: str = ""


class OfferMemory:
    """The file below `root`. Call `load` first, then `follow`."""

    def __init__(self, root: str, flight: SingleFlight) -> None:
        self._file = Checkpoint(f"{root}/extension_offers", keeps_copy=False)
        self._kept = KeptState("the offers of extensions", self._file.path, flight, log, SAVE_DEADLINE_S)
        self._saved: Mapping[str, KeptOffer] = {}

    def load(self) -> Mapping[str, KeptOffer]:
        """The offers of the last run, by the name of the process. Never raises; an unreadable file is logged and ignored."""
        data = self._file.load()
        if data is not None:
            try:
                self._saved = decode(dict[str, KeptOffer], data)
            except DecodeError as error:
                log.warning("the offers of extensions cannot be read", error=error)
        return self._saved

    async def follow(self, states: Sequence[Cell[ExtensionProcessState]]) -> None:
        """Update the file when a process offers something else. Never returns."""
        wakeup = asyncio.Event()
        with set_on_change(wakeup, *states):
            while True:
                await self._kept.wait(wakeup)
                now = [cell.get() for cell in states]
                await self._keep({s.name: KeptOffer(s.offers, s.annotation) for s in now if s.known})

    async def _keep(self, offers: Mapping[str, KeptOffer]) -> None:
        if offers == self._saved:
            return
        payload = encode(dict(offers))
        if await self._kept.write(lambda: self._file.save(payload)):
            self._saved = offers

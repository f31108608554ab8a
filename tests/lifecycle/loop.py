"""A virtual loop on which the same history runs twice in the same way, step by step."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack

from support.virtual_time import VirtualLoop

from pykubelet.base.kit.flight import SingleFlight

Ts = TypeVarTuple("Ts")


class OrderedLoop(VirtualLoop):
    """Waits for each work in a thread when it begins: works end in the order in which they began."""

    def __init__(self) -> None:
        self._handed: set[object] = set()  # outcomes that threads have handed over
        self._handed_more = threading.Event()
        super().__init__()

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon_threadsafe(callback, *args, context=context)
        self._handed.update(arg for arg in args if isinstance(arg, asyncio.Future))
        self._handed_more.set()
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = super().call_later(delay, callback, *args, context=context)
        if isinstance(getattr(callback, "__self__", None), SingleFlight):
            for outcome in args:
                if isinstance(outcome, asyncio.Future):
                    self._wait_for(outcome)
        return timer

    def _wait_for(self, outcome: asyncio.Future[Any]) -> None:
        while outcome not in self._handed and not outcome.done():
            self._handed_more.wait()
            self._handed_more.clear()
        self._handed.discard(outcome)

"""Ids that no read has shown yet, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from observe.probes.stand import LoopClock

from pykubelet.edges.cri.events import HintKind, RuntimeEventSource, RuntimeHint
from pykubelet.observe.pleg.unknown import UnknownIds

pytestmark = pytest.mark.looptime


def hint(runtime_id: str, kind: HintKind = HintKind.STARTED) -> RuntimeHint:
    return RuntimeHint(runtime_id, kind, RuntimeEventSource.CONTAINERD)


async def test_a_crowd_of_which_one_after_the_other_becomes_known_leads_to_no_relist() -> None:
    due = asyncio.Event()
    unknown = UnknownIds(LoopClock(), 2.0, due)
    for name in ("a", "b", "c", "d", "last"):
        unknown.note(hint(name))
    for name in ("a", "b", "c", "d"):
        await asyncio.sleep(1.9)
        assert unknown.take(name) == hint(name)
    await asyncio.sleep(1.9)
    assert not due.is_set()
    await asyncio.sleep(0.2)
    assert due.is_set(), "no read has shown the last one"


async def test_a_relist_is_requested_until_one_has_succeeded() -> None:
    due, clock = asyncio.Event(), LoopClock()
    unknown = UnknownIds(clock, 2.0, due)
    unknown.note(hint("others"))
    for _ in range(3):
        await asyncio.sleep(2.1)
        assert due.is_set()
        due.clear()
    unknown.keep_only((), clock.monotonic())
    await asyncio.sleep(10)
    assert not due.is_set()


async def test_a_hint_during_a_relist_is_kept() -> None:
    due, clock = asyncio.Event(), LoopClock()
    unknown = UnknownIds(clock, 2.0, due)
    unknown.note(hint("before"))
    unknown.note(hint("shown", HintKind.STOPPED))
    listed_at = clock.monotonic()
    await asyncio.sleep(0.1)
    unknown.note(hint("after", HintKind.STOPPED))
    unknown.keep_only({"shown"}, listed_at)
    assert unknown.take("before") is None
    assert unknown.take("shown") == hint("shown", HintKind.STOPPED)
    assert unknown.take("after") == hint("after", HintKind.STOPPED)

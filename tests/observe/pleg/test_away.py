"""A runtime that is away: the PLEG hardly asks, and relists at once when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from observe.pleg.stand import Stand, pods, run_pleg

from pykubelet.base.kit.values import replace
from pykubelet.base.model.observed import ObservedState
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.events import RuntimeHint, watch_runtime
from pykubelet.edges.cri.wire import OPERATIONS
from pykubelet.observe.pleg.decide import RelistPeriods

pytestmark = pytest.mark.virtual_time

NAMES = [f"pod-{number}" for number in range(10)]


class Asked:
    """The real stream of hints, and how often it was asked for."""

    def __init__(self) -> None:
        self.times = 0

    async def __call__(self, client: CriClient) -> AsyncIterator[RuntimeHint]:
        self.times += 1
        async for hint in watch_runtime(client):
            yield hint


def questions() -> float:
    return OPERATIONS.value("list_podsandbox") + OPERATIONS.value("list_containers")


def set_away(stand: Stand, away: bool) -> None:
    stand.runtime.publish(replace(stand.runtime.get(), away=away))


async def test_a_runtime_that_is_away_is_hardly_asked_and_relisted_when_it_is_back(tmp_path: Path) -> None:
    """If the cell `RuntimeReady` did not change, there would be dozens of calls in these 1.5 s."""
    asked = Asked()
    periods = RelistPeriods(with_events_s=30.0, without_events_s=0.05)
    async with run_pleg(tmp_path, periods, hints=asked, before=lambda stand: pods(stand, *NAMES)) as stand:
        await stand.wait_state(NAMES[-1], "app", ObservedState.RUNNING)
        stand.fake.stop()
        set_away(stand, True)
        before = questions()
        for name in NAMES:
            stand.touch(name)
        await asyncio.sleep(1.5)
        assert asked.times <= 3
        assert questions() - before <= 2 * len(NAMES) + 10, "one read of each pod, and no more"
        stand.make_pod("new", "app")
        stand.fake.start()
        set_away(stand, False)
        await stand.wait_state("new", "app", ObservedState.RUNNING)


async def test_a_runtime_that_is_wrongly_called_away_is_followed_all_the_same(tmp_path: Path) -> None:
    async with run_pleg(tmp_path, before=lambda stand: pods(stand, "web")) as stand:
        set_away(stand, True)
        await stand.wait_state("web", "app", ObservedState.RUNNING)
        stand.start(stand.make_pod("more"), "app")
        await stand.wait_state("more", "app", ObservedState.RUNNING)

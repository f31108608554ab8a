"""What process extensions offer, kept over restarts of the agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.extension_process import ExtensionProcessState, Point
from pykubelet.edges.plugins.extension_memory import KeptOffer, OfferMemory

pytestmark = pytest.mark.virtual_time


def memory(folder: Path) -> OfferMemory:
    return OfferMemory(str(folder), SingleFlight("test"))


async def test_offers_are_kept_once_they_are_known(tmp_path: Path) -> None:
    cells = [make_cell(name, ExtensionProcessState(name)) for name in ("a", "b")]
    async with Supervisor("test") as tasks:
        tasks.start_root("memory", memory(tmp_path).follow([cell for cell, _ in cells]))
        await asyncio.sleep(1)
        assert memory(tmp_path).load() == {}
        offers = frozenset({Point.NEED, Point.PROBE})
        cells[0][1].publish(ExtensionProcessState("a", offers=offers, annotation="example.com/a", known=True))
        await asyncio.sleep(1)
        assert memory(tmp_path).load() == {"a": KeptOffer(offers, "example.com/a")}


async def test_an_unreadable_file_is_no_offer(tmp_path: Path) -> None:
    (tmp_path / "extension_offers").write_bytes(b"\0\1")
    assert memory(tmp_path).load() == {}

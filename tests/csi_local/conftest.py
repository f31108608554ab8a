"""A running driver, and a client of its node service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.csi import CsiProcess, csi_driver, unmount_all

from pykubelet.edges.csi.node import CsiNode


@pytest.fixture
def top() -> Iterator[Path]:
    with TemporaryDirectory(prefix="csi-") as made:  # a socket's path is at most 107 bytes long
        yield Path(made)
        unmount_all(Path(made))


@pytest.fixture
async def driver(top: Path) -> AsyncIterator[CsiProcess]:
    async with csi_driver(top / "root", top / "data", limit=7) as running:
        yield running


@pytest.fixture
async def node(driver: CsiProcess) -> AsyncIterator[CsiNode]:
    with CsiNode(driver.name, str(driver.endpoint)) as client:
        yield client

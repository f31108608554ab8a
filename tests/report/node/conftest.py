"""What tests of the node's reports may ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from report.node.stand import ABOUT, SOON, MakeStand, Stand
from support.memory_api import virtual_api_server

from pykubelet.report.node.model import NodePeriods, NodeRegistration


@pytest.fixture
async def make_stand() -> AsyncIterator[MakeStand]:
    async with virtual_api_server() as server:
        stands: list[Stand] = []

        def make(
            about: NodeRegistration = ABOUT, periods: NodePeriods = SOON, lease_s: int = 4, deadline_s: float = 30.0
        ) -> Stand:
            stands.append(Stand(server, about, periods, lease_s, deadline_s))
            return stands[-1]

        yield make
        for stand in stands:
            await stand.stop()

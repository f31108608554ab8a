"""The node's Lease while the API server cannot be reached for a long time."""

from __future__ import annotations

import asyncio

import pytest
from support.unreachable import UnreachableClient

from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.node import ApiNode, ApiState
from pykubelet.report.node.lease import RETRY_MAX_S, LeaseLoop, LeasePeriods

DAY_S = 24 * 3600.0


@pytest.mark.virtual_time
async def test_it_is_renewed_every_few_seconds_for_a_day_without_an_api_server() -> None:
    client = UnreachableClient()
    node, _ = make_cell("api-node", ApiNode(uid="1"))
    _, state = make_cell("api", ApiState("server"))
    loop = LeaseLoop(client, "n", node, state, SystemClock(), LeasePeriods(40))
    async with Supervisor("test") as supervisor:
        supervisor.start_root("lease", loop.run())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(DAY_S):
                raise await supervisor.wait_failed()
    assert len(client.tries) > 5000
    assert max(client.pauses) <= RETRY_MAX_S + 0.1

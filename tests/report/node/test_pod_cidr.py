"""The pod CIDR of the configuration, on a node without an API server."""

from __future__ import annotations

import asyncio

import pytest

from pykubelet.base.kit.cells import make_cell
from pykubelet.base.model.node import RuntimeReady
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.report.node.pod_cidr import RETRY_S, PodCidr, keep_pod_cidr


class Runtime:
    """Refuses the first `refusals` calls."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.calls: list[str] = []

    async def update_runtime_config(self, pod_cidr: str) -> None:
        self.calls.append(pod_cidr)
        if len(self.calls) <= self.refusals:
            raise CriError(CriCode.INTERNAL, "no", "UpdateRuntimeConfig")


@pytest.mark.looptime
async def test_the_runtime_gets_the_pod_cidr_once_it_takes_calls() -> None:
    runtime = Runtime(refusals=1)
    cell, writer = make_cell("runtime", RuntimeReady())
    keeping = asyncio.get_running_loop().create_task(keep_pod_cidr("10.0.1.0/24", PodCidr(runtime), cell))
    await asyncio.sleep(100)
    assert runtime.calls == []
    writer.publish(RuntimeReady(checked=True, runtime_error=""))
    await asyncio.sleep(RETRY_S / 2)
    assert runtime.calls == ["10.0.1.0/24"]
    await asyncio.sleep(1000)
    assert runtime.calls == ["10.0.1.0/24"] * 2
    keeping.cancel()

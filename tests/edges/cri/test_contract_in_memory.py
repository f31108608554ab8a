"""The contract of the runtime (`test_contract.py`) and the fake without gRPC, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from edges.cri.test_contract import *  # noqa: F403 - its tests
from edges.cri.test_contract import Runtime
from support.virtual_time import clock_of_loop
from testbed import images

from pykubelet.testing.cri.fake_answers import FakeFeatures
from pykubelet.testing.cri.in_memory import MemoryRuntime

pytestmark = pytest.mark.virtual_time


@pytest.fixture(params=["containerd's events", "CRI events"])  # type: ignore[no-redef]
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    features = FakeFeatures(cri_events=request.param == "CRI events")
    fake = MemoryRuntime(str(tmp_path / "cri.sock"), clock_of_loop(), features)
    fake.add_image(images.BUSYBOX)
    fake.start()

    async def restart() -> None:
        fake.stop()
        fake.start()

    client = fake.connect(timeout_s=20)
    yield Runtime(client, restart, tmp_path, fake.clock)
    await client.close()
    fake.stop()

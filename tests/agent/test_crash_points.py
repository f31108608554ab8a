"""The agent is killed with SIGKILL at each effect it has on the machine, one after the other, and started again.

`support/crashes.py` states what is checked, `support/crashing_agent.py` what an effect and a point are.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.agent import sweep
from support.crashes import SETTINGS, CrashingAgent, Life, remove_image
from testbed import containerd, images, registry
from testbed.private_runtime import Testbed

pytestmark = pytest.mark.integration


@pytest.fixture
async def image(testbed: Testbed, tmp_path: Path) -> AsyncIterator[str]:
    """An image that has to be pulled."""
    archive = tmp_path / "app.tar"
    with registry.serving(tmp_path / "registry") as served:
        containerd.trust_registry(testbed, served.address, served.url)
        files = {**images.busybox_files(), "/mark": images.Entry(b"crash points")}
        images.build_image("localhost/crash:1", files, images.Config(), archive)
        registry.push(served, archive, "team/crash:1")
        name = f"{served.address}/team/crash:1"
        yield name
        await remove_image(testbed.endpoint, name)


async def kill_everywhere(
    testbed: Testbed, image: str, folder: Path, capsys: pytest.CaptureFixture[str], **points: str
) -> None:
    """Lives until one comes to no new point.

    The agent's log and the list of kills are in `folder` afterwards. PYKUBELET_CRASH_KNOWN names such a list of an earlier
    run of the same sources that is to be continued.
    """
    await sweep(testbed)
    agent = CrashingAgent(testbed, Path(testbed.folder) / f"crashing-{folder.name}", SETTINGS)
    life = Life(agent, image, **points)
    if known := os.environ.get("PYKUBELET_CRASH_KNOWN"):
        shutil.copy(known, life.done)
    began = time.monotonic()
    try:
        while await life.run():
            await remove_image(testbed.endpoint, image)
    finally:
        sites = {kill.site for kill in life.kills}
        with capsys.disabled():
            print(f"\n{len(life.kills)} kills at {len(sites)} sites in {time.monotonic() - began:.0f} s", points)
        for path in (agent.log_file, life.done):
            shutil.copy(path, folder)
        await agent.clear()
    assert len(sites) > 30 or os.environ.keys() & {"PYKUBELET_CRASH_ONLY", "PYKUBELET_CRASH_KNOWN"}


async def test_killed_after_each_kind_of_effect(
    testbed: Testbed, image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await kill_everywhere(testbed, image, tmp_path, capsys, sites="coarse", moments="sent,after")


@pytest.mark.crash
@pytest.mark.parametrize("shard", ["0/2", "1/2"])
async def test_killed_before_during_and_after_every_effect(
    testbed: Testbed, image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], shard: str
) -> None:
    await kill_everywhere(testbed, image, tmp_path, capsys, sites="fine", moments="before,half,sent,after", shard=shard)

"""Log rotation with a real runtime."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from act.runtime.gc_stand import Stand, names_in
from act.runtime.test_log_rotation import Logs
from testbed import host, images
from testbed.private_runtime import Testbed

from pykubelet.act.runtime.collect.log_rotation import RotationSettings
from pykubelet.base.model.paths import Paths
from pykubelet.edges.cri.client import CriClient

ROTATIONS = 5


@pytest.mark.integration
async def test_no_line_is_lost_by_a_real_runtime(testbed: Testbed, tmp_path: Path) -> None:
    cgroup = f"/{testbed.name}/poduid-web"
    host.make_cgroup(cgroup)
    cri = CriClient(f"unix://{testbed.socket}")
    await cri.wait_connected(60)
    paths = Paths(str(tmp_path / "root"), str(tmp_path / "logs"), str(tmp_path / "links"))
    stand = Stand(cri, paths, images.BUSYBOX, cgroup)
    sandbox = await stand.sandbox("web")
    try:
        script = "i=0; while :; do echo line $i; i=$((i+1)); [ $((i%100)) = 0 ] && sleep 0.02; done"
        container = await stand.container("web", sandbox, script)
        await stand.relist()
        logs = Logs(stand, RotationSettings(max_bytes=20_000, max_files=1000))
        async with asyncio.timeout(120):
            while len(names_in(logs.folder)) <= ROTATIONS:
                await logs.round()
                await asyncio.sleep(0.03)
        await cri.stop_container(container, 0)
        names = names_in(logs.folder)
        lines = "".join(logs.read(name) for name in (*names[1:], *names[:1])).splitlines()
    finally:
        await cri.stop_pod_sandbox(sandbox)
        await cri.remove_pod_sandbox(sandbox)
        await cri.close()
    assert len(lines) > 100 * ROTATIONS
    assert [line.rpartition("F ")[2] for line in lines] == [f"line {n}" for n in range(len(lines))]

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
        script = (
            "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); [ $((i%100)) = 0 ] && sleep 0.02; done; sleep 100"
        )
        await stand.container("web", sandbox, script)
        await stand.relist()
        settings = RotationSettings(max_bytes=20_000, max_files=100)
        logs = Logs(stand, settings)
        lines: list[str] = []
        for _ in range(2000):
            await logs.round()
            names = names_in(logs.folder)
            lines = "".join(logs.read(name) for name in (*names[1:], *names[:1])).splitlines()
            if len(lines) == 3000:
                break
            await asyncio.sleep(0.03)
    finally:
        await cri.stop_pod_sandbox(sandbox)
        await cri.remove_pod_sandbox(sandbox)
        await cri.close()
    assert [line.rpartition("F ")[2] for line in lines] == [f"line {n}" for n in range(3000)]
    assert len(names) > 3

"""The runtime's cgroup driver counts, also when the runtime comes late."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.app.driver import ask_driver, insist_on_driver
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriCode
from pykubelet.edges.cri.wire import LOSING_SUPPORT
from pykubelet.provide.cgroups.model import CgroupDriver
from pykubelet.testing.cri.fake import FakeFeatures, FakeRuntime, RuntimeFault

FS, SYSTEMD = CgroupDriver.CGROUPFS, CgroupDriver.SYSTEMD


@pytest.mark.parametrize(("reported", "configured"), [(pb.SYSTEMD, FS), (pb.CGROUPFS, SYSTEMD)])
async def test_the_runtimes_word_counts(tmp_path: Path, reported: pb.CgroupDriver, configured: CgroupDriver) -> None:
    fake = FakeRuntime(str(tmp_path / "cri.sock"), features=FakeFeatures(cgroup_driver=reported))
    client = CriClient(f"unix://{tmp_path}/cri.sock")
    assert await ask_driver(client, configured, "1.38.0") is None, "nothing answers"
    await fake.start()
    try:
        assert await ask_driver(client, configured, "1.38.0") is ({FS, SYSTEMD} - {configured}).pop()
        fake.inject(RuntimeFault("RuntimeConfig", code=CriCode.UNKNOWN, message="not yet", times=2))
        assert await insist_on_driver(client, configured, "1.38.0", pause_s=0) is ({FS, SYSTEMD} - {configured}).pop()
        never = fake.inject(RuntimeFault("RuntimeConfig", code=CriCode.UNKNOWN, message="never", times=None))
        assert await insist_on_driver(client, configured, "1.38.0", pause_s=0) is configured
        fake.withdraw(never)
        fake.inject(RuntimeFault("RuntimeConfig", code=CriCode.UNIMPLEMENTED, message="too old"))
        assert await ask_driver(client, configured, "1.38.0") is configured
        assert LOSING_SUPPORT.value("1.38.0") == 1, "what warns before the upgrade"
    finally:
        await client.close()
        await fake.stop()

"""What the CRI reports about the engine itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from cri_docker.test_engine import ok, serving

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet_cri_docker.daemon import Daemon

pytestmark = pytest.mark.virtual_time


async def no_problem() -> str:
    return ""


async def conditions(top: Path, info: bytes) -> list[pb.RuntimeCondition]:
    async with serving(top, {"/info": ok(info)}) as (_, engine):
        return list((await Daemon(engine, no_problem).status(verbose=False)).status.conditions)


@pytest.mark.parametrize("drivers", [b'["json-file","none"]', b'["k8s-file","none"]', b"null"])
async def test_an_engine_with_logs_is_ready(tmp_path: Path, drivers: bytes) -> None:
    assert all(each.status for each in await conditions(tmp_path, b'{"Plugins":{"Log":%s}}' % drivers))


async def test_an_engine_whose_logs_cannot_be_read_is_not_ready_with_the_reason(tmp_path: Path) -> None:
    runtime, network = await conditions(tmp_path, b'{"Plugins":{"Log":["journald","none"]}}')
    assert (runtime.type, runtime.status, network.status) == ("RuntimeReady", False, True)
    assert "need the logging driver json-file; the daemon has journald, none" in runtime.message

"""Usage of volumes as their CSI driver reports it: a driver in a process of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.csi import DRIVER, CsiProcess, csi_driver, unmount_all

from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.mounts import DrivenVolume, MountedVolume
from pykubelet.base.model.plugins import CsiNodeInfo, Plugin, Plugins, PluginType
from pykubelet.base.model.usage import FileSystemUse
from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.csi.node import Capability, CsiNode
from pykubelet.edges.host.fs.mounts import read_fs_usage
from pykubelet.net.grpc.server import RpcServer
from pykubelet.net.grpc.services import Services
from pykubelet.observe.stats.drivers import MAX_CONDITION, condition_event, file_system_use, measurements, volume_use
from pykubelet.observe.stats.volumes import MeasuredVolume

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


@pytest.fixture
async def driver() -> AsyncIterator[CsiProcess]:
    with TemporaryDirectory(prefix="csi-") as made:  # a socket's path is at most 107 bytes long
        top = Path(made)
        async with csi_driver(top / "root", top / "data") as running:
            yield running
        unmount_all(top)


async def measured(plugins: Plugins, volumes: list[MountedVolume], at: float, **more: bool) -> list[MeasuredVolume]:
    return [found for work in measurements(plugins, volumes, at, **more) for found in await work]


def plugin_at(name: str, endpoint: str) -> Plugins:
    plugin = Plugin(PluginType.CSI, name, f"/r/{name}", endpoint, ("1.0.0",), 1.0, CsiNodeInfo("n"))
    return Plugins({plugin.socket: plugin})


@asynccontextmanager
async def serving(
    endpoint: str, answers: dict[str, pb.NodeGetVolumeStatsResponse], *capabilities: pb.NodeServiceCapability.RPC.Type
) -> AsyncIterator[Plugins]:
    """A driver that answers with the usage of volumes by their ids."""
    rpcs = [pb.NodeServiceCapability(rpc=pb.NodeServiceCapability.RPC(type=capability)) for capability in capabilities]

    async def known(_: bytes) -> bytes:
        return pb.NodeGetCapabilitiesResponse(capabilities=rpcs).SerializeToString()

    async def usage(data: bytes) -> bytes:
        return answers[pb.NodeGetVolumeStatsRequest.FromString(data).volume_id].SerializeToString()

    methods = {"/csi.v1.Node/NodeGetCapabilities": known, "/csi.v1.Node/NodeGetVolumeStats": usage}
    async with await asyncio.start_unix_server(RpcServer(Services(methods)).serve, endpoint):
        yield plugin_at(DRIVER, endpoint)


@asynccontextmanager
async def hanging(endpoint: str) -> AsyncIterator[Plugins]:
    """A driver that takes connections and never answers."""

    async def ignore(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    async with await asyncio.start_unix_server(ignore, endpoint):
        yield plugin_at("hangs", endpoint)
        for writer in writers:
            writer.close()
            await writer.wait_closed()


async def test_a_volume_is_measured_by_its_driver(driver: CsiProcess) -> None:
    path = str(driver.data / "target")
    capability = pb.VolumeCapability(mount=pb.VolumeCapability.MountVolume())
    context = {"csi.storage.k8s.io/ephemeral": "true", "backing": "image", "size": "8Mi"}
    with CsiNode(DRIVER, str(driver.endpoint)) as node:
        await node.publish(
            pb.NodePublishVolumeRequest(
                volume_id="csi-1", target_path=path, volume_capability=capability, volume_context=context
            )
        )
    volume = MountedVolume(
        "data", "csi", path, is_measured=False, csi=DrivenVolume(DRIVER, "csi-1"), claim=("shop", "data")
    )
    other = MountedVolume("other", "csi", "/nowhere", csi=DrivenVolume("other.example.com", "csi-2"))
    plugins = plugin_at(DRIVER, str(driver.endpoint))
    (found,) = await measured(plugins, [volume, other, MountedVolume("plain", "emptyDir", "/")], 5.0)
    expected = read_fs_usage(path)
    assert (found.source, found.use.name, found.use.is_local) == (DRIVER, "data", False)
    assert found.use.claim == ("shop", "data")
    assert found.use.fs == FileSystemUse(
        5.0,
        expected.capacity_bytes,
        expected.available_bytes,
        expected.used_bytes,
        expected.inodes,
        expected.inodes_free,
        expected.inodes_used,
    )
    gone = MountedVolume("gone", "csi", path, csi=DrivenVolume(DRIVER, "csi-9"))
    assert [result.use.name for result in await measured(plugins, [gone, volume], 5.0)] == ["data"], "one fails alone"
    await driver.behave(NodeGetVolumeStats="lie")
    assert await measured(plugins, [volume], 6.0) == [], "an answer without usage"
    await driver.behave(NodeGetVolumeStats="fail INTERNAL broken")
    assert await measured(plugins, [volume], 6.0) == []
    await driver.behave(NodeGetVolumeStats="", hidden=[2])
    before = len(driver.calls("NodeGetVolumeStats"))
    assert await measured(plugins, [volume], 7.0) == []
    assert len(driver.calls("NodeGetVolumeStats")) == before, "it cannot measure, so it is not asked"


async def test_a_driver_that_hangs_delays_the_figures_of_no_other() -> None:
    answers = {"v": pb.NodeGetVolumeStatsResponse(usage=[pb.VolumeUsage(unit="BYTES", total=5)])}
    with TemporaryDirectory(prefix="csi-") as made:
        async with (
            serving(f"{made}/csi.sock", answers, Capability.GET_VOLUME_STATS) as plugins,
            hanging(f"{made}/hangs.sock") as others,
        ):
            volumes = [MountedVolume(name, "csi", "/v", csi=DrivenVolume(name, "v")) for name in ("hangs", DRIVER)]
            works = measurements(Plugins({**plugins.plugins, **others.plugins}), volumes, 5.0)
            async with Supervisor("test") as tasks:
                first, second = [tasks.start_child("measure", work) for work in works]
                assert [found.use.name for found in await second] == [DRIVER]
                assert not first.done()


def test_what_a_driver_does_not_report_is_unknown() -> None:
    assert file_system_use(pb.NodeGetVolumeStatsResponse(), 1.0) == FileSystemUse(1.0)


@pytest.mark.parametrize(
    ("condition", "asked", "expected"),
    [
        ({"abnormal": True, "message": "disk is failing"}, True, (True, "disk is failing")),
        ({"abnormal": False, "message": "all well"}, True, (False, "")),
        ({"abnormal": True, "message": "x" * 9999}, True, (True, "x" * MAX_CONDITION)),
        ({"abnormal": True, "message": "disk is failing"}, False, (None, "")),
        (None, True, (None, "")),
    ],
)
def test_the_condition_of_a_volume(
    condition: dict[str, bool | str] | None, asked: bool, expected: tuple[bool | None, str]
) -> None:
    answer = pb.NodeGetVolumeStatsResponse()
    if condition is not None:
        answer.volume_condition.abnormal = bool(condition["abnormal"])
        answer.volume_condition.message = str(condition["message"])
    volume = MountedVolume("data", "csi", "/p", csi=DrivenVolume(DRIVER, "csi-1"))
    use, text = volume_use(volume, answer, 5.0, has_condition=asked)
    assert (use.is_abnormal, text) == expected
    found = condition_event(PodRef("shop", "web", PodUID("u1")), MeasuredVolume(use, DRIVER, 0.1, text))
    if not text:
        assert found is None
    else:
        assert found is not None
        assert (found.reason, found.message) == ("VolumeConditionAbnormal", f"Volume data: {text}")

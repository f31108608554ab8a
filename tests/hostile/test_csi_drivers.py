"""What CSI drivers answer to the agent's calls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hostile.servers import Script, serving
from hostile.test_drivers import LONGEST_S, whole
from hostile.test_grpc_answers import ANSWERS
from support.cost import check_cost

from pykubelet.base.model.mounts import DrivenVolume, MountedVolume
from pykubelet.base.model.plugins import CsiNodeInfo, Plugin, Plugins, PluginType
from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.csi.node import LIMITS, CsiNode
from pykubelet.net.grpc.status import RpcError
from pykubelet.observe.stats.drivers import measurements

CAPABILITY = pb.NodeServiceCapability(rpc=pb.NodeServiceCapability.RPC(type=pb.NodeServiceCapability.RPC.EXPAND_VOLUME))
SEGMENTS = {f"k{number}": "v" for number in range(LIMITS.message // 14)}
TOPOLOGY = pb.NodeGetInfoResponse(node_id="n", accessible_topology=pb.Topology(segments=SEGMENTS))
ALL = pb.NodeGetCapabilitiesResponse(capabilities=[CAPABILITY] * (LIMITS.message // 7))
ANSWERED: dict[str, Script] = {
    **ANSWERS,
    "as much topology as is accepted": whole(TOPOLOGY.SerializeToString()),
    "as many capabilities as are accepted": whole(ALL.SerializeToString()),
    "a mebibyte of capabilities": whole(ALL.SerializeToString() * 20),
    "usage without end": whole(
        pb.NodeGetVolumeStatsResponse(usage=[pb.VolumeUsage(unit="BYTES", total=3)] * 5000).SerializeToString()
    ),
    "no protobuf": whole(b"\xff" * 60_000),
}


def test_the_largest_answers_are_within_the_limit() -> None:
    sizes = [len(answer.SerializeToString()) for answer in (TOPOLOGY, ALL)]
    assert all(LIMITS.message * 0.7 < size < LIMITS.message for size in sizes), sizes


@pytest.mark.parametrize("name", ANSWERED)
def test_no_answer_of_a_driver_costs_much(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / "csi.sock")
    plugin = Plugin(PluginType.CSI, "d.example.com", "/r", path, ("1.0.0",), 1.0, CsiNodeInfo("n"))
    volume = MountedVolume("v", "csi", "/v", csi=DrivenVolume("d.example.com", "csi-1"))

    async def attack() -> None:
        with CsiNode("d.example.com", path) as node:
            for call in (node.info(), node.capabilities(), node.publish(pb.NodePublishVolumeRequest())):
                try:
                    async with asyncio.timeout(LONGEST_S):
                        await call
                except (RpcError, TimeoutError):
                    continue
        try:
            async with asyncio.timeout(LONGEST_S):
                (asked,) = measurements(Plugins({plugin.socket: plugin}), [volume], 1.0)
                await asked
        except TimeoutError:
            return

    with serving(ANSWERED[name], path):
        check_cost(name, attack)

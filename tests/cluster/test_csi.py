"""A CSI driver on a node of a real control plane: what the node may read and write about it, and a pod's own volume."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from agent.test_csi_volumes import pod_with_volume
from support.agent import NODE_NAME, Agent, Json
from support.cluster import Cluster, bound
from support.csi import DRIVER, csi_driver

MakeAgent = Callable[..., Agent]
CSI_NODE = f"/apis/storage.k8s.io/v1/csinodes/{NODE_NAME}"
CSI_DRIVERS = "/apis/storage.k8s.io/v1/csidrivers"
OFFER = {
    "metadata": {"name": DRIVER},
    "spec": {"attachRequired": False, "podInfoOnMount": True, "volumeLifecycleModes": ["Ephemeral"]},
}


async def test_a_driver_is_shown_and_mounts_a_volume(cluster: Cluster, make_cluster_agent: MakeAgent) -> None:
    agent = make_cluster_agent().start()
    await asyncio.to_thread(cluster.wait_node_ready)
    cluster.create(CSI_DRIVERS, OFFER)
    try:
        async with csi_driver(agent.root, agent.folder / "csi", node="id-1", limit=7) as driver:

            def entry() -> Json | None:
                found = (cluster.get(CSI_NODE) or {}).get("spec", {}).get("drivers") or []
                return found[0] if found else None

            topology = f"topology.{DRIVER}/node"
            assert await asyncio.to_thread(cluster.wait, "its entry", entry) == {
                "name": DRIVER,
                "nodeID": "id-1",
                "topologyKeys": [topology],
                "allocatable": {"count": 7},
            }
            node = cluster.node()
            assert node is not None
            assert json.loads(node["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"]) == {DRIVER: "id-1"}
            assert node["metadata"]["labels"][topology] == "id-1"
            cluster.run(bound(pod_with_volume("web")))
            await asyncio.to_thread(cluster.wait_ready, "web")
            assert len(driver.volumes()) == 1
            cluster.delete_pod("web", 1)
            await asyncio.to_thread(cluster.wait_gone, "web")
            assert driver.volumes() == []
        await asyncio.to_thread(agent.kill9)  # the driver comes back changed while the agent is away
        new = {"info": {"id": "id-2", "max": 5}}
        async with csi_driver(agent.root, agent.folder / "csi", node="id-1", behavior=new) as driver:
            agent.start()
            changed = {"name": DRIVER, "nodeID": "id-2", "topologyKeys": [topology], "allocatable": {"count": 5}}
            await asyncio.to_thread(cluster.wait, "its new entry", lambda: entry() == changed)
            await driver.stop()
            await asyncio.to_thread(cluster.wait, "no entry", lambda: entry() is None)
    finally:
        cluster.delete(f"{CSI_DRIVERS}/{DRIVER}")

"""A node registering itself and its CSI drivers, seen from the API server's side, under virtual time."""

from __future__ import annotations

import asyncio
import json

import pytest
from report.node.stand import ABOUT, NODE, NODES, WELL, MakeStand, Stand
from support.api_server import ApiFault

from pykubelet.base.kit.cells import CellWriter, make_cell
from pykubelet.base.kit.values import replace
from pykubelet.base.model.node import NodeWanted
from pykubelet.base.model.plugins import CsiNodeInfo, Plugin, Plugins, PluginType
from pykubelet.report.node.csi_node import CsiNodeKeeper
from pykubelet_local_api.objects import Json

pytestmark = pytest.mark.virtual_time


async def test_a_node_that_was_deleted_is_made_again(make_stand: MakeStand) -> None:
    stand = make_stand()
    stand.set_runtime.publish(WELL)
    stand.start()
    first = await stand.until_ready()
    stand.server.delete(NODE)
    second = await stand.until_ready()
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    await stand.node.wait_for(lambda view: view.uid == second["metadata"]["uid"])


async def test_a_node_deleted_while_it_is_being_made_is_made_again(make_stand: MakeStand) -> None:
    stand = make_stand()
    deleted = asyncio.Event()

    def delete_at_once(_: Json) -> Json:
        made = stand.server.create(NODES, {"metadata": {"name": "n"}})
        stand.server.delete(NODE)
        del stand.server.answers["/nodes"]
        deleted.set()
        return made

    stand.server.answers["/nodes"] = delete_at_once
    stand.set_runtime.publish(WELL)
    stand.start()
    async with asyncio.timeout(30):
        await deleted.wait()
    await stand.until_ready()


async def test_a_node_that_must_not_be_registered_is_waited_for(make_stand: MakeStand) -> None:
    stand = make_stand(replace(ABOUT, register=False))
    stand.set_runtime.publish(WELL)
    stand.start()
    await asyncio.sleep(0.2)
    assert stand.get() is None and not stand.node.get().registered
    theirs = {"kubernetes.io/hostname": "theirs"}
    capacity = {"example.com/gpu": "3"}
    stand.server.create(NODES, {"metadata": {"name": "n", "labels": theirs}, "status": {"capacity": capacity}})
    node = await stand.until_ready()
    assert node["metadata"]["labels"] == theirs
    assert node["status"]["capacity"]["example.com/gpu"] == "3"


async def test_labels_come_from_the_api_server(make_stand: MakeStand) -> None:
    stand = make_stand()
    stand.set_runtime.publish(WELL)
    stand.start()
    await stand.until_ready()
    stand.server.update(NODE, lambda node: node["metadata"]["labels"].update(zone="a"))
    async with asyncio.timeout(30):
        await stand.node.wait_for(lambda view: view.labels.get("zone") == "a")


async def test_taints_come_from_the_api_server(make_stand: MakeStand) -> None:
    stand = make_stand()
    stand.set_runtime.publish(WELL)
    stand.start()
    async with asyncio.timeout(30):
        await stand.node.wait_for(lambda view: [taint.key for taint in view.taints] == ["k"])
        stand.server.update(NODE, lambda node: node["spec"].update(taints=[{"key": "gone", "effect": "NoExecute"}]))
        await stand.node.wait_for(lambda view: [taint.key for taint in view.taints] == ["gone"])


async def test_the_node_is_read_anew_for_whoever_needs_it_as_it_is(make_stand: MakeStand) -> None:
    stand = make_stand()
    stand.set_runtime.publish(WELL)
    stand.start()
    await stand.until_ready()
    view = await stand.node.wait_for(lambda view: view.registered)
    assert view.read_at is None
    stand.server.faults.append(ApiFault("GET", NODE, status=503, times=2))
    stand.wanted.post(NodeWanted())
    async with asyncio.timeout(30):
        first = await stand.node.wait_for(lambda view: view.read_at is not None)
        assert first.registered and not first.read_error
        stand.server.faults.append(ApiFault("GET", NODE, status=403))
        stand.wanted.post(NodeWanted())
        refused = await stand.node.wait_for(lambda view: view.read_at != first.read_at)
    assert refused.read_error and refused.registered


@pytest.mark.parametrize("reads", [True, False])
async def test_a_node_that_may_not_be_created_is_read_unless_its_gate_is_on(make_stand: MakeStand, reads: bool) -> None:
    stand = make_stand(replace(ABOUT, reads_forbidden=reads))
    stand.server.faults.append(ApiFault("POST", NODES, status=403, message="no right to create", times=-1))
    stand.set_runtime.publish(WELL)
    stand.start()
    async with asyncio.timeout(30):
        state = await stand.state.wait_for(lambda state: bool(state.node_error))
    assert ("no right to create" in state.node_error) is not reads
    read = [sent for sent in stand.server.requests if sent.path == NODE and sent.method == "GET"]
    assert bool(read) is reads


async def test_what_others_write_on_the_node_is_known_here(make_stand: MakeStand) -> None:
    stand = make_stand(replace(ABOUT, external_cloud=True))
    stand.set_runtime.publish(WELL)
    stand.start()
    await stand.until_ready()

    kinds = [("Hostname", "host"), ("ExternalIP", "192.0.2.7"), ("InternalIP", "10.9.9.9"), ("InternalIP", "fd00::1")]
    addresses = [{"type": kind, "address": address} for kind, address in kinds]
    ttl = {"node.alpha.kubernetes.io/ttl": "300"}
    stand.server.update(f"{NODE}/status", lambda node: node["status"].update(addresses=addresses))
    stand.server.update(NODE, lambda node: node["metadata"].setdefault("annotations", {}).update(ttl))
    async with asyncio.timeout(30):
        view = await stand.node.wait_for(lambda view: view.object_ttl_s == 300.0)
    assert [(found.type, found.address) for found in view.addresses] == kinds


async def test_cordoning_and_pod_cidrs_are_noticed(make_stand: MakeStand) -> None:
    stand = make_stand()
    stand.set_runtime.publish(WELL)
    stand.start()
    await stand.until_ready()

    def change(node: Json) -> None:
        node["spec"] |= {"unschedulable": True, "podCIDRs": ["10.1.0.0/24", "fd00::/64"]}
        node["metadata"]["labels"]["seen"] = "1"

    stand.server.update(NODE, change)
    async with asyncio.timeout(30):
        assert await stand.images.cidrs.get() == "10.1.0.0/24,fd00::/64"
    await stand.until_reported("NodeNotSchedulable")


async def test_an_api_server_that_is_away_at_first(make_stand: MakeStand) -> None:
    stand = make_stand()
    await stand.server.stop()
    stand.set_runtime.publish(WELL)
    stand.start(lease=True)
    async with asyncio.timeout(30):
        state = await stand.state.wait_for(lambda state: bool(state.error))
    assert state.server == stand.server.url and state.ok_at is None
    await stand.server.start()
    await stand.until_ready()
    async with asyncio.timeout(30):
        await stand.state.wait_for(lambda state: not state.error and state.ok_at is not None)


@pytest.mark.parametrize(
    "fault", [ApiFault(status=429, retry_after_s=0), ApiFault(status=503), ApiFault(hang=True), ApiFault()]
)
async def test_a_registration_that_fails_is_repeated(make_stand: MakeStand, fault: ApiFault) -> None:
    stand = make_stand(deadline_s=1.0 if fault.hang else 30.0)
    fault.method, fault.times = "POST", 3
    stand.server.faults.append(fault)
    stand.set_runtime.publish(WELL)
    stand.start()
    await stand.until_ready()
    assert stand.server.count("POST", NODES) == 4


CSI_NODE = "/apis/storage.k8s.io/v1/csinodes/n"


async def test_the_csi_node_is_made_and_belongs_to_the_node_of_the_day(make_stand: MakeStand) -> None:
    stand = make_stand()
    stand.set_runtime.publish(WELL)
    stand.start()
    stand.server.faults.append(ApiFault("POST", "/csinodes", status=503))
    plugins, _ = make_cell("plugins", Plugins())
    stand.supervisor.start_root(
        "csi-node", CsiNodeKeeper(stand.clients[0], "n", stand.node, plugins, stand.server.clock).run()
    )
    made = await stand.until(lambda found: True, CSI_NODE)
    uid = (await stand.until_ready())["metadata"]["uid"]
    assert [(o["kind"], o["uid"]) for o in made["metadata"]["ownerReferences"]] == [("Node", uid)]
    assert "kubernetes.io/aws-ebs" in made["metadata"]["annotations"]["storage.alpha.kubernetes.io/migrated-plugins"]
    stand.server.update(CSI_NODE, lambda found: found["spec"].update(drivers=[{"name": "d", "nodeID": "n"}]))
    stand.server.delete(NODE)
    await stand.until(lambda found: found["metadata"]["ownerReferences"][0]["uid"] != uid, CSI_NODE)
    found = stand.get(CSI_NODE)
    assert found is not None and not found["spec"]["drivers"], "the driver may have been on another machine"


def csi_plugin(name: str, node_id: str = "id-1", limit: int = 0, **topology: str) -> Plugins:
    info = CsiNodeInfo(node_id, limit, {f"t/{key}": value for key, value in topology.items()})
    plugin = Plugin(PluginType.CSI, name, f"/r/{name}", f"/p/{name}", ("1.0.0",), 1.0, info)
    return Plugins({plugin.socket: plugin})


async def with_csi_node(make_stand: MakeStand) -> tuple[Stand, CellWriter[Plugins]]:
    """A node that is ready and keeps its CSINode, and the writer of its plugins."""
    stand = make_stand()
    stand.set_runtime.publish(WELL)
    stand.start()
    plugins, write = make_cell("plugins", Plugins())
    stand.supervisor.start_root(
        "csi-node", CsiNodeKeeper(stand.clients[0], "n", stand.node, plugins, stand.server.clock).run()
    )
    await stand.until_ready()
    return stand, write


async def test_node_and_csi_node_show_the_registered_drivers(make_stand: MakeStand) -> None:
    stand, write = await with_csi_node(make_stand)
    ids = "csi.volume.kubernetes.io/nodeid"
    earlier = {"name": "earlier", "nodeID": "x", "topologyKeys": None}
    await stand.until(lambda found: True, CSI_NODE)
    stand.server.update(CSI_NODE, lambda found: found["spec"].update(drivers=[earlier]))
    stand.server.faults.append(ApiFault("PATCH", "/csinodes", status=409))
    write.publish(csi_plugin("d", limit=5, zone="a"))
    found = await stand.until(lambda found: len(found["spec"]["drivers"]) == 2, CSI_NODE)
    assert found["spec"]["drivers"][1] == {
        "name": "d",
        "nodeID": "id-1",
        "topologyKeys": ["t/zone"],
        "allocatable": {"count": 5},
    }
    node = await stand.until(lambda node: ids in node["metadata"].get("annotations", {}))
    assert node["metadata"]["annotations"][ids] == '{"d":"id-1"}'
    assert node["metadata"]["labels"]["t/zone"] == "a"
    write.publish(csi_plugin("d", "id-2", zone="b"))
    await stand.until(lambda found: [driver["name"] for driver in found["spec"]["drivers"]] == ["earlier"], CSI_NODE)
    write.publish(csi_plugin("d", "id-2", zone="a"))
    node = await stand.until(lambda node: node["metadata"].get("annotations", {}).get(ids) == '{"d":"id-2"}')
    write.publish(Plugins())
    await stand.until(lambda node: ids not in node["metadata"].get("annotations", {}))
    await stand.until(lambda found: [driver["name"] for driver in found["spec"]["drivers"]] == ["earlier"], CSI_NODE)
    node = stand.get() or {}
    assert node["metadata"]["labels"]["t/zone"] == "a"
    requests = stand.server.count("PATCH") + stand.server.count("GET", CSI_NODE)
    stand.server.delete(NODE)
    write.publish(csi_plugin("d"))
    node = await stand.until(lambda node: node["metadata"].get("annotations", {}).get(ids) == '{"d":"id-1"}')
    assert stand.server.count("PATCH") + stand.server.count("GET", CSI_NODE) < requests + 20


async def test_a_driver_that_the_api_server_refuses_costs_the_others_nothing(make_stand: MakeStand) -> None:
    stand, write = await with_csi_node(make_stand)
    await stand.until(lambda found: True, CSI_NODE)
    forbidden, good = csi_plugin("forbidden", zone="a"), csi_plugin("good", "id-2", rack="r")
    invalid = csi_plugin("invalid", "x" * 193)
    stand.server.faults.append(ApiFault("PATCH", f"{NODE}/status", status=403, message="no such label for a node"))
    write.publish(Plugins({**forbidden.plugins, **good.plugins, **invalid.plugins}))
    found = await stand.until(lambda found: bool(found["spec"]["drivers"]), CSI_NODE)
    assert [entry["name"] for entry in found["spec"]["drivers"]] == ["good"]
    node = await stand.until(lambda node: "t/rack" in node["metadata"].get("labels", {}))
    assert json.loads(node["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"]) == {"good": "id-2"}


async def test_why_a_node_cannot_be_registered_is_reported_until_it_is(make_stand: MakeStand) -> None:
    stand = make_stand()
    stand.set_runtime.publish(WELL)
    fault = ApiFault("POST", NODES, status=500, message="no capacity", times=-1)
    stand.server.faults.append(fault)
    stand.start()
    async with asyncio.timeout(30):
        state = await stand.state.wait_for(lambda state: bool(state.node_error))
        assert state.node_error == "no capacity" and state.node_next_at is not None
        stand.server.faults.remove(fault)
        await stand.state.wait_for(lambda state: not state.node_error and state.node_next_at is None)

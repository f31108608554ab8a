"""A node registering and reporting itself, seen from the API server's side, under virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
from support.memory_api import virtual_api_server

from pykubelet.base.api.core import Taint
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.mailbox import Mailbox
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.apistate import ApiState
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.node import ApiNode, NodeView, NodeWanted, RuntimeReady
from pykubelet.base.model.plugins import CsiNodeInfo, Plugin, Plugins, PluginType
from pykubelet.base.model.pressure import NodePressure
from pykubelet.base.model.shutdown import NodeShutdown
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.kubeapi.client import ApiClient, ClientLimits
from pykubelet.report.node.api_node import ReporterClients
from pykubelet.report.node.csi_node import CsiNodeKeeper
from pykubelet.report.node.lease import LeaseLoop, LeasePeriods
from pykubelet.report.node.metrics import PRE_KUBELET, WHOLE
from pykubelet.report.node.model import NodePeriods, Registration
from pykubelet.report.node.reporter import NodeReporter, ReporterCells
from pykubelet.testing.kubeapi.fake import ApiFault, FakeApiServer
from pykubelet.testing.kubeapi.fake_patch import Json

pytestmark = pytest.mark.virtual_time

NODES, NODE = "/api/v1/nodes", "/api/v1/nodes/n"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n"
WELL = RuntimeReady(checked=True, runtime_error="", name="containerd", version="2.0")
SOON = NodePeriods(update=0.05, retry=0.02, retry_max=0.1, images=0.05, first_answer=0.3)
ABOUT = Registration(
    "n", "host", {"kubernetes.io/hostname": "host", "given": "1"}, taints=(Taint(key="k", effect="NoSchedule"),)
)


@dataclass
class Images:
    """A runtime with images and nothing else."""

    images: list[pb.Image] = field(default_factory=list)
    cidrs: Mailbox[str] = field(default_factory=lambda: Mailbox("cidrs"))

    async def list_images(self) -> list[pb.Image]:
        return self.images

    async def update_runtime_config(self, pod_cidr: str) -> None:
        self.cidrs.post(pod_cidr)


class Stand:
    """One reporter (and lease) on a fake API server."""

    def __init__(
        self, server: FakeApiServer, about: Registration, periods: NodePeriods, lease_s: int, deadline_s: float
    ) -> None:
        self.server = server
        view = NodeView("n", "host", ("10.0.0.1",), {"cpu": 1000, "memory": 1, "pods": 1, "ephemeral-storage": 1})
        node, self.set_view = make_cell("node", view)
        self.node, api_node = make_cell("api-node", ApiNode())
        self.runtime, self.set_runtime = make_cell("runtime", RuntimeReady())
        self.pressure, self.set_pressure = make_cell("pressure", NodePressure())
        self.shutdown, self.set_shutdown = make_cell("shutdown", NodeShutdown())
        self.mounts, self.set_mounts = make_cell("mounts", Mounts())
        self.state, state = make_cell("api", ApiState(server.url))
        self.images = Images()
        self.events: Mailbox[KubeEvent] = Mailbox("events")
        clock = server.clock
        self.clients = [ApiClient(server.access(), clock, ClientLimits(deadline_s=deadline_s)) for _ in range(2)]
        self.wanted: Mailbox[NodeWanted] = Mailbox("wanted")
        cells = ReporterCells(
            node, api_node, self.runtime, self.pressure, self.shutdown, self.mounts, self.wanted, state
        )
        clients = ReporterClients(*self.clients)
        self.reporter = NodeReporter(about, clients, cells, self.images, self.events, clock, periods)
        self.lease = LeaseLoop(self.clients[1], "n", self.node, state, clock, LeasePeriods(lease_s), (self.clients[0],))
        self.supervisor = Supervisor("test")

    def start(self, *, lease: bool = False) -> None:
        self.supervisor.start_root("reporter", self.reporter.run())
        if lease:
            self.supervisor.start_root("lease", self.lease.run())

    async def stop(self) -> None:
        await self.supervisor.stop()
        for client in self.clients:
            await client.close()

    def get(self, path: str = NODE) -> Json | None:
        from pykubelet.edges.kubeapi.errors import ApiError

        try:
            return self.server.get(path)
        except ApiError:
            return None

    async def until(self, holds: Callable[[Json], object], path: str = NODE) -> Json:
        wakeup = asyncio.Event()
        self.server.store.wakeups.add(wakeup)
        try:
            async with asyncio.timeout(30):
                while (found := self.get(path)) is None or not holds(found):
                    await wakeup.wait()
                    wakeup.clear()
            return found
        except TimeoutError:
            raise AssertionError(f"never so; now: {self.get(path)}") from None
        finally:
            self.server.store.wakeups.discard(wakeup)

    async def until_patched(self, number: int) -> None:
        """At least so often."""
        for _ in range(3000):
            if self.server.count("PATCH") >= number:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"only {self.server.count('PATCH')} patches")

    async def until_reported(self, reason: str) -> None:
        async with asyncio.timeout(30):
            while (await self.events.get()).reason != reason:
                pass

    async def until_ready(self) -> Json:
        return await self.until(lambda node: ready(node)["status"] == "True")


def ready(node: Json) -> Json:
    return next((c for c in node.get("status", {}).get("conditions", ()) if c["type"] == "Ready"), {"status": ""})


MakeStand = Callable[..., Stand]


@pytest.fixture
async def make_stand() -> AsyncIterator[MakeStand]:
    async with virtual_api_server() as server:
        stands: list[Stand] = []

        def make(
            about: Registration = ABOUT, periods: NodePeriods = SOON, lease_s: int = 4, deadline_s: float = 30.0
        ) -> Stand:
            stands.append(Stand(server, about, periods, lease_s, deadline_s))
            return stands[-1]

        yield make
        for stand in stands:
            await stand.stop()


async def test_a_node_is_made_ready_at_once(make_stand: MakeStand) -> None:
    stand = make_stand()
    stand.set_runtime.publish(WELL)
    stand.images.images = [pb.Image(repo_tags=["a:1"], repo_digests=["a@sha256:1"], size=7)]
    stand.start()
    node = await stand.until_ready()
    assert node["metadata"]["labels"] == {"kubernetes.io/hostname": "host", "given": "1"}
    assert node["spec"]["taints"] == [{"key": "k", "effect": "NoSchedule"}]
    assert node["status"]["images"] == [{"names": ["a@sha256:1", "a:1"], "sizeBytes": 7}]
    view = await stand.node.wait_for(lambda view: view.registered)
    assert view.uid == node["metadata"]["uid"]
    assert stand.server.count("PATCH") == 0  # nothing was to be corrected
    assert stand.server.count() == 3  # list, create, watch


async def test_a_shutdown_of_the_machine_is_reported_at_once_and_so_is_its_cancellation(make_stand: MakeStand) -> None:
    stand = make_stand(periods=NodePeriods(update=3600, report=3600))
    stand.set_runtime.publish(WELL)
    stand.start()
    await stand.until_ready()
    stand.set_shutdown.publish(NodeShutdown(active=True))
    node = await stand.until(lambda node: ready(node)["status"] == "False")
    assert ready(node)["message"] == "node is shutting down"
    stand.set_shutdown.publish(NodeShutdown(active=False))
    await stand.until_ready()


async def test_a_runtime_that_takes_long_registers_a_node_that_is_not_ready(make_stand: MakeStand) -> None:
    stand = make_stand()
    stand.start()
    node = await stand.until(lambda node: True)
    assert ready(node)["message"] == "container runtime status check may not have completed yet"
    stand.set_runtime.publish(WELL)
    await stand.until_ready()
    await stand.until_reported("NodeReady")
    assert WHOLE.value() >= PRE_KUBELET.value() > 0


async def test_an_unchanged_status_is_not_reported_again(make_stand: MakeStand) -> None:
    stand = make_stand()
    stand.set_runtime.publish(WELL)
    stand.start()
    await stand.until_ready()
    await asyncio.sleep(0.3)
    assert stand.server.count("PATCH") == 0


async def test_what_an_older_server_leaves_out_is_not_reported_again_and_again(make_stand: MakeStand) -> None:
    stand = make_stand(about=replace(ABOUT, features=("New",)))
    stand.server.store.unknown = frozenset({"declaredFeatures"})
    stand.set_runtime.publish(WELL)
    stand.start()
    await stand.until_patched(1)
    await asyncio.sleep(0.3)
    assert stand.server.count("PATCH") == 1
    stand.set_pressure.publish(NodePressure(disk=True))
    await stand.until(lambda node: any(c["reason"] == "KubeletHasDiskPressure" for c in node["status"]["conditions"]))
    await stand.until_patched(2)
    await asyncio.sleep(0.2)
    assert stand.server.count("PATCH") == 2


async def test_an_unchanged_status_is_reported_after_the_report_period(make_stand: MakeStand) -> None:
    stand = make_stand(periods=replace(SOON, report=0.1))
    stand.set_runtime.publish(WELL)
    began = asyncio.get_running_loop().time()
    stand.start()
    await stand.until_patched(3)
    assert {sent.path for sent in stand.server.requests if sent.method == "PATCH"} == {f"{NODE}/status"}
    assert stand.server.count("PATCH") * 0.1 <= asyncio.get_running_loop().time() - began


async def test_changes_are_reported_without_waiting_for_the_period(make_stand: MakeStand) -> None:
    stand = make_stand(periods=replace(SOON, update=60))
    stand.set_runtime.publish(WELL)
    stand.start()
    await stand.until_ready()
    stand.set_pressure.publish(NodePressure(disk=True))
    await stand.until(lambda node: any(c["reason"] == "KubeletHasDiskPressure" for c in node["status"]["conditions"]))
    stand.set_runtime.publish(replace(WELL, network_error="no cni"))
    await stand.until(lambda node: ready(node)["message"] == "no cni")
    stand.set_view.publish(replace(stand.set_view.get(), ips=("10.0.0.7",)))
    node = await stand.until(lambda node: node["status"]["addresses"][0]["address"] == "10.0.0.7")
    assert len(node["status"]["addresses"]) == 2


async def test_images_listed_in_another_order_are_no_news(make_stand: MakeStand) -> None:
    stand = make_stand()
    listed = [pb.Image(id=name, repo_tags=[name], size=7) for name in ("a", "b", "c")]
    stand.images.images = listed
    stand.set_runtime.publish(WELL)
    stand.start()
    node = await stand.until_ready()
    assert [image["names"] for image in node["status"]["images"]] == [["c"], ["b"], ["a"]]
    stand.images.images = listed[::-1]
    await asyncio.sleep(0.2)
    assert stand.server.count("PATCH") == 0


async def test_a_restart_leaves_a_ready_node_ready(make_stand: MakeStand) -> None:
    first = make_stand()
    first.set_runtime.publish(WELL)
    first.start()
    before = await first.until_ready()
    await first.stop()
    second = make_stand(periods=replace(SOON, first_answer=30))
    second.start()
    await asyncio.sleep(0.1)
    second.set_runtime.publish(WELL)
    await second.until_patched(1)
    assert ready(await second.until_ready())["lastTransitionTime"] == ready(before)["lastTransitionTime"]
    statuses = [
        condition["status"]
        for sent in second.server.requests
        if sent.method == "PATCH"
        for condition in sent.body["status"]["conditions"]
        if condition["type"] == "Ready"
    ]
    assert statuses == ["True"]


async def test_an_unchanged_status_is_reported_once_right_after_a_restart(make_stand: MakeStand) -> None:
    """Whoever looks at heartbeats sees at once that the agent is back, not after nodeStatusReportFrequency."""
    first = make_stand()
    first.set_runtime.publish(WELL)
    first.start()
    await first.until_ready()
    await first.stop()

    def age(node: Json) -> None:
        for condition in node["status"]["conditions"]:
            condition["lastHeartbeatTime"] = "2020-01-01T00:00:00Z"

    first.server.update(f"{NODE}/status", age)
    second = make_stand()
    second.set_runtime.publish(WELL)
    second.start()
    await second.until(lambda node: ready(node)["lastHeartbeatTime"] > "2021")
    await asyncio.sleep(0.3)
    assert second.server.count("PATCH") == 1


async def test_volumes_in_use_are_reported_as_soon_as_they_are_known(make_stand: MakeStand) -> None:
    """The attach-detach controller attaches no volume, and detaches none, against what the node reports."""
    earlier = ["kubernetes.io/csi/driver^1"]
    stand = make_stand()
    stand.server.create(NODES, {"metadata": {"name": "n"}, "status": {"volumesInUse": earlier}})
    stand.set_runtime.publish(WELL)
    stand.start()
    node = await stand.until_ready()
    assert node["status"]["volumesInUse"] == earlier
    now = ("kubernetes.io/csi/driver^1", "kubernetes.io/csi/driver^2")
    stand.set_mounts.publish(Mounts(reconstructed=True, in_use=now))
    await stand.until(lambda node: node["status"].get("volumesInUse") == list(now))
    stand.set_mounts.publish(Mounts(reconstructed=True, in_use=()))
    await stand.until(lambda node: not node["status"].get("volumesInUse"))


async def test_an_old_node_is_put_right_in_one_request(make_stand: MakeStand) -> None:
    stand = make_stand()
    stand.server.create(
        NODES,
        {
            "metadata": {"name": "n", "labels": {"kubernetes.io/hostname": "other", "theirs": "1"}},
            "spec": {"taints": []},
            "status": {"capacity": {"example.com/gpu": "3"}, "nodeInfo": {"bootID": "before"}},
        },
    )
    stand.set_runtime.publish(WELL)
    stand.start()
    node = await stand.until_ready()
    assert node["metadata"]["labels"] == {"kubernetes.io/hostname": "host", "theirs": "1"}
    assert node["metadata"]["annotations"] == {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
    assert node["status"]["capacity"]["example.com/gpu"] == "0"
    assert node["spec"]["taints"] == []
    assert stand.server.count("POST") == 0 and stand.server.count("PATCH") == 1
    await stand.until_reported("Rebooted")


async def test_a_status_that_a_user_changed_is_put_right(make_stand: MakeStand) -> None:
    stand = make_stand()
    stand.set_runtime.publish(WELL)
    stand.start()
    await stand.until_ready()

    def spoil(node: Json) -> None:
        ready(node).update(status="Unknown", reason="NodeStatusUnknown")

    stand.server.update(f"{NODE}/status", spoil)
    await stand.until_ready()


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


async def test_node_and_csi_node_show_the_registered_drivers(make_stand: MakeStand) -> None:
    stand = make_stand()
    stand.set_runtime.publish(WELL)
    stand.start()
    plugins, write = make_cell("plugins", Plugins())
    stand.supervisor.start_root(
        "csi-node", CsiNodeKeeper(stand.clients[0], "n", stand.node, plugins, stand.server.clock).run()
    )
    await stand.until_ready()
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
    await stand.until(lambda found: [one["name"] for one in found["spec"]["drivers"]] == ["earlier"], CSI_NODE)
    write.publish(csi_plugin("d", "id-2", zone="a"))
    node = await stand.until(lambda node: node["metadata"].get("annotations", {}).get(ids) == '{"d":"id-2"}')
    write.publish(Plugins())
    await stand.until(lambda node: ids not in node["metadata"].get("annotations", {}))
    await stand.until(lambda found: [one["name"] for one in found["spec"]["drivers"]] == ["earlier"], CSI_NODE)
    node = stand.get() or {}
    assert node["metadata"]["labels"]["t/zone"] == "a"
    requests = stand.server.count("PATCH") + stand.server.count("GET", CSI_NODE)
    stand.server.delete(NODE)
    write.publish(csi_plugin("d"))
    node = await stand.until(lambda node: node["metadata"].get("annotations", {}).get(ids) == '{"d":"id-1"}')
    assert stand.server.count("PATCH") + stand.server.count("GET", CSI_NODE) < requests + 20


async def test_a_driver_that_the_api_server_refuses_costs_the_others_nothing(make_stand: MakeStand) -> None:
    stand = make_stand()
    stand.set_runtime.publish(WELL)
    stand.start()
    plugins, write = make_cell("plugins", Plugins())
    stand.supervisor.start_root(
        "csi-node", CsiNodeKeeper(stand.clients[0], "n", stand.node, plugins, stand.server.clock).run()
    )
    await stand.until_ready()
    await stand.until(lambda found: True, CSI_NODE)
    one, other = csi_plugin("forbidden", zone="a"), csi_plugin("good", "id-2", rack="r")
    invalid = csi_plugin("invalid", "x" * 193)
    stand.server.faults.append(ApiFault("PATCH", f"{NODE}/status", status=403, message="no such label for a node"))
    write.publish(Plugins({**one.plugins, **other.plugins, **invalid.plugins}))
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


async def test_a_lease_is_made_owned_and_renewed(make_stand: MakeStand) -> None:
    stand = make_stand()
    stand.set_runtime.publish(WELL)
    stand.start(lease=True)
    node = await stand.until_ready()
    first = await stand.until(lambda lease: True, LEASE)
    assert first["spec"]["holderIdentity"] == "n" and first["spec"]["leaseDurationSeconds"] == 4
    assert len(first["spec"]["renewTime"]) == len("2026-01-02T03:04:05.000006Z")
    assert first["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": node["metadata"]["uid"]}
    ]
    renewed = await stand.until(lambda lease: lease["spec"]["renewTime"] != first["spec"]["renewTime"], LEASE)
    assert renewed["spec"]["renewTime"] >= first["spec"]["renewTime"]


async def test_the_lease_of_a_node_before_gets_its_new_owner_as_soon_as_that_is_there(make_stand: MakeStand) -> None:
    stand = make_stand(lease_s=400)
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "another"}
    body = {"metadata": {"name": "n", "ownerReferences": [owner]}, "spec": {"holderIdentity": "n"}}
    stand.server.create(LEASE.rpartition("/")[0], body)
    stand.supervisor.start_root("lease", stand.lease.run())
    await stand.until(lambda lease: lease["spec"].get("renewTime"), LEASE)
    stand.set_runtime.publish(WELL)
    stand.start()
    node = await stand.until_ready()
    await stand.until(lambda lease: lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"], LEASE)


async def test_no_lease_is_made_before_the_node_that_owns_it(make_stand: MakeStand) -> None:
    stand = make_stand()
    stand.supervisor.start_root("lease", stand.lease.run())
    await stand.state.wait_for(lambda state: state.ok_at is not None)
    assert stand.get(LEASE) is None
    stand.start()
    lease = await stand.until(lambda lease: True, LEASE)
    assert [owner["name"] for owner in lease["metadata"]["ownerReferences"]] == ["n"]


async def test_a_lease_that_another_client_wrote_or_removed_is_taken_again(make_stand: MakeStand) -> None:
    stand = make_stand()
    stand.start(lease=True)
    await stand.until(lambda lease: True, LEASE)
    stand.server.update(LEASE, lambda lease: lease["spec"].update(holderIdentity="x"))
    await stand.until(lambda lease: lease["spec"]["holderIdentity"] == "n", LEASE)
    stand.server.delete(LEASE)
    await stand.until(lambda lease: True, LEASE)


async def test_half_dead_connections_are_given_up_when_the_lease_is_not_answered(make_stand: MakeStand) -> None:
    stand = make_stand(deadline_s=0.5)
    stand.set_runtime.publish(WELL)
    stand.start(lease=True)
    await stand.until_ready()
    await stand.until(lambda lease: True, LEASE)
    await stand.server.wait_watches()
    stand.server.silence_watches()
    stand.server.update(NODE, lambda node: node["metadata"]["labels"].update(unseen="1"))
    stand.server.faults.append(ApiFault(path="/leases", hang=True, times=2))
    async with asyncio.timeout(30):
        await stand.node.wait_for(lambda view: "unseen" in view.labels)

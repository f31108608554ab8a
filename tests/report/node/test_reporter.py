"""A node reporting itself and renewing its lease, seen from the API server's side, under virtual time."""

from __future__ import annotations

import asyncio

import pytest
from report.node.stand import ABOUT, LEASE, NODE, NODES, SOON, WELL, MakeStand, ready
from support.api_server import ApiFault

from pykubelet.base.kit.values import replace
from pykubelet.base.model.evictions import NodePressure, NodeShutdown
from pykubelet.base.model.mounts import Mounts
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.report.node.model import NodePeriods
from pykubelet.report.node.reporter import PRE_KUBELET, WHOLE
from pykubelet_local_api.objects import Json

pytestmark = pytest.mark.virtual_time


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

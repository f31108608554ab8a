"""Pods with PersistentVolumeClaims on a real runtime: directories of the node as persistent volumes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.agent import NODE_NAME, Json, make_container, make_pod
from support.world import World

pytestmark = pytest.mark.integration

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
FAILED = (
    "Unable to attach or mount volumes: unmounted volumes=[store], unattached volumes=[], "
    "failed to process volumes=[store]: "
)
LOCAL = "kubernetes.io~local-volume"


def bind(claim: Json) -> None:
    claim["spec"]["volumeName"] = "pv-one"
    claim["status"] = {"phase": "Bound"}


def provide(world: World, source: Json, claim: str = "data", bound: bool = True, **spec: object) -> None:
    """Create the volume `pv-one` and the claim that is bound to it."""
    made = world.server.create(CLAIMS, {"metadata": {"name": claim}, "spec": {}, "status": {"phase": "Pending"}})
    reference = {"namespace": "default", "name": claim, "uid": made["metadata"]["uid"]}
    capacity = {"storage": "1Gi"}
    body = {"spec": {**source, "claimRef": reference, "capacity": capacity, **spec}, "status": {"phase": "Bound"}}
    world.server.create(VOLUMES, {"metadata": {"name": "pv-one"}, **body})
    if bound:
        world.server.update(f"{CLAIMS}/{claim}", bind)


def claiming_pod(name: str, script: str = "", read_only: bool = False) -> Json:
    """A pod whose only volume, `store`, is the claim `data`."""
    mounts = [{"name": "store", "mountPath": "/store"}, {"name": "store", "mountPath": "/part", "subPath": "part"}]
    volume = {"name": "store", "persistentVolumeClaim": {"claimName": "data", "readOnly": read_only}}
    container = make_container("main", script or "sleep 3600", volumeMounts=mounts[: 1 if read_only else 2])
    return make_pod(name, container, volumes=[volume])


def on_node(name: str) -> Json:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}


def has_event(world: World, text: str) -> bool:
    return any(event["message"] == text for event in world.events("FailedMount"))


async def test_a_local_volume_keeps_its_data_when_its_pods_are_gone(world: World, tmp_path: Path) -> None:
    agent, disk = world.agent, tmp_path / "disk"
    disk.mkdir()
    (disk / "old").write_text("kept")
    world.run(claiming_pod("web", "cp /store/old /store/new; id -G > /part/groups; sleep 3600"))
    missing = 'persistentvolumeclaims "data" not found'
    processing = f"{FAILED}error processing PVC default/data: "
    await agent.wait_for(
        "the Event", lambda: has_event(world, f"{processing}failed to fetch PVC from API server: {missing}")
    )
    shown = (await asyncio.to_thread(agent.ask_json, "explain", "web"))["waits"]
    assert any("PVC" in wait["detail"] for wait in shown)
    provide(world, {"local": {"path": str(disk)}}, bound=False, **on_node(NODE_NAME))
    await agent.wait_for("the Event", lambda: has_event(world, f"{processing}PVC is not bound"))
    world.server.update(f"{CLAIMS}/data", bind)
    await world.wait_ready("web")
    await agent.wait_for("the data", lambda: (disk / "part" / "groups").exists())
    assert (disk / "new").read_text() == "kept"
    assert [path.name for path in agent.root.glob(f"pods/*/volumes/{LOCAL}/*")] == ["pv-one"]
    assert [path.name for path in agent.root.glob("pods/*/volume-subpaths/*")] == ["pv-one"]
    agent.kill9()
    world.delete("web")
    agent.start()
    await world.wait_gone("web")
    await world.wait_nothing_left()
    assert sorted(path.name for path in disk.iterdir()) == ["new", "old", "part"]


async def test_a_claim_is_for_one_pod_at_a_time_if_the_volume_asks_for_it(world: World, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    provide(world, {"local": {"path": str(tmp_path / "disk")}}, accessModes=["ReadWriteOncePod"])
    world.run(claiming_pod("first"))
    await world.wait_ready("first")
    world.run(claiming_pod("second"))
    in_use = "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
    text = f'MountVolume.SetUp failed for volume "pv-one" : {in_use}'
    await world.agent.wait_for("the Event", lambda: has_event(world, text))
    world.delete("first")
    await world.wait_ready("second")
    world.delete("second")
    await world.wait_gone("first", "second")
    await world.wait_nothing_left()


async def test_a_path_of_the_node_is_claimed_read_only(world: World, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("seen")
    provide(world, {"hostPath": {"path": str(tmp_path), "type": "Directory"}})
    pod = claiming_pod("reader", "touch /store/more && exit 1; grep -q seen /store/here", read_only=True)
    pod["spec"]["restartPolicy"] = "Never"
    world.run(pod)
    await world.wait("reader", "its end", lambda p: p["status"]["phase"] == "Succeeded")
    assert not (tmp_path / "more").exists()
    world.delete("reader")
    await world.wait_gone("reader")
    await world.wait_nothing_left()
    assert (tmp_path / "here").read_text() == "seen"


async def test_a_volume_of_another_node_and_a_missing_directory_are_refused(world: World, tmp_path: Path) -> None:
    provide(world, {"local": {"path": str(tmp_path / "none")}}, **on_node("elsewhere"))
    world.run(claiming_pod("lost"))
    refused = 'MountVolume.NodeAffinity check failed for volume "pv-one" : no matching NodeSelectorTerms'
    await world.agent.wait_for("the Event", lambda: has_event(world, refused))
    world.server.update(f"{VOLUMES}/pv-one", lambda volume: volume["spec"].update(on_node(NODE_NAME)))
    world.delete("lost")
    await world.wait_gone("lost")
    world.run(claiming_pod("found"))
    missing = (
        f'MountVolume.NewMounter initialization failed for volume "pv-one" : path "{tmp_path}/none" does not exist'
    )
    await world.agent.wait_for("the Event", lambda: has_event(world, missing))
    (tmp_path / "none").mkdir()
    await world.wait_ready("found")
    world.delete("found")
    await world.wait_gone("found")
    await world.wait_nothing_left()


async def test_a_generic_ephemeral_volume_must_belong_to_the_pod(world: World, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    provide(world, {"local": {"path": str(tmp_path / "disk")}}, claim="web-store")
    template = {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "1Gi"}}}}}
    pod = claiming_pod("web")
    pod["spec"]["volumes"] = [{"name": "store", "ephemeral": template}]
    world.run(pod)
    text = f"{FAILED}PVC default/web-store was not created for pod default/web (pod is not owner)"
    await world.agent.wait_for("the Event", lambda: has_event(world, text))
    world.delete("web")
    await world.wait_gone("web")
    uid = world.run(pod)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": uid, "controller": True}
    world.server.update(f"{CLAIMS}/web-store", lambda claim: claim["metadata"].update(ownerReferences=[owner]))
    await world.wait_ready("web")
    world.delete("web")
    await world.wait_gone("web")
    await world.wait_nothing_left()

"""Static pods with persistent volumes on a node without an API server, on a real runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from csi_local.stand import control
from support.agent import Agent, Json, make_container, make_pod
from support.csi import csi_driver

from pykubelet.edges.csi import csi_pb2 as pb

pytestmark = pytest.mark.integration

WAITS = 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
PLUGIN = "kubernetes.io~host-path"


def volume(name: str, path: Path, size: str = "1Gi", kind: str = "hostPath", **spec: Any) -> Json:
    spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}, kind: {"path": str(path)}, **spec}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def claim(name: str, size: str = "1Gi", **spec: Any) -> Json:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **spec}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def claiming(name: str, script: str = "", of: str = "data") -> Json:
    container = make_container(script=script or WAITS, volumeMounts=[{"name": "store", "mountPath": "/store"}])
    return make_pod(name, container, volumes=[{"name": "store", "persistentVolumeClaim": {"claimName": of}}])


def waits(agent: Agent, pod: str) -> str:
    return " ".join(wait["detail"] for wait in agent.explain(pod)["waits"])


async def test_the_data_of_a_claim_outlive_pods_and_restarts(agent: Agent, tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir()
    large.mkdir()
    agent.put(claiming("web", f"echo one >> /store/log; {WAITS}"))
    await agent.wait_for(
        "the wait is explained", lambda: "no manifest has the PersistentVolumeClaim" in waits(agent, "web")
    )
    agent.put(claim("data"))
    await agent.wait_for("the wait is explained", lambda: "no manifest has a PersistentVolume" in waits(agent, "web"))
    agent.put(volume("large", large, "9Gi"))
    await agent.wait_running("web")
    await agent.wait_for("the data", lambda: (large / "log").exists())
    agent.put(volume("small", small))
    agent.remove("web")
    await agent.wait_gone("web")
    agent.kill9()
    agent.start()
    agent.put(claiming("web", f"echo two >> /store/log; {WAITS}"))
    await agent.wait_for("the data", lambda: (large / "log").read_text() == "one\ntwo\n")
    assert list(small.iterdir()) == []


async def test_a_local_volume_whose_manifest_goes_while_it_is_used(agent: Agent, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node"]}]}]
    affinity = {"required": {"nodeSelectorTerms": terms}}
    agent.put(volume("disk", disk, kind="local", nodeAffinity=affinity), claim("kept"))
    agent.put(claiming("user", f"echo here > /store/log; {WAITS}", "kept"))
    await agent.wait_running("user")
    agent.remove("disk")
    agent.put(claiming("late", of="kept"))
    await agent.wait_for("the wait is explained", lambda: "PVC is lost" in waits(agent, "late"))
    assert (disk / "log").read_text() == "here\n"
    (user,) = await agent.wait_running("user")
    assert user["status"]["containerStatuses"][0]["restartCount"] == 0
    agent.remove("user")
    await agent.wait_gone("user")
    agent.put(volume("disk", disk, kind="local", nodeAffinity=affinity))
    await agent.wait_running("late")
    agent.remove("late", "kept", "disk")
    await agent.wait_gone("late")
    assert (disk / "log").read_text() == "here\n"


async def test_two_volumes_of_one_name_are_reported(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    agent.put_text("one.json", text(volume("twin", tmp_path / "a")))
    agent.put_text("two.json", text(volume("twin", tmp_path / "a")))

    def reported() -> bool:
        return any(
            "is also defined in" in problem["reason"] for problem in agent.ask_json("explain", "node")["problems"]
        )

    await agent.wait_for("the problem is reported", reported)


async def test_an_inline_csi_volume_needs_no_api_server(agent: Agent) -> None:
    pod = make_pod(
        "inline",
        make_container(
            script=f"echo written > /store/file; {WAITS}", volumeMounts=[{"name": "s", "mountPath": "/store"}]
        ),
        volumes=[{"name": "s", "csi": {"driver": "local.csi.pykubelet"}}],
    )
    async with csi_driver(agent.root, agent.folder / "csi") as driver:
        agent.put(pod)
        await agent.wait_running("inline")
        (request,) = driver.requests("NodePublishVolume")
        assert request["volume_context"]["csi.storage.k8s.io/pod.name"] == "inline-node"
        agent.remove("inline")
        await agent.wait_gone("inline")
        await agent.wait_for("the volume is deleted", lambda: driver.volumes() == [])


async def test_a_persistent_volume_of_a_csi_driver_needs_no_api_server(agent: Agent, tmp_path: Path) -> None:
    body = volume("disk-1", tmp_path, storageClassName="csi")
    del body["spec"]["hostPath"]
    body["spec"]["csi"] = {"driver": "local.csi.pykubelet", "volumeHandle": "disk-1"}
    async with csi_driver(agent.root, agent.folder / "csi-2") as driver:
        capability = pb.VolumeCapability(
            mount=pb.VolumeCapability.MountVolume(),
            access_mode=pb.VolumeCapability.AccessMode(mode="SINGLE_NODE_WRITER"),
        )
        await control(driver, "CreateVolume", name="disk-1", volume_capabilities=[capability])
        agent.put(body, claim("on-csi", storageClassName="csi"))
        for life in ("first", "second"):
            agent.put(claiming(life, f"echo {life} >> /store/log; {WAITS}", "on-csi"))
            await agent.wait_running(life)
            agent.kill9()
            agent.start()
            agent.remove(life)
            await agent.wait_gone(life)
        await agent.wait_for("it is unstaged", lambda: driver.names("done")[-1] == "NodeUnstageVolume")
        assert "NodeStageVolume" in driver.names("done")
        log = driver.data / "volumes/disk-1/data/log"
        assert log.read_text() == "first\nsecond\n"
        agent.remove("disk-1", "on-csi")


def text(document: Json) -> str:
    return json.dumps(document)

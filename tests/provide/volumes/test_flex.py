"""flexVolume volumes: what a driver is asked for, and whole lives of pods with a driver that is a real program."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from provide.volumes.samples import NODE, claimed, make_pod, running
from provide.volumes.test_expansion import Cluster
from provide.volumes.test_loop import UID, Agent, set_roster, started, stop_pod, until
from support.block import block_device, bound_elsewhere
from support.flex_driver import DRIVER, NOT_SUPPORTED, FlexScript

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod, Secret, Volume
from pykubelet.base.api.storage import PersistentVolumeClaim
from pykubelet.base.model.content import Absent, Content, ContentKind, Found, ObjectKey, Present
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import FlexDriver, FlexDrivers, Plugins
from pykubelet.edges.host.fs import mounts
from pykubelet.provide.volumes.flex import calls as flex_calls
from pykubelet.provide.volumes.flex.plan import FlexPlan
from pykubelet.provide.volumes.kind import Plan, RefusedPlan, UndecidedPlan
from pykubelet.provide.volumes.metrics import OPERATIONS
from pykubelet.provide.volumes.model import Inputs
from pykubelet.provide.volumes.plan import kind_in, plan_volume, volume_keys

pytestmark = pytest.mark.virtual_time

KEY = ObjectKey(ContentKind.SECRET, "shop", "s")
DIRECTORY = "example.com~dummy"
DEVICE = f"{DRIVER}/data"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "root"
    path.mkdir()
    yield path
    for mount in mounts.mounts_below(str(tmp_path)):
        mounts.unmount(mount.target)


def flex_volume(**source: Any) -> Volume:
    return from_object(Volume, {"name": "data", "flexVolume": {"driver": DRIVER, **source}})


def usable(program: str = "/x", *, attaches: bool = False) -> Plugins:
    return Plugins(flex=FlexDrivers({DRIVER: FlexDriver(DRIVER, program, attaches=attaches)}, is_settled=True))


def secret(type_: str = DRIVER) -> Found:
    key = base64.b64encode(b"pass").decode()
    return Present(from_object(Secret, {"metadata": {"name": "s"}, "type": type_, "data": {"key": key}}))


def plan(volume: Volume, plugins: Plugins, content: Content | None = None, node: ApiNode | None = None) -> Plan:
    inputs = Inputs(node=NODE, content=content or Content(), plugins=plugins, api_node=node or ApiNode())
    return plan_volume(make_pod(volume, fs_group=2000), volume, inputs, Paths("/k", "/logs"))


def test_the_options_of_a_call() -> None:
    volume = flex_volume(fsType="xfs", readOnly=True, options={"share": "a"}, secretRef={"name": "s"})
    content = Content(True, {KEY: secret()})
    assert list(volume_keys(make_pod(volume), volume, content)) == [KEY]
    made = plan(volume, usable(), content)
    assert isinstance(made, FlexPlan)
    assert made.path == f"/k/pods/u1/volumes/{DIRECTORY}/data" and made.mounted.read_only
    assert made.options == {
        "kubernetes.io/fsType": "xfs",
        "kubernetes.io/readwrite": "ro",
        "kubernetes.io/pvOrVolumeName": "data",
        "share": "a",
    }
    assert made.pod_options == {
        "kubernetes.io/mounterArgs.FsGroup": "2000",
        "kubernetes.io/pod.name": "web",
        "kubernetes.io/pod.namespace": "shop",
        "kubernetes.io/pod.uid": "u1",
        "kubernetes.io/serviceAccount.name": "",
    }
    assert made.secrets.data == {"key": b"pass"} and "pass" not in repr(made)
    assert made.device is None and made.fs_group is None, "read-only files keep their group"


def test_a_secret_must_be_there_and_of_the_drivers_type() -> None:
    volume = flex_volume(secretRef={"name": "s"})
    head = "couldn't get secret shop/s err: "
    for found, words in (
        (secret("Opaque"), f"cannot get secret of type {DRIVER}"),
        (Absent('secrets "s" not found'), 'secrets "s" not found'),
    ):
        refused = plan(volume, usable(), Content(True, {KEY: found}))
        assert isinstance(refused, RefusedPlan) and refused.error == head + words
    awaited = plan(volume, usable(), Content(True))
    assert isinstance(awaited, UndecidedPlan) and awaited.awaited == (KEY,)


def test_a_driver_that_is_not_there() -> None:
    assert isinstance(plan(flex_volume(), Plugins()), UndecidedPlan)
    refused = plan(flex_volume(), Plugins(flex=FlexDrivers(problems={DRIVER: "no licence"}, is_settled=True)))
    assert isinstance(refused, RefusedPlan) and refused.until == f"the flexVolume driver {DRIVER} is there"
    text = 'failed to get Plugin from volumeSpec for volume "data" err=no volume plugin matched: no licence'
    assert refused.error == text


def test_a_volume_that_is_attached_waits_for_the_node() -> None:
    content, plugins = Content(True), usable(attaches=True)
    waits = plan(flex_volume(), plugins, content)
    assert isinstance(waits, UndecidedPlan) and waits.device is not None and waits.device.name == DEVICE
    reported = ApiNode(volumes_in_use=frozenset({DEVICE}))
    waits = plan(flex_volume(), plugins, content, reported)
    assert isinstance(waits, UndecidedPlan) and waits.missing == f"volume {DEVICE} is not yet in node's status"
    attached = ApiNode(volumes_in_use=frozenset({DEVICE}), volumes_attached={DEVICE: "/dev/x"})
    made = plan(flex_volume(options={"a": "b"}), plugins, content, attached)
    assert isinstance(made, FlexPlan) and made.device is not None
    assert made.device.is_attachable and made.device.device == "/dev/x"
    assert made.device.directory == f"/k/plugins/kubernetes.io/flexvolume/{DEVICE.rpartition('/')[0]}/mounts/data"
    assert made.device.options.keys() == {
        *("kubernetes.io/fsType", "kubernetes.io/readwrite", "kubernetes.io/pvOrVolumeName", "a")
    }


def test_directories_of_no_other_kind_belong_to_drivers() -> None:
    assert kind_in(DIRECTORY).name == kind_in("kubernetes.io~rbd").name == "flexVolume"
    assert kind_in("").name == ""


def mounted(path: str) -> bool:
    return mounts.is_mount_point(path)


async def test_a_life_with_a_driver_through_a_restart(root: Path, tmp_path: Path) -> None:
    driver = FlexScript(tmp_path / "exec")
    pod = make_pod(flex_volume(), fs_group=2000)
    async with started(root) as agent:
        agent.observed.publish(running())
        set_roster(agent, pod)
        agent.plugins.publish(usable(str(driver.program)))
        path = (await agent.wait_ready()).volumes["data"].host_path
        assert json.loads(Path(path, "options").read_text())["kubernetes.io/pod.name"] == "web"
        assert os.stat(path).st_gid == 2000
        assert driver.calls() == ["mount"]
    async with started(root) as agent:
        agent.plugins.publish(usable(str(driver.program)))
        set_roster(agent, pod)
        agent.observed.publish(running("u1"))
        await agent.wait_ready()
        assert mounted(path)
        agent.observed.publish(running())
        await stop_pod(agent, pod)
        await agent.wait_gone(agent.paths.pod(UID))
    assert driver.calls() == ["mount", "unmount"]


async def test_a_volume_is_mounted_once_for_the_node(root: Path, tmp_path: Path) -> None:
    driver = FlexScript(tmp_path / "exec", attaches=True)
    driver.say("mount", dict(NOT_SUPPORTED))
    driver.say("unmount", dict(NOT_SUPPORTED))
    pods = (make_pod(flex_volume()), make_pod(flex_volume(), uid="u2"))
    shared = f"{root}/plugins/kubernetes.io/flexvolume/{DRIVER}/mounts/data"
    async with started(root) as agent:
        agent.observed.publish(running())
        set_roster(agent, *pods)
        agent.plugins.publish(usable(str(driver.program), attaches=True))
        paths = [(await agent.wait_ready(uid)).volumes["data"].host_path for uid in ("u1", "u2")]
        assert mounted(shared) and all(Path(path, "device").exists() for path in paths)
        assert driver.calls().count("mountdevice") == 1
    async with started(root) as agent:  # the pods are gone
        agent.plugins.publish(usable(str(driver.program), attaches=True))
        agent.observed.publish(running())
        set_roster(agent)
        await agent.wait_gone(agent.paths.pod(UID))
        await agent.wait_gone(shared)
    assert driver.calls().count("unmountdevice") == 1
    assert not [mount.target for mount in mounts.mounts_below(str(root))]


def attached_device(driver: FlexScript, agent: Agent, path: str) -> Plugins:
    """Let the agent do everything but wait for the device; the Node reports it as attached."""
    for command in ("mount", "unmount", "mountdevice", "unmountdevice"):
        driver.say(command, dict(NOT_SUPPORTED))
    agent.content.publish(Content(True))
    attached = ApiNode(True, volumes_in_use=frozenset({DEVICE}), volumes_attached={DEVICE: path})
    agent.api_node.publish(attached)
    return usable(str(driver.program), attaches=True)


def failed_unmounts() -> float:
    return OPERATIONS.count("flexvolume", "unmount_device", "fail-unknown", "false")


async def test_a_device_that_is_in_use_elsewhere_is_not_detached(root: Path, tmp_path: Path) -> None:
    """Another mount namespace has it. An agent that was restarted knows the device from the Node."""
    driver = FlexScript(tmp_path / "exec", attaches=True)
    shared = f"{root}/plugins/kubernetes.io/flexvolume/{DRIVER}/mounts/data"

    async def end_all_pods(agent: Agent) -> None:
        before = failed_unmounts()
        agent.observed.publish(running())
        set_roster(agent)
        await agent.wait_gone(shared)
        await until(lambda: failed_unmounts() >= before + 2)
        assert agent.mounts.get().in_use == (DEVICE,)

    with block_device() as device:
        async with started(root) as agent:
            agent.observed.publish(running())
            agent.plugins.publish(attached_device(driver, agent, device))
            set_roster(agent, make_pod(flex_volume(fsType="ext4")))
            await agent.wait_ready()
            with bound_elsewhere(shared):
                await end_all_pods(agent)
            await agent.wait(lambda now: now.in_use == ())
            set_roster(agent, make_pod(flex_volume(fsType="ext4"), uid="u2"))
            await agent.wait_ready("u2")
        with bound_elsewhere(shared):
            async with started(root) as agent:
                agent.plugins.publish(attached_device(driver, agent, device))
                await end_all_pods(agent)


async def test_a_device_that_is_mounted_elsewhere_too_stays_mounted(root: Path, tmp_path: Path) -> None:
    driver, beside = FlexScript(tmp_path / "exec", attaches=True), tmp_path / "beside"
    shared = f"{root}/plugins/kubernetes.io/flexvolume/{DRIVER}/mounts/data"
    beside.mkdir()
    with block_device() as device:
        async with started(root) as agent:
            agent.observed.publish(running())
            agent.plugins.publish(attached_device(driver, agent, device))
            set_roster(agent, make_pod(flex_volume(fsType="ext4")))
            await agent.wait_ready()
            mounts.bind(shared, str(beside))
            before = failed_unmounts()
            set_roster(agent)
            await until(lambda: failed_unmounts() >= before + 2)
            assert mounted(shared) and "unmountdevice" not in driver.calls()
            mounts.unmount(str(beside))
            await agent.wait_gone(shared)
            await agent.wait(lambda now: now.in_use == ())


async def test_a_mount_of_a_driver_that_is_gone_waits_for_it(root: Path, tmp_path: Path) -> None:
    driver = FlexScript(tmp_path / "exec")
    pod = make_pod(flex_volume())
    async with started(root) as agent:
        agent.observed.publish(running())
        set_roster(agent, pod)
        agent.plugins.publish(usable(str(driver.program)))
        path = (await agent.wait_ready()).volumes["data"].host_path
        agent.plugins.publish(Plugins(flex=FlexDrivers(is_settled=True)))
        set_roster(agent)
        await until(lambda: _problem(agent).startswith(f"the flexVolume driver {DRIVER} is not there"))
        assert mounted(path)
        agent.plugins.publish(usable(str(driver.program)))
        await agent.wait_gone(agent.paths.pod(UID))
    assert driver.calls() == ["mount", "unmount"]


def _problem(agent: Agent) -> str:
    pod = agent.mounts.get().pods.get(UID)
    return " ".join(wait.detail for wait in pod.waits) if pod is not None else ""


async def test_a_driver_that_fails_is_asked_again_and_leaves_no_directory(root: Path, tmp_path: Path) -> None:
    driver = FlexScript(tmp_path / "exec")
    driver.say("mount", {"status": "Failure", "message": "no share"})
    async with started(root) as agent:
        agent.observed.publish(running())
        set_roster(agent, make_pod(flex_volume()))
        agent.plugins.publish(usable(str(driver.program)))
        await until(lambda: bool(agent.recorded.events))
        text = 'MountVolume.SetUp failed for volume "data" : mount command failed, status: Failure, reason: no share'
        assert agent.recorded.events[0].message == text
        assert not os.path.exists(f"{agent.paths.pod_volumes(UID)}/{DIRECTORY}/data")
        driver.obey("mount")
        await agent.wait_ready()


async def test_a_driver_that_hangs_delays_no_other_volume(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flex_calls, "CALL_S", 1.0)
    driver = FlexScript(tmp_path / "exec")
    driver.hang("mount")
    other = make_pod(from_object(Volume, {"name": "empty", "emptyDir": {}}), uid="u2")
    async with started(root) as agent:
        agent.observed.publish(running())
        agent.plugins.publish(usable(str(driver.program)))
        set_roster(agent, make_pod(flex_volume()))
        await until(lambda: driver.calls() == ["mount"])
        set_roster(agent, make_pod(flex_volume()), other)
        async with asyncio.timeout(2):
            await agent.wait_ready("u2")
        await until(lambda: bool(agent.recorded.events))
        assert "did not end within 1s" in agent.recorded.events[0].message
        set_roster(agent)
        monkeypatch.undo()
        await agent.wait_gone(agent.paths.pod(UID))
    assert "unmount" in driver.calls(), "it may have mounted the volume"


# Expansion


def small() -> Cluster:
    return Cluster({"capacity": {"storage": "8Mi"}}, {"volumeName": "pv"})


def grown(store: Cluster) -> tuple[Pod, Content]:
    """A pod with a claim whose volume is larger than the status of the claim states."""
    source = {"driver": DRIVER, "options": {"share": "a"}}
    volume, content = claimed(claim_name="data", flexVolume=source, capacity={"storage": "16Mi"})
    claim = Present(from_object(PersistentVolumeClaim, store.claim))
    key = ObjectKey(ContentKind.VOLUME_CLAIM, "shop", "data")
    return make_pod(volume), Content(True, {**content.objects, key: claim})


async def test_the_driver_grows_the_file_system(root: Path, tmp_path: Path) -> None:
    driver, store = FlexScript(tmp_path / "exec"), small()
    driver.say("expandfs", {"status": "Failure", "message": "no such luck"})
    pod, content = grown(store)
    async with started(root, claims=store) as agent:
        agent.content.publish(content)
        agent.observed.publish(running())
        agent.plugins.publish(usable(str(driver.program)))
        set_roster(agent, pod)
        await until(lambda: bool(agent.recorded.events))
        failed = 'MountVolume.Setup failed while expanding volume for volume "pv" : expandfs command failed'
        assert failed in agent.recorded.events[0].message and "no such luck" in agent.recorded.events[0].message
        driver.say("expandfs", {"status": "Success"})
        path = (await agent.wait_ready()).volumes["data"].host_path
        options = {
            "kubernetes.io/fsType": "",
            "kubernetes.io/pvOrVolumeName": "pv",
            "kubernetes.io/readwrite": "rw",
            "share": "a",
        }
        words = json.dumps(options, separators=(",", ":"))
        assert driver.lines()[-1] == f"expandfs {words} tmpfs {path} {16 << 20} {8 << 20}"
        assert store.status["capacity"] == {"storage": "16Mi"}
        set_roster(agent)
        await agent.wait_gone(agent.paths.pod(UID))


async def test_a_file_system_that_neither_driver_nor_node_can_grow(root: Path, tmp_path: Path) -> None:
    driver, store = FlexScript(tmp_path / "exec"), small()
    pod, content = grown(store)
    async with started(root, claims=store) as agent:
        agent.content.publish(content)
        agent.observed.publish(running())
        agent.plugins.publish(usable(str(driver.program)))
        set_roster(agent, pod)
        await until(lambda: bool(agent.recorded.events))
        assert "expandfs" in driver.calls() and "tmpfs" in agent.recorded.events[0].message
        set_roster(agent)
        await agent.wait_gone(agent.paths.pod(UID))


async def test_a_driver_without_growing_file_systems_is_not_asked(root: Path, tmp_path: Path) -> None:
    driver, store = FlexScript(tmp_path / "exec"), small()
    fixed = FlexDriver(DRIVER, str(driver.program), attaches=False, grows=False)
    pod, content = grown(store)
    async with started(root, claims=store) as agent:
        agent.content.publish(content)
        agent.observed.publish(running())
        agent.plugins.publish(Plugins(flex=FlexDrivers({DRIVER: fixed}, is_settled=True)))
        set_roster(agent, pod)
        await agent.wait_ready()
        assert driver.calls() == ["mount"] and store.status["capacity"] == {"storage": "8Mi"}
        set_roster(agent)
        await agent.wait_gone(agent.paths.pod(UID))

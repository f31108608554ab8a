"""Block volumes of CSI drivers: their plans, and their maps for pods."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from provide.volumes.csi_samples import (
    BLOCK,
    HANDLE,
    LIFE,
    NAME,
    PATHS,
    PUBLISH_SECRET,
    SECRETS,
    STAGE_SECRET,
    a_block_pod,
    begin,
    device_of_plan,
    failing,
    known,
    needs_root,
    plan,
    planned,
    secrets_of,
)
from provide.volumes.samples import NODE
from provide.volumes.test_loop import UID, Agent, set_roster, started, stop_pod, until
from support.csi import DRIVER, csi_driver, csi_folder

from pykubelet.base.api.core import PodSecurityContext
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Absent
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.plugins import Plugins
from pykubelet.edges.csi.node import Capability
from pykubelet.provide.volumes.csi.calls import publish_request, stage_request
from pykubelet.provide.volumes.csi.stage import find_devices
from pykubelet.provide.volumes.kind import RefusedPlan
from pykubelet.provide.volumes.model import (
    Inputs,
)
from pykubelet.provide.volumes.plan import plan_volume

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def top() -> Iterator[Path]:
    with csi_folder() as made:
        yield made


def test_what_the_driver_is_asked_for_a_block_volume() -> None:
    content = known(volume=BLOCK, fsGroupPolicy="File", tokenRequests=[{"audience": "vault"}], podInfoOnMount=True)
    pod = a_block_pod()
    made = planned(content, pod=replace(pod, spec=replace(pod.spec, securityContext=PodSecurityContext(fsGroup=4321))))
    top = "/k/plugins/kubernetes.io/csi/volumeDevices"
    stage = stage_request(device_of_plan(made), frozenset({Capability.STAGE_UNSTAGE_VOLUME}))
    assert stage.staging_target_path == f"{top}/staging/pv"
    assert stage.volume_capability.WhichOneof("access_type") == "block"
    publish = publish_request(made, frozenset({Capability.VOLUME_MOUNT_GROUP}))
    assert (publish.target_path, publish.staging_target_path) == (f"{top}/publish/pv/u1", f"{top}/staging/pv")
    assert publish.volume_capability.WhichOneof("access_type") == "block"
    assert "csi.storage.k8s.io/pod.uid" in publish.volume_context
    assert not any("serviceAccount.tokens" in key for key in publish.volume_context)
    assert (made.mounted.is_block, made.is_group_applied) == (True, False)
    assert made.path == "/k/pods/u1/volumeDevices/kubernetes.io~csi/pv"
    assert device_of_plan(made).directory == f"{top}/pv/dev"


def test_refusals_of_a_block_volume() -> None:
    missing = {**secrets_of(), PUBLISH_SECRET: Absent("gone"), STAGE_SECRET: Absent("gone")}
    assert plan(known(csi=SECRETS, more=missing, volume=BLOCK), pod=a_block_pod()) == RefusedPlan(
        "kubernetes.io/csi: blockMapper.publishVolumeForBlock failed to get NodePublishSecretRef vault/publish: gone",
        spec_name="pv",
        is_block=True,
    )
    missing[PUBLISH_SECRET] = secrets_of()[PUBLISH_SECRET]
    for_staging = planned(known(csi=SECRETS, more=missing, volume=BLOCK), pod=a_block_pod())
    problem = "kubernetes.io/csi: failed to get NodeStageSecretRef vault/stage: gone"
    assert device_of_plan(for_staging).problem == problem
    pod = a_block_pod()
    inputs = Inputs(node=NODE, content=known(volume=BLOCK), plugins=Plugins(is_settled=True))
    assert plan_volume(pod, pod.spec.volumes[0], inputs, PATHS) == RefusedPlan(
        "kubernetes.io/csi: blockMapper.SetUpDevice failed to get CSI client: "
        f"driver name {DRIVER} not found in the list of registered CSI drivers",
        until=f"the CSI driver {DRIVER} has registered",
        step="MountDevice",
        spec_name="pv",
        is_block=True,
    )


def block_devices(agent: Agent) -> list[Path]:
    """What is there of block volumes, but for directories that all of them share."""
    top = Path(agent.paths.plugins) / "kubernetes.io/csi/volumeDevices"
    found = [Path(folder, name) for folder, folders, files in os.walk(top) for name in (*folders, *files)]
    return [path for path in found if path.relative_to(top).parts not in (("staging",), ("publish",))]


def open_devices(top: Path) -> tuple[str, ...]:
    """The loop devices on the driver's images and on the agent's maps."""
    files = subprocess.run(["losetup", "-a"], capture_output=True, check=True, text=True).stdout
    return tuple(line for line in files.splitlines() if str(top) in line)


@needs_root
async def test_a_block_volume_is_mapped_for_two_pods_and_taken_apart(top: Path) -> None:
    pods = a_block_pod(), a_block_pod("u2")
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root") as agent:
        await driver.create(HANDLE, is_block=True)
        begin(agent, driver, known(volume=BLOCK), *pods)
        for uid in ("u1", "u2"):
            volume = (await agent.wait_ready(uid)).volumes["v"]
            assert volume.is_block and stat.S_ISBLK(Path(volume.host_path).stat().st_mode)
            assert volume.csi is not None and Path(volume.csi.path).name == uid
        data = Path(agent.paths.plugins) / "kubernetes.io/csi/volumeDevices/pv/data/vol_data.json"
        assert sorted(json.loads(data.read_text())) == [
            "attachmentID",
            "driverName",
            "nodeName",
            "specVolID",
            "volumeHandle",
        ]
        (found,) = find_devices(agent.paths)
        assert (found.name, Path(found.directory)) == (NAME, data.parents[1] / "dev")
        set_roster(agent)
        for uid in ("u1", "u2"):
            await agent.wait_gone(agent.paths.pod(PodUID(uid)))
        await until(lambda: block_devices(agent) == [])
        assert driver.names() == [LIFE[0], LIFE[1], LIFE[1], LIFE[2], LIFE[2], LIFE[3]]
        assert open_devices(top) == ()


@needs_root
@pytest.mark.parametrize("stays", [True, False])
async def test_a_restarted_agent_knows_a_block_volume(top: Path, stays: bool) -> None:
    pod = a_block_pod()
    async with csi_driver(top / "root", top / "data") as driver:
        await driver.create(HANDLE, is_block=True)
        async with started(top / "root") as agent:
            begin(agent, driver, known(volume=BLOCK), pod)
            await agent.wait_ready()
        async with started(top / "root") as agent:
            if stays:
                begin(agent, driver, known(volume=BLOCK), pod, runs=("u1",))
                await agent.wait_ready()
            begin(agent, driver, known(volume=BLOCK))
            await agent.wait_gone(agent.paths.pod(UID))
            await until(lambda: block_devices(agent) == [])
            assert open_devices(top) == ()


@needs_root
@pytest.mark.parametrize("made", ["", "dev", "data"])
async def test_empty_directories_of_a_block_volume_that_a_killed_agent_has_left_are_removed(
    top: Path, made: str
) -> None:
    block = top / "root/plugins/kubernetes.io/csi/volumeDevices"
    (block / "pv" / made).mkdir(parents=True)
    for shared in ("staging", "publish"):
        (block / shared).mkdir()
    async with started(top / "root") as agent:
        agent.plugins.publish(Plugins(is_settled=True))
        set_roster(agent)
        await until(lambda: not (block / "pv").exists())
    assert sorted(path.name for path in block.iterdir()) == ["publish", "staging"]


@needs_root
@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "ABORTED"])
async def test_a_block_volume_whose_publishing_fails(top: Path, code: str) -> None:
    pod = a_block_pod()
    failed = {"NodePublishVolume": f"fail {code} no device"}
    async with csi_driver(top / "root", top / "data", behavior=failed) as driver, started(top / "root") as agent:
        await driver.create(HANDLE, is_block=True)
        begin(agent, driver, known(volume=BLOCK), pod)
        await agent.wait(lambda now: failing(now, "desc = no device"))
        event = next(event for event in agent.recorded.events if "no device" in event.message)
        assert (event.reason, event.message[:52]) == (
            "FailedMapVolume",
            'MapVolume.MapPodDevice failed for volume "pv" : rpc ',
        )
        await stop_pod(agent, pod)
        await agent.wait_gone(agent.paths.pod(UID))
        await until(lambda: block_devices(agent) == [])
        assert (driver.names("done")) == ([LIFE[0], LIFE[3]] if code == "INVALID_ARGUMENT" else [LIFE[0], *LIFE[2:]])
        assert open_devices(top) == ()

"""Persistent CSI volumes with a driver: what is asked of it, in which order, and what is left of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from provide.volumes.csi_samples import (
    HANDLE,
    LIFE,
    NAME,
    SECRETS,
    STAGE_SECRET,
    a_pod,
    begin,
    failing,
    global_mount,
    is_unstaged,
    known,
    needs_root,
    secrets_of,
)
from provide.volumes.samples import running
from provide.volumes.test_loop import UID, set_roster, started, stop_pod, until
from support.csi import DRIVER, csi_driver, csi_folder

from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Absent
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.paths import Beneath
from pykubelet.base.model.plugins import Plugins
from pykubelet.edges.host.fs.mounts import bind, is_mount_point, unmount
from pykubelet.provide.volumes.csi.stage import find_devices
from pykubelet.provide.volumes.kind import FoundDevice

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def top() -> Iterator[Path]:
    with csi_folder() as made:
        yield made


@needs_root
async def test_a_volume_is_staged_once_for_two_pods_and_outlives_them(top: Path) -> None:
    pod, other = a_pod(), a_pod("u2")
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root") as agent:
        await driver.create(HANDLE)
        begin(agent, driver, known(), pod, other)
        volumes = [(await agent.wait_ready(uid)).volumes["v"] for uid in ("u1", "u2")]
        Path(volumes[0].host_path, "file").write_text("shared")
        assert Path(volumes[1].host_path, "file").read_text() == "shared"
        assert is_mount_point(str(global_mount(agent)))
        notes = json.loads((global_mount(agent).parent / "vol_data.json").read_text())
        assert notes == {"driverName": DRIVER, "volumeHandle": HANDLE}
        (found,) = find_devices(agent.paths)
        assert found == FoundDevice(NAME, "csi", Beneath("", str(global_mount(agent))[1:]), context="")
        pod_notes = json.loads(Path(volumes[0].host_path, "../vol_data.json").read_text())
        assert (pod_notes["volumeLifecycleMode"], pod_notes["specVolID"]) == ("Persistent", "pv")
        set_roster(agent)
        await agent.wait_gone(agent.paths.pod(UID))
        await agent.wait_gone(agent.paths.pod(PodUID("u2")))
        await is_unstaged(agent)
        assert driver.names() == [LIFE[0], LIFE[1], LIFE[1], LIFE[2], LIFE[2], LIFE[3]]
        set_roster(agent, pod)
        assert Path((await agent.wait_ready()).volumes["v"].host_path, "file").read_text() == "shared"
        await stop_pod(agent, pod)
        await is_unstaged(agent)


@needs_root
async def test_a_volume_that_is_mounted_elsewhere_too_is_not_unstaged(
    top: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pod, elsewhere = a_pod(), top / "elsewhere"
    elsewhere.mkdir()
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root") as agent:
        await driver.create(HANDLE)
        begin(agent, driver, known(), pod)
        await agent.wait_ready()
        bind(str(global_mount(agent)), str(elsewhere))
        await stop_pod(agent, pod)
        await until(lambda: "device not unstaged" in caplog.text)
        assert is_mount_point(str(global_mount(agent))) and "NodeUnstageVolume" not in driver.names()
        unmount(str(elsewhere))
        await is_unstaged(agent)


@needs_root
@pytest.mark.parametrize("moment", ["running", "gone"])
async def test_a_restarted_agent_knows_what_is_staged(top: Path, moment: str) -> None:
    pod = a_pod()
    async with csi_driver(top / "root", top / "data") as driver:
        await driver.create(HANDLE)
        async with started(top / "root") as agent:
            begin(agent, driver, known(), pod)
            path = Path((await agent.wait_ready()).volumes["v"].host_path)
            (path / "file").write_text("kept")
        async with started(top / "root") as agent:
            if moment == "running":
                begin(agent, driver, known(), pod, runs=("u1",))
                await agent.wait_ready()
                assert (path / "file").read_text() == "kept"
                begin(agent, driver, known())
            else:
                begin(agent, driver, known())
            await agent.wait_gone(agent.paths.pod(UID))
            await is_unstaged(agent)
        again = LIFE[:2] if moment == "running" else []
        assert driver.names() == [*LIFE[:2], *again, *LIFE[2:]]


@needs_root
async def test_a_driver_that_does_not_stage_is_not_asked_to(top: Path) -> None:
    pod = a_pod()
    behavior = {"hidden": [1], "NodePublishVolume": "lie"}
    async with csi_driver(top / "root", top / "data", behavior=behavior) as driver, started(top / "root") as agent:
        begin(agent, driver, known(csi=SECRETS, more={**secrets_of(), STAGE_SECRET: Absent("none")}), pod)
        await agent.wait_ready()
        assert not global_mount(agent).parent.exists()
        (request,) = driver.requests("NodePublishVolume")
        assert "staging_target_path" not in request
        await stop_pod(agent, pod)
        await agent.wait_gone(agent.paths.pod(UID))
        await until(lambda: agent.mounts.get().pods == {})
        assert driver.names() == LIFE[1:3]


@needs_root
async def test_a_final_error_of_staging_leaves_nothing(top: Path) -> None:
    pod = a_pod()
    failed = {"NodeStageVolume": "fail INVALID_ARGUMENT bad disk"}
    async with csi_driver(top / "root", top / "data", behavior=failed) as driver, started(top / "root") as agent:
        begin(agent, driver, known(), pod)
        await agent.wait(lambda now: failing(now, "rpc error: code = InvalidArgument desc = bad disk"))
        assert not global_mount(agent).parent.exists()
        event = agent.recorded.events[0]
        text = 'MountVolume.MountDevice failed for volume "pv" : rpc error: code = InvalidArgument desc = bad disk'
        assert event.message == text
        await stop_pod(agent, pod)
        await agent.wait_gone(agent.paths.pod(UID))
        assert set(driver.names()) == {"NodeStageVolume"}


@needs_root
async def test_an_uncertain_error_of_staging_is_followed_by_another_call_or_by_unstaging(top: Path) -> None:
    pod = a_pod()
    failed = {"NodeStageVolume": "fail DEADLINE_EXCEEDED slow"}
    async with csi_driver(top / "root", top / "data", behavior=failed) as driver, started(top / "root") as agent:
        await driver.create(HANDLE)
        begin(agent, driver, known(), pod)
        await agent.wait(lambda now: failing(now, "rpc error: code = DeadlineExceeded desc = slow"))
        assert (global_mount(agent).parent / "vol_data.json").exists()
        await driver.behave(NodeStageVolume="")
        await agent.wait_ready()
        await driver.behave(NodeStageVolume="fail ABORTED busy")
        await stop_pod(agent, pod)
        await is_unstaged(agent)
        assert driver.names("done") == LIFE
        set_roster(agent, pod)
        await agent.wait(lambda now: failing(now, "rpc error: code = Aborted desc = busy"))
        await stop_pod(agent, pod)
        await is_unstaged(agent)
        assert driver.names("done") == [*LIFE, "NodeUnstageVolume"]


@needs_root
@pytest.mark.parametrize("code", ["DEADLINE_EXCEEDED", "INTERNAL"])
async def test_after_a_failed_unstaging_the_next_pod_stages_again(top: Path, code: str) -> None:
    pod = a_pod()
    failed = {"NodeUnstageVolume": f"fail {code} not now"}
    async with csi_driver(top / "root", top / "data", behavior=failed) as driver, started(top / "root") as agent:
        await driver.create(HANDLE)
        begin(agent, driver, known(), pod)
        await agent.wait_ready()
        await stop_pod(agent, pod)
        await driver.wait_calls("NodeUnstageVolume", 2)
        set_roster(agent, pod)
        await agent.wait_ready()
        await driver.behave(NodeUnstageVolume="")
        await stop_pod(agent, pod)
        await is_unstaged(agent)
        assert driver.names("done") == [*LIFE[:3], *LIFE]


@needs_root
async def test_a_driver_that_comes_late_unstages_what_is_left(top: Path) -> None:
    pod = a_pod()
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root") as agent:
        await driver.create(HANDLE)
        begin(agent, driver, known(), pod)
        await agent.wait_ready()
        plugins = agent.plugins.cell.get()
        await driver.behave(NodeUnpublishVolume="hang after")
        set_roster(agent)
        await driver.wait_calls("NodeUnpublishVolume", 2)
        agent.plugins.publish(Plugins(is_settled=True))
        await driver.behave(NodeUnpublishVolume="")
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root") as agent:
        agent.observed.publish(running())
        agent.plugins.publish(Plugins(is_settled=True))
        set_roster(agent)
        await agent.wait(lambda now: failing(now, "not found in the list of registered CSI drivers"))
        agent.plugins.publish(replace(plugins, is_settled=True))
        await agent.wait_gone(agent.paths.pod(UID))
        await is_unstaged(agent)


@needs_root
@pytest.mark.parametrize("notes", ["", "{}", '{"driverName":"d","volumeHandle":"\\ud800"}', None])
async def test_a_device_whose_driver_is_unknown_is_left_alone(top: Path, notes: str | None) -> None:
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root") as agent:
        await driver.create(HANDLE)
        begin(agent, driver, known(), a_pod())
        path = Path((await agent.wait_ready()).volumes["v"].host_path)
        (path / "file").write_text("kept")
    file = global_mount(agent).parent / "vol_data.json"
    if notes is None:
        file.unlink()
    else:
        file.write_text(notes)
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root") as agent:
        begin(agent, driver, known())
        await agent.wait_gone(agent.paths.pod(UID))
        (found,) = find_devices(agent.paths)
        assert found.directory == str(global_mount(agent)) and found.name != NAME
        assert (global_mount(agent) / "file").read_text() == "kept"

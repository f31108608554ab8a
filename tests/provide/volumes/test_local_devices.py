"""local persistent volumes on block devices, with and without a file system: the whole volume manager on real loop devices."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from provide.volumes.samples import running
from provide.volumes.test_loop import Agent, set_roster, started, stop_pod, until
from support.block import block_device, clean_folder

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod
from pykubelet.base.api.storage import PersistentVolume, PersistentVolumeClaim
from pykubelet.base.model.content import Content, ContentKind, ObjectKey, Present
from pykubelet.base.model.kube_events import EventObject
from pykubelet.edges.host.devices import disk_formats
from pykubelet.edges.host.devices.block_devices import is_device_in_use, open_device
from pykubelet.edges.host.devices.loops import detach_loop, find_loops
from pykubelet.edges.host.fs import mounts
from pykubelet.provide.volumes.metrics import OPERATIONS

pytestmark = [
    pytest.mark.virtual_time,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for loop devices"),
]
MOUNTS = "plugins/kubernetes.io/local-volume/mounts/pv"
MAPS = "plugins/kubernetes.io~local-volume/volumeDevices/pv"


@pytest.fixture
def device() -> Iterator[str]:
    with block_device() as path:
        yield path


@pytest.fixture
def root(device: str) -> Iterator[Path]:
    """Emptied before the device is detached."""
    with clean_folder() as folder:
        yield folder
        for file in folder.glob(f"{MAPS}/*"):
            for loop in find_loops(str(file)):
                detach_loop(loop)


def make_pod(uid: str, *, is_block: bool = False, read_only: bool = False, **context: Any) -> Pod:
    use = {"volumeDevices": [{"name": "v", "devicePath": "/dev/v"}]}
    if not is_block:
        use = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    claim = {"claimName": "data", "readOnly": read_only}
    return from_object(
        Pod,
        {
            "metadata": {"name": f"web-{uid}", "namespace": "shop", "uid": uid},
            "spec": {
                "containers": [{"name": "main", "image": "x", **use}],
                "volumes": [{"name": "v", "persistentVolumeClaim": claim}],
                "securityContext": context,
            },
        },
    )


def content(path: str, mode: str = "Filesystem", fs_type: str = "", **spec: Any) -> Content:
    claim = {
        "metadata": {"name": "data", "namespace": "shop", "uid": "c1"},
        "spec": {"volumeName": "pv"},
        "status": {"phase": "Bound"},
    }
    local = {"path": path, **({"fsType": fs_type} if fs_type else {})}
    volume = {
        "metadata": {"name": "pv", "uid": "v1"},
        "spec": {"claimRef": {"uid": "c1"}, "local": local, "volumeMode": mode, **spec},
    }
    return Content(
        True,
        {
            ObjectKey(ContentKind.VOLUME_CLAIM, "shop", "data"): Present(from_object(PersistentVolumeClaim, claim)),
            ObjectKey(ContentKind.VOLUME, "", "pv"): Present(from_object(PersistentVolume, volume)),
        },
    )


def events(agent: Agent) -> list[str]:
    return [f"{event.reason}: {event.message}" for event in agent.recorded.events]


async def wait_event(agent: Agent, text: str) -> None:
    await until(lambda: any(text in event for event in events(agent)))


async def until_free(device: str) -> None:
    """Wait until no file system uses it: a container of another test that starts meanwhile has a copy of the mount for a moment."""
    await until(lambda: not is_device_in_use(device))


async def test_two_pods_share_the_file_system_of_a_device_through_a_restart(root: Path, device: str) -> None:
    first, second = make_pod("u1"), make_pod("u2")
    async with started(root) as agent:
        agent.content.publish(content(device))
        agent.observed.publish(running())
        set_roster(agent, first, second)
        path = Path((await agent.wait_ready("u1")).volumes["v"].host_path)
        (path / "kept").write_text("data")
        other = (await agent.wait_ready("u2")).volumes["v"].host_path
        assert Path(other, "kept").read_text() == "data"
        assert mounts.is_mount_point(f"{root}/{MOUNTS}")
    async with started(root) as agent:
        agent.content.publish(content(device))
        set_roster(agent, first)
        agent.observed.publish(running("u1"))
        await agent.wait_ready("u1")
        await agent.wait_gone(agent.paths.pod(second.metadata.uid))  # type: ignore[arg-type]
        assert (path / "kept").read_text() == "data" and is_device_in_use(device)
        agent.observed.publish(running())
        await stop_pod(agent, first)
        await agent.wait_gone(f"{root}/{MOUNTS}")
        assert events(agent) == []
    await until_free(device)
    await asyncio.to_thread(disk_formats.format_and_mount, device, str(root))
    assert (root / "kept").read_text() == "data"


async def test_a_device_of_a_pod_that_vanished_while_the_agent_was_away_is_unmounted(root: Path, device: str) -> None:
    async with started(root) as agent:
        agent.content.publish(content(device))
        agent.observed.publish(running())
        set_roster(agent, make_pod("u1"))
        await agent.wait_ready("u1")
    async with started(root) as agent:
        set_roster(agent)
        agent.observed.publish(running())
        await agent.wait_gone(f"{root}/{MOUNTS}")
        await agent.wait_gone(f"{root}/pods/u1")
    assert not mounts.mounts_below(str(root))
    await until_free(device)


async def test_another_file_system_is_reported_at_the_volume_and_the_pod(root: Path, device: str) -> None:
    await asyncio.to_thread(disk_formats.format_and_mount, device, str(root), "ext2")
    mounts.unmount(str(root))
    async with started(root) as agent:
        agent.content.publish(content(device, fs_type="xfs"))
        agent.observed.publish(running())
        set_roster(agent, make_pod("u1"))
        await wait_event(agent, "FailedMountOnFilesystemMismatch")
    (reported,) = {event.about for event in agent.recorded.events if event.reason == "FailedMountOnFilesystemMismatch"}
    assert reported == EventObject("PersistentVolume", "", "pv", "v1")
    text = (
        f'volume "pv" : the device {device} holds "ext2" and not xfs: mount failed: exit status 32\nMounting command: '
    )
    assert events(agent)[0].startswith(f"FailedMount: MountVolume.MountDevice failed for {text}mount\n")
    assert events(agent)[1].startswith(f"FailedMountOnFilesystemMismatch: MountVolume failed for {text}mount\n")


async def test_an_empty_device_is_not_formatted_for_a_reader(root: Path, device: str) -> None:
    async with started(root) as agent:
        agent.content.publish(content(device))
        agent.observed.publish(running())
        set_roster(agent, make_pod("u1", read_only=True))
        text = f"cannot mount unformatted disk {device} as we are manipulating it in read-only mode"
        await wait_event(agent, f'FailedMount: MountVolume.MountDevice failed for volume "pv" : {text}')
    assert not any(Path(device).read_bytes())


async def test_a_group_that_differs_from_that_of_a_running_pod_is_reported(root: Path, device: str) -> None:
    async with started(root) as agent:
        agent.content.publish(content(device))
        agent.observed.publish(running())
        set_roster(agent, make_pod("u1", fsGroup=1000))
        path = (await agent.wait_ready("u1")).volumes["v"].host_path
        set_roster(agent, make_pod("u1", fsGroup=1000), make_pod("u2", fsGroup=2000))
        await agent.wait_ready("u2")
        text = "The requested fsGroup is 2000, but the volume pv has GID 1000. The volume may not be shareable."
        await wait_event(agent, f"AlreadyMountedVolume: {text}")
        assert os.stat(path).st_gid == 1000


async def test_the_options_of_a_file_system_are_not_those_of_a_bind(root: Path, device: str) -> None:
    async with started(root) as agent:
        agent.content.publish(content(device, mountOptions=["noexec", "barrier=1"]))
        agent.observed.publish(running())
        set_roster(agent, make_pod("u1"))
        path = (await agent.wait_ready("u1")).volumes["v"].host_path
        assert os.statvfs(path).f_flag & os.ST_NOEXEC


async def test_a_directory_takes_the_mount_options_of_its_storage_class(root: Path, tmp_path: Path) -> None:
    """One StorageClass may serve devices and directories: what concerns file systems only has no effect on a bind."""
    (tmp_path / "data").mkdir()
    async with started(root) as agent:
        options = ["discard", "nofail", "noexec", "nosymfollow"]
        agent.content.publish(content(f"{tmp_path}/data", mountOptions=options))
        agent.observed.publish(running())
        set_roster(agent, make_pod("u1"))
        path = (await agent.wait_ready("u1")).volumes["v"].host_path
        (mounted,) = mounts.mounts_below(path)
        assert {"noexec", "nosymfollow"} <= set(mounted.options)
        set_roster(agent, make_pod("u1"), make_pod("u2", read_only=True))
        path = (await agent.wait_ready("u2")).volumes["v"].host_path
        (mounted,) = mounts.mounts_below(path)
        assert {"ro", "noexec", "nosymfollow"} <= set(mounted.options)


async def test_a_block_volume_is_mapped_for_pods_through_a_restart(root: Path, device: str) -> None:
    first, second = make_pod("u1", is_block=True), make_pod("u2", is_block=True, read_only=True)
    link = f"{root}/pods/u1/volumeDevices/kubernetes.io~local-volume/pv"
    async with started(root) as agent:
        agent.content.publish(content(device, "Block"))
        agent.observed.publish(running())
        set_roster(agent, first)
        mounted = (await agent.wait_ready("u1")).volumes["v"]
        assert mounted.is_block and mounted.host_path == link and not mounted.read_only
        done = 'SuccessfulMountVolume: MapVolume.MapPodDevice succeeded for volume "pv"'
        expected = [f'{done} globalMapPath "{root}/{MAPS}"', f'{done} volumeMapPath "{os.path.dirname(link)}"']
        await until(lambda: events(agent) == expected)
        set_roster(agent, first, second)
        assert (await agent.wait_ready("u2")).volumes["v"].read_only
    assert os.readlink(link) == device
    async with started(root) as agent:
        agent.content.publish(content(device, "Block"))
        set_roster(agent, first)
        agent.observed.publish(running("u1"))
        await agent.wait_ready("u1")
        await agent.wait_gone(f"{root}/pods/u2")
        assert [entry.name for entry in os.scandir(root / MAPS)] == ["u1"]
        assert len(find_loops(f"{root}/{MAPS}/u1")) == 1
        agent.observed.publish(running())
        await stop_pod(agent, first)
        await agent.wait_gone(f"{root}/{MAPS}")
        await agent.wait_gone(f"{root}/pods/u1")
    assert not mounts.mounts_below(str(root)) and find_loops(f"{root}/{MAPS}/u1") == []


async def test_a_block_volume_that_a_program_of_the_node_uses_is_unmapped_again_later(root: Path, device: str) -> None:
    async with started(root) as agent:
        agent.content.publish(content(device, mode="Block"))
        agent.observed.publish(running())
        set_roster(agent, make_pod("u1", is_block=True))
        await agent.wait_ready("u1")
        descriptor = open_device(device, os.O_EXCL)
        before = unmaps("fail-unknown"), unmaps("success")
        set_roster(agent)
        await until(lambda: unmaps("fail-unknown") >= before[0] + 2)
        assert unmaps("success") == before[1] and not (root / MAPS).exists()
        os.close(descriptor)
        await until(lambda: unmaps("success") == before[1] + 1)


def unmaps(result: str) -> float:
    return OPERATIONS.count("kubernetes.io/local-volume", "unmap_device", result, "false")


async def test_a_block_volume_that_cannot_be_mapped(root: Path) -> None:
    async with started(root) as agent:
        agent.content.publish(content(str(root), "Block"))
        agent.observed.publish(running())
        set_roster(agent, make_pod("u1", is_block=True))
        await wait_event(
            agent, f'FailedMapVolume: MapVolume.EvalHostSymlinks failed for volume "pv" : {root} is not a block'
        )
        set_roster(agent)
        await agent.wait_gone(f"{root}/pods/u1")
    assert not os.path.exists(f"{root}/{MAPS}")


async def test_a_block_volume_is_refused_on_the_wrong_node_and_for_other_kinds(root: Path) -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    affinity = {"required": {"nodeSelectorTerms": terms}}
    async with started(root) as agent:
        agent.content.publish(content("/dev/x", "Block", nodeAffinity=affinity))
        agent.observed.publish(running())
        set_roster(agent, make_pod("u1", is_block=True))
        text = 'FailedMount: MapVolume.NodeAffinity check failed for volume "pv" : no matching NodeSelectorTerms'
        await wait_event(agent, text)
        agent.content.publish(content("/dev/x", "Block", local=None, hostPath={"path": "/dev/x"}))
        await wait_event(agent, "volumes of kind hostPath cannot be passed to pods as block devices")

"""Local volumes that grow while a pod has them open, by the file systems' own tools. They need a kernel that allows that."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from act.volumes.samples import running
from act.volumes.test_expansion import Cluster
from act.volumes.test_local_devices import MOUNTS, content, events, make_pod
from act.volumes.test_loop import set_roster, started, until
from support.block import clean_folder

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.storage import PersistentVolumeClaim
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Content, ContentKind, ObjectKey, Present
from pykubelet.edges.host.devices.loops import attach_loop, detach_loop
from pykubelet.edges.host.fs import mounts

pytestmark = pytest.mark.vm

#: mkfs.xfs makes no smaller file system than the first.
SMALL, LARGE = 320 << 20, 640 << 20
_SET_CAPACITY = 0x4C07


@contextmanager
def growing_device(image: Path) -> Iterator[str]:
    """A loop device of `SMALL` bytes on the file, which `grow_device` makes larger."""
    with image.open("wb") as file:
        file.truncate(SMALL)
    device = attach_loop(str(image))
    try:
        yield device
    finally:
        detach_loop(device)


def grow_device(image: Path, device: str) -> None:
    os.truncate(image, LARGE)
    descriptor = os.open(device, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, _SET_CAPACITY, 0)
    finally:
        os.close(descriptor)


def known(device: str, fs_type: str, size: int, store: Cluster) -> Content:
    found = content(device, fs_type=fs_type, capacity={"storage": f"{size >> 20}Mi"})
    claim = Present(from_object(PersistentVolumeClaim, store.claim))
    return replace(found, objects={**found.objects, ObjectKey(ContentKind.VOLUME_CLAIM, "shop", "data"): claim})


def written(path: Path) -> IO[str]:
    """A new file, open for writing."""
    return path.open("w")


def size_of(path: str) -> int:
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
async def test_a_volume_grows_while_it_is_in_use(tmp_path: Path, fs_type: str) -> None:
    store = Cluster({"capacity": {"storage": str(SMALL)}}, {"volumeName": "pv"})
    image = tmp_path / "image"
    with growing_device(image) as device, clean_folder() as root:
        async with started(root, claims=store) as agent:
            agent.content.publish(known(device, fs_type, SMALL, store))
            agent.observed.publish(running())
            set_roster(agent, make_pod("u1"))
            path = (await agent.wait_ready("u1")).volumes["v"].host_path
            (mounted,) = mounts.mounts_below(path)
            assert mounted.fs_type == fs_type and size_of(path) <= SMALL
            with written(Path(path, "kept")) as file:
                grow_device(image, device)
                store.claim["metadata"]["resourceVersion"] = "2"
                agent.content.publish(known(device, fs_type, LARGE, store))
                await until(lambda: store.status["capacity"] == {"storage": "640Mi"})
                file.write("written while it grew")
            assert size_of(path) > LARGE * 3 // 4, events(agent)
            assert mounts.mounts_below(path) == (mounted,), "it was not mounted again"
            assert Path(path, "kept").read_text() == "written while it grew"
            done = 'FileSystemResizeSuccessful: MountVolume.NodeExpandVolume succeeded for volume "pv"'
            assert [one for one in events(agent) if one.startswith(done)]
            set_roster(agent)
            await agent.wait_gone(agent.paths.pods + "/u1")
            await until(lambda: not (root / MOUNTS).exists())


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
async def test_a_volume_that_was_grown_elsewhere_grows_when_it_is_mounted(tmp_path: Path, fs_type: str) -> None:
    store = Cluster({"capacity": {"storage": str(SMALL)}}, {"volumeName": "pv"})
    image = tmp_path / "image"
    with growing_device(image) as device, clean_folder() as root:
        async with started(root, claims=store) as agent:
            agent.content.publish(known(device, fs_type, SMALL, store))
            agent.observed.publish(running())
            set_roster(agent, make_pod("u1"))
            await agent.wait_ready("u1")
            set_roster(agent)
            await until(lambda: not (root / MOUNTS).exists())
            grow_device(image, device)
            agent.content.publish(known(device, fs_type, LARGE, store))
            set_roster(agent, make_pod("u2"))
            path = (await agent.wait_ready("u2")).volumes["v"].host_path
            assert size_of(path) > LARGE * 3 // 4 and store.status["capacity"] == {"storage": "640Mi"}
            set_roster(agent)
            await until(lambda: not (root / MOUNTS).exists())

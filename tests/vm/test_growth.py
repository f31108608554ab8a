"""Local volumes that grow while a pod has them open, by the file systems' own tools. They need a kernel that allows that."""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from provide.volumes.samples import running
from provide.volumes.test_expansion import Cluster
from provide.volumes.test_local_devices import MOUNTS, content, events, make_pod
from provide.volumes.test_loop import Agent, set_roster, started, until
from support.block import clean_folder, file_system_size, written

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


@dataclass(frozen=True)
class Growing:
    """A volume manager with a local volume on a device that can be made larger. `store`: the API server's claim."""

    agent: Agent
    root: Path
    store: Cluster
    image: Path
    device: str
    fs_type: str

    def publish(self, size: int) -> None:
        """The PersistentVolume has this size in bytes."""
        self.agent.content.publish(known(self.device, self.fs_type, size, self.store))

    async def start(self, uid: str) -> str:
        """Run a pod with the volume. Returns where it is mounted."""
        set_roster(self.agent, make_pod(uid))
        return (await self.agent.wait_ready(uid)).volumes["v"].host_path

    async def end(self) -> None:
        """End all pods."""
        set_roster(self.agent)
        await until(lambda: not (self.root / MOUNTS).exists())


@asynccontextmanager
async def growing(folder: Path, fs_type: str) -> AsyncIterator[Growing]:
    store = Cluster({"capacity": {"storage": str(SMALL)}}, {"volumeName": "pv"})
    image = folder / "image"
    with growing_device(image) as device, clean_folder() as root:
        async with started(root, claims=store) as agent:
            made = Growing(agent, root, store, image, device, fs_type)
            made.publish(SMALL)
            agent.observed.publish(running())
            yield made
            await made.end()


FS_TYPES = pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])


@FS_TYPES
async def test_a_volume_grows_while_it_is_in_use(tmp_path: Path, fs_type: str) -> None:
    async with growing(tmp_path, fs_type) as growth:
        path = await growth.start("u1")
        (mounted,) = mounts.mounts_below(path)
        assert mounted.fs_type == fs_type and file_system_size(path) <= SMALL
        with written(Path(path, "kept")) as file:
            grow_device(growth.image, growth.device)
            growth.store.claim["metadata"]["resourceVersion"] = "2"
            growth.publish(LARGE)
            await until(lambda: growth.store.status["capacity"] == {"storage": "640Mi"})
            file.write("written while it grew")
        assert file_system_size(path) > LARGE * 3 // 4, events(growth.agent)
        assert mounts.mounts_below(path) == (mounted,), "it was not mounted again"
        assert Path(path, "kept").read_text() == "written while it grew"
        done = 'FileSystemResizeSuccessful: MountVolume.NodeExpandVolume succeeded for volume "pv"'
        assert [event for event in events(growth.agent) if event.startswith(done)]
        await growth.end()
        await growth.agent.wait_gone(growth.agent.paths.pods + "/u1")


@FS_TYPES
async def test_a_volume_that_was_grown_elsewhere_grows_when_it_is_mounted(tmp_path: Path, fs_type: str) -> None:
    async with growing(tmp_path, fs_type) as growth:
        await growth.start("u1")
        await growth.end()
        grow_device(growth.image, growth.device)
        growth.publish(LARGE)
        path = await growth.start("u2")
        assert file_system_size(path) > LARGE * 3 // 4 and growth.store.status["capacity"] == {"storage": "640Mi"}

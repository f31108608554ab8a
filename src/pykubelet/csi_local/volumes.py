"""Creates, grows, mounts and deletes the driver's volumes. Each operation may be repeated, and interrupted at any point."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.values import replace
from pykubelet.csi_local.rpc import blocking, run_tool
from pykubelet.csi_local.store import Backing, LocalVolume, VolumeStore
from pykubelet.edges.host.devices.loops import find_loops
from pykubelet.edges.host.fs import files, mounts
from pykubelet.net.grpc.status import Code, RpcError

#: The smallest image that gets a file system.
MIN_IMAGE_BYTES = 1 << 20


class LocalVolumes:
    """The volumes below `directory`, and what is done with them. One operation for each volume at a time."""

    def __init__(self, directory: str) -> None:
        self._store = VolumeStore(directory)
        self._flight = SingleFlight("csi-local")
        self._busy: set[str] = set()

    @asynccontextmanager
    async def alone(self, volume_id: str) -> AsyncIterator[None]:
        """Keep other operations away from the volume. Raises RpcError (ABORTED) if there is one."""
        if volume_id in self._busy:
            raise RpcError(Code.ABORTED, f"an operation on volume {volume_id} is under way")
        self._busy.add(volume_id)
        try:
            yield
        finally:
            self._busy.discard(volume_id)

    async def get(self, volume_id: str) -> LocalVolume:
        """The volume. Raises RpcError (NOT_FOUND)."""
        return await blocking(self._flight, volume_id, lambda: self._store.get(volume_id))

    async def create(self, wanted: LocalVolume) -> LocalVolume:
        """The volume, created if it is missing. Raises RpcError (ALREADY_EXISTS) if it exists with other properties."""
        if wanted.backing is Backing.IMAGE and wanted.capacity_bytes < MIN_IMAGE_BYTES:
            raise RpcError(Code.OUT_OF_RANGE, f"an image needs a size of at least {MIN_IMAGE_BYTES} bytes")
        found = await blocking(self._flight, wanted.id, lambda: self._store.find(wanted.id))
        if found is not None:
            is_large = found.capacity_bytes >= wanted.capacity_bytes
            if (found.backing, found.is_ephemeral) != (wanted.backing, wanted.is_ephemeral) or not is_large:
                raise RpcError(Code.ALREADY_EXISTS, f"volume {wanted.id} exists with another size or backing")
            return found
        await blocking(self._flight, wanted.id, lambda: self._store.prepare(wanted))
        if wanted.backing is Backing.IMAGE:
            await run_tool("mkfs.ext4", "-q", "-F", "-m0", self._store.source(wanted))
        await blocking(self._flight, wanted.id, lambda: self._store.save(wanted))
        return wanted

    async def delete(self, volume_id: str) -> None:
        """Delete the volume. A missing one is no error. Raises RpcError while it is in use."""
        await blocking(self._flight, volume_id, lambda: self._store.delete(volume_id))

    async def set_capacity(self, volume_id: str, capacity_bytes: int) -> LocalVolume:
        """Give the volume a capacity that is not below the present one. Its file system grows with `grow` or `mount`."""
        volume = await self.get(volume_id)
        if capacity_bytes > volume.capacity_bytes:
            volume = replace(volume, capacity_bytes=capacity_bytes)
            wanted = volume
            await blocking(self._flight, volume_id, lambda: self._store.save(wanted))
        return volume

    async def grow(self, volume: LocalVolume) -> None:
        """Make the file system of a mounted image as large as its capacity."""
        if volume.backing is not Backing.IMAGE:
            return
        await blocking(self._flight, volume.id, lambda: self._store.resize_image(volume))
        for device in await blocking(self._flight, volume.id, lambda: find_loops(self._store.source(volume))):
            await run_tool("losetup", "-c", device)
            await run_tool("resize2fs", device)

    async def mount(self, volume: LocalVolume, target: str, options: tuple[str, ...] = ()) -> None:
        """Mount the volume at `target`, unless something is mounted there. An image that is to be larger grows before."""
        source = self._store.source(volume)

        def bind() -> bool:
            files.make_dirs(target, 0o750)
            if mounts.is_mount_point(target):
                return True
            if volume.backing is Backing.DIRECTORY:
                mounts.bind(source, target)
                return True
            return False

        if await blocking(self._flight, volume.id, bind):
            return
        grew = await blocking(self._flight, volume.id, lambda: self._store.resize_image(volume))
        if grew:
            await run_tool("e2fsck", "-f", "-p", source)
            await run_tool("resize2fs", source)
        await run_tool("mount", "-o", ",".join(("loop", *options)), source, target)

    async def bind(self, volume_id: str, source: str, target: str, read_only: bool) -> None:
        """Bind the staged volume at `target`, or make an earlier bind read-only."""

        def bind() -> None:
            files.make_dirs(target, 0o750)
            if not mounts.is_mount_point(target):
                mounts.bind(source, target)
            if read_only:
                mounts.remount_read_only(target)

        await blocking(self._flight, volume_id, bind)

    async def make_read_only(self, volume_id: str, target: str) -> None:
        """Make the mount at `target` read-only."""
        await blocking(self._flight, volume_id, lambda: mounts.remount_read_only(target))

    async def unmount(self, volume_id: str, target: str) -> None:
        """Unmount whatever is mounted at `target`. Nothing there is no error."""

        def unmount() -> None:
            while mounts.unmount(target):
                continue

        await blocking(self._flight, volume_id, unmount)

    async def remove_target(self, volume_id: str, target: str) -> None:
        """Remove the empty directory at `target`."""
        await blocking(self._flight, volume_id, lambda: files.remove_dir(target))

    async def is_mounted(self, volume_id: str, target: str) -> bool:
        """Whether something is mounted at `target`."""
        return await blocking(self._flight, volume_id, lambda: mounts.is_mount_point(target))

    async def usage(self, volume_id: str, path: str) -> mounts.FsUsage:
        """How full the file system at `path` is. Raises RpcError (NOT_FOUND) if nothing is mounted there."""

        def read() -> mounts.FsUsage:
            if not mounts.is_mount_point(path):
                raise RpcError(Code.NOT_FOUND, f"volume {volume_id} is not mounted at {path}")
            return mounts.read_fs_usage(path)

        return await blocking(self._flight, volume_id, read)

    async def available_bytes(self) -> int:
        """The bytes that are free for new volumes."""

        def read() -> int:
            files.make_dirs(self._store.directory, 0o750)
            return mounts.read_fs_usage(self._store.directory).available_bytes

        return await blocking(self._flight, "", read)

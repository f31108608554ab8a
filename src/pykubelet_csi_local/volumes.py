"""Creates, grows, mounts and deletes the driver's volumes. Each operation may be repeated, and interrupted at any point."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.values import replace
from pykubelet.edges.host.devices.block_devices import device_size, is_block_device
from pykubelet.edges.host.devices.loops import attach_loop, detach_loop, find_loops
from pykubelet.edges.host.fs import files, mounts
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_csi_local.backing import Backing, LocalVolume, check_size
from pykubelet_csi_local.rpc import blocking, run_tool
from pykubelet_csi_local.store import VolumeStore

#: A file system whose tables and journal take place when they are used; without this, one of 15 TiB takes 1.2 GiB at once.
MAKE_EXT4 = ("mkfs.ext4", "-q", "-F", "-m0", "-E", "lazy_itable_init=1,lazy_journal_init=1")
#: Above this size, mkfs.ext4 makes journals that are larger than this many MiB, up to 1 GiB.
LARGE_IMAGE_BYTES, JOURNAL_MIB = 16 << 30, 64
#: Exit codes of e2fsck after which the file system is whole: nothing was wrong, or all errors were corrected.
WHOLE = (0, 1)


class LocalVolumes:
    """The volumes below `directory`, and what is done with them. One operation for each volume at a time."""

    def __init__(self, directory: str, quotas: VolumeQuotas | None = None) -> None:
        self._store = VolumeStore(directory, quotas or VolumeQuotas(is_on=True))
        self._flight = SingleFlight("csi-local")
        self._busy: set[str] = set()
        self._reserving = asyncio.Lock()
        self._reserved: dict[str, LocalVolume] = {}

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
        """The volume, created if it is missing.

        Raises RpcError: it exists with other properties (ALREADY_EXISTS), or is ephemeral, and there is no place for it
        (RESOURCE_EXHAUSTED), or nothing would limit it (FAILED_PRECONDITION).
        """
        check_size(wanted)
        found = await blocking(self._flight, wanted.id, lambda: self._store.find(wanted.id))
        if found is not None:
            is_large = found.capacity_bytes >= wanted.capacity_bytes
            if replace(found, capacity_bytes=wanted.capacity_bytes) != wanted or not is_large:
                raise RpcError(Code.ALREADY_EXISTS, f"volume {wanted.id} exists with another size or backing")
            return found
        async with self._place_for(wanted):
            await blocking(self._flight, wanted.id, lambda: self._store.prepare(wanted))
            if wanted.backing is Backing.IMAGE and not wanted.is_block:
                journal = ("-J", f"size={JOURNAL_MIB}") if wanted.capacity_bytes > LARGE_IMAGE_BYTES else ()
                await run_tool(*MAKE_EXT4, *journal, "--", self._store.source(wanted))
            await blocking(self._flight, wanted.id, lambda: self._store.save(wanted))
        return wanted

    @asynccontextmanager
    async def _place_for(self, wanted: LocalVolume) -> AsyncIterator[None]:
        """Keep a place for an ephemeral volume while it is created. Raises RpcError (RESOURCE_EXHAUSTED) if there is none."""
        if not wanted.is_ephemeral:
            yield
            return
        async with self._reserving:
            others = tuple(self._reserved.values())
            await blocking(self._flight, wanted.id, lambda: self._store.check_space(wanted, others))
            self._reserved[wanted.id] = wanted
        try:
            yield
        finally:
            del self._reserved[wanted.id]

    async def delete(self, volume_id: str) -> None:
        """Delete the volume. A missing one is no error. Raises RpcError while it is in use."""
        await blocking(self._flight, volume_id, lambda: self._store.delete(volume_id))

    async def list(self) -> list[LocalVolume]:
        """All volumes, sorted by id."""
        return await blocking(self._flight, "", self._store.list)

    async def set_capacity(self, volume_id: str, capacity_bytes: int) -> LocalVolume:
        """Give the volume a capacity that is not below the present one. Its file system grows with `grow` or `mount`.

        The limit of a directory is set again in any case: an earlier call may have been interrupted.
        """
        volume = await self.get(volume_id)
        if capacity_bytes > volume.capacity_bytes:
            volume = replace(volume, capacity_bytes=capacity_bytes)
            check_size(volume)
            wanted = volume
            await blocking(self._flight, volume_id, lambda: self._store.save(wanted))
        if volume.backing is Backing.DIRECTORY and volume.capacity_bytes:
            limited = volume
            await blocking(self._flight, volume_id, lambda: self._store.limit(limited))
        return volume

    async def grow(self, volume: LocalVolume) -> None:
        """Make the device and the file system of an image in use as large as its capacity.

        Raises RpcError (FAILED_PRECONDITION) if the kernel grows no file system in use.
        """
        if volume.backing is not Backing.IMAGE:
            return
        await blocking(self._flight, volume.id, lambda: self._store.resize_image(volume))
        for device in await blocking(self._flight, volume.id, lambda: find_loops(self._store.source(volume))):
            await run_tool("losetup", "-c", device)
            if volume.is_block:
                continue
            try:
                await run_tool("resize2fs", device)
            except HostError as error:
                text = (
                    f"the file system cannot grow while it is in use: {error}; it grows when the volume is staged next"
                )
                raise RpcError(Code.FAILED_PRECONDITION, text) from error

    async def mount(self, volume: LocalVolume, target: str, options: tuple[str, ...] = ()) -> None:
        """Mount the volume at `target`, unless something is mounted there. An image that is to be larger grows before.

        Raises RpcError (FAILED_PRECONDITION) if the image is in use elsewhere: two mounts of one image would damage it.
        """
        source = self._store.source(volume)

        def bind() -> bool:
            files.make_dirs(target, 0o750)
            is_mounted = mounts.is_mount_point(target)
            if volume.backing is Backing.DIRECTORY and is_mounted:
                mounts.apply_bind_options(target, options)  # an earlier call may have been interrupted before this
            elif volume.backing is Backing.DIRECTORY:
                mounts.bind_with_options(source, target, options)
            return is_mounted or volume.backing is Backing.DIRECTORY

        if await blocking(self._flight, volume.id, bind):
            return
        await self._refuse_in_use(volume)
        await blocking(self._flight, volume.id, lambda: self._store.resize_image(volume))
        is_small = await blocking(self._flight, volume.id, lambda: self._store.is_image_unused(volume))
        await run_tool("e2fsck", *(("-f",) if is_small else ()), "-p", source, good=WHOLE)
        if is_small:
            await run_tool("resize2fs", source)
        await run_tool("mount", "-o", ",".join(("loop", *options)), "--", source, target)

    async def _refuse_in_use(self, volume: LocalVolume) -> None:
        found = await blocking(self._flight, volume.id, lambda: find_loops(self._store.source(volume)))
        if found:
            raise RpcError(Code.FAILED_PRECONDITION, f"volume {volume.id} is already in use as {found[0]}")

    async def attach(self, volume: LocalVolume) -> str:
        """Attach the image of a block volume to a loop device, unless it is, and return the device."""

        def attach() -> str:
            self._store.resize_image(volume)
            source = self._store.source(volume)
            found = find_loops(source)
            return found[0] if found else attach_loop(source)

        return await blocking(self._flight, volume.id, attach)

    async def detach(self, volume_id: str) -> None:
        """Detach the image of a block volume. One that is in use is detached by its last user."""

        def detach() -> None:
            for device in find_loops(f"{self._store.path(volume_id)}/image"):
                detach_loop(device)

        await blocking(self._flight, volume_id, detach)

    async def bind_device(self, volume: LocalVolume, target: str, read_only: bool) -> None:
        """Bind the device of an attached block volume on the file `target`, which is created.

        A read-only mount does not keep a device from being written to: the container gets a device that it can only read.
        Raises RpcError: the device is not attached, or the target is read-only and is wanted writable (ALREADY_EXISTS).
        """

        def bind() -> None:
            found = find_loops(self._store.source(volume))
            if not found:
                raise RpcError(Code.FAILED_PRECONDITION, f"volume {volume.id} is not staged")
            files.make_dirs(os.path.dirname(target), 0o750)
            if files.stat_file(target) is None:
                files.create_file(target, 0o600)
            _bind(volume.id, found[0], target, read_only)

        await blocking(self._flight, volume.id, bind)

    async def bind(self, volume_id: str, source: str, target: str, read_only: bool) -> None:
        """Bind the staged volume at `target`, or make an earlier bind read-only.

        Raises RpcError (ALREADY_EXISTS) if the target is read-only and is wanted writable.
        """

        def bind() -> None:
            files.make_dirs(target, 0o750)
            _bind(volume_id, source, target, read_only)

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
        """Remove the empty directory, or the file of a block volume, at `target`."""

        def remove() -> None:
            found = files.stat_file(target)
            if found is not None and found.is_file:
                files.remove_file(target)
            elif found is not None:
                files.remove_dir(target)

        await blocking(self._flight, volume_id, remove)

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

    async def device_bytes(self, volume_id: str, path: str) -> int:
        """The size of the device at `path`. Raises RpcError (NOT_FOUND) if there is none."""

        def read() -> int:
            if not is_block_device(path):
                raise RpcError(Code.NOT_FOUND, f"volume {volume_id} is not published at {path}")
            return device_size(path)

        return await blocking(self._flight, volume_id, read)

    async def available_bytes(self) -> int:
        """The bytes that are free for new volumes."""

        def read() -> int:
            files.make_dirs(self._store.directory, 0o750)
            return mounts.read_fs_usage(self._store.directory).available_bytes

        return await blocking(self._flight, "", read)


def _bind(volume_id: str, source: str, target: str, read_only: bool) -> None:
    """Bind `source` at `target`, or make an earlier bind read-only. Raises RpcError (ALREADY_EXISTS) if it is read-only and not to be."""
    if not mounts.is_mount_point(target):
        mounts.bind(source, target)
    elif not read_only and _is_read_only(target) and not _is_read_only(source):
        raise RpcError(Code.ALREADY_EXISTS, f"volume {volume_id} is published read-only at {target}")
    if read_only:
        mounts.remount_read_only(target)


def _is_read_only(target: str) -> bool:
    return any(mount.is_read_only for mount in mounts.read_mounts() if mount.target == target)

"""The volumes of the driver on disk: one directory each, with `volume.json` and either `data` or `image`. Blocks.

A volume exists once its `volume.json` does. What an interrupted creation or deletion has left is removed by the next one of
the same volume. Nothing is deleted while it is mounted anywhere.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection

from pykubelet.edges.host.devices.loops import find_loops, wait_let_go
from pykubelet.edges.host.fs import files, trees
from pykubelet.edges.host.fs.errors import HostError, Translating
from pykubelet.edges.host.fs.mounts import mounts_of, read_fs_usage, read_mounts
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_csi_local import ext4
from pykubelet_csi_local.backing import BACKING, Backing, LocalVolume
from pykubelet_csi_local.ephemeral import KEPT_FREE, missing_bytes

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
MAX_NOTES = 64 << 10


class VolumeStore:
    """The volumes below `directory`. `quotas`: they limit directories where the file system has project quotas."""

    def __init__(self, directory: str, quotas: VolumeQuotas) -> None:
        self.directory = directory
        self._quotas = quotas

    def path(self, volume_id: str) -> str:
        """The directory of a volume. Raises RpcError for an id that the driver does not make."""
        if not _ID.fullmatch(volume_id):
            raise RpcError(Code.NOT_FOUND, f"volume {volume_id!r} does not exist: its id is not one of this driver")
        return f"{self.directory}/{volume_id}"

    def source(self, volume: LocalVolume) -> str:
        """The directory or image with the data."""
        return f"{self.path(volume.id)}/{'data' if volume.backing is Backing.DIRECTORY else 'image'}"

    def find(self, volume_id: str) -> LocalVolume | None:
        """The volume; None if it does not exist. Raises RpcError if its notes cannot be read."""
        path = f"{self.path(volume_id)}/volume.json"
        if files.stat_file(path) is None:
            return None
        try:
            notes = json.loads(files.read_text(path, MAX_NOTES))
            return _read_notes(volume_id, notes)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RpcError(Code.INTERNAL, f"{path} is damaged: {error}; remove it if the data can go") from error

    def get(self, volume_id: str) -> LocalVolume:
        """The volume. Raises RpcError (NOT_FOUND)."""
        found = self.find(volume_id)
        if found is None:
            raise RpcError(Code.NOT_FOUND, f"volume {volume_id} does not exist")
        return found

    def list(self) -> list[LocalVolume]:
        """All volumes, sorted by id. Those that cannot be read are left out."""
        found = []
        for name in sorted(files.names_in(self.directory)):
            try:
                volume = self.find(name)
            except (RpcError, HostError):
                continue
            if volume is not None:
                found.append(volume)
        return found

    def limit(self, volume: LocalVolume) -> bool:
        """Limit a directory to its capacity. Returns whether the file system can do that."""
        return self._quotas.limit(self.source(volume), volume.capacity_bytes)

    def is_image_unused(self, volume: LocalVolume) -> bool:
        """Whether the file system of an image is smaller than the image, because an earlier growth was interrupted."""
        source = self.source(volume)
        with Translating("read", source), open(source, "rb") as image:
            image.seek(ext4.OFFSET)
            return ext4.is_smaller(image.read(ext4.LENGTH), os.stat(source).st_size)

    def check_space(self, wanted: LocalVolume, others: Collection[LocalVolume]) -> None:
        """Raise RpcError (RESOURCE_EXHAUSTED) if the disk has no place for an ephemeral volume.

        What other ephemeral volumes may still write is not free. `others`: those that are being created.
        """
        files.make_dirs(self.directory, 0o750)
        usage = read_fs_usage(self.directory)
        known = {
            volume.id: volume for volume in (*self.list(), *others) if volume.is_ephemeral and volume.id != wanted.id
        }
        promised = sum(self._unwritten_bytes(volume) for volume in known.values())
        missing = missing_bytes(wanted.capacity_bytes, usage.available_bytes, usage.capacity_bytes, promised)
        if missing > 0:
            text = f"{missing} bytes are missing for an ephemeral volume of {wanted.capacity_bytes} bytes: "
            text += f"{usage.available_bytes} of {usage.capacity_bytes} bytes are available, of which "
            text += f"{KEPT_FREE:.0%} stay free and {promised} are promised to other ephemeral volumes"
            raise RpcError(Code.RESOURCE_EXHAUSTED, text)

    def _unwritten_bytes(self, volume: LocalVolume) -> int:
        """How much an ephemeral volume may still take from the disk."""
        source = self.source(volume)
        if volume.backing is Backing.DIRECTORY:
            used = (self._quotas.read_use(source) or (0, 0))[0]
        else:
            with Translating("stat", source):
                used = os.stat(source).st_blocks * files.STAT_BLOCK if os.path.lexists(source) else 0
        return max(0, volume.capacity_bytes - used)

    def prepare(self, volume: LocalVolume) -> None:
        """Make the directory, or the empty image, of a new volume.

        Raises RpcError (FAILED_PRECONDITION) for an ephemeral directory that the file system does not limit.
        """
        self._refuse_mounted(self.path(volume.id))
        trees.remove_tree(self.path(volume.id))
        files.make_dirs(self.path(volume.id), 0o750)
        source = self.source(volume)
        if volume.backing is Backing.DIRECTORY:
            files.make_dirs(source, 0o777)
            is_limited = volume.capacity_bytes > 0 and self.limit(volume)
            if volume.is_ephemeral and not is_limited:
                trees.remove_tree(self.path(volume.id))
                text = f"{BACKING}: a directory of a pod's own needs a file system with project quotas: use {Backing.IMAGE}"
                raise RpcError(Code.FAILED_PRECONDITION, text)
        else:
            files.create_file(source, 0o600)
            self.resize_image(volume)

    def resize_image(self, volume: LocalVolume) -> bool:
        """Make the image as large as the volume's capacity; it never shrinks. Returns whether it grew."""
        source = self.source(volume)
        with Translating("truncate", source):
            if os.stat(source).st_size >= volume.capacity_bytes:
                return False
            os.truncate(source, volume.capacity_bytes)
        return True

    def save(self, volume: LocalVolume) -> None:
        """Write the volume's notes: from now on it exists."""
        notes = {
            "backing": str(volume.backing),
            "capacityBytes": volume.capacity_bytes,
            "ephemeral": volume.is_ephemeral,
            "block": volume.is_block,
        }
        data = json.dumps(notes, sort_keys=True).encode() + b"\n"
        files.write_atomic(f"{self.path(volume.id)}/volume.json", data, 0o600, durable=True)

    def delete(self, volume_id: str) -> None:
        """Delete the volume with its data. A missing one is no error. Raises RpcError while it is in use."""
        path = self.path(volume_id)
        if files.stat_file(path) is None:
            return
        self._refuse_mounted(path)
        files.remove_file(f"{path}/volume.json")
        trees.remove_tree(path)
        self._quotas.release(f"{path}/data")

    def _refuse_mounted(self, path: str) -> None:
        """Raise RpcError if the directory, the image, or anything in them is mounted or attached."""
        if files.stat_file(path) is None:
            return
        image = f"{path}/image"
        loops = find_loops(image)
        users = [mount.target for mount in (*mounts_of(path), *(m for m in read_mounts() if m.source in loops))]
        users = users or (wait_let_go(image) if loops else [])
        if users:
            raise RpcError(Code.FAILED_PRECONDITION, f"the volume is still in use at {users[0]}")


def _read_notes(volume_id: str, notes: object) -> LocalVolume:
    """The volume that `volume.json` describes. Raises ValueError, KeyError, TypeError."""
    if not isinstance(notes, dict):
        raise TypeError("it has no object")
    backing, capacity = Backing(notes["backing"]), notes["capacityBytes"]
    if not isinstance(capacity, int) or not 0 <= capacity < 1 << 63:
        raise ValueError("capacityBytes is no size")
    return LocalVolume(volume_id, backing, capacity, notes["ephemeral"] is True, notes.get("block") is True)

"""The volumes of the driver on disk: one directory each, with `volume.json` and either `data` or `image`. Blocks.

A volume exists once its `volume.json` does. What an interrupted creation or deletion has left is removed by the next one of
the same volume. Nothing is deleted while it is mounted anywhere.
"""

from __future__ import annotations

import json
import os
import re
from enum import StrEnum

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.devices.loops import find_loops
from pykubelet.edges.host.fs import files, trees
from pykubelet.edges.host.fs.errors import translating
from pykubelet.edges.host.fs.mounts import mounts_of
from pykubelet.net.grpc.status import Code, RpcError

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
MAX_NOTES = 64 << 10


class Backing(StrEnum):
    """Where the data are: in a directory of the machine's file system, or in an image file with a file system of its own."""

    DIRECTORY = "directory"
    IMAGE = "image"


class LocalVolume(Value):
    """One volume. `capacity_bytes`: 0 for no limit; only an image has one. `is_ephemeral`: it ends with its pod."""

    id: str
    backing: Backing
    capacity_bytes: int = 0
    is_ephemeral: bool = False


class VolumeStore:
    """The volumes below `directory`."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

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
            return LocalVolume(
                volume_id, Backing(notes["backing"]), int(notes["capacityBytes"]), bool(notes["ephemeral"])
            )
        except (ValueError, KeyError, TypeError) as error:
            raise RpcError(Code.INTERNAL, f"{path} is damaged: {error}; remove it if the data can go") from error

    def get(self, volume_id: str) -> LocalVolume:
        """The volume. Raises RpcError (NOT_FOUND)."""
        found = self.find(volume_id)
        if found is None:
            raise RpcError(Code.NOT_FOUND, f"volume {volume_id} does not exist")
        return found

    def prepare(self, volume: LocalVolume) -> None:
        """Make the directory, or the empty image, of a new volume."""
        self._refuse_mounted(self.path(volume.id))
        trees.remove_tree(self.path(volume.id))
        files.make_dirs(self.path(volume.id), 0o750)
        source = self.source(volume)
        if volume.backing is Backing.DIRECTORY:
            files.make_dirs(source, 0o777)
        else:
            files.create_file(source, 0o600)
            self.resize_image(volume)

    def resize_image(self, volume: LocalVolume) -> bool:
        """Make the image as large as the volume's capacity; it never shrinks. Returns whether it grew."""
        source = self.source(volume)
        with translating("truncate", source):
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

    def _refuse_mounted(self, path: str) -> None:
        """Raise RpcError if the directory, the image, or anything in them is mounted or attached."""
        if files.stat_file(path) is None:
            return
        users = [mount.target for mount in mounts_of(path)] + find_loops(f"{path}/image")
        if users:
            raise RpcError(Code.FAILED_PRECONDITION, f"the volume is still in use at {users[0]}")

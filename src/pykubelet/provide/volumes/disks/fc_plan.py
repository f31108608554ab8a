"""The plan of an fc volume, and its names. Pure.

Source: the Kubernetes documentation "Volumes", fc; layout and names are those of the reference kubelet.
"""

from __future__ import annotations

import re

from pykubelet.base.api.core import FCVolumeSource
from pykubelet.base.kit.digits import parse_decimal
from pykubelet.base.kit.values import Value
from pykubelet.base.model.paths import Beneath
from pykubelet.provide.volumes.disks.disk_plan import DiskDevice
from pykubelet.provide.volumes.kind import NEW_MOUNTER, VolumesError

NAME, PLUGIN = "fc", "kubernetes.io/fc"
#: What may be part of a directory's name.
_PLAIN = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_SHOWN = 80
_UNIQUE = re.compile(r"kubernetes\.io/fc/\[([^\]]+)\](?::([0-9]+))?")
_DIRECTORY = re.compile(r"(.+?)(?:-lun-([0-9]+))?")


class FcDisk(Value):
    """A disk by the world wide names of its target ports and a logical unit, or by its own identifiers."""

    wwns: tuple[str, ...] = ()
    lun: int = 0
    wwids: tuple[str, ...] = ()

    @property
    def unique_name(self) -> str:
        """The volume's name in the Node's status."""
        names = " ".join(self.wwns or self.wwids)
        return f"{PLUGIN}/[{names}]:{self.lun}" if self.wwns else f"{PLUGIN}/[{names}]"

    @property
    def directory_name(self) -> str:
        """The last part of the directory that the disk is mounted on."""
        names = "-".join(self.wwns or self.wwids)
        return f"{names}-lun-{self.lun}" if self.wwns else names


class FcDevice(DiskDevice, kw_only=True):
    """The plan to find the disk and mount it."""

    disk: FcDisk

    @property
    def progress(self) -> str:
        """What is being done, for users."""
        return f"its Fibre Channel disk is being {'looked for' if self.is_block else 'mounted'}"


def disk_of_source(source: FCVolumeSource) -> FcDisk:
    """The disk. VolumesError for names that cannot be those of disks, or if there are none."""
    for name in (*source.targetWWNs, *source.wwids):
        if not _is_word(name):
            raise VolumesError(f"fc: {name[:_SHOWN]!a} is no name of a port or disk", NEW_MOUNTER)
    if source.targetWWNs and source.lun is not None:
        return FcDisk(source.targetWWNs, source.lun)
    if source.wwids:
        return FcDisk(wwids=source.wwids)
    raise VolumesError("fc: no fc disk information found. failed to make a new mounter", NEW_MOUNTER)


def _is_word(name: str) -> bool:
    return _PLAIN.fullmatch(name) is not None and not name.startswith(".")


def disks(plugins: str) -> Beneath:
    """The directory with one directory for each disk."""
    return Beneath(plugins, PLUGIN)


def disk_from(name: str) -> FcDisk | None:
    """The disk with this unique name; None if it is none of fc."""
    found = _UNIQUE.fullmatch(name)
    if found is None:
        return None
    names, lun = tuple(found[1].split(" ")), found[2]
    if not all(map(_is_word, names)):
        return None
    return FcDisk(wwids=names) if lun is None else FcDisk(names, parse_decimal(lun) or 0)


def name_from(directory: str) -> str:
    """The unique name by the directory, for one that another kubelet has made. Names in it are taken to have no hyphens."""
    found = _DIRECTORY.fullmatch(directory.rpartition("/")[2])
    if found is None or not _PLAIN.fullmatch(found[1]):
        return ""
    names = tuple(found[1].split("-"))
    return (FcDisk(wwids=names) if found[2] is None else FcDisk(names, int(found[2]))).unique_name

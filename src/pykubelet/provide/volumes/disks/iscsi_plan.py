"""The plan of an iscsi volume, its names, and `iscsi.json`, as every kubelet writes and reads it. Pure.

Source: the Kubernetes documentation "Volumes", iscsi; layout and names are those of the reference kubelet.
"""

from __future__ import annotations

import json
import re

from pykubelet.base.api.core import ISCSIVolumeSource
from pykubelet.base.api.storage import ISCSIPersistentVolumeSource
from pykubelet.base.kit.digits import parse_decimal
from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.devices.iscsi_target import Chap, IscsiTarget
from pykubelet.provide.volumes.disks.disk_plan import DiskDevice
from pykubelet.provide.volumes.kind import NEW_MOUNTER, VolumesError

NAME, PLUGIN = "iscsi", "kubernetes.io/iscsi"
DATA = "iscsi.json"
_PORT = "3260"
#: What may be part of a directory's name, of an argument of iscsiadm and of the lines of its records.
_PLAIN = re.compile(r"[A-Za-z0-9_.:\[\]%][A-Za-z0-9_.:\[\]%-]*")
_MAX_WORD, _SHOWN = 255, 80
_IQN_BEGINS = ("-iqn.", "-eui.", "-naa.")
IscsiSource = ISCSIVolumeSource | ISCSIPersistentVolumeSource


class IscsiDevice(DiskDevice, kw_only=True):
    """The plan to log in to the target and mount its disk. `volume`: the name of the PersistentVolume or of the pod's volume."""

    volume: str
    target: IscsiTarget
    chap: Chap = Chap()

    @property
    def progress(self) -> str:
        """What is being done, for users."""
        return f"the node logs in to {self.target.iqn}{'' if self.is_block else ' and mounts its disk'}"


def target_of(source: IscsiSource, volume: str) -> IscsiTarget:
    """The target with its ports. VolumesError for names that cannot be those of targets."""
    portals = tuple(dict.fromkeys(with_port(portal) for portal in (source.targetPortal, *source.portals)))
    interface = source.iscsiInterface or "default"
    _check("portal", *portals)
    _check("target", source.iqn)
    _check("interface", interface)
    if not source.initiatorName:
        return IscsiTarget(portals, source.iqn, source.lun, interface)
    own = f"{portals[0]}:{volume}"
    _check("initiator", source.initiatorName)
    _check("interface", own)
    return IscsiTarget(portals, source.iqn, source.lun, own, copied=interface, initiator=source.initiatorName)


def _check(of: str, *words: str) -> None:
    for word in words:
        if not _is_word(word):
            raise VolumesError(f"iscsi: {word[:_SHOWN]!a} is no name of a {of}", NEW_MOUNTER)


def _is_word(text: object) -> bool:
    return isinstance(text, str) and len(text) <= _MAX_WORD and _PLAIN.fullmatch(text) is not None


def with_port(portal: str) -> str:
    """The portal with the port of iSCSI, if it has none."""
    has_port = "]:" in portal if portal.startswith("[") else ":" in portal
    return portal if has_port else f"{portal}:{_PORT}"


def unique_name(source: IscsiSource) -> str:
    """The volume's name in the Node's status."""
    return f"{PLUGIN}/{source.targetPortal}:{source.iqn}:{source.lun}"


def disks(plugins: str) -> Beneath:
    """The directory with one directory for each interface, and in it one for each disk."""
    return Beneath(plugins, PLUGIN)


def disk_directory(top: Beneath, target: IscsiTarget) -> Beneath:
    """The directory on which the disk is mounted, or in which it is mapped. `top`: that of all disks of which this is so."""
    return top / f"iface-{target.interface}" / f"{target.portals[0]}-{target.iqn}-lun-{target.lun}"


def name_from(directory: str) -> str:
    """The unique name by the directory, for one that another kubelet has made; "" if it is no disk's."""
    found = _split_directory(directory.rpartition("/")[2])
    return f"{PLUGIN}/{':'.join(found)}" if found is not None else ""


def is_of_target(directory: str, iqn: str) -> bool:
    """Whether the directory is that of a disk of this target."""
    found = _split_directory(directory.rpartition("/")[2])
    return found is not None and found[1] == iqn


def _split_directory(name: str) -> tuple[str, str, str] | None:
    """The portal, target and logical unit in the name of a disk's directory; None if it is no disk's."""
    rest, _, lun = name.rpartition("-lun-")
    begins = [at for word in _IQN_BEGINS if (at := rest.find(word, 1)) > 0]
    if not begins or not lun.isascii() or not lun.isdecimal():
        return None
    portal, iqn = rest[: min(begins)], rest[min(begins) + 1 :]
    return (portal, iqn, lun) if len(iqn) > len("iqn.") else None


def write_target(volume: str, target: IscsiTarget) -> bytes:
    """The content of `iscsi.json`."""
    fields = {
        "VolName": volume,
        "Portals": list(target.portals),
        "Iqn": target.iqn,
        "Lun": str(target.lun),
        "InitIface": target.copied or target.interface,
        "Iface": target.interface,
        "InitiatorName": target.initiator,
    }
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def read_target(text: str) -> IscsiTarget | None:
    """The target of an `iscsi.json`; None if it names none."""
    try:
        found = json.loads(text)
        portals, iqn, lun = found["Portals"], found["Iqn"], parse_decimal(found["Lun"])
        interface, initiator = found["Iface"], found.get("InitiatorName", "")
        copied = found.get("InitIface", "") if initiator else ""
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return None
    words = (*portals, iqn, interface) if isinstance(portals, list) and portals else ("",)
    if lun is None or not all(map(_is_word, (*words, *((copied, initiator) if initiator else ())))):
        return None
    return IscsiTarget(tuple(portals), iqn, lun, interface, copied, initiator)

"""iscsi volumes: a disk of an iSCSI target, which the node logs in to with the host's iscsiadm.

The disk is mounted once for the node, an empty one is formatted before; pods get binds. A volume of mode Block is mapped for
the pod as it is.

Owns: `iscsi.json` in the disk's directory, hidden while a disk is mounted there: with it a restarted agent can log out. It is
written before the first login and removed after the last logout. A target with several disks is logged out with the last one.
Source: the Kubernetes documentation "Volumes", iscsi; layout and names are those of the reference kubelet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from pykubelet.base.api.core import ISCSIVolumeSource, Pod, Volume
from pykubelet.base.api.storage import ISCSIPersistentVolumeSource
from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Content, ContentKey
from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.devices.disk_formats import FilesystemMismatchError, format_and_mount
from pykubelet.edges.host.devices.iscsi import find_disks, locked_target, log_in, log_out
from pykubelet.edges.host.devices.iscsi_target import Chap, IscsiTarget, is_value
from pykubelet.edges.host.devices.scsi import ScsiPaths, multipath_of, remove_disks, wait_for
from pykubelet.edges.host.fs import beneath, mounts
from pykubelet.edges.host.fs.beneath import list_directories
from pykubelet.edges.host.fs.errors import HostError, suppress_not_found
from pykubelet.edges.host.fs.programs import find_program
from pykubelet.provide.volumes.attached import await_attachment, referenced_secret, secret_data
from pykubelet.provide.volumes.disks.device_mount import STAGE_S, MismatchError
from pykubelet.provide.volumes.disks.disk_mount import (
    NetworkDisks,
    disk_directories,
    make_disk_directory,
    remove_disk_directory,
    unmount_disk,
)
from pykubelet.provide.volumes.disks.disk_plan import (
    DiskDevice,
    DiskPlan,
    is_read_only,
    mount_options,
    plan_bind,
    trees_of,
)
from pykubelet.provide.volumes.kind import (
    MOUNT_DEVICE,
    NEW_MOUNTER,
    PlanInputs,
    ResolvedVolume,
    UncertainError,
    UndecidedPlan,
    VolumesError,
)
from pykubelet.provide.volumes.selinux import mount_context

NAME, PLUGIN = "iscsi", "kubernetes.io/iscsi"
DATA = "iscsi.json"
WAIT_FOR_ATTACH = "WaitForAttach"
#: How long the node waits for the first disk, for those at other portals, and for the multipath device over them.
DISK_S, MORE_DISKS_S, MULTIPATH_S = 30.0, 5.0, 10.0
UNSTAGE_S = 300.0
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


def keys(pod: Pod, volume: Volume) -> Iterable[ContentKey]:
    """The secret with the passwords."""
    return _keys(pod, volume.iscsi)


def claimed_keys(pod: Pod, claimed: ResolvedVolume, _content: Content) -> Iterable[ContentKey]:
    """The secret with the passwords of a persistent volume."""
    return _keys(pod, claimed.volume.spec.iscsi)


def _keys(pod: Pod, source: IscsiSource | None) -> Iterable[ContentKey]:
    if source is not None and (source.chapAuthDiscovery or source.chapAuthSession):
        key = referenced_secret(pod, source.secretRef)
        if key is not None:
            yield key


def plan(inputs: PlanInputs) -> DiskPlan | UndecidedPlan:
    """The disk and its bind; undecided until attachment and secret are known. VolumesError."""
    source = inputs.source.iscsi
    assert source is not None
    read_only = is_read_only(inputs, source.readOnly)
    target = target_of(source, inputs.spec_name)
    device = IscsiDevice(
        name=unique_name(source),
        kind=NAME,
        directory=disk_directory(trees_of(disks(inputs.paths.plugins))[inputs.is_block], target),
        is_attachable=inputs.content.available,
        fs_type=source.fsType,
        options=mount_options(inputs, read_only),
        is_block=inputs.is_block,
        context=mount_context(inputs),
        volume=inputs.spec_name,
        target=target,
    )
    if (awaited := await_attachment(inputs, device, is_nothing=True)) is not None:
        return awaited
    chap = _chap(inputs, source)
    if isinstance(chap, UndecidedPlan):
        return replace(chap, device=device if device.is_attachable else None)
    return plan_bind(inputs, replace(device, chap=chap), read_only, has_stats=True)


def _chap(inputs: PlanInputs, source: IscsiSource) -> Chap | UndecidedPlan:
    discovery, session = bool(source.chapAuthDiscovery), bool(source.chapAuthSession)
    key = referenced_secret(inputs.pod, source.secretRef)
    if key is None or not (discovery or session):
        return Chap()
    data = secret_data(inputs, key, step=NEW_MOUNTER, word="error")
    if isinstance(data, UndecidedPlan):
        return data
    try:
        secret = {name: value.decode() for name, value in data.items()}
    except UnicodeDecodeError as error:
        raise VolumesError(f"the values of secret {key.namespace}/{key.name} are not all text", NEW_MOUNTER) from error
    chap = Chap(secret, discovery, session)
    for name, value in (*chap.for_discovery.items(), *chap.for_session.items()):
        if not is_value(value):
            rule = "must have at most 255 characters, and no control characters"
            raise VolumesError(f"the value of {name} in secret {key.namespace}/{key.name} {rule}", NEW_MOUNTER)
    return chap


def _find(machine: ScsiPaths, plan: IscsiDevice) -> list[str]:
    return find_disks(machine, plan.target)


def mount_disk(plan: IscsiDevice, machine: ScsiPaths) -> None:
    """Log in and mount the disk, unless it is mounted; in block mode only log in.

    UncertainError: there may be a session, so it must be undone. VolumesError if there is no iscsiadm.
    MismatchError: see there; the node is logged out then.
    """
    if mounts.is_mount_point(plan.directory):
        return
    try:
        find_program("iscsiadm")
    except HostError as error:
        raise VolumesError(error.message, WAIT_FOR_ATTACH) from error
    make_disk_directory(plan.directory, plan.name)
    beneath.write_atomic(plan.directory / DATA, write_target(plan.volume, plan.target), 0o640, durable=True)
    try:
        with locked_target(plan.target.iqn):
            disk = _log_in(plan, machine)
    except HostError as error:
        raise UncertainError(str(error), WAIT_FOR_ATTACH) from error
    if plan.is_block:
        return
    try:
        format_and_mount(disk, plan.directory, plan.fs_type, plan.options)
    except FilesystemMismatchError as error:
        try:
            unmount(plan.directory, plan.name, machine)
        except (HostError, VolumesError) as left:  # there may be a session, so it must be undone
            raise UncertainError(f"{error.message}; {left}", MOUNT_DEVICE) from error
        raise MismatchError(error.message, MOUNT_DEVICE) from error
    except HostError as error:
        raise UncertainError(error.message, MOUNT_DEVICE) from error


def _log_in(plan: IscsiDevice, machine: ScsiPaths) -> str:
    """The disk, or the multipath device over several."""
    target = plan.target
    errors = log_in(machine, target, plan.chap)
    found = wait_for(lambda: find_disks(machine, target), 1, DISK_S if len(errors) < len(target.portals) else 0.0)
    if not found:
        last = errors[-1] if errors else "there is no such disk"
        text = f"failed to get any path for iscsi disk, last err seen:\n{last}"
        raise HostError("iscsi", target.iqn, "ENODEV", text)
    found = wait_for(lambda: find_disks(machine, target), len(target.portals) - len(errors), MORE_DISKS_S)
    if len(found) < 2:
        return multipath_of(machine, found[0]) or found[0]
    over = wait_for(lambda: [path] if (path := multipath_of(machine, found[0])) else [], 1, MULTIPATH_S)
    return over[0] if over else found[0]


def unmount(directory: Beneath, name: str, machine: ScsiPaths) -> None:
    """Unmount the disk, or undo its map, take it off the node, and log out unless other disks of the target are used.

    VolumesError as long as the disk is mounted elsewhere too, or mapped.
    """
    unmount_disk(directory, name, PLUGIN)
    if (target := _read(directory)) is not None:
        with locked_target(target.iqn):
            remove_disks(machine, find_disks(machine, target))
            if not _is_used(directory, target.iqn):
                log_out(target)
    beneath.remove_file(directory / DATA)
    remove_disk_directory(directory)


def _read(directory: Beneath) -> IscsiTarget | None:
    with suppress_not_found:
        return read_target(beneath.read_text(directory / DATA, 1 << 16))
    return None


def _is_used(directory: Beneath, iqn: str) -> bool:
    """Whether there is a directory of another disk of the target."""
    others = (other for tree in trees_of(disks(directory.top)) for other, _ in _directories(tree))
    return any(is_of_target(other, iqn) for other in others if other != directory)


def _directories(tree: Beneath) -> Iterator[tuple[Beneath, str]]:
    """The directories of disks in a tree, with the unique names that are noted."""
    for interface in list_directories(tree):
        if interface.name.startswith("iface-"):
            yield from disk_directories(tree / interface.name)


DISKS = NetworkDisks(NAME, _find, name_from, mount_disk, unmount, STAGE_S + UNSTAGE_S, UNSTAGE_S, _directories)
KIND = replace(DISKS.volume_kind(plan), keys=keys, claimed_keys=claimed_keys)

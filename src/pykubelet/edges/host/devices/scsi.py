"""SCSI disks that the node reaches over a network: their links below /dev/disk, rescans of hosts, multipath, and removal.

Blocks; a disk whose target is gone may hang: use `base.kit.flight`. `ScsiPaths` holds where /dev and /sys are, for tests.
Source: the kernel's "SCSI Interfaces Guide"; udev(7) (persistent links); multipath(8).
"""

from __future__ import annotations

import glob
import posixpath
import time
from collections.abc import Callable, Sequence

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.programs import run_program

log = Log("edges.host.devices")
_STEP_S = 0.2
#: How long one program may take for one disk.
PROGRAM_S = 30.0
#: How long a multipath device may be in use by others than pods.
BUSY_S = 10.0


class ScsiPaths(Value):
    """Where the devices are. `iscsi`: where the records of iscsiadm may be."""

    dev: str = "/dev"
    sys: str = "/sys"
    iscsi: tuple[str, ...] = ("/etc/iscsi", "/var/lib/iscsi")


def wait_for(find: Callable[[], Sequence[str]], wanted: int, deadline_s: float) -> Sequence[str]:
    """What `find` returns once it has at least `wanted` entries, or after `deadline_s`."""
    until = time.monotonic() + deadline_s
    while len(found := find()) < wanted and time.monotonic() < until:
        time.sleep(_STEP_S)  # noqa: TID251 - runs in a thread
    return found


def disks_by_path(machine: ScsiPaths, pattern: str) -> list[str]:
    """The disks, such as `/dev/sdb`, whose links in `disk/by-path` fit the pattern of glob(3), without repetitions."""
    return _disks(f"{machine.dev}/disk/by-path/{pattern}")


def disks_by_id(machine: ScsiPaths, name: str) -> list[str]:
    """The disks with this link in `disk/by-id`."""
    return _disks(f"{machine.dev}/disk/by-id/{glob.escape(name)}")


def _disks(pattern: str) -> list[str]:
    found = (files.real_path(link) for link in sorted(glob.glob(pattern)))
    return list(dict.fromkeys(disk for disk in found if files.stat_file(disk) is not None))


def multipath_of(machine: ScsiPaths, disk: str) -> str:
    """The device mapper's device over this disk, such as `/dev/dm-0`; "" if there is none."""
    name = posixpath.basename(disk)
    for slave in sorted(glob.glob(f"{machine.sys}/block/dm-*/slaves/{glob.escape(name)}")):
        return f"{machine.dev}/{slave.split('/')[-3]}"
    return ""


def scan_host(machine: ScsiPaths, host: int, lun: int | None = None) -> None:
    """Let a SCSI host look for one logical unit, or for everything."""
    files.write_value(f"{machine.sys}/class/scsi_host/host{host}/scan", "- - -" if lun is None else f"0 0 {lun}")


def scan_all_hosts(machine: ScsiPaths) -> None:
    """Let every SCSI host look for new disks. A host that refuses is skipped."""
    for path in sorted(glob.glob(f"{machine.sys}/class/scsi_host/host*/scan")):
        try:
            files.write_value(path, "- - -")
        except HostError:
            continue


def remove_disks(machine: ScsiPaths, disks: Sequence[str], *, flush: bool = False) -> None:
    """Take the disks off the node, after they were unmounted: the multipath device over them first. One that is gone is no error.

    `flush`: write what the kernel still has for them, first, as far as they take it. HostError if they are in use.
    """
    for parent in sorted({parent for disk in disks if (parent := multipath_of(machine, disk))}):
        _remove_multipath(parent)
    for disk in disks:
        name = posixpath.basename(disk)
        if files.stat_file(f"{machine.sys}/block/{name}/device/delete") is None:
            continue
        if flush:
            _flush(disk)
        files.write_value(f"{machine.sys}/block/{name}/device/delete", "1")


def _remove_multipath(parent: str) -> None:
    """Remove a multipath device. Just after an unmount, udev may look at it for a moment."""
    until = time.monotonic() + BUSY_S
    while True:
        try:
            _run("multipath", "-f", parent)
            return
        except HostError as error:
            if "in use" not in error.message or time.monotonic() >= until:
                raise
        time.sleep(_STEP_S)  # noqa: TID251 - runs in a thread


def _flush(disk: str) -> None:
    """A disk that the node no longer reaches takes nothing: it is removed all the same."""
    try:
        _run("blockdev", "--flushbufs", disk)
    except HostError as error:
        log.warning("a disk is removed unflushed", disk=disk, cause=error.message)


def _run(program: str, *arguments: str) -> None:
    ran = run_program(program, arguments, PROGRAM_S, subject=arguments[-1])
    if ran.status != 0:
        raise HostError(program, arguments[-1], "EIO", f"{ran.reason}: {ran.output.strip()}")

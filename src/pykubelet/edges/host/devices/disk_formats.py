"""File systems on block devices: recognizes, makes, checks, mounts and grows them with the host's tools.

Owns: the calls of blkid, mkfs.*, fsck, mount, resize2fs, xfs_growfs and btrfs. A device is formatted only if blkid finds
nothing on it, and while it is locked. Every function blocks for up to the sum of its programs' deadlines: use
`base.kit.flight`.
Source: the Kubernetes documentation "Volumes", local and iscsi; blkid(8), fsck(8), the manual pages of mkfs.
"""

from __future__ import annotations

import re

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.devices.block_devices import check_readable, locked_device
from pykubelet.edges.host.fs import files, mounts
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.programs import run_program

log = Log("edges.host.devices")
DEFAULT_TYPE = "ext4"
#: The deadlines of the programs in seconds. mkfs and fsck may have to go through the whole device.
BLKID_S, MKFS_S, FSCK_S, MOUNT_S, GROW_S, LOCK_S = 30.0, 600.0, 1800.0, 25.0, 600.0, 60.0
#: Longer than `format_and_mount` can take.
FORMAT_AND_MOUNT_S = 2 * BLKID_S + MKFS_S + FSCK_S + MOUNT_S + LOCK_S
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
#: File systems of block devices that are modules or need a helper program, so that the kernel may not list them yet.
_BLOCK_TYPES = frozenset(
    ("auto", "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "gfs2", "hfs", "hfsplus", "iso9660",
     "jfs", "minix", "msdos", "nilfs2", "ntfs", "ntfs-3g", "ntfs3", "ocfs2", "reiserfs", "squashfs", "udf", "vfat", "vxfs", "xfs")
)  # fmt: skip
_LISTED, _LIST_LIMIT = "/proc/filesystems", 64 << 10
_NOTHING_FOUND = 2
_CORRECTED, _UNCORRECTED = 1, 4
_PARTITIONS = "unknown data, probably partitions"


class FilesystemMismatchError(HostError):
    """The device could not be mounted, and carries another file system than was asked for."""


class DiskFormat(Value):
    """What blkid finds on a device. `fs_type`: the file system or other content."""

    fs_type: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the device holds nothing that blkid knows, so that it may be formatted."""
        return not self.fs_type


def read_format(device: str) -> DiskFormat:
    """The format of a block device. HostError if blkid fails or is missing, or the device cannot be read.

    blkid ends with the same status for an empty device and for one that it cannot read. So the device is read here first, and
    whatever blkid prints about an empty device is taken as a failure: formatting by mistake would destroy data.
    """
    check_readable(device)
    ran = run_program("blkid", ("-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", "--", device), BLKID_S)
    if ran.status == _NOTHING_FOUND and not ran.output.strip():
        return DiskFormat()
    if ran.status != 0:
        raise HostError("blkid", device, "EIO", f"{ran.reason}: {ran.output.strip()}")
    found = dict(line.partition("=")[::2] for line in ran.output.splitlines())
    if found.get("TYPE"):
        return DiskFormat(found["TYPE"])
    return DiskFormat(_PARTITIONS)


def format_and_mount(device: str, target: str, fs_type: str = "", options: tuple[str, ...] = ()) -> None:
    """Mount the file system of a block device at `target`, a directory that exists; make the file system on an empty device.

    `fs_type`: "" is ext4; it matters for an empty device only, except for the error if mounting fails. `options`: those of the
    mount; with `ro` nothing is written: an empty device is refused, and no file system is checked.
    A file system that is there is never made again. Interrupted at any point, it may be repeated; the caller looks first
    whether `target` is mounted. Raises HostError with the programs' output, and nothing is mounted then; ETIMEDOUT: it may be.
    FilesystemMismatchError: see there.
    """
    wanted = fs_type or DEFAULT_TYPE
    if not _TYPE.fullmatch(wanted):
        raise HostError("mount", target, "EINVAL", f'"{wanted}" is no name of a file system')
    if not _is_of_devices(wanted):
        text = f'"{wanted}" is no file system of block devices that this node knows'
        raise HostError("mount", target, "EINVAL", text)
    with locked_device(device, LOCK_S) as lock:
        present = read_format(device)
        if present.is_empty and "ro" in options:
            text = f"cannot mount unformatted disk {device} as we are manipulating it in read-only mode"
            raise HostError("mount", "", "EROFS", text)
        if present.is_empty:
            _make_file_system(device, target, wanted, options, lock)
        elif "ro" not in options and present.fs_type != _PARTITIONS:
            _check(device, lock)
        try:
            mounts.mount_by_program(device, target, wanted, (*options, "defaults"), MOUNT_S, in_scope=True)
        except HostError as error:
            if present.is_empty or present.fs_type == wanted or error.errno_name == "ETIMEDOUT":
                raise
            text = f'the device {device} holds "{present.fs_type}" and not {wanted}: {error.message}'
            raise FilesystemMismatchError(error.op, error.path, error.errno_name, text) from error


def _is_of_devices(fs_type: str) -> bool:
    """Whether the file system is on a block device.

    Of others, such as proc and sysfs, the kernel ignores the device, and a pod would get the host's. FUSE runs the program that
    the type names.
    """
    if fs_type in _BLOCK_TYPES:
        return True
    listed = {
        line.removeprefix("\t") for line in files.read_text(_LISTED, _LIST_LIMIT).splitlines() if line[:1] == "\t"
    }
    return fs_type in listed and not fs_type.startswith("fuse")


def _make_file_system(device: str, target: str, fs_type: str, options: tuple[str, ...], lock: int) -> None:
    arguments = {"ext3": ("-F", "-m0"), "ext4": ("-F", "-m0"), "xfs": ("-f",)}.get(fs_type, ())
    log.info("formatting a device that holds nothing", device=device, type=fs_type)
    try:
        ran = run_program(f"mkfs.{fs_type}", (*arguments, device), MKFS_S, held=(lock,))
        why, output = (ran.reason, ran.output) if ran.status != 0 else ("", "")
    except HostError as error:
        why, output = error.message, ""
    if why:
        text = (
            f'format of disk "{device}" failed: type:("{fs_type}") target:("{target}") options:("[{" ".join(options)}]") '
            f"errcode:({why}) output:({output}) "
        )
        raise HostError("mkfs", device, "EIO", text)


def _check(device: str, lock: int) -> None:
    """Repair what can be repaired without a question. A file system that no fsck is for is mounted as it is."""
    try:
        ran = run_program("fsck", ("-a", device), FSCK_S, held=(lock,))
    except HostError as error:
        if not error.is_not_found:
            raise
        log.warning("a device is mounted unchecked", device=device, cause=error.message)
        return
    if ran.status == _CORRECTED:
        log.info("fsck corrected errors", device=device)
    elif ran.status == _UNCORRECTED:
        text = f"'fsck' found errors on device {device} but could not correct them: {ran.output}"
        raise HostError("fsck", device, "EIO", text)
    elif ran.status != 0:
        log.warning("fsck failed", device=device, cause=ran.reason, output=ran.output)


def grow_file_system(device: str, mounted_at: str) -> None:
    """Grow the mounted file system to the size of its device; one that has the size is left alone.

    HostError with the program's output; EOPNOTSUPP: no tool is known for the file system.
    Source: resize2fs(8), xfs_growfs(8), btrfs-filesystem(8).
    """
    fs_type = read_format(device).fs_type
    arguments: tuple[str, ...]
    match fs_type:
        case "ext3" | "ext4":
            program, arguments = "resize2fs", (device,)
        case "xfs":
            program, arguments = "xfs_growfs", ("-d", mounted_at)
        case "btrfs":
            program, arguments = "btrfs", ("filesystem", "resize", "max", mounted_at)
        case _:
            text = f"resize of format {fs_type} is not supported for device {device} mounted at {mounted_at}"
            raise HostError("resize", device, "EOPNOTSUPP", text)
    ran = run_program(program, arguments, GROW_S)
    if ran.status != 0:
        raise HostError(program, device, "EIO", f"{ran.reason}: {ran.output.strip()}")

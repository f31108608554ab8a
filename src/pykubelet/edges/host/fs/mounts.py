"""Mount points: reading the mount table, mounting, bind mounting, unmounting, and the usage of a file system.

Owns: mount(2) and its flags, /proc/self/mountinfo. The only program it starts is mount(8), for file systems that need a
helper. Not here: when to mount (provide/volumes), and opening paths inside volumes safely (`subpaths`). Every function may hang
on a dead file system: use `base.kit.flight`.
Source: mount(2), proc_pid_mountinfo(5), the kernel's "Shared Subtrees".
"""

from __future__ import annotations

import contextlib
import os
import re
from functools import cache

from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs import libc
from pykubelet.edges.host.fs.errors import HostError, Translating
from pykubelet.edges.host.fs.programs import missing_helper, run_program

_ESCAPE = re.compile(r"\\([0-7]{3})")
_PROBE_S = 5.0
#: How long `umount -f` may take.
FORCED_S = 30.0
_FLAG_OPTIONS = {
    "ro": libc.MS_RDONLY,
    "nosuid": libc.MS_NOSUID,
    "nodev": libc.MS_NODEV,
    "noexec": libc.MS_NOEXEC,
    "noatime": libc.MS_NOATIME,
    "nodiratime": libc.MS_NODIRATIME,
    "relatime": libc.MS_RELATIME,
    "nosymfollow": libc.MS_NOSYMFOLLOW,
}
#: In the flags of statvfs(3), as in `linux/statfs.h`.
_ST_NOSYMFOLLOW = 0x2000


class Mount(Value):
    """One line of the mount table. `root`: the directory of the file system that is mounted at `target`.

    `shared`: the peer group; None for a mount that does not propagate. `master`: the group that it receives mounts from.
    """

    id: int
    parent: int
    device: str
    root: str
    target: str
    options: tuple[str, ...]
    shared: int | None
    master: int | None
    fs_type: str
    source: str
    super_options: tuple[str, ...]

    @property
    def is_read_only(self) -> bool:
        """Whether this mount is read-only; the file system behind it may still be writable elsewhere."""
        return "ro" in self.options


class FsUsage(Value):
    """The usage of a file system in bytes and inodes. `available_bytes`: the bytes that ordinary users may still use."""

    capacity_bytes: int
    free_bytes: int
    available_bytes: int
    inodes: int
    inodes_free: int

    @property
    def used_bytes(self) -> int:
        """Bytes that are not free. Bytes reserved for root count as free."""
        return self.capacity_bytes - self.free_bytes

    @property
    def inodes_used(self) -> int:
        """Inodes that are not free."""
        return self.inodes - self.inodes_free


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text) if "\\" in text else text


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Parse a table in the format of proc_pid_mountinfo(5), oldest mount first. Malformed lines are skipped."""
    mounts: list[Mount] = []
    for line in text.split("\n"):  # not splitlines(): names may contain other line separators
        head, separator, tail = line.partition(" - ")
        fields, after = head.split(" "), tail.split(" ")
        if not separator or len(fields) < 6 or len(after) < 2:
            continue
        id, parent = parse_decimal(fields[0]), parse_decimal(fields[1])
        tags = dict(tag.partition(":")[::2] for tag in fields[6:])
        groups = {name: parse_decimal(tags[name]) for name in ("shared", "master") if name in tags}
        if id is None or parent is None or None in groups.values():
            continue
        mounts.append(
            Mount(
                id=id,
                parent=parent,
                device=fields[2],
                root=_unescaped(fields[3]),
                target=_unescaped(fields[4]),
                options=tuple(fields[5].split(",")),
                shared=groups.get("shared"),
                master=groups.get("master"),
                fs_type=after[0],
                source=_unescaped(after[1]),
                super_options=tuple(after[2].split(",")) if len(after) > 2 else (),
            )
        )
    return tuple(mounts)


def read_mounts(proc: str = "/proc") -> tuple[Mount, ...]:
    """The mount table of this process."""
    return parse_mountinfo(_read_table(proc))


def read_mounts_of_type(*types: str, proc: str = "/proc") -> tuple[Mount, ...]:
    """The mounts of file systems of these types. Parsing the lines of all pods' mounts would cost milliseconds."""
    ends = tuple(f" - {fs_type} " for fs_type in types)
    lines = (line for line in _read_table(proc).split("\n") if any(end in line for end in ends))
    return tuple(mount for mount in parse_mountinfo("\n".join(lines)) if mount.fs_type in types)


def _read_table(proc: str = "/proc") -> str:
    path = f"{proc}/self/mountinfo"
    with Translating("read", path), open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as table:
        return table.read()


def _read_mounts_naming(path: str) -> tuple[Mount, ...]:
    """The mounts whose lines contain `path`. Parsing hundreds of other lines would cost milliseconds."""
    escaped = re.sub(r"[ \t\n\\]", lambda match: f"\\{ord(match[0]):03o}", path)
    return parse_mountinfo("\n".join(line for line in _read_table().split("\n") if escaped in line))


def is_mount_point(path: str) -> bool:
    """Whether `path` itself is a mount point (also of a bind mount, and of a file system that is dead). False if it does not exist."""
    try:
        known = libc.is_mount_root(path)
    except HostError as error:
        if error.is_not_found:
            return False
        if error.op == "encode":
            raise
        known = None
    if known is not None:
        return known
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return any(mount.target == real for mount in read_mounts())


def mounts_below(path: str, mounts: tuple[Mount, ...] | None = None) -> tuple[Mount, ...]:
    """The mounts at `path` and below it, the deepest first, which is the order for unmounting."""
    real = os.path.realpath(path).rstrip("/")
    table = _read_mounts_naming(real) if mounts is None else mounts
    below = [m for m in table if m.target == (real or "/") or m.target.startswith(real + "/")]
    below.sort(key=lambda m: (m.target.count("/"), m.id), reverse=True)
    return tuple(below)


def _mount_over(path: str, table: tuple[Mount, ...]) -> Mount | None:
    """The mount that `path`, which has no links, belongs to."""
    over = [mount for mount in table if path == mount.target or path.startswith(mount.target.rstrip("/") + "/")]
    return max(over, key=lambda mount: (len(mount.target), mount.id), default=None)


def mounts_of(path: str) -> list[Mount]:
    """The mounts that show `path` or something below it, wherever they are; a mount at `path` itself too."""
    table = read_mounts()
    real = os.path.realpath(path)
    last = _mount_over(real, table)
    if last is None:
        return []
    root = os.path.normpath(os.path.join(last.root, os.path.relpath(real, last.target)))
    return [m for m in table if m.device == last.device and f"{m.root}/".startswith(f"{root.rstrip('/')}/")]


def mount(source: str, target: str, fs_type: str, options: tuple[str, ...] = ()) -> None:
    """Mount a file system. The options `ro`, `nosuid`, `nodev`, `noexec`, `noatime`... become flags; the rest is passed as text."""
    flags = 0
    data: list[str] = []
    for option in options:
        if option in _FLAG_OPTIONS:
            flags |= _FLAG_OPTIONS[option]
        elif option not in ("rw", "defaults"):
            data.append(option)
    libc.mount(source, target, fs_type, flags, ",".join(data) or None)


def bind(source: str, target: str, *, read_only: bool = False, recursive: bool = False) -> None:
    """Bind-mount `source` at `target`. `read_only` applies to this mount alone, not to mounts below it."""
    libc.mount(source, target, None, libc.MS_BIND | (libc.MS_REC if recursive else 0), None)
    if read_only:
        remount_read_only(target)


def bind_with_options(source: str, target: str, options: tuple[str, ...]) -> None:
    """Bind-mount `source` at `target` with options that concern this mount alone, such as `ro` and `noexec`.

    Others have no effect, as with mount(8): `discard` is one of the file system, `nofail` one for the boot.
    """
    libc.mount(source, target, None, libc.MS_BIND, None)
    try:
        apply_bind_options(target, options)
    except HostError:
        unmount(target)  # without its options it must not be used
        raise


def apply_bind_options(target: str, options: tuple[str, ...]) -> None:
    """Give the bind mount at `target` the options that concern this mount alone."""
    flags = 0
    for option in options:
        flags |= _FLAG_OPTIONS.get(option, 0)
    if flags:
        libc.mount(None, target, None, libc.MS_BIND | libc.MS_REMOUNT | flags | _locked_flags(target), None)


def mount_by_program(
    source: str, target: str, fs_type: str, options: tuple[str, ...], deadline_s: float, *, in_scope: bool = False
) -> None:
    """Mount a file system that needs a helper such as `mount.nfs`, with mount(8). HostError has the program's output.

    A program that misses the deadline is killed (ETIMEDOUT); the file system may be mounted then. `in_scope`: where systemd
    runs, the program gets a scope of its own, so that a daemon that it leaves outlives the agent's service.
    """
    flags = ("-t", fs_type, *(("-o", ",".join(options)) if options else ()))
    program, arguments = "mount", (*flags, "--", source, target)  # a source that begins with "-" is no option
    if in_scope and _has_scopes():
        described = f"--description=Kubernetes transient mount for {target}"
        program, arguments = "systemd-run", (described, "--scope", "--", "mount", *arguments)
    try:
        ran = run_program(program, arguments, deadline_s, subject=target)
    except HostError as error:
        raise HostError("mount", target, error.errno_name, error.message) from error
    if ran.status != 0:
        shown = " ".join(argument for argument in arguments if argument != "--" or program != "mount")
        text = f"mount failed: {ran.reason}\nMounting command: {program}\nMounting arguments: {shown}\nOutput: {ran.output}\n"
        raise HostError("mount", target, "EIO", f"{text}{_lack(fs_type)}")


def _lack(fs_type: str) -> str:
    """What the node lacks for file systems of this type: a helper of mount(8), or support in the kernel; "" if it has both."""
    if missing := missing_helper(fs_type):
        return missing
    with contextlib.suppress(OSError), open("/proc/filesystems", encoding="ascii", errors="replace") as table:
        if fs_type not in table.read().split():  # mounting has loaded the module, if there is one
            return f"the kernel of this node has no file system {fs_type}, or its module is not installed"
    return ""


def unmount_by_program(target: str, deadline_s: float) -> None:
    """Unmount with umount(8), whose helpers know network file systems. HostError has the program's output.

    A server that has not answered after `deadline_s` is given up (`umount -f`), which may take `FORCED_S` more.
    """
    try:
        ran = run_program("umount", ("--", target), deadline_s, subject=target)
    except HostError as error:
        if error.errno_name != "ETIMEDOUT":
            raise
        ran = run_program("umount", ("-f", "--", target), FORCED_S, subject=target)
    if ran.status != 0 and is_mount_point(target):
        text = f"unmount failed: {ran.reason}\nUnmounting arguments: {target}\nOutput: {ran.output}\n"
        raise HostError("umount", target, "EBUSY" if "busy" in ran.output else "EIO", text)


@cache
def _has_scopes() -> bool:
    """Whether systemd makes scopes on this host."""
    if not os.path.isdir("/run/systemd/system"):
        return False
    try:
        probe = ("--description=Kubernetes systemd probe", "--scope", "true")
        return run_program("systemd-run", probe, _PROBE_S).status == 0
    except HostError:
        return False


def bind_fd(descriptor: int, target: str) -> None:
    """Bind-mount the file of an open descriptor (O_PATH is enough) at `target`, even if its path has changed since."""
    libc.mount(f"/proc/self/fd/{descriptor}", target, None, libc.MS_BIND, None)


def remount_read_only(target: str) -> None:
    """Make the mount at `target` read-only, keeping its other flags."""
    flags = libc.MS_BIND | libc.MS_REMOUNT | libc.MS_RDONLY
    libc.mount(None, target, None, flags | _locked_flags(target), None)


def _locked_flags(target: str) -> int:
    with Translating("statfs", target):
        present = os.statvfs(target).f_flag
    flags = 0
    pairs = (
        (os.ST_NOSUID, libc.MS_NOSUID),
        (os.ST_NODEV, libc.MS_NODEV),
        (os.ST_NOEXEC, libc.MS_NOEXEC),
        (os.ST_NOATIME, libc.MS_NOATIME),
        (os.ST_NODIRATIME, libc.MS_NODIRATIME),
        (os.ST_RELATIME, libc.MS_RELATIME),
        (_ST_NOSYMFOLLOW, libc.MS_NOSYMFOLLOW),
    )
    for have, flag in pairs:
        if present & have:
            flags |= flag
    return flags


def make_shared(path: str) -> None:
    """Make mounts below `path` propagate to containers that ask for it (`mount --make-rshared`).

    Nothing is done if they do already, as where systemd runs. If `path` is not a mount point, it is bind-mounted onto itself
    first; in a shared file system, each mount below it would then be made twice.
    """
    over = _mount_over(os.path.realpath(path), read_mounts())
    if over is not None and over.shared is not None:
        return
    if not is_mount_point(path):
        bind(path, path, recursive=True)
    libc.mount(None, path, None, libc.MS_SHARED | libc.MS_REC, None)


def unmount(target: str, *, detach: bool = False) -> bool:
    """Unmount the newest mount at `target`. Returns False if there is none. `detach` detaches it at once, even if in use."""
    flags = libc.UMOUNT_NOFOLLOW | (libc.MNT_DETACH if detach else 0)
    try:
        libc.umount(target, flags)
    except HostError as error:
        if error.is_not_found or (error.errno_name == "EINVAL" and not is_mount_point(target)):
            return False
        raise
    return True


def mount_tmpfs(target: str, size_bytes: int = 0, mode: int | None = None, *, no_swap: bool = False) -> bool:
    """Mount a tmpfs. `size_bytes` 0 leaves the kernel's own limit. Returns True if its pages are kept out of swap.

    If `no_swap` is set and the kernel cannot do it (before 6.4), the tmpfs is mounted without it.
    """
    options = [f"size={size_bytes}"] if size_bytes > 0 else []
    if mode is not None:
        options.append(f"mode={mode:o}")
    if no_swap:
        try:
            mount("tmpfs", target, "tmpfs", (*options, "noswap"))
            return True
        except HostError as error:
            if error.errno_name not in ("EINVAL", "EPERM"):
                raise
    mount("tmpfs", target, "tmpfs", tuple(options))
    return False


def resize_tmpfs(target: str, size_bytes: int) -> None:
    """Give the tmpfs at `target` another size, also for those who have it bound. HostError EINVAL if it holds more."""
    whole_pages = -(-size_bytes // os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PAGE_SIZE")
    if read_fs_usage(target).capacity_bytes != whole_pages:
        libc.mount(None, target, None, libc.MS_REMOUNT | _locked_flags(target), f"size={whole_pages}")


def mount_huge_pages(target: str, page_size: int) -> None:
    """Mount a hugetlbfs with pages of `page_size` bytes, and the kernel's own limit."""
    mount("nodev", target, "hugetlbfs", (f"pagesize={page_size}",))


def tmpfs_no_swap_supported(kernel_release: str, trial_dir: str) -> bool:
    """Whether tmpfs supports `noswap`: since Linux 6.4, and in older kernels to which distributions have backported it.

    On older kernels a test mount is made on a new directory in `trial_dir`, which is removed again.
    """
    match = re.match(r"(\d+)\.(\d+)", kernel_release)
    if match is not None and (int(match[1]), int(match[2])) >= (6, 4):
        return True
    target = f"{trial_dir}/tmpfs-noswap-test-{os.getpid()}"
    try:
        os.mkdir(target, 0o700)
    except OSError:
        return False
    try:
        mount("tmpfs", target, "tmpfs", ("noswap",))
        unmount(target)
        return True
    except HostError:
        return False
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(target)


def read_fs_usage(path: str) -> FsUsage:
    """Read the usage of the file system of `path`."""
    with Translating("statfs", path):
        result = os.statvfs(path)
    unit = result.f_frsize or result.f_bsize
    return FsUsage(
        capacity_bytes=result.f_blocks * unit,
        free_bytes=result.f_bfree * unit,
        available_bytes=result.f_bavail * unit,
        inodes=result.f_files,
        inodes_free=result.f_ffree,
    )

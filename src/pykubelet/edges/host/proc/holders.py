"""Who keeps a directory from being unmounted: processes with files or mappings there, other mounts, loop devices, swap files.

Reads /proc and /sys only, and names only as the kernel keeps them: the file system itself is never asked, which may hang. A process
whose memory map is locked for good can block the reader of its mappings, so these are read last. Blocks for seconds on a
machine with many processes: use `base.kit.flight`. Source: proc(5), mount_namespaces(7).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.mounts import Mount, parse_mountinfo, read_mounts

#: The most holders and mounts that are listed.
MAX_FOUND = 50
_LINKS = {"cwd": "working directory", "root": "root directory", "exe": "program"}
_TABLE_BYTES = 16 << 20


class Holder(Value):
    """One that holds a directory. `pid` 0: the kernel itself; `use` names how. `group`: the cgroup of the process, "" if unknown.

    `use`: in words, such as `working directory`. `path`: one of the paths that it uses.
    """

    pid: int
    name: str
    use: str
    path: str
    group: str = ""


class OtherMount(Value):
    """A mount of the same file system: in the mount namespace of process `pid`, or of this process (0)."""

    pid: int
    name: str
    target: str


class HolderSearch:
    """One search below `paths`. The lists fill while it runs, so that one that is given up still shows what it has found.

    `is_complete`: everything was looked at.
    """

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.holders: list[Holder] = []
        self.mounts: list[OtherMount] = []
        self.is_complete = False
        self._paths = paths
        self._namespaces: dict[str, int] = {}

    def run(self, deadline_s: float) -> None:
        """Search for `deadline_s` seconds at most, not counting a process that blocks. Never raises."""
        until = time.monotonic() + deadline_s
        try:
            table = read_mounts()
        except HostError:
            table = ()
        here = tuple(mount for mount in table if self._is_below(mount.target))
        self._add_nested(here)
        self._add_kernel()
        own = self._namespace("self")
        processes = []
        for pid in self._pids():
            if time.monotonic() > until:
                return
            namespace = self._namespace(str(pid))
            if namespace == own:
                processes.append(pid)
                self._add_process(pid)
            elif namespace and namespace not in self._namespaces:
                self._namespaces[namespace] = pid
        for pid in self._namespaces.values():
            if time.monotonic() > until:
                return
            self._add_other_mounts(pid, here)
        held = {holder.pid for holder in self.holders}
        for pid in processes:
            if time.monotonic() > until:
                return
            if pid not in held:
                self._add_mappings(pid)
        self.is_complete = True

    # Processes

    def _pids(self) -> list[int]:
        return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())

    def _namespace(self, pid: str) -> str:
        return _link(f"/proc/{pid}/ns/mnt")

    def _add_process(self, pid: int) -> None:
        for link, use in _LINKS.items():
            path = _link(f"/proc/{pid}/{link}")
            if self._is_below(path):
                self._add(pid, use, path)
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            return
        held = [path for fd in descriptors if self._is_below(path := _link(f"/proc/{pid}/fd/{fd}"))]
        if held:
            self._add(pid, "open file" if len(held) == 1 else f"{len(held)} open files", held[0])

    def _add_mappings(self, pid: int) -> None:
        text = _text(f"/proc/{pid}/maps")
        if not any(path in text for path in self._paths):
            return
        found = {line.split(maxsplit=5)[-1] for line in text.splitlines() if "/" in line}
        held = sorted(path for path in found if self._is_below(path))
        if held:
            self._add(pid, "mapped file" if len(held) == 1 else f"{len(held)} mapped files", held[0])

    def _add(self, pid: int, use: str, path: str) -> None:
        if len(self.holders) < MAX_FOUND:
            groups = _text(f"/proc/{pid}/cgroup").splitlines()
            group = max((line.rpartition(":")[2] for line in groups), key=len, default="")
            self.holders.append(Holder(pid, self._name(pid), use, path, group))

    def _name(self, pid: int) -> str:
        return _text(f"/proc/{pid}/comm").strip()

    def _is_below(self, path: str) -> bool:
        return any(path == directory or path.startswith(f"{directory}/") for directory in self._paths)

    # Mounts

    def _add_nested(self, here: tuple[Mount, ...]) -> None:
        """Mounts below a directory, which must be unmounted first."""
        for mount in here:
            if mount.target not in self._paths and len(self.mounts) < MAX_FOUND:
                self.mounts.append(OtherMount(0, "", mount.target))

    def _add_other_mounts(self, pid: int, here: tuple[Mount, ...]) -> None:
        """Mounts in the namespace of `pid`, but for those that propagated there: the kernel unmounts them with their origin."""
        ours = [mount for mount in here if mount.target in self._paths or len(here) == 1]
        devices = {(mount.device, mount.root) for mount in ours}
        propagating = {(mount.target, mount.shared) for mount in ours if mount.shared is not None}
        for mount in parse_mountinfo(_text(f"/proc/{pid}/mountinfo")) if devices else ():
            is_copy = not propagating.isdisjoint({(mount.target, mount.shared), (mount.target, mount.master)})
            if (mount.device, mount.root) in devices and not is_copy and len(self.mounts) < MAX_FOUND:
                self.mounts.append(OtherMount(pid, self._name(pid), mount.target))

    def _add_kernel(self) -> None:
        for path, use in (*_loop_files(), *_swap_files()):
            if self._is_below(path) and len(self.holders) < MAX_FOUND:
                self.holders.append(Holder(0, "kernel", use, path))


def _loop_files() -> Iterator[tuple[str, str]]:
    """The files behind loop devices."""
    try:
        names = [name for name in os.listdir("/sys/block") if name.startswith("loop")]
    except OSError:
        return
    for name in names:
        path = _text(f"/sys/block/{name}/loop/backing_file").strip()
        if path:
            yield path.removesuffix(" (deleted)"), f"loop device /dev/{name}"


def _swap_files() -> Iterator[tuple[str, str]]:
    for line in _text("/proc/swaps").splitlines()[1:]:
        yield line.split(" ", 1)[0], "swap file"


def _link(path: str) -> str:
    """What a link of /proc points at; "" for a process that is gone. The target is not looked at."""
    try:
        return os.readlink(path).removesuffix(" (deleted)")
    except OSError:
        return ""


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_TABLE_BYTES)
    except OSError:
        return ""

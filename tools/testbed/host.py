"""What the testbed asks of the machine: processes, ports, mounts and cgroups, each only where they are the testbed's own.

Nothing here keeps state; `claims` does. Every function may be called again after it was cut short.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from testbed import claims
from testbed.errors import TestbedError as TestbedError

#: Where every agent of the machine links the logs of its containers.
CONTAINER_LOG_LINKS = Path("/var/log/containers")
CGROUP_MOUNT = Path("/sys/fs/cgroup")
#: How many times longer than elsewhere anything may take: the CPUs of the test VM are emulated.
SLOWNESS = 10 if Path("/etc/testvm").exists() else 1
#: Below those that Linux gives to outgoing connections, and below node ports.
PORTS = range(20000, 30000)
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_LOOP_CLR_FD = 0x4C01
_libc = ctypes.CDLL(None, use_errno=True)


def wait_until(condition: Callable[[], bool], timeout_s: float, step_s: float = 0.02) -> bool:
    """Whether `condition` became true within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(step_s)
    return True


# processes


@dataclass(frozen=True, slots=True)
class Process:
    """A process, its command line and its parent; `pid` is that of this process's pid namespace."""

    pid: int
    argv: tuple[str, ...]
    parent: int


def has_capability(number: int) -> bool:
    """Whether this process, and with it what it starts, may have the capability."""
    found = re.search(r"^CapBnd:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> number & 1)


def read_process(pid: int) -> Process | None:
    """The living process `pid`, or None when it is gone or a zombie."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
        state, parent = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:2]
    except OSError:
        return None
    if state in (b"Z", b"X"):
        return None
    return Process(pid, tuple(part.decode(errors="replace") for part in raw.split(b"\0")[:-1]), int(parent))


def processes() -> Iterator[Process]:
    """Every living process that can be read."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := read_process(int(entry))) is not None:
            yield found


def users_of(folder: Path) -> list[int]:
    """The agents and drivers that run on a root directory below `folder`."""
    found = []
    for process in processes():
        roots = {after for flag, after in pairwise(process.argv) if flag in ("--root-dir", "--root")}
        if process.pid != os.getpid() and any(root.startswith(f"{folder}/") for root in roots):
            found.append(process.pid)
    return found


def spawn(argv: list[str], log: Path, env: dict[str, str], cgroup: str | None = None) -> int:
    """Start a daemon in a session of its own, its output appended to `log`, in the cgroup `cgroup`; returns its pid."""
    log.parent.mkdir(parents=True, exist_ok=True)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawnp(argv[0], argv, env, file_actions=actions, setsid=True, setsigmask=[])
    if cgroup is not None:
        enter_cgroup(cgroup, pid)
    wait_until(lambda: _has_command_line(pid), 5, 0.001)  # the kernel sets it a moment after exec lets us go on
    return pid


def _has_command_line(pid: int) -> bool:
    process = read_process(pid)
    return process is None or bool(process.argv)


def is_gone(pid: int) -> bool:
    """Whether `pid` has ended with all its threads, so that its ports and locks are free; a child of ours is reaped.

    A killed process whose first thread is a zombie keeps its ports while another thread waits for the disk.
    """
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return read_process(pid) is None and len(_threads(pid)) <= 1


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def end_process(pid: int, grace_s: float) -> None:
    """SIGTERM, then SIGKILL after `grace_s`, and wait for the end. The caller has checked that `pid` is its own."""
    _signal(pid, signal.SIGTERM)
    if not wait_until(lambda: is_gone(pid), grace_s):
        kill_all([pid])


def kill_all(pids: Iterable[int], timeout_s: float = 10) -> None:
    """SIGKILL to all of `pids`, and wait until all have ended."""
    left = list(pids)
    for pid in left:
        _signal(pid, signal.SIGKILL)
    if not wait_until(lambda: all(map(is_gone, left)), timeout_s):
        raise TestbedError(f"processes do not end on SIGKILL: {[pid for pid in left if not is_gone(pid)]}")


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


@contextlib.contextmanager
def paused(pid: int) -> Iterator[None]:
    """SIGSTOP while the block runs: the process exists and answers nothing."""
    _signal(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(pid, signal.SIGCONT)


# ports


#: Kubernetes gives these to Services of type NodePort.
_NODE_PORTS = range(30000, 32768)


def free_port(preferred: int, holder: str = "") -> int:
    """`preferred` if nothing listens there on loopback, else a free port that no other test bed is given.

    It belongs to `holder` (see `claims`; without one to this process), also while nothing listens on it: no outgoing
    connection of this machine gets it as its own port.
    """
    holder = holder or claims.this_process()
    if preferred and claims.hold("port", str(preferred), holder) is None and _is_free(preferred):
        return preferred
    others = random.sample(_never_outgoing(), 100)
    port = claims.claim("port", map(str, others), holder, lambda port: _is_free(int(port)))
    if port is None:
        raise TestbedError("no free port on loopback")
    return int(port)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _never_outgoing() -> Sequence[int]:
    """Ports that the kernel gives to no outgoing connection.

    One that it may give is not safe while its server is down: a client that tries again may connect to itself.
    """
    try:
        first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except (OSError, ValueError):
        return PORTS
    outgoing = range(first, last + 1)
    left = [port for port in PORTS if port not in outgoing]
    if len(left) < 1000:
        left = [port for port in range(10000, 65536) if port not in outgoing and port not in _NODE_PORTS]
    return left if len(left) >= 1000 else PORTS


def wait_port_free(port: int, what: str, timeout_s: float = 10) -> None:
    """Until a server can listen on `port` of loopback. Raises TestbedError with the process that holds it."""
    if not wait_until(lambda: _is_free(port), timeout_s):
        raise TestbedError(f"port {port} of {what} is taken by {_listener(port)}")


def _listener(port: int) -> str:
    """The process that listens on a TCP port, for people."""
    done = subprocess.run(["ss", "-Htlnp", f"sport = :{port}"], capture_output=True, text=True, check=False)
    return " ".join(done.stdout.split()) or "a connection that no process listens for"


# mounts


def mounts_below(folder: Path) -> list[str]:
    """Mount points at or below `folder`, the innermost and latest first."""
    root = os.path.realpath(folder)
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split(" ")[4].encode().decode("unicode_escape").encode("latin-1").decode(errors="surrogateescape")
        if point == root or point.startswith(root + "/"):
            found.append(point)
    return found[::-1]


def unmount_below(folder: Path) -> None:
    """Detach every mount at or below `folder`."""
    for _ in range(5):
        points = mounts_below(folder)
        if not points:
            return
        for point in points:
            _libc.umount2(os.fsencode(point), _MNT_DETACH | _UMOUNT_NOFOLLOW)
    raise TestbedError(f"cannot unmount: {', '.join(mounts_below(folder))}")


def detach_loops(folder: Path, sys_block: Path = Path("/sys/block")) -> None:
    """Detach the loop devices on files below `folder`, also on deleted ones, as soon as nothing uses them."""
    for backing in sys_block.glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # detached meanwhile
            if backing.read_text().startswith(f"{folder}/"):
                with Path("/dev", backing.parts[-3]).open("rb") as device:
                    fcntl.ioctl(device, _LOOP_CLR_FD)


# cgroups


def links_into(folder: Path, links: Path = CONTAINER_LOG_LINKS) -> list[Path]:
    """The links of `links` that point below `folder`, whether what they point at is there or not."""
    found = []
    for link in links.iterdir() if links.is_dir() else ():
        with contextlib.suppress(OSError):  # no link, or gone meanwhile: other agents' are here too
            if os.readlink(link).startswith(f"{folder}/"):
                found.append(link)
    return found


def hierarchies() -> list[Path]:
    """The roots of all cgroup hierarchies: one on v2, one for each controller (and the hybrid's v2 tree) on v1."""
    if (CGROUP_MOUNT / "cgroup.controllers").exists():
        return [CGROUP_MOUNT]
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind = line.split(" ")[:3]
        if kind in ("cgroup", "cgroup2") and point.startswith(f"{CGROUP_MOUNT}/"):
            found.append(Path(point))
    return found


def _checked(cgroup: str) -> str:
    relative = cgroup.strip("/")
    if not relative or ".." in relative.split("/"):
        raise TestbedError(f"not a cgroup of our own: {cgroup!r}")
    return relative


def make_cgroup(cgroup: str) -> None:
    """Make `cgroup` (/a/b) in every hierarchy; on v1 its cpuset is filled from above, on v2 controllers are handed down."""
    for root in hierarchies():
        folder = root
        for part in _checked(cgroup).split("/"):
            if (folder / "cgroup.controllers").exists():
                _hand_down_controllers(folder)
            parent, folder = folder, folder / part
            folder.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if root != CGROUP_MOUNT and (folder / name).exists() and not (folder / name).read_text().strip():
                    (folder / name).write_text((parent / name).read_text())


def _hand_down_controllers(folder: Path) -> None:
    for controller in (folder / "cgroup.controllers").read_text().split():
        try:
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")
        except (
            OSError
        ):  # not ours to hand down (a container's own root, a realtime process); the agent reports what it misses
            continue


def enter_cgroup(cgroup: str, pid: int) -> None:
    """Make `cgroup` and move the process `pid` into it, in every hierarchy that lets us."""
    make_cgroup(cgroup)
    for root in hierarchies():
        try:
            (root / _checked(cgroup) / "cgroup.procs").write_text(str(pid))
        except OSError:  # not possible in every hierarchy; the process then stays where it is
            continue


def cgroup_pids(cgroup: str) -> set[int]:
    """Every process at or below `cgroup`, in any hierarchy."""
    found: set[int] = set()
    for root in hierarchies():
        for folder, _, _ in os.walk(root / _checked(cgroup)):
            try:
                found.update(int(line) for line in Path(folder, "cgroup.procs").read_text().split())
            except OSError:  # gone meanwhile, or a threaded group
                continue
    found.discard(0)  # a process of another pid namespace
    return found


def remove_cgroup(cgroup: str) -> None:
    """Kill what runs at or below `cgroup` and remove it from every hierarchy. Never touches the group we are in."""

    def is_removed() -> bool:
        if os.getpid() in (pids := cgroup_pids(cgroup)):
            raise TestbedError(f"refusing to remove the cgroup {cgroup}: this process is in it")
        if pids:  # a runtime that is still busy may start one after the others
            kill_all(pids)
        return _try_remove(_checked(cgroup))

    if not wait_until(is_removed, 30):
        raise TestbedError(f"cannot remove the cgroup {cgroup}")


def _try_remove(relative: str) -> bool:
    gone = True
    for root in hierarchies():
        for folder, _, _ in os.walk(root / relative, topdown=False):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                continue
            except OSError:  # the kernel still has an exiting process in it
                gone = False
    return gone


def read_control(path: Path) -> str:
    """The content of a cgroup's control file; empty if there is none. The group may be removed while it is being read."""
    try:
        return path.read_text()
    except OSError:
        return ""


def read_cgroups(pid: int) -> set[str]:
    """The cgroups of a process other than the root, as paths from the hierarchies' roots."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return set()
    return {path for line in lines if (path := line.split(":", 2)[2]) != "/" and not path.startswith("/..")}

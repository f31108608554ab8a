"""Runs the host's tools for file systems and devices from a thread: bounded output, a deadline, no process left behind.

Every call blocks for up to its deadline: use `base.kit.flight`. Programs that run for pods or on the event loop have
`edges/host/services/process.py`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import IO

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError

#: How much of a program's output is kept: bytes.
OUTPUT_BYTES = 4096
#: Where Debian keeps the tools; a service's PATH may leave them out.
_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_STEP_S, _END_S, _PAUSE_S = 0.1, 2.0, 0.01
_PACKAGES = {
    "blkid": "util-linux",
    "fsck": "util-linux",
    "mount": "mount",
    "umount": "mount",
    "resize2fs": "e2fsprogs",
    "mkfs.ext2": "e2fsprogs",
    "mkfs.ext3": "e2fsprogs",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "xfs_growfs": "xfsprogs",
    "mkfs.btrfs": "btrfs-progs",
    "btrfs": "btrfs-progs",
    "mkfs.vfat": "dosfstools",
    "mkfs.f2fs": "f2fs-tools",
    "mkfs.ntfs": "ntfs-3g",
    "mount.nfs": "nfs-common",
    "mount.nfs4": "nfs-common",
    "iscsiadm": "open-iscsi",
    "multipath": "multipath-tools",
    "blockdev": "util-linux",
}


class Ran(Value):
    """How a program ended. `status`: its exit status; negative: the signal that ended it. `output`: stdout and stderr together,
    at most `OUTPUT_BYTES`."""

    status: int
    output: str

    @property
    def reason(self) -> str:
        """The end as text: `exit status 1`, `signal: killed`."""
        if self.status >= 0:
            return f"exit status {self.status}"
        return f"signal: {signal.strsignal(-self.status) or -self.status}".lower()


def safe_path(path: str) -> str:
    """The absolute directories of a PATH; where there is none, those in which Debian keeps tools.

    An empty or relative one is a place below the directory that the agent was started in, where other users may put programs.
    """
    return os.pathsep.join(_absolute(path) or _DIRECTORIES)


def find_program(name: str, path: str | None = None) -> str:
    """The absolute path of a program: in `path` (None: the agent's PATH), or where Debian keeps tools. `name` may be such a path.

    HostError: there is none; it names the package. Or `name` is a relative path.
    """
    if "/" in name:
        if not name.startswith("/"):
            raise HostError("exec", name, "EINVAL", "the path of a program must be absolute")
        places: tuple[str, ...] = (name,)
    else:
        given = os.environ.get("PATH", "") if path is None else path
        places = tuple(f"{directory}/{name}" for directory in (*_absolute(given), *_DIRECTORIES))
    for place in places:
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return place
    package = _PACKAGES.get(name)
    hint = f": on Debian, install the package {package}" if package else ""
    raise HostError(name, "", "ENOENT", f"the program {name} is not installed{hint}")


def _absolute(path: str) -> tuple[str, ...]:
    return tuple(directory for directory in path.split(os.pathsep) if directory.startswith("/"))


def missing_helper(fs_type: str) -> str:
    """That the helper of mount(8) for file systems of this type is missing; "" if it is there, or if none is known."""
    if f"mount.{fs_type}" not in _PACKAGES:
        return ""
    try:
        find_program(f"mount.{fs_type}")
    except HostError as error:
        return error.message
    return ""


class RunningProgram(Value):
    """A program that runs at present. `subject`: the directory or device that it works on. `since`: monotonic seconds."""

    name: str
    pid: int
    subject: str
    since: float


_running: dict[int, RunningProgram] = {}


def running_program(subject: str) -> RunningProgram | None:
    """The program that works on `subject` now; None if there is none. For `mount`, it is the helper such as `mount.nfs`."""
    found = next((program for program in list(_running.values()) if program.subject == subject), None)
    while found is not None and (child := _child_of(found)) is not None:
        found = child
    return found


def _child_of(program: RunningProgram) -> RunningProgram | None:
    try:
        with open(f"/proc/{program.pid}/task/{program.pid}/children", encoding="ascii") as children:
            pid = int(children.read().split()[0])
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as name:
            return RunningProgram(name.read().strip(), pid, program.subject, program.since)
    except (OSError, ValueError, IndexError):
        return None


def run_program(
    name: str,
    arguments: Sequence[str],
    deadline_s: float,
    held: Sequence[int] = (),
    *,
    subject: str = "",
    limit: int = OUTPUT_BYTES,
) -> Ran:
    """Run a program to its end, whatever its exit status. HostError if it is missing, cannot be started or misses the deadline.

    A program that misses the deadline is killed together with its children. `held`: descriptors that it inherits, so that
    locks on them last as long as the program, even if the agent is killed. `subject`: as in `RunningProgram`. `limit`: how much
    of its output is kept, in bytes.
    """
    command = [find_program(name), *arguments]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tuple(held),
            env={**os.environ, "PATH": safe_path(os.environ.get("PATH", "")), "LC_ALL": "C"},
            bufsize=0,
        )
    except (OSError, ValueError) as error:
        raise HostError(name, "", "ENOEXEC", f"the program {name} cannot be started: {error}") from error
    assert process.stdout is not None
    began = time.monotonic()
    _running[process.pid] = RunningProgram(name, process.pid, subject, began)
    try:
        with process.stdout as pipe:
            output = bytearray()
            has_ended = _read_until_end(process, pipe, output, limit, began + deadline_s)
    finally:
        del _running[process.pid]
    text = output.decode(errors="replace")
    if not has_ended:
        printed = f"; it printed: {text.strip()}" if text.strip() else ""
        raise HostError(name, "", "ETIMEDOUT", f"the program {name} did not end within {deadline_s:g}s{printed}")
    return Ran(process.returncode, text)


def _read_until_end(
    process: subprocess.Popen[bytes], pipe: IO[bytes], output: bytearray, limit: int, until: float
) -> bool:
    """Read what the program prints, and drop what is too much. False if it had to be killed.

    A daemon that the program leaves may keep the pipe open; it is not waited for.
    """
    is_open = True
    readable = select.poll()
    readable.register(pipe, select.POLLIN)
    try:
        while process.poll() is None:
            left = until - time.monotonic()
            if left <= 0:
                return False
            if is_open and readable.poll(1000 * min(_STEP_S, left)):
                is_open = _read_some(pipe, output, limit)
            elif not is_open:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(left)
        while is_open and readable.poll(0) and len(output) < limit:
            is_open = _read_some(pipe, output, limit)
        return True
    finally:
        if process.returncode is None:
            _kill_group(process)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the program and its children, and wait for their end; for that of the children `_END_S` at most."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + _END_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.killpg(process.pid, 0)
            time.sleep(_PAUSE_S)  # noqa: TID251 - a worker thread


def _read_some(pipe: IO[bytes], output: bytearray, limit: int) -> bool:
    """Read once. False at the end."""
    data = os.read(pipe.fileno(), 1 << 16)
    output += data[: limit - len(output)]
    return bool(data)

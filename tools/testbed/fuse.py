"""A FUSE file system in a process of its own, which shows a directory until it is made to hang.

`python -m testbed.fuse MOUNTPOINT DIRECTORY` mounts it, writes `ready`, and obeys lines on its standard input: after `hang` it takes
requests and answers none, so that not even SIGKILL ends a process that waits; after `answer` it answers them all. A line,
also `take`, is obeyed once all requests before it are taken. Stopped by SIGSTOP, it does not even take them: waiting processes can be
killed then. At the end of its input it unmounts and ends.
Owns the mount. Source: the kernel's include/uapi/linux/fuse.h.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import select
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_MS_NOSUID, _MS_NODEV, _MNT_FORCE, _MNT_DETACH = 2, 4, 1, 2
_IN, _OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<6Q10I")
_ROOT = 1
_FORGET, _INIT, _INTERRUPT, _BATCH_FORGET = 2, 26, 36, 42
_UNANSWERED = (_FORGET, _INTERRUPT, _BATCH_FORGET)
_libc = ctypes.CDLL(None, use_errno=True)


class HangingFileSystem:
    """The process as tests use it: a file system at `path` that shows `directory`. A context manager."""

    def __init__(self, path: Path, directory: Path) -> None:
        self.path, self.directory = path, directory
        path.mkdir(parents=True, exist_ok=True)
        directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, __file__, str(path), str(directory)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        assert answer == b"ready\n", f"the FUSE daemon has not started: {answer!r}"

    @property
    def pid(self) -> int:
        """The process that answers."""
        return self._process.pid

    def hang(self) -> None:
        """Take requests from now on, and answer none: whoever waits cannot even be killed."""
        self._order("hang")

    def take(self) -> None:
        """Return when the process has taken all requests that wait: from then on whoever waits cannot be killed."""
        self._order("take")

    def answer(self) -> None:
        """Answer all requests that wait, and those that come, also after `stop`."""
        os.kill(self.pid, signal.SIGCONT)
        self._order("answer")

    def stop(self) -> None:
        """Stop the process, so that it does not even take requests: whoever waits can be killed."""
        os.kill(self.pid, signal.SIGSTOP)

    def close(self) -> None:
        """End everything that waits, unmount, and end the process. Harmless when done already."""
        self._process.kill()  # the kernel ends all waits when there is no process that can answer
        self._process.communicate()
        while _libc.umount2(os.fsencode(self.path), _MNT_FORCE | _MNT_DETACH) == 0:
            continue

    def _order(self, line: str) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        assert self._process.stdout.readline() == b"done\n"

    def __enter__(self) -> HangingFileSystem:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Daemon:
    """Answers the kernel's requests from a directory. Nodes are numbered in the order of their first look-up, and never forgotten."""

    def __init__(self, device: int, directory: str) -> None:
        self._device = device
        self._paths = {_ROOT: directory}
        self._numbers = {directory: _ROOT}
        self._calls: dict[int, Callable[[int, bytes, tuple[int, int]], bytes]] = {
            1: lambda node, data, _: self._entry(self._child(node, data)),
            3: lambda node, _, __: self._attributes(node),
            4: self._set_attributes,
            5: lambda node, _, __: os.fsencode(os.readlink(self._paths[node])),
            8: self._make_node,
            9: self._make_directory,
            10: lambda node, data, _: _removed(os.unlink, self._child(node, data)),
            11: lambda node, data, _: _removed(os.rmdir, self._child(node, data)),
            12: self._rename,
            14: lambda _, __, ___: bytes(16),
            15: self._read,
            16: self._write,
            17: self._usage,
            18: lambda _, __, ___: b"",
            25: lambda _, __, ___: b"",
            _INIT: self._greet,
            27: lambda _, __, ___: bytes(16),
            28: self._list,
            29: lambda _, __, ___: b"",
            34: lambda _, __, ___: b"",
            38: lambda _, __, ___: b"",
        }

    def serve(self) -> None:
        """Answer until the standard input ends or the file system is unmounted."""
        waiting: list[bytes] | None = None
        while True:
            ready, _, _ = select.select([self._device, 0], [], [])
            if self._device in ready:
                try:
                    request = os.read(self._device, 1 << 18)
                except OSError as error:
                    if error.errno == errno.ENODEV:
                        return
                    if error.errno in (errno.EINTR, errno.ENOENT, errno.ECONNABORTED):
                        continue
                    raise
                if waiting is not None and _IN.unpack_from(request)[1] != _INIT:
                    waiting.append(request)
                else:
                    self._answer(request)
            elif 0 in ready:
                line = os.read(0, 100).decode().strip()
                if not line:
                    return
                if line == "hang":
                    waiting = []
                elif line == "answer":
                    held, waiting = waiting or [], None
                    for request in held:
                        self._answer(request)
                print("done", flush=True)

    def _answer(self, request: bytes) -> None:
        _, opcode, unique, node, uid, gid, *_ = _IN.unpack_from(request)
        if opcode in _UNANSWERED:
            return
        try:
            data, code = self._calls[opcode](node, request[_IN.size :], (uid, gid)), 0
        except KeyError:
            data, code = b"", errno.ENOSYS
        except OSError as error:
            data, code = b"", error.errno or errno.EIO
        try:
            os.write(self._device, _OUT.pack(_OUT.size + len(data), -code, unique) + data)
        except FileNotFoundError:
            return  # who has asked does not wait any more

    def _greet(self, _: int, data: bytes, __: tuple[int, int]) -> bytes:
        major, minor = struct.unpack_from("<II", data)
        return struct.pack("<IIIIHHIIHHI28x", major, min(minor, 31), 1 << 16, 0, 12, 9, 1 << 16, 1, 0, 0, 0)

    # Names and attributes

    def _child(self, node: int, name: bytes) -> str:
        return os.path.join(self._paths[node], os.fsdecode(name.split(b"\0", 1)[0]))

    def _entry(self, path: str) -> bytes:
        found = os.lstat(path)
        number = self._numbers.setdefault(path, len(self._numbers) + 1)
        self._paths[number] = path
        return struct.pack("<4QII", number, 0, 0, 0, 0, 0) + _packed(found, number)

    def _attributes(self, node: int) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + _packed(os.lstat(self._paths[node]), node)

    def _set_attributes(self, node: int, data: bytes, _: tuple[int, int]) -> bytes:
        valid, size = struct.unpack_from("<I12xQ", data)
        mode, _, uid, gid = struct.unpack_from("<IIII", data, 68)
        path = self._paths[node]
        if valid & 1:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & 6:
            os.chown(path, uid if valid & 2 else -1, gid if valid & 4 else -1, follow_symlinks=False)
        if valid & 8:
            os.truncate(path, size)
        return self._attributes(node)

    def _make_node(self, node: int, data: bytes, owner: tuple[int, int]) -> bytes:
        mode, _, umask, _ = struct.unpack_from("<IIII", data)
        path = self._child(node, data[16:])
        os.mknod(path, mode & ~umask)
        os.chown(path, *owner)
        return self._entry(path)

    def _make_directory(self, node: int, data: bytes, owner: tuple[int, int]) -> bytes:
        mode, umask = struct.unpack_from("<II", data)
        path = self._child(node, data[8:])
        os.mkdir(path, stat.S_IMODE(mode & ~umask))
        os.chown(path, *owner)
        return self._entry(path)

    def _rename(self, node: int, data: bytes, _: tuple[int, int]) -> bytes:
        (target,) = struct.unpack_from("<Q", data)
        old, new = data[8:].split(b"\0")[:2]
        os.rename(self._child(node, old), self._child(target, new))
        return b""

    # Contents

    def _read(self, node: int, data: bytes, _: tuple[int, int]) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", data)
        with open(self._paths[node], "rb") as file:
            return os.pread(file.fileno(), size, offset)

    def _write(self, node: int, data: bytes, _: tuple[int, int]) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", data)
        with open(self._paths[node], "r+b") as file:
            return struct.pack("<II", os.pwrite(file.fileno(), data[40 : 40 + size], offset), 0)

    def _list(self, node: int, data: bytes, _: tuple[int, int]) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", data)
        path, listed = self._paths[node], b""
        for position, name in enumerate(sorted(os.listdir(path))[offset:], int(offset) + 1):
            kind = stat.S_IFMT(os.lstat(os.path.join(path, name)).st_mode) >> 12
            encoded = os.fsencode(name)
            entry = struct.pack("<QQII", position, position, len(encoded), kind) + encoded
            entry += bytes(-len(entry) % 8)
            if len(listed) + len(entry) > size:
                break
            listed += entry
        return listed

    def _usage(self, node: int, _: bytes, __: tuple[int, int]) -> bytes:
        found = os.statvfs(self._paths[node])
        sizes = (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
        return struct.pack("<5Q4I24x", *sizes, found.f_bsize, 255, found.f_frsize, 0)


def _removed(remove: Callable[[str], None], path: str) -> bytes:
    remove(path)
    return b""


def _packed(found: os.stat_result, number: int) -> bytes:
    times = (int(found.st_atime), int(found.st_mtime), int(found.st_ctime), 0, 0, 0)
    owner = (found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, found.st_blksize, 0)
    return _ATTRIBUTES.pack(number, found.st_size, found.st_blocks, *times, *owner)


def main() -> None:
    """Mount and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("directory")
    given = parser.parse_args()
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    path = os.fsencode(given.path)
    if _libc.mount(b"hanging", path, b"fuse.hanging", _MS_NOSUID | _MS_NODEV, options.encode()):
        sys.exit(f"cannot mount a FUSE file system at {given.path}: {os.strerror(ctypes.get_errno())}")
    print("ready", flush=True)
    try:
        Daemon(device, given.directory).serve()
    finally:
        _libc.umount2(path, _MNT_DETACH)


if __name__ == "__main__":
    main()

"""The record of the agent's run, in memory that outlives the process: a file in a tmpfs, which is mapped and locked.

Owns: `<checksum of the root directory>.run` and `.stacks` in `/run/pykubelet`, or in `/dev/shm/pykubelet` where `/run` is on a disk.
The first has the work that is under way (`base/kit/flight.py`), the pod that is in the way of the agent, and the memory in use; the
second has what Python writes when a signal such as SIGSEGV or SIGABRT ends the process. They are removed at an orderly end, so files
that exist were left by a run that ended otherwise. A reboot removes them too, and the next agent removes those of root directories
that are gone.
A store to this memory never waits for a disk. Without a tmpfs at either place, nothing is recorded.
Source: mmap(2), mlock(2), proc(5).
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import re
from collections.abc import Iterable
from struct import Struct, error

from pykubelet.base.kit.flight import SIZE, OpenWork, key_text, open_works, record_key
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError, Translating
from pykubelet.edges.host.fs.files import OpenDescriptor, names_in, read_bytes, remove_file, stat_file
from pykubelet.edges.host.fs.libc import file_system_type
from pykubelet.edges.host.proc.self_stats import start_ticks

log = Log("app")
DIRECTORIES = ("/run/pykubelet", "/dev/shm/pykubelet")
_MAGIC = b"pykubelet run 1\n"
#: After the magic: the process, its start by the kernel (ticks) and in monotonic seconds, and its memory in bytes.
_HEAD = Struct("<16sQQdQ")
#: Whether a pod is in the way, and the lengths of its key and of the reason.
_BLAME = Struct("<BxHH")
_BLAME_AT, _ROOT_AT, _MAX_ROOT_BYTES = 64, 2048, 2048
_WORK_AT = 4096
_BYTES = _WORK_AT + SIZE
_MAX_CAUSE_BYTES = 1024
_MAX_STACKS_BYTES = 1 << 20
_MAX_SWEPT = 256
_MEMORY_FILE_SYSTEMS = (0x01021994, 0x858458F6)  # tmpfs, ramfs
_FATAL = re.compile(rb"^Fatal Python error: ([A-Z][A-Za-z -]{1,40})$", re.MULTILINE)


class Blame(Value):
    """The pod that is in the way of the agent, and how. `key`: as in `OpenWork`."""

    key: str
    cause: str


class EndedRun(Value):
    """A run of the agent that did not end in order. Times are monotonic seconds. `memory`: the bytes in use before its last work began.

    `works`: those that were under way. `fatal`: Python's name of the signal that ended it, if that has left stacks; `fatal_at`: when.
    """

    pid: int
    started_at: float
    memory: int
    works: tuple[OpenWork, ...] = ()
    blame: Blame | None = None
    fatal: str = ""
    fatal_at: float = 0.0
    stacks: str = ""


class RunRecord:
    """The record of this run. `begin` makes it; without it, all other methods do nothing. `directories`: the first one whose parent is
    in memory is used."""

    def __init__(self, root: str, directories: Iterable[str] = DIRECTORIES) -> None:
        name = hashlib.sha256(os.path.realpath(root).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self._root, self._directory = root, next(filter(_is_in_memory, directories), "")
        self._path, self._stacks_path = f"{self._directory}/{name}.run", f"{self._directory}/{name}.stacks"
        self._map: mmap.mmap | None = None
        self._is_in_use = False

    def read_ended(self, now: float, wall: float) -> EndedRun | None:
        """The run before this one, if it did not end in order. `now`, `wall`: the present in both clocks. Never raises."""
        try:
            if not _is_private(self._directory):
                return None
            data = read_bytes(self._path, _BYTES)
            magic, pid, started, started_at, memory = _HEAD.unpack_from(data)
        except (HostError, error):
            return None
        self._is_in_use = magic == _MAGIC and _runs(pid, started)
        if magic != _MAGIC or self._is_in_use:
            return None
        fatal, fatal_at, stacks = self._read_stacks(now, wall)
        works = tuple(open_works(data[_WORK_AT:]))
        return EndedRun(pid, started_at, memory, works, _blame(data), fatal, fatal_at, stacks)

    def _read_stacks(self, now: float, wall: float) -> tuple[str, float, str]:
        try:
            stat, data = stat_file(self._stacks_path), read_bytes(self._stacks_path, _MAX_STACKS_BYTES)
        except HostError:
            return "", 0.0, ""
        found = _FATAL.search(data)
        if stat is None or found is None:
            return "", 0.0, ""
        fatal_at = now - (wall - stat.mtime_ns / 1e9)
        return found[1].decode(), fatal_at, data.decode("utf-8", "replace").strip()

    def begin(self, now: float) -> tuple[memoryview, int] | None:
        """Begin the record of this run. Returns the memory for the work under way, and the descriptor for the stacks at a fatal signal.

        None: there is no tmpfs, or another agent runs on this root directory. Raises HostError.
        """
        if self._is_in_use or not self._directory:
            return None
        _make_private(self._directory)
        self._sweep()
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with Translating("open", self._path):
            stacks = os.open(self._stacks_path, flags | os.O_APPEND, 0o600)
            remove_file(self._path)
            with OpenDescriptor(os.open(self._path, flags | os.O_EXCL, 0o600)) as descriptor:
                os.posix_fallocate(descriptor, 0, _BYTES)  # a store to memory that cannot be had would end the process
                self._map = mmap.mmap(descriptor, _BYTES)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        ctypes.CDLL(None).mlock(
            ctypes.c_void_p(address), ctypes.c_size_t(_BYTES)
        )  # without it, a store may wait for swap
        pid, root = os.getpid(), os.fsencode(os.path.realpath(self._root))[: _MAX_ROOT_BYTES - 1]
        self._map[_ROOT_AT : _ROOT_AT + len(root)] = root
        _HEAD.pack_into(self._map, 0, _MAGIC, pid, start_ticks(pid) or 0, now, 0)
        return memoryview(self._map)[_WORK_AT:], stacks

    def _sweep(self) -> None:
        """Remove the files of agents that do not run and have no root directory. One that has just begun has not made its own yet."""
        for name in names_in(self._directory)[:_MAX_SWEPT]:
            path = f"{self._directory}/{name}"
            if not name.endswith(".run") or path == self._path:
                continue
            try:
                data = read_bytes(path, _BYTES)
                magic, pid, started, _, _ = _HEAD.unpack_from(data)
                root = os.fsdecode(data[_ROOT_AT : _ROOT_AT + _MAX_ROOT_BYTES].partition(b"\0")[0])
                if magic == _MAGIC and not os.path.isdir(root) and not _runs(pid, started):
                    remove_file(path)
                    remove_file(f"{path.removesuffix('.run')}.stacks")
            except (HostError, error):
                continue  # another agent has removed it, or is just making it

    def note_memory(self, size: int) -> None:
        """Note the bytes of memory in use while no work of a pod is under way."""
        if self._map is not None:
            _MEMORY.pack_into(self._map, _MEMORY_AT, size)

    def blame(self, blame: Blame | None) -> None:
        """Note the pod that is in the way of the agent; None: none is."""
        if self._map is None:
            return
        self._map[_BLAME_AT] = 0
        if blame is not None:
            key, cause = record_key(blame.key), blame.cause.encode("utf-8", "replace")[:_MAX_CAUSE_BYTES]
            start = _BLAME_AT + _BLAME.size
            self._map[start : start + len(key) + len(cause)] = key + cause
            _BLAME.pack_into(self._map, _BLAME_AT, 1, len(key), len(cause))

    def end(self) -> None:
        """Remove the record at an orderly end. Never raises."""
        for path in (self._path, self._stacks_path) if self._map is not None else ():
            try:
                remove_file(path)
            except HostError as problem:
                log.warning("the record of this run cannot be removed", error=problem)


def _runs(pid: int, started: int) -> bool:
    """Whether the process that the kernel started at these ticks still runs."""
    return start_ticks(pid) == started


def _is_in_memory(directory: str) -> bool:
    """Whether a directory is, or would be, in a file system that has no disk."""
    try:
        return file_system_type(os.path.dirname(directory)) in _MEMORY_FILE_SYSTEMS
    except HostError:
        return False


def _is_private(directory: str) -> bool:
    """Whether no other user can have written to the directory: any user may make one in `/dev/shm`."""
    found = stat_file(directory, follow=False)
    return found is not None and found.is_dir and found.uid == os.geteuid() and not found.mode & 0o077


def _make_private(directory: str) -> None:
    """Make the directory if it does not exist. Raises HostError, also if others can have written to it."""
    with Translating("mkdir", directory):
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            if not _is_private(directory):
                raise HostError("mkdir", directory, "EPERM", "others can write to this directory") from None


_MEMORY = Struct("<Q")
_MEMORY_AT = _HEAD.size - _MEMORY.size


def _blame(data: bytes) -> Blame | None:
    try:
        is_set, key_length, cause_length = _BLAME.unpack_from(data, _BLAME_AT)
    except error:
        return None
    start = _BLAME_AT + _BLAME.size
    key, cause = data[start : start + key_length], data[start + key_length : start + key_length + cause_length]
    return Blame(key_text(key), cause.decode("utf-8", "replace")) if is_set else None

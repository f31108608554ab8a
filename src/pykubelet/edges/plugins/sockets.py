"""Reads the directory in which plugins create their registration sockets. For a worker thread: it blocks."""

from __future__ import annotations

from itertools import islice

from pykubelet.base.kit.values import Value, field
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import FileKind, list_dir, make_dirs, stat_file

#: More sockets and directories than these are ignored. A node has a handful of plugins.
MAX_SOCKETS = 256
MAX_DIRECTORIES = 64


class SocketFile(Value):
    """One socket. A file that was removed and created again has another inode or time."""

    inode: int
    mtime_ns: int


class SocketScan(Value):
    """The sockets by path, the directories, and whether there were more than the limits allow.

    `unread`: why some directories could not be read, by path. Nothing is known about the sockets below them.
    """

    sockets: dict[str, SocketFile]
    directories: tuple[str, ...]
    is_cut: bool = False
    unread: dict[str, str] = field(default_factory=dict)

    def is_unread(self, path: str) -> bool:
        """Whether a socket may exist, because a directory above it could not be read."""
        return any(path.startswith(f"{directory}/") for directory in self.unread)


def scan_sockets(root: str) -> SocketScan:
    """The sockets in `root` and all directories below it. Links are not followed; names that begin with a dot are ignored, and so
    are names that are not UTF-8, which could not be shown.

    A missing `root` is created. Raises HostError if it cannot be read; another directory is skipped then.
    """
    make_dirs(root, 0o755, exact=False)
    sockets: dict[str, SocketFile] = {}
    directories = [root]
    unread: dict[str, str] = {}
    is_cut = False
    for directory in directories:
        try:
            below, found = _read(directory)
        except HostError as error:
            if directory == root:
                raise
            if not error.is_not_found:
                unread[directory] = str(error)
            continue
        is_cut = is_cut or len(directories) + len(below) > MAX_DIRECTORIES or len(sockets) + len(found) >= MAX_SOCKETS
        directories += below[: MAX_DIRECTORIES - len(directories)]
        sockets.update(islice(found.items(), MAX_SOCKETS - len(sockets)))
    readable = (directory for directory in directories if directory not in unread)
    return SocketScan(sockets, tuple(readable), is_cut, unread)


def _read(directory: str) -> tuple[list[str], dict[str, SocketFile]]:
    """The directories and the sockets in a directory. Raises HostError."""
    directories: list[str] = []
    sockets: dict[str, SocketFile] = {}
    for entry in list_dir(directory):
        path = f"{directory}/{entry.name}"
        if entry.name.startswith(".") or not _is_text(entry.name):
            continue
        if entry.kind is FileKind.DIRECTORY:
            directories.append(path)
        elif entry.kind is FileKind.SOCKET and len(sockets) < MAX_SOCKETS:
            found = stat_file(path, follow=False)
            if found is not None:
                sockets[path] = SocketFile(found.inode, found.mtime_ns)
    return directories, sockets


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True

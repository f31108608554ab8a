"""Reads the directory in which plugins create their registration sockets. For a worker thread: it blocks."""

from __future__ import annotations

from pykubelet.base.kit.values import Value
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
    """The sockets by path, the directories, and whether there were more than the limits allow."""

    sockets: dict[str, SocketFile]
    directories: tuple[str, ...]
    is_cut: bool = False


def scan_sockets(root: str) -> SocketScan:
    """The sockets in `root` and all directories below it. Links are not followed; names that begin with a dot are ignored, and so
    are names that are not UTF-8, which could not be shown.

    A missing `root` is created. Raises HostError if it cannot be read.
    """
    make_dirs(root, 0o755, exact=False)
    sockets: dict[str, SocketFile] = {}
    directories = [root]
    is_cut = False
    for directory in directories:
        try:
            entries = list_dir(directory)
        except HostError as error:
            if directory == root or not error.is_not_found:
                raise
            continue
        for entry in entries:
            path = f"{directory}/{entry.name}"
            if entry.name.startswith(".") or not _is_text(entry.name):
                continue
            if entry.kind is FileKind.DIRECTORY:
                if len(directories) < MAX_DIRECTORIES:
                    directories.append(path)
                else:
                    is_cut = True
            elif entry.kind is FileKind.SOCKET:
                found = stat_file(path, follow=False)
                if found is not None and len(sockets) < MAX_SOCKETS:
                    sockets[path] = SocketFile(found.inode, found.mtime_ns)
                is_cut = is_cut or len(sockets) >= MAX_SOCKETS
    return SocketScan(sockets, tuple(directories), is_cut)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True

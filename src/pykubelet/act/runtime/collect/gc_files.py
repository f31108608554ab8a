"""Removes log files and links of containers that are gone. Every function blocks.

Owns: the removal of a container's log with its rotated parts, of pod log directories, and of dangling links.
"""

from __future__ import annotations

import posixpath

from pykubelet.base.model.paths import Paths
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import DirEntry, FileKind, list_dir, read_link, remove_file, stat_file

_LOG = ".log"


def list_or_nothing(path: str) -> tuple[DirEntry, ...]:
    """Entries of a directory; empty if it does not exist. Raises HostError on other failures."""
    try:
        return list_dir(path)
    except HostError as error:
        if error.is_not_found:
            return ()
        raise


def remove_container_log(paths: Paths, log_path: str, link: str) -> None:
    """Remove the log, its rotated parts and the link to it. Logs outside of the pods' log directory are kept.

    A link to another log stays: where names are long, the id is cut off, and the newest instance has the link.
    """
    own, target = posixpath.normpath(log_path), read_link(link)
    if target is not None and (not log_path or posixpath.normpath(target) == own):
        remove_file(link)
    if not own.startswith(f"{posixpath.normpath(paths.logs)}/"):
        return
    directory, name = posixpath.split(log_path)
    for entry in list_or_nothing(directory):
        if entry.name == name or entry.name.startswith(f"{name}."):
            remove_file(f"{directory}/{entry.name}")


def pod_log_dirs(paths: Paths) -> list[str]:
    """Names of the pods' log directories. Raises HostError if they cannot be listed."""
    return [entry.name for entry in list_or_nothing(paths.logs) if entry.kind is FileKind.DIRECTORY]


def dangling_links(paths: Paths) -> dict[str, str]:
    """Links to pod logs whose target is missing, each with the container ID in its name."""
    found: dict[str, str] = {}
    for entry in list_or_nothing(paths.log_links):
        if entry.kind is not FileKind.SYMLINK or not entry.name.endswith(_LOG):
            continue
        path = f"{paths.log_links}/{entry.name}"
        target = read_link(path)
        if target is None or not target.startswith(f"{paths.logs}/") or stat_file(path) is not None:
            continue
        found[path] = entry.name.removesuffix(_LOG).rpartition("-")[2]
    return found


def remove_dangling_link(path: str) -> None:
    """Remove the link unless its target exists again."""
    if stat_file(path) is None:
        remove_file(path)

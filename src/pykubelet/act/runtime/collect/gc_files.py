"""Removes log files and links of containers that are gone. Every function blocks.

Owns: the removal of a container's log with its rotated parts, of pod log directories, and of dangling links.
"""

from __future__ import annotations

import posixpath

from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.edges.host.fs.beneath import list_entries, read_link, remove_file, stat_file
from pykubelet.edges.host.fs.files import FileKind

_LOG = ".log"


def remove_container_log(paths: Paths, log_path: str, link: Beneath) -> None:
    """Remove the log, its rotated parts and the link to it. Logs outside of the pods' log directory are kept.

    A link to another log stays: where names are long, the id is cut off, and the newest instance has the link.
    """
    target = read_link(link)
    if target is not None and (not log_path or posixpath.normpath(target) == posixpath.normpath(log_path)):
        remove_file(link)
    log = _below_logs(paths, log_path)
    if log is None:
        return
    for entry in list_entries(log.parent):
        if entry.name == log.name or entry.name.startswith(f"{log.name}."):
            remove_file(log.parent / entry.name)


def _below_logs(paths: Paths, path: str) -> Beneath | None:
    """The file at the path, if it lies below the pods' log directory."""
    top, path = f"{posixpath.normpath(paths.logs)}/", posixpath.normpath(path)
    return Beneath(paths.logs, path.removeprefix(top)) if path.startswith(top) else None


def pod_log_dirs(paths: Paths) -> list[str]:
    """Names of the pods' log directories. Raises HostError if they cannot be listed."""
    return [entry.name for entry in list_entries(Beneath(paths.logs, "")) if entry.kind is FileKind.DIRECTORY]


def dangling_links(paths: Paths) -> dict[Beneath, str]:
    """Links to pod logs whose target is missing, each with the container ID in its name."""
    found: dict[Beneath, str] = {}
    for entry in list_entries(Beneath(paths.log_links, "")):
        link = Beneath(paths.log_links, entry.name)
        if entry.kind is FileKind.SYMLINK and entry.name.endswith(_LOG) and _is_dangling(paths, link):
            found[link] = entry.name.removesuffix(_LOG).rpartition("-")[2]
    return found


def _is_dangling(paths: Paths, link: Beneath) -> bool:
    """Whether it leads to a pod's log that is missing."""
    target = read_link(link)
    log = _below_logs(paths, target) if target is not None else None
    return log is not None and stat_file(log) is None


def remove_dangling_link(paths: Paths, link: Beneath) -> None:
    """Remove the link unless its target exists again."""
    if _is_dangling(paths, link):
        remove_file(link)

"""Writes the files of a volume atomically: a reader sees all of the old content or all of the new.

Owns the layout, which other programs rely on. The files are in a directory `..2006_01_02_15_04_05.<digits>`. `..data` is a
symbolic link to it, and a rename replaces that link. Each visible name is a link to `..data/<name>`. Blocks; the caller
passes the time.
Source: the Kubernetes documentation "Secrets" and "ConfigMaps" (mounted content is updated automatically).
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from pykubelet.act.volumes.payloads.payload import PayloadFile
from pykubelet.edges.host.fs import files, trees
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import FileKind

DATA = "..data"
NEW_DATA = "..data_tmp"
_MAX_FILE = 16 << 20


def write_payload(directory: str, payload: Sequence[PayloadFile], wall: float, fs_group: int | None) -> bool:
    """Make `directory` show exactly `payload`; False when it already did. `wall`: seconds, for the name of the hidden directory."""
    current = files.read_link(f"{directory}/{DATA}")
    if current is not None and _is_same(f"{directory}/{current}", payload):
        _tidy(directory, payload, current)
        return False
    fresh = _make_hidden(directory, wall)
    try:
        for file in payload:
            parent = posixpath.dirname(file.path)
            if parent:
                files.make_dirs(f"{directory}/{fresh}/{parent}", 0o755)
            files.write_in_place(f"{directory}/{fresh}/{file.path}", file.data, file.mode)
            if file.owner is not None:
                files.change_owner(f"{directory}/{fresh}/{file.path}", file.owner, -1)
        if fs_group is not None:
            trees.apply_group(directory, fs_group, read_only=True)
        files.replace_symlink(fresh, f"{directory}/{NEW_DATA}")
        files.rename(f"{directory}/{NEW_DATA}", f"{directory}/{DATA}")
    except HostError:
        trees.remove_tree(f"{directory}/{fresh}")
        raise
    _tidy(directory, payload, fresh)
    return True


def _make_hidden(directory: str, wall: float) -> str:
    stamp = datetime.fromtimestamp(wall, UTC).strftime("..%Y_%m_%d_%H_%M_%S.")
    while True:
        name = f"{stamp}{secrets.randbelow(1 << 32)}"
        if files.make_dirs(f"{directory}/{name}", 0o755):
            return name


def _is_same(hidden: str, payload: Sequence[PayloadFile]) -> bool:
    wanted = {file.path: file.data for file in payload}
    present = _paths_below(hidden, "")
    if present is None or set(present) != set(wanted):
        return False
    try:
        return all(files.read_bytes(f"{hidden}/{path}", _MAX_FILE) == data for path, data in wanted.items())
    except HostError:
        return False  # an unreadable file is replaced


def _paths_below(hidden: str, prefix: str) -> list[str] | None:
    try:
        entries = files.list_dir(f"{hidden}/{prefix}")
    except HostError as error:
        if error.is_not_found:
            return None
        raise
    paths: list[str] = []
    for entry in entries:
        if entry.kind is FileKind.DIRECTORY:
            paths.extend(_paths_below(hidden, f"{prefix}{entry.name}/") or [])
        else:
            paths.append(prefix + entry.name)
    return paths


def _tidy(directory: str, payload: Sequence[PayloadFile], current: str) -> None:
    """Make the visible links; remove links to files that are gone and what an interrupted write has left."""
    names = {file.path.partition("/")[0] for file in payload}
    for entry in files.list_dir(directory):
        path = f"{directory}/{entry.name}"
        if entry.name in (DATA, current):
            continue
        if entry.name.startswith(".."):
            trees.remove_tree(path)
        elif entry.name not in names:
            if entry.kind is FileKind.SYMLINK:
                files.remove_file(path)
        elif entry.kind is FileKind.DIRECTORY or files.read_link(path) == f"{DATA}/{entry.name}":
            names.discard(entry.name)  # a directory is the mount point of another volume: it needs no link
    for name in sorted(names):
        files.replace_symlink(f"{DATA}/{name}", f"{directory}/{name}")

"""Writes the files of a volume atomically: a reader sees all of the old content or all of the new.

Owns the layout, which other programs rely on. The files are in a directory `..2006_01_02_15_04_05.<digits>`. `..data` is a
symbolic link to it, and a rename replaces that link. Each visible name is a link to `..data/<name>`. Blocks; the caller
passes the time.
Source: the Kubernetes documentation "Secrets" and "ConfigMaps" (mounted content is updated automatically).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.fs import beneath
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import FileKind
from pykubelet.provide.volumes.payloads.payload import PayloadFile

DATA = "..data"
NEW_DATA = "..data_tmp"
_MAX_FILE = 16 << 20
_HIDDEN = re.compile(r"\.\.\d[\d_]{0,40}\.\d{1,20}")


def write_payload(directory: Beneath, payload: Sequence[PayloadFile], wall: float, fs_group: int | None) -> bool:
    """Make `directory` show exactly `payload`; False when it already did. `wall`: seconds, for the name of the hidden directory."""
    current = beneath.read_link(directory / DATA) or ""
    if _HIDDEN.fullmatch(current) and _is_same(directory / current, payload):
        _tidy(directory, payload, current)
        return False
    fresh = _make_hidden(directory, wall)
    hidden = directory / fresh
    try:
        for file in payload:
            path = hidden / file.path
            if path.parent != hidden:
                beneath.make_dirs(path.parent, 0o755)
            beneath.write_in_place(path, file.content, file.mode)
            if file.owner is not None:
                beneath.change_owner(path, file.owner, -1)
        if fs_group is not None:
            beneath.apply_group(directory, fs_group, read_only=True)
        beneath.replace_symlink(fresh, directory / NEW_DATA)
        beneath.rename(directory / NEW_DATA, DATA)
    except HostError:
        beneath.remove_tree(hidden)
        raise
    _tidy(directory, payload, fresh)
    return True


def _make_hidden(directory: Beneath, wall: float) -> str:
    stamp = datetime.fromtimestamp(wall, UTC).strftime("..%Y_%m_%d_%H_%M_%S.")
    while True:
        name = f"{stamp}{secrets.randbelow(1 << 32)}"
        if beneath.make_dirs(directory / name, 0o755):
            return name


def _is_same(hidden: Beneath, payload: Sequence[PayloadFile]) -> bool:
    wanted = {file.path: file for file in payload}
    try:
        if set(_paths_in(hidden)) != set(wanted):
            return False
        return all(beneath.read_bytes(hidden / path, _MAX_FILE) == file.content for path, file in wanted.items())
    except HostError:
        return False  # what cannot be read is replaced


def _paths_in(hidden: Beneath) -> list[str]:
    paths: list[str] = []
    prefixes = [""]
    while prefixes:
        prefix = prefixes.pop()
        for entry in beneath.list_dir(hidden / prefix):
            if entry.kind is FileKind.DIRECTORY:
                prefixes.append(f"{prefix}{entry.name}/")
            else:
                paths.append(prefix + entry.name)
    return paths


def _tidy(directory: Beneath, payload: Sequence[PayloadFile], current: str) -> None:
    """Make the visible links; remove links to files that are gone and what an interrupted write has left."""
    names = {file.path.partition("/")[0] for file in payload}
    for entry in beneath.list_dir(directory):
        path = directory / entry.name
        if entry.name in (DATA, current):
            continue
        if entry.name.startswith(".."):
            beneath.remove_tree(path)
        elif entry.name not in names:
            if entry.kind is FileKind.SYMLINK:
                beneath.remove_file(path)
        elif entry.kind is FileKind.DIRECTORY or beneath.read_link(path) == f"{DATA}/{entry.name}":
            names.discard(entry.name)  # a directory is the mount point of another volume: it needs no link
    for name in sorted(names):
        beneath.replace_symlink(f"{DATA}/{name}", directory / name)

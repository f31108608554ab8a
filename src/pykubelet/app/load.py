"""Reads the inputs of the configuration (files, facts of the machine) and combines them into `Settings`.

All reading of configuration files is here; the rules are in `config`. Changes nothing on the machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from pykubelet.app.flags import CommandLine
from pykubelet.app.flags_parse import read_flags
from pykubelet.base.kit.cpuset import parse_cpuset
from pykubelet.base.kit.values import replace
from pykubelet.config.combine import File, combine
from pykubelet.config.errors import ConfigError
from pykubelet.config.settings import Settings
from pykubelet.config.validate_host import HostFacts

DROP_IN_SUFFIX = ".conf"
_REASONS = {FileNotFoundError: "no such file or directory", PermissionError: "permission denied"}


def load(line: CommandLine, root: str = "/") -> Settings:
    """The settings of a command line on this machine. `root`: the directory with `proc` and `sys`.

    Raises FlagError for a wrong flag value and ConfigError for all other problems.
    """
    given = read_flags(line)
    file = None
    if given.flags.config:
        file = File(given.flags.config, _read(given.flags.config, "kubelet config file"))
    drop_ins, skipped = _drop_ins(given.flags.config_dir) if given.flags.config_dir else ((), ())
    settings = combine(file, drop_ins, given, read_host(root))
    hints = settings.flags.container_hints
    if hints and os.path.exists(hints):
        raise ConfigError(f"--container-hints is not supported, and {hints} exists: remove the flag or the file")
    if not skipped:
        return settings
    warning = f"Skipped files without the suffix {DROP_IN_SUFFIX} in {given.flags.config_dir}: {', '.join(skipped)}"
    return replace(settings, warnings=(*settings.warnings, warning))


def read_host(root: str = "/") -> HostFacts:
    """The facts of the machine that the rules need. Files that cannot be read count as missing."""
    base = root.rstrip("/")
    return HostFacts(
        cgroup_v2=os.path.exists(f"{base}/sys/fs/cgroup/cgroup.controllers"),
        online_cpus=parse_cpuset(_text(f"{base}/sys/devices/system/cpu/online").strip()),
        swap_on=swap_on(_text(f"{base}/proc/swaps")),
    )


def swap_on(swaps: str) -> bool:
    """Whether the text of /proc/swaps lists a swap area. A line for zram or for a deleted file counts too."""
    return any(line.split() for line in swaps.splitlines()[1:])


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except OSError:
        return ""


def _read(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise ConfigError(f"failed to load {what}, path: {path}, error: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    return _REASONS.get(type(error), (error.strerror or str(error)).lower())


def _drop_ins(directory: str) -> tuple[tuple[File, ...], tuple[str, ...]]:
    """The drop-in files in the order in which they apply, and the names of the skipped files."""
    files: list[File] = []
    skipped: list[str] = []
    for path in _walk(directory):
        if os.path.splitext(path)[1] == DROP_IN_SUFFIX:
            files.append(File(path, _read(path, "kubelet drop-in file")))
        else:
            skipped.append(os.path.relpath(path, directory))
    return tuple(files), tuple(skipped)


def _walk(directory: str) -> Iterator[str]:
    """All files below `directory`, depth first; the entries of each directory in lexical order."""
    try:
        with os.scandir(directory) as found:
            entries = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in found)
    except OSError as error:
        raise ConfigError(
            f"failed to walk through kubelet dropin directory {directory}, error: {_reason(error)}"
        ) from error
    for name, is_directory in entries:
        path = os.path.join(directory, name)
        if is_directory:
            yield from _walk(path)
        else:
            yield path

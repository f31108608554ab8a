"""Reads the node's docker config files.

Owns: the search order of the reference (`config.json`: root directory, working directory, `$HOME/.docker`, `/.docker`;
then `.dockercfg`: root directory, working directory, `$HOME`, `/`). provide/images parses them, because it tries the next path if
a file cannot be used.

Source: the Kubernetes documentation "Images", section "Configuring nodes to authenticate to a private registry".
"""

from __future__ import annotations

import os
from typing import ClassVar

from pykubelet.base.kit.values import RedactedValue
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError

_LIMIT = 10 << 20
_CONFIG_JSON = "config.json"
_DOCKERCFG = ".dockercfg"


class DockerConfigFile(RedactedValue):
    """One existing file. `legacy`: it is a `.dockercfg`. `problem`: why it cannot be read; then `data` is empty."""

    hidden: ClassVar = ("data",)
    path: str
    legacy: bool
    data: bytes = b""
    problem: str = ""


def docker_config_paths(root_dir: str, working_dir: str, home: str) -> tuple[tuple[str, bool], ...]:
    """The paths in search order, each with whether it has the legacy format. `home` may be empty."""
    json_dirs = (root_dir, working_dir, os.path.join(home, ".docker") if home else "", "/.docker")
    cfg_dirs = (root_dir, working_dir, home, "/")
    paths = [(os.path.join(directory, _CONFIG_JSON), False) for directory in json_dirs if directory]
    paths += [(os.path.join(directory, _DOCKERCFG), True) for directory in cfg_dirs if directory]
    return tuple(dict.fromkeys(paths))


def read_docker_configs(root_dir: str) -> tuple[DockerConfigFile, ...]:
    """Read the files that exist, in search order. Blocks. Does not raise for a file that cannot be read."""
    try:
        working_dir = os.getcwd()
    except OSError:
        working_dir = ""  # the directory in which the agent was started is gone
    found = []
    for path, legacy in docker_config_paths(root_dir, working_dir, os.environ.get("HOME", "")):
        try:
            found.append(DockerConfigFile(path, legacy, files.read_bytes(path, _LIMIT)))
        except HostError as error:
            if not error.is_not_found:
                found.append(DockerConfigFile(path, legacy, problem=str(error)))
    return tuple(found)

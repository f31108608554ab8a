"""The version the agent shows. Imports nothing heavy: `--version` must answer at once.

`kubelet --version` is read by programs. kubeadm runs it and matches the whole output, trimmed, against
`^\\s*Kubernetes v(MAJOR.MINOR.PATCH[-0-9a-zA-Z_.+]*)\\s*$`, then parses that as a semantic version; others take the second
word, or the first `v1.2.3` they find. So there is exactly one line of two words, and our own version is the build
metadata behind a `+`, as Kubernetes distributions write theirs (`v1.36.2+vendor1`): it changes no comparison.
"""

from __future__ import annotations

import os
import sys

from pykubelet import __version__

KUBERNETES = "v1.36.2"
FULL = f"{KUBERNETES}+pykubelet.{__version__}"
MINOR = "1.36"
_GO_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def user_agent(program: str = "kubelet") -> str:
    """As client programs of Kubernetes name themselves to the API server."""
    machine = os.uname().machine
    return f"{program}/{FULL} (linux/{_GO_MACHINES.get(machine, machine)})"


def version_line() -> str:
    """What `--version` prints."""
    return f"Kubernetes {FULL}"


def raw_version() -> str:
    """What `--version=raw` prints: the reference's structure in its notation."""
    machine = os.uname().machine
    machine = _GO_MACHINES.get(machine, machine)
    python = "python" + ".".join(str(part) for part in sys.version_info[:3])
    major, minor = MINOR.split(".")
    fields = (
        ("Major", major),
        ("Minor", minor),
        ("EmulationMajor", ""),
        ("EmulationMinor", ""),
        ("MinCompatibilityMajor", ""),
        ("MinCompatibilityMinor", ""),
        ("GitVersion", FULL),
        ("GitCommit", ""),
        ("GitTreeState", ""),
        ("BuildDate", ""),
        ("GoVersion", python),
        ("Compiler", "cpython"),
        ("Platform", f"linux/{machine}"),
    )
    return "version.Info{" + ", ".join(f'{name}:"{value}"' for name, value in fields) + "}"


def overridden_version(wanted: str) -> str | None:
    """The version of `--version=vX.Y.Z...`: it must be ours with another suffix. None when it is not."""
    return wanted if wanted == KUBERNETES or wanted.startswith((KUBERNETES + "+", KUBERNETES + "-")) else None

"""How the agent reports its version. Imports nothing heavy, because `--version` must answer at once.

Programs parse the output of `kubelet --version`. kubeadm runs it and matches the whole output, trimmed, against
`^\\s*Kubernetes v(MAJOR.MINOR.PATCH[-0-9a-zA-Z_.+]*)\\s*$`, then parses that as a semantic version; others take the second
word, or the first `v1.2.3` they find. So the output is exactly one line of two words, and pykubelet's own version is the build
metadata after a `+`, as Kubernetes distributions do it (`v1.36.2+vendor1`). Build metadata does not affect comparisons.
"""

from __future__ import annotations

import os
import sys

from pykubelet.base.model.version import CURRENT, FULL, KUBERNETES, Release, full_version

_GO_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def user_agent(version: str = FULL) -> str:
    """The User-Agent header, in the format of Kubernetes' client programs."""
    machine = os.uname().machine
    return f"kubelet/{version} (linux/{_GO_MACHINES.get(machine, machine)})"


def version_line(release: Release = CURRENT) -> str:
    """The output of `--version` of an agent that is `release`."""
    return f"Kubernetes {full_version(release)}"


def build_labels() -> dict[str, str]:
    """What this program runs on, by the names of `kubernetes_build_info`'s labels."""
    machine = os.uname().machine
    python = "python" + ".".join(str(part) for part in sys.version_info[:3])
    platform = f"linux/{_GO_MACHINES.get(machine, machine)}"
    return {"compiler": "cpython", "go_version": python, "platform": platform}


def raw_version(release: Release = CURRENT) -> str:
    """The output of `--version=raw`: the reference's structure in Go's notation."""
    build = build_labels()
    (major, minor), emulated = CURRENT.split("."), ("", "") if release is CURRENT else tuple(release.split("."))
    fields = (
        ("Major", major),
        ("Minor", minor),
        ("EmulationMajor", emulated[0]),
        ("EmulationMinor", emulated[1]),
        ("MinCompatibilityMajor", ""),
        ("MinCompatibilityMinor", ""),
        ("GitVersion", FULL),
        ("GitCommit", ""),
        ("GitTreeState", ""),
        ("BuildDate", ""),
        ("GoVersion", build["go_version"]),
        ("Compiler", build["compiler"]),
        ("Platform", build["platform"]),
    )
    return "version.Info{" + ", ".join(f'{name}:"{value}"' for name, value in fields) + "}"


def overridden_version(wanted: str) -> str | None:
    """The version given as `--version=vX.Y.Z...`, which may differ from ours only in the suffix. None if it differs more."""
    return wanted if wanted == KUBERNETES or wanted.startswith((KUBERNETES + "+", KUBERNETES + "-")) else None

"""The command of this package, which the distribution's entry point names. Cheap to import."""

from __future__ import annotations

from pykubelet.base.kit.commands import Command

CRI_DOCKER = Command(
    "cri-docker",
    "[options]",
    "a container runtime (CRI) over Docker Engine",
    "pykubelet_cri_docker.program",
    options="pykubelet_cri_docker.options",
)

"""The command of this package, which the distribution's entry point names. Cheap to import."""

from __future__ import annotations

from pykubelet.base.kit.commands import Command

CSI_LOCAL = Command(
    "csi-local",
    "[options]",
    "a CSI driver for volumes on this machine",
    "pykubelet_csi_local.driver",
    parsers=("build_parser", "build_volumes_parser"),
)

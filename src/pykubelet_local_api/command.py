"""The command of this package, which the distribution's entry point names. Cheap to import."""

from __future__ import annotations

from pykubelet.base.kit.commands import Command

LOCAL_API = Command(
    "local-api",
    "[options]",
    "a Kubernetes API for this node, without a control plane",
    "pykubelet_local_api.program",
    options="pykubelet_local_api.options",
)

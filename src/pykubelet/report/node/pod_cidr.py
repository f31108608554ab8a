"""Sends the pod CIDRs to the runtime for its network configuration."""

from __future__ import annotations

from typing import Protocol

from pykubelet.base.kit.log import Log
from pykubelet.edges.cri.errors import CriError

log = Log("node")


class CidrRuntime(Protocol):
    """The part of the CRI client that is needed here."""

    async def update_runtime_config(self, pod_cidr: str) -> None:
        """Send the pod CIDR to the runtime (CRI `UpdateRuntimeConfig`). Raises CriError."""
        ...


class PodCidr:
    """Sets the pod CIDR of the runtime."""

    def __init__(self, runtime: CidrRuntime) -> None:
        self._runtime = runtime
        self._used = ""

    async def use(self, cidr: str) -> None:
        """Set the ranges (comma-separated), unless the runtime has them. After a failure the next call tries again."""
        if cidr in ("", self._used):
            return
        try:
            await self._runtime.update_runtime_config(cidr)
        except CriError as error:
            log.warning("the runtime refuses the pod CIDR", cidr=cidr, error=error)
            return
        self._used = cidr
        log.info("pod CIDR set", cidr=cidr)

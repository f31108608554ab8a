"""Sends the pod CIDRs to the runtime for its network configuration."""

from __future__ import annotations

import asyncio
from typing import Protocol

from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.log import Log
from pykubelet.base.model.node import RuntimeReady
from pykubelet.edges.cri.errors import CriError

log = Log("node")
#: Seconds until the pod CIDR of the configuration is sent again after a failure.
RETRY_S = 10.0


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

    async def use(self, cidr: str) -> bool:
        """Set the ranges (comma-separated), unless the runtime has them. After a failure the next call tries again.

        Returns whether the runtime has them.
        """
        if cidr in ("", self._used):
            return True
        try:
            await self._runtime.update_runtime_config(cidr)
        except CriError as error:
            log.warning("the runtime refuses the pod CIDR", cidr=cidr, error=error)
            return False
        self._used = cidr
        log.info("pod CIDR set", cidr=cidr)
        return True


async def keep_pod_cidr(cidr: str, pod_cidr: PodCidr, runtime: Cell[RuntimeReady]) -> None:
    """Send the pod CIDR of the configuration as soon as the runtime takes calls, until it has it. Never returns."""
    await runtime.wait_for(lambda now: now.takes_calls)
    while True:
        if await pod_cidr.use(cidr):
            await asyncio.Event().wait()
        await asyncio.sleep(RETRY_S)

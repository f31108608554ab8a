"""Makes the kubelet's chains in the host's packet filter, and makes them again when they were removed.

Reads and writes no cell, because the chains are for other programs on the host. If the iptables program of an IP family is
missing, or the kernel lacks the family, that is logged once and tried again; pods do not wait for it.

Source: `makeIPTablesUtilChains` of KubeletConfiguration.
"""

from __future__ import annotations

import asyncio

from pykubelet.act.network.rules import (
    CANARY_CHAIN,
    CANARY_TABLES,
    FIREWALL_CHAIN,
    JUMP,
    IPFamily,
    jump_chains,
    render_chains,
)
from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.iptables import Iptables

log = Log("network")
PERIOD_S = 60.0


class HostChains:
    """The kubelet's chains of both IP families. `period_s`: seconds between two checks. `within`: see `Iptables`."""

    def __init__(self, period_s: float = PERIOD_S, within: tuple[str, ...] = ()) -> None:
        self._period_s = period_s
        self._tables = {family: Iptables(family.value, within) for family in IPFamily}
        self._failed: set[IPFamily] = set()

    async def run(self) -> None:
        """Check the chains every `period_s` seconds; never returns. Failures are logged."""
        while True:
            for family in IPFamily:
                await self._keep(family)
            await asyncio.sleep(self._period_s)

    async def _keep(self, family: IPFamily) -> None:
        tables = self._tables[family]
        try:
            for table in CANARY_TABLES:
                if not await tables.has_chain(table, CANARY_CHAIN):
                    await self._make(family)
                    break
        except HostError as error:
            if family not in self._failed:
                log.warning(
                    "the kubelet's chains cannot be put into the packet filter; trying again",
                    family=family,
                    error=error,
                )
            self._failed.add(family)
        else:
            self._failed.discard(family)

    async def _make(self, family: IPFamily) -> None:
        tables, missing = self._tables[family], jump_chains(family)
        if missing and await tables.has_chain("filter", FIREWALL_CHAIN):  # an earlier kubelet may have left its jumps
            missing = tuple([chain for chain in missing if not await tables.has_rule("filter", chain, JUMP)])
        await tables.restore(render_chains(family, missing))
        log.info("the kubelet's chains are in the packet filter", family=family)

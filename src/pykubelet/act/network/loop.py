"""The network room's loop: puts the kubelet's chains into the host's packet filter and sees to it that they stay.

Reads nothing and writes no cell: others of the host look for the chains. A family of addresses whose program is missing or
that the kernel does not have is told once and tried again; the pods do not wait for any of it.

Source: `makeIPTablesUtilChains` of KubeletConfiguration.
"""

from __future__ import annotations

import asyncio

from pykubelet.act.network.rules import (
    CANARY_CHAIN,
    CANARY_TABLES,
    FIREWALL_CHAIN,
    JUMP,
    Family,
    jump_chains,
    render_chains,
)
from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.iptables import Iptables

log = Log("network")
PERIOD_S = 60.0


class HostChains:
    """`run` never returns. `within`: see `Iptables`."""

    def __init__(self, period_s: float = PERIOD_S, within: tuple[str, ...] = ()) -> None:
        self._period_s = period_s
        self._tables = {family: Iptables(family.value, within) for family in Family}
        self._failed: set[Family] = set()

    async def run(self) -> None:
        while True:
            for family in Family:
                await self._keep(family)
            await asyncio.sleep(self._period_s)

    async def _keep(self, family: Family) -> None:
        tables = self._tables[family]
        try:
            for table in CANARY_TABLES:
                if not await tables.has_chain(table, CANARY_CHAIN):
                    await self._make(family)
                    break
        except HostError as error:
            if family not in self._failed:
                log.warning("the chains of the node cannot be kept in the packet filter", family=family, error=error)
            self._failed.add(family)
        else:
            self._failed.discard(family)

    async def _make(self, family: Family) -> None:
        tables, missing = self._tables[family], jump_chains(family)
        if missing and await tables.has_chain(
            "filter", FIREWALL_CHAIN
        ):  # an agent before this one may have left its jumps
            missing = tuple([chain for chain in missing if not await tables.has_rule("filter", chain, JUMP)])
        await tables.restore(render_chains(family, missing))
        log.info("the chains of the node are in the packet filter", family=family)

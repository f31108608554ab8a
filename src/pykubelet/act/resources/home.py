"""Keeps the agent in the group that `kubeletCgroups` names, so that what it uses can be told and limited.

It goes there before it starts anything, and looks every minute whether somebody has moved it. Where systemd has put it into
the group already, nothing is touched. A refusal is told once and tried again; the pods do not wait for it.

Source: `kubeletCgroups` of KubeletConfiguration.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.log import Log
from pykubelet.edges.host.cgroups.cgroup_stats import own_group
from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.fs.errors import HostError

log = Log("cgroups")
PERIOD_S = 60.0
_TELLING = ("name=systemd", "cpu", "")


class Home:
    """`group`: the path below the mount. `proc`: where this process can read which group it is in."""

    def __init__(self, cgroups: Cgroups, group: str, period_s: float = PERIOD_S, proc: str = "/proc") -> None:
        self._cgroups = cgroups
        self._group = "/" + group.strip("/")
        self._period_s = period_s
        self._proc = proc
        self._failed = False

    def enter(self) -> None:
        """Go there when this process is elsewhere."""
        try:
            if own_group(self._proc, _TELLING) != self._group:
                self._cgroups.enter(self._group)
                log.info("the agent is in its cgroup", group=self._group)
        except HostError as error:
            if not self._failed:
                log.warning("the agent cannot go to the cgroup kubeletCgroups names", group=self._group, error=error)
            self._failed = True
        else:
            self._failed = False

    async def run(self) -> None:
        """Never returns."""
        while True:
            await asyncio.sleep(self._period_s)
            self.enter()

"""Keeps the agent in the cgroup that `kubeletCgroups` names, to measure and limit its usage, and keeps its OOM score.

The agent enters the cgroup before it starts anything else, and checks every minute whether it was moved. If systemd has
already put it into the cgroup, nothing is changed. Without `kubeletCgroups`, only the OOM score is written, every five
minutes. A failure is logged once and tried again; pods do not wait for it.

Source: `kubeletCgroups` and `oomScoreAdj` of KubeletConfiguration.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.log import Log
from pykubelet.edges.host.cgroups.cgroup_stats import own_group
from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc.oom import in_first_pid_namespace, write_own_oom_score

log = Log("cgroups")
PERIOD_S = 60.0
SCORE_PERIOD_S = 300.0
_HIERARCHIES = ("name=systemd", "cpu", "")


class KubeletCgroup:
    """The cgroup of the agent. `group`: its path below the mount, empty for none. `oom_score`: -1000 to 1000. `proc`: the
    mount point of the proc file system."""

    def __init__(self, cgroups: Cgroups, group: str, oom_score: int, proc: str = "/proc") -> None:
        self._cgroups = cgroups
        self._group = "/" + group.strip("/") if group else ""
        self._oom_score = oom_score
        self._proc = proc
        self._failed = False

    def enter(self) -> None:
        """Move this process into the cgroup unless it is there already. A failure is logged, not raised."""
        if not self._group:
            return
        try:
            if own_group(self._proc, _HIERARCHIES) != self._group:
                self._cgroups.enter(self._group)
                log.info("the agent is in its cgroup", group=self._group)
        except HostError as error:
            if not self._failed:
                log.warning(
                    "the agent cannot enter the cgroup that kubeletCgroups names; trying again",
                    group=self._group,
                    error=error,
                )
            self._failed = True
        else:
            self._failed = False

    def write_score(self) -> None:
        """Write the OOM score again. In a container (another PID namespace), the score of the container is kept."""
        if not in_first_pid_namespace(self._proc):
            return
        problem = write_own_oom_score(self._oom_score, self._proc)
        if problem is not None:
            log.debug("the kernel refuses the OOM score of the agent", error=problem)

    async def run(self) -> None:
        """Keep the agent in its cgroup and its OOM score as configured; never returns."""
        while True:
            await asyncio.sleep(PERIOD_S if self._group else SCORE_PERIOD_S)
            self.enter()
            self.write_score()

"""The agent is killed at each step of the work for a CSI volume, and the pods are deleted before it is started again.

The steps are found as in `test_csi_crashes`. Each life has one kill. Afterwards nothing is left of pods and volume but its data.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from agent.test_csi_claims import nothing_is_staged
from agent.test_csi_crashes import LONG_S, MANAGER, Kind, Lives, crashing, points, until_nothing_is_new
from support.agent import WAIT_S, is_ready
from support.crashes import CrashingAgent
from support.csi import csi_driver
from testbed.private_runtime import Testbed

KEPT = "written before"
#: Pods whose grace period is 0 are gone from the API server when the agent is back; others still are there, and terminating.
GRACE = {"gone": 0, "terminating": 1}


@dataclass
class Deletions(Lives):
    """Pods that are deleted while there is no agent. `variables`: the points at which it ends."""

    grace_s: int = 0
    variables: dict[str, str] = field(default_factory=dict)

    async def live_deleted(self) -> None:
        """One life: pods come, until the agent is killed or they run; they are deleted; the next agent removes what there is."""
        world, agent = self.world, self.world.agent
        assert isinstance(agent, CrashingAgent)
        self.number += 1
        agent.points = self.variables
        agent.start(wait=False)
        for name in self.names:
            world.run(self._pod(name))
        await self._wait_killed_or_ready()
        agent.kill9()
        for name in self.names:
            world.delete(name, self.grace_s)
        agent.points = {}
        agent.start()
        await world.wait_gone(*self.names, within=LONG_S)
        await agent.wait_nothing_left(LONG_S)  # pods that are gone from the API server end before their volumes do
        await nothing_is_staged(world, within=LONG_S)
        assert agent.stop() == 0
        self.check_calls()
        if self.has_claim:
            assert self.kept.read_text() == KEPT

    @property
    def kept(self) -> Path:
        """A file beside the volume's data, or in it: what no deletion of a pod may remove."""
        folder = self.data / "volumes" / "pvc-1"
        return (folder if self.kind is Kind.BLOCK else folder / "data") / "kept"

    async def _wait_killed_or_ready(self) -> None:
        agent, until = self.world.agent, time.monotonic() + WAIT_S
        while agent.alive and not all((pod := self.world.pod(name)) and is_ready(pod) for name in self.names):
            assert time.monotonic() < until, f"the pods do not run\n{agent.log_tail()}"
            await asyncio.sleep(agent.step_s)


async def delete_everywhere(testbed: Testbed, folder: Path, kind: Kind, grace_s: int, **given: str) -> list[str]:
    """Returns the effects after which the agent was killed."""
    done = folder / "done"
    variables = points(done, **given)
    async with crashing(testbed, folder, variables, keep=False) as world:
        data = world.agent.folder / "driver"
        async with csi_driver(world.agent.root, data) as driver:
            lives = Deletions(world, kind, data, grace_s=grace_s, variables=variables)
            await lives.prepare(driver)
            if lives.has_claim:
                lives.kept.write_text(KEPT)
            return await until_nothing_is_new(done, lives.live_deleted)


@pytest.mark.crash
@pytest.mark.parametrize("grace", GRACE)
@pytest.mark.parametrize("kind", Kind)
async def test_pods_are_deleted_while_the_agent_is_away(
    testbed: Testbed, tmp_path: Path, kind: Kind, grace: str
) -> None:
    given = {"within": MANAGER, "sites": "coarse", "moments": "sent,after"}
    effects = await delete_everywhere(testbed, tmp_path, kind, GRACE[grace], **given)
    assert "NodePublishVolume" in effects and len(effects) > 10

"""The agent under a wall clock that jumps an hour to and fro: what is measured in seconds takes as long as ever.

Only the agent sees this clock; the runtime, whose dates are compared here, and the containers have the machine's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from support.agent import Agent, container_status, is_ready, make_container, make_pod, waiting_reason
from support.wall_clock import WallClock

from pykubelet.base.api.times import parse_time
from pykubelet.base.model.reasons import CRASH_LOOP_BACK_OFF
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]
HOUR_S = 3600
GRACE_S = 8
DEADLINE_S = 12
BACK_OFF_S = 10
DELAY_S = 4
LATE_S = 30  # how much later something may come on a busy machine; far from an hour
DEAF = "trap '' TERM; while :; do sleep 1; done"


async def instances(agent: Agent, pod: str) -> list[tuple[float, float]]:
    """When each instance of the pod's container was started and ended (0: runs), oldest first, as the runtime has it."""
    client = CriClient(agent.testbed.endpoint, timeout_s=10)
    found = []
    try:
        for container in (await agent.look()).of(f"{pod}-node").containers:
            try:
                found.append((await client.container_status(container.id)).status)
            except CriError as error:
                if not error.is_not_found:  # an old instance that the agent has removed meanwhile
                    raise
    finally:
        await client.close()
    return sorted((instance.started_at / 1e9, instance.finished_at / 1e9) for instance in found)


async def held_back(agent: Agent, pod: str) -> float:
    """When the newest instance of a crash-looping pod's container ended, as soon as the next one is held back."""
    await agent.wait_pod(pod, "held back", lambda pod: waiting_reason(pod) == CRASH_LOOP_BACK_OFF)
    return (await instances(agent, pod))[-1][1]


async def next_start(agent: Agent, pod: str, ended: float) -> float:
    """When the instance after the one that ended then was started; to be asked for early, for it does not stay."""
    for _ in range(300):
        # one that ends at once may by its dates have ended before it was started
        if later := [began for began, _ in await instances(agent, pod) if began > ended + 1]:
            return min(later)
        await asyncio.sleep(0.2)
    raise AssertionError(f"{pod} is not started again")


async def end_of(agent: Agent, pod: str) -> float:
    """When the containers of a pod have ended, monotonic seconds."""
    await agent.wait_runtime(f"{pod} ends", lambda view: not view.of(f"{pod}-node").running, GRACE_S + LATE_S)
    return time.monotonic()


async def set_clock(agent: Agent, clock: WallClock, off_s: int) -> None:
    """The clock jumps, and the agent has seen it: its own dates say so."""
    clock.set(off_s)

    def seen() -> bool:
        now: float = agent.ask_json("explain", "node")["time"]
        return abs(now - off_s - time.time()) < HOUR_S / 2

    await agent.wait_for(f"the agent's clock is {off_s} s off", seen)


async def test_a_wall_clock_that_jumps_changes_no_back_off_deadline_grace_or_probe(make_agent: MakeAgent) -> None:
    agent = make_agent()
    clock = WallClock(agent.folder / "clock")
    agent.environment.update(clock.environment)
    agent.start()
    # each of these probes leaves a line with its date in the container's log
    asks = {
        "exec": {"command": ["/bin/sh", "-c", "echo asked > /proc/1/fd/1"]},
        "periodSeconds": 1,
        "timeoutSeconds": 5,
    }
    agent.put(
        make_pod("probed", make_container(readinessProbe=asks, livenessProbe=asks | {"failureThreshold": 1})),
        make_pod("deaf", make_container(script=DEAF), terminationGracePeriodSeconds=GRACE_S),
        make_pod("crashing", make_container(script="exit 1")),
    )
    async with asyncio.TaskGroup() as group:

        async def back_off(pod: str, ended: float) -> float:
            return await next_start(agent, pod, ended) - ended

        held_s = [group.create_task(back_off("crashing", await held_back(agent, "crashing")))]
        await agent.wait_running("probed", "deaf")
        limited_at = time.time()
        agent.put(make_pod("limited", activeDeadlineSeconds=DEADLINE_S))
        await agent.wait_running("limited")
        removed_at = time.monotonic()
        agent.remove("deaf")
        deaf_ends = group.create_task(end_of(agent, "deaf"))

        await set_clock(agent, clock, HOUR_S)
        agent.put(
            make_pod("crashing-later", make_container(script="exit 1")),
            make_pod("delayed", make_container(readinessProbe=asks | {"initialDelaySeconds": DELAY_S})),
        )
        held_s.append(group.create_task(back_off("crashing-later", await held_back(agent, "crashing-later"))))
        await agent.wait_running("delayed")
        await set_clock(agent, clock, -HOUR_S)
        await deaf_ends
        await set_clock(agent, clock, 0)
    assert GRACE_S <= deaf_ends.result() - removed_at < GRACE_S + LATE_S
    for held in held_s:
        assert BACK_OFF_S <= held.result() < BACK_OFF_S + LATE_S
    for name in ("crashing", "crashing-later"):
        await agent.wait_pod(name, "restarted twice", lambda pod: container_status(pod)["restartCount"] >= 2)
    await agent.wait_phase("limited", "Failed")
    await agent.wait_runtime("its container has ended", lambda view: not view.of("limited-node").running)
    [(_, ended)] = await instances(agent, "limited")
    assert DEADLINE_S <= ended - limited_at < DEADLINE_S + LATE_S

    for name, delay_s in (("probed", 0), ("delayed", DELAY_S)):
        [(began, _)] = await instances(agent, name)
        asked = [parse_time(line.split(" ", 1)[0]) for line in agent.log_lines(name, "main")]
        assert delay_s <= asked[0] - began < delay_s + LATE_S
        assert max(after - before for before, after in pairwise(asked)) < LATE_S
        assert is_ready(agent.pods()[name])
    span = asked[-1] - asked[0]
    assert len(asked) <= span + 2, "not more often than each second"
    await agent.remove_all()
    assert agent.stop() == 0  # by itself, so that the library takes its shared memory along

"""Short histories of real containers on a real runtime, compared with the same model as those on doubles."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest
from lifecycle.checks import account
from lifecycle.real import RealNode, RealPod
from lifecycle.shapes import AGAIN, ALL_AGAIN, Shapes, containers_of
from support.agent import new_agent, sweep
from testbed import containerd
from testbed.private_runtime import Testbed

pytestmark = [pytest.mark.integration, pytest.mark.crash]

#: A history has 30 pods side by side and 5 steps; each pod counts as one run, 240 in all.
PODS, STEPS = 30, 5
SEEDS = [int(seed) for seed in os.environ.get("PYKUBELET_SEEDS", "1 2 3 4 5 6 7 8").split()]
RUNTIME_RESTARTED = "runtime restarted"
Action = Callable[[], Awaitable[object]]


@pytest.fixture
async def node(testbed: Testbed, tmp_path: Path) -> AsyncIterator[RealNode]:
    await sweep(testbed)
    agent = new_agent(testbed, {}, ())
    yield RealNode(agent, tmp_path)
    containerd.start(testbed)
    await agent.clear()


class Steps:
    """What happens to a node in one history: ends of containers, hooks and sandboxes, results of probes, and the agent or the
    runtime ended.

    The doubles have more. Left out here is what depends on the clock of a busy machine, so that no model can say what is right:
    - The runtime killed while it creates a container. By the moment, it shows nothing of it afterwards, or a container that is
      created, or one that has exited with code 255, the reason Unknown and no times, and then the agent counts a restart.
    - A liveness probe that fails. It ends its container again and again, and what the agent counts depends on the time of each run.
    Left out is also what would be of the whole machine, or takes minutes: power cuts, steps of the clock, and long rests.
    """

    def __init__(self, node: RealNode, random: Random) -> None:
        self._node, self._random = node, random

    async def step(self) -> None:
        """Something for about half of the pods at once, and now and then something for the node, before, between or after them."""
        chosen = [self._of_pod(pod) for pod in self._node.pods.values() if self._random.random() < 0.6]
        of_node, at = self._random.choice(self._of_node()), self._random.randint(0, len(chosen))
        at = 0 if of_node[0] == RUNTIME_RESTARTED else at  # while nothing is being created
        parts = [chosen[:at], [of_node], chosen[at:]] if self._random.random() < 0.5 else [chosen]
        self._node.say(f"--- {', '.join(name for part in parts for name, _ in part)}")
        for part in parts:
            await asyncio.gather(*(action() for _, action in part))

    def _of_pod(self, pod: RealPod) -> tuple[str, Action]:
        node, found = self._node, list[tuple[str, Action]]()
        for i in node.running(pod):
            c, name = containers_of(pod.truth)[i.name], f"{pod.name}/{i.name}"
            if pod.hidden(i):
                found += [(f"{name} hook {code}", partial(node.hook_ends, pod, i, code)) for code in (0, 0, 1)]
            codes = [0, 1, *((AGAIN, ALL_AGAIN) if c.rules else ()), *((0, 0) if c.is_plain_init else ())]
            found += [(f"{name} ends {code}", partial(node.ends, pod, i, code)) for code in codes]
            found.append((f"{name} killed", partial(node.is_killed, i)))
            found += [
                (f"{name} {kind} changes", partial(pod.toggle, i.name, kind)) for kind in c.probes.keys() - {"liveness"}
            ]
        if any(box.ended_at is None for box in pod.truth.boxes):
            found += [
                (
                    f"{pod.name} sandbox {'removed' if removes else 'stopped'}",
                    partial(node.sandbox_ends, pod, removes=removes),
                )
                for removes in (False, True)
            ]
        rest: tuple[str, Action] = (f"{pod.name} rests", partial(asyncio.sleep, 0.0))
        return self._random.choice(found or [rest])

    def _of_node(self) -> list[tuple[str, Action]]:
        return [
            ("agent killed", self._agent_killed),
            ("agent restarted", self._agent_restarted),
            (RUNTIME_RESTARTED, self._runtime),
        ]

    async def _agent_killed(self) -> None:
        await self._node.end_agent(kills=True)
        await asyncio.sleep(self._random.choice((0.0, 1.0)))
        await self._node.start_agent()

    async def _agent_restarted(self) -> None:
        await self._node.end_agent(kills=False)
        await self._node.start_agent()

    async def _runtime(self) -> None:
        await self._node.restart_runtime(self._random.choice((0.0, 1.0)))


@pytest.mark.parametrize("seed", SEEDS)
async def test_real_pods_do_and_report_what_the_model_has(node: RealNode, seed: int) -> None:
    """The history is in the file `history` of the test's folder."""
    random = Random(seed)
    shapes = Shapes(random)
    await node.start_agent()
    for number in range(PODS):
        node.add(shapes.pod(f"p{number}", is_static=True))
    recording = asyncio.ensure_future(node.record())
    try:
        steps = Steps(node, random)
        for number in range(STEPS + 1):
            if number:
                await steps.step()
            problems = await node.compare()
            if recording.done():
                await recording
            if problems:
                names = sorted({problem.partition(":")[0] for problem in problems})
                explained = [await asyncio.to_thread(node.explain, name) for name in names]
                accounts = (account(pod.truth) for pod in node.pods.values())
                report = "\n".join((*problems, *node.log, *accounts, *explained))
                pytest.fail(f"seed {seed}:\n{report}\n{node.agent.log_tail(200)}", pytrace=False)
    finally:
        recording.cancel()
        (node.folder / "history").write_text(
            "\n".join([*node.log, *(account(pod.truth) for pod in node.pods.values())])
        )
    await node.agent.remove_all()

"""One random history of a node: pods in all stages of their lives, and everything that may go wrong meanwhile.

PYTHONPATH=tests:tools .venv/bin/python -m lifecycle.history SEED [--verbose]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from random import seed as seed_agent

from lifecycle.checks import Checks, account
from lifecycle.loop import OrderedLoop
from lifecycle.model import Model
from lifecycle.runtime import LAGS
from lifecycle.shapes import AGAIN, ALL_AGAIN, Shapes, containers_of
from lifecycle.truth import By, PodTruth
from lifecycle.world import World, write

from pykubelet.base.kit.log import set_up_logging
from pykubelet.testing.cri.fake_state import FakeContainer

AGAIN_BY = "PYTHONPATH=tests:tools .venv/bin/python -m lifecycle.history"
START = 1000.0
#: After this time without anything new, everything is as it should be. A relist would come later. It is longer than `TOGETHER_S`, so
#: that ends of two steps are not taken for one.
SETTLE_S = 6.5
#: CPU limits that pods are resized to.
SIZES = ("100m", "200m", "300m")
Action = Callable[[], Awaitable[None]]


class History:
    """`run` makes one; `world.problems` has what was wrong."""

    def __init__(self, world: World, random: Random, pods: int, steps: int) -> None:
        self.world, self.random = world, random
        self._shapes = Shapes(random)
        self._pods, self._steps = pods, steps
        self.checks = Checks(world)
        self._edits = 0
        self._is_down = False

    async def run(self) -> None:
        world = self.world
        await world.boot()
        for number in range(self._pods):
            self._bring(number)
        await self._settle()
        for _ in range(self._steps):
            if world.problems:
                return
            await self._step()
            await self._settle()
        if not world.problems:
            await self._end()

    def _bring(self, number: int) -> None:
        is_static = self.random.random() < 0.5
        self.world.want(self._shapes.pod(f"p{number}", is_static=is_static), is_static=is_static)

    async def _step(self) -> None:
        actions = [self._choose()]
        while self.random.random() < 0.4 and len(actions) < 3:
            actions.append(self._choose())
        offsets = [0.0, *(self.random.choice((*LAGS, 0.4, 0.9)) for _ in actions[1:])]
        self.world.say(f"--- {', '.join(name for name, _ in actions)}")
        await asyncio.gather(*(self._do(at, action) for at, (_, action) in zip(offsets, actions, strict=True)))

    async def _do(self, at: float, action: Action) -> None:
        await asyncio.sleep(at)
        await action()

    async def _settle(self) -> None:
        world = self.world
        await asyncio.sleep(SETTLE_S)
        for _ in range(8):
            pods = [pod for pod in world.wanted.values() if pod is not None]
            due = [at.latest for pod in pods for at in Model(pod, world.truth.lives, world.now).due().values()]
            due += [at for pod in pods for i in pod.instances for at in (i.created_at, i.ended_at) if at is not None]
            if not any(-1.5 < at - world.now < 1.5 for at in due if at > world.truth.lives[-1].began_at):
                break
            await asyncio.sleep(2.0)
        self.checks.check()
        for _ in range(60):
            if not (differing := self.checks.check_api()):
                return
            await asyncio.sleep(1.0)
        world.problems.extend(differing)

    async def _end(self) -> None:
        """All pods are unwanted, and soon nothing is left of them."""
        world = self.world
        for name in list(world.specs):
            world.unwant(name)
        await asyncio.sleep(35.0)
        left = [s.config.metadata.name for s in world.runtime.state.sandboxes.values()]
        left += [c.config.metadata.name for c in world.runtime.state.containers.values()]
        left += [p["metadata"]["name"] for p in world.api.objects("pods")]
        left += [path.name for path in (world.folder / "root" / "pods").iterdir()]
        left += [path.name for path in (world.folder / "logs").iterdir()]
        if left:
            world.problems.append(f"left at the end: {left}")
        await world.stop_agent()
        await world.stop_api()

    # Actions

    def _choose(self) -> tuple[str, Action]:
        found = self._of_pods() if self.random.random() < 0.6 else self._of_node()
        return self.random.choice(found or self._of_node())

    def _of_pods(self) -> list[tuple[str, Action]]:
        """What may happen to one pod, chosen at random."""
        pods = [pod for pod in self.world.wanted.values() if pod is not None]
        if not pods:
            return []
        pod = self.random.choice(pods)
        world, found = self.world, list[tuple[str, Action]]()
        for container in world.running(pod):
            name = f"{pod.name}/{container.config.metadata.name}"
            if container.id in world.runtime.gates:
                found += [(f"{name} hook {code}", self._hook(container, code)) for code in (0, 0, 0, 1)]
            found += [
                (f"{name} ends {code} {oom}", self._ends(container, code, oom))
                for code, oom in self._codes(pod, container)
            ]
        for name, c in containers_of(pod).items():
            for kind in c.probes:
                found.append((f"{pod.name}/{name} {kind} changes", self._toggle(pod, name, kind)))
        found.append((f"{pod.name} sandbox stopped", self._ends_box(pod, removes=False)))
        found.append((f"{pod.name} sandbox removed", self._ends_box(pod, removes=True)))
        found.append((f"{pod.name} edited", self._edited(pod)))
        if world.specs[pod.name][1]:
            found.append((f"{pod.name} renamed", self._renamed(pod)))
            found.append((f"{pod.name} copied", self._copied(pod)))
            found.append((f"{pod.name} restored", self._restored(pod)))
        else:
            found.append((f"{pod.name} deleted", self._deleted(pod)))
            if "cpu" in pod.spec["containers"][0].get("resources", {}).get("limits", {}):
                found.append((f"{pod.name} resized", self._resized(pod)))
        return found

    def _codes(self, pod: PodTruth, container: FakeContainer) -> list[tuple[int, bool]]:
        c = containers_of(pod)[container.config.metadata.name]
        has_limit = container.config.linux.resources.memory_limit_in_bytes > 0
        codes = [(0, False), (1, False), (137, False)]
        if c.rules:
            codes += [(AGAIN, False), (ALL_AGAIN, False)]
        if c.is_plain_init:
            codes += [(0, False)] * 3
        if has_limit:
            codes += [(0, True), (137, True)]
        return codes

    def _hook(self, container: FakeContainer, code: int) -> Action:
        async def act() -> None:
            if container.id in self.world.runtime.gates:
                self.world.runtime.hook_ends(container, code)

        return act

    def _ends(self, container: FakeContainer, code: int, oom: bool) -> Action:
        async def act() -> None:
            by = By.OUTSIDE if code == 137 and not oom else By.ITSELF
            self.world.runtime.container_ends(container, code, oom=oom, by=by)

        return act

    def _toggle(self, pod: PodTruth, name: str, kind: str) -> Action:
        async def act() -> None:
            answers, key = self.world.runtime.answers, (pod.name, name, kind)
            answers[key] = not answers.get(key, True)
            self.world.say(f"{pod.name}: {kind} of {name} answers {answers[key]}")

        return act

    def _ends_box(self, pod: PodTruth, *, removes: bool) -> Action:
        async def act() -> None:
            box = self.world.sandbox(pod)
            if box is not None and not pod.stops:
                await self.world.runtime.sandbox_ends(box, removes=removes)

        return act

    def _edited(self, pod: PodTruth) -> Action:
        async def act() -> None:
            world = self.world
            if world.wanted.get(pod.name) is not pod:
                return
            manifest, is_static = world.specs[pod.name]
            if not is_static:
                return
            changed = copy.deepcopy(manifest)
            self._edits += 1
            changed["spec"]["containers"][0]["env"] = [{"name": "EDIT", "value": str(self._edits)}]
            pod.gone_at = world.now
            world.specs[pod.name], world.wanted[pod.name] = (changed, True), None
            write(world.path_of(pod.name), changed)
            await asyncio.sleep(25.0)  # the old one has its grace period

        return act

    def _resized(self, pod: PodTruth) -> Action:
        """Another CPU limit of the first container, as the subresource `resize` sets it."""

        async def act() -> None:
            world, size = self.world, {"requests": {"cpu": "10m"}, "limits": {"cpu": self.random.choice(SIZES)}}
            if world.wanted.get(pod.name) is pod:
                pod.resized_at = world.now
                pod.spec = world.resize(pod.name, size)

        return act

    def _renamed(self, pod: PodTruth) -> Action:
        async def act() -> None:
            world = self.world
            if world.wanted.get(pod.name) is not pod:
                return
            path = world.path_of(pod.name)
            pod.gone_at, world.wanted[pod.name] = world.now, None
            path.rename(path.with_suffix(".json" if path.suffix == ".yaml" else ".yaml"))
            await asyncio.sleep(25.0)

        return act

    def _copied(self, pod: PodTruth) -> Action:
        async def act() -> None:
            path = self.world.path_of(pod.name)
            if not path.exists():
                return
            copied = path.with_name(f"{self.random.choice(('a', 'z'))}-{path.name}")
            shutil.copy(path, copied)
            await asyncio.sleep(self.random.choice((0.2, 8.0)))
            copied.unlink(missing_ok=True)  # it may be that of two copies

        return act

    def _restored(self, pod: PodTruth) -> Action:
        async def act() -> None:
            world = self.world
            if world.wanted.get(pod.name) is not pod:
                return
            path = world.path_of(pod.name)
            kept, pod.gone_at = path.read_bytes(), world.now
            path.unlink()
            world.wanted[pod.name] = None
            await asyncio.sleep(self.random.choice((0.01, 0.3, 2.0)))
            path.write_bytes(kept)
            world.restored.append(pod)
            await asyncio.sleep(25.0)
            await world.wait_agent()
            world.restored.remove(pod)
            if pod.gone_at is not None:
                world.go_on(pod)

        return act

    def _deleted(self, pod: PodTruth) -> Action:
        async def act() -> None:
            world = self.world
            if world.wanted.get(pod.name) is not pod:
                return
            number = int(pod.name.removeprefix("p").partition("-")[0])
            world.unwant(pod.name)
            await world.wait_gone(pod)
            await asyncio.sleep(5.0)
            self._bring(number)

        return act

    # The node

    def _of_node(self) -> list[tuple[str, Action]]:
        return [
            ("agent killed", self._killed),
            ("agent killed", self._killed),
            ("agent restarted", self._restarted),
            ("runtime restarted", self._runtime_restarted),
            ("power cut", self._power_cut),
            ("clock steps", self._clock_steps),
            ("API server away", self._api_away),
            ("time passes", self._time_passes),
            ("time passes", self._time_passes),
        ]

    async def _killed(self) -> None:
        await self._without_agent(self.world.kill_agent, (0.05, 0.5, 3.0))

    async def _restarted(self) -> None:
        await self._without_agent(self.world.stop_agent, (0.05, 0.5, 3.0))

    async def _without_agent(self, end: Action, times: tuple[float, ...]) -> None:
        """One at a time ends the agent; it is back after one of these times."""
        if self._is_down:
            return
        self._is_down = True
        await end()
        await asyncio.sleep(self.random.choice(times))
        await self.world.start_agent()
        self._is_down = False

    async def _runtime_restarted(self) -> None:
        runtime = self.world.runtime
        if not runtime.is_up:
            return
        self.world.say("the runtime stops")
        runtime.stop()
        await asyncio.sleep(self.random.choice((0.05, 0.5, 4.0)))
        runtime.start()
        self.world.say("the runtime is back")

    async def _power_cut(self) -> None:
        if self.world.runtime.is_up:
            await self._without_agent(self._cut, (5.0, 60.0))

    async def _cut(self) -> None:
        world = self.world
        world.say("the power is cut")
        world.runtime.stop()
        await world.kill_agent()
        world.runtime.power_ends()
        world.lose_unsynced()
        world.runtime.start()  # before the agent

    async def _clock_steps(self) -> None:
        self.world.clock.jump_wall(self.random.choice((-86400.0, -30.0, 30.0, 86400.0)))

    async def _api_away(self) -> None:
        world = self.world
        if not world.api_is_up:
            return
        world.say("the API server is away")
        await world.stop_api()
        await asyncio.sleep(self.random.choice((0.5, 10.0, 50.0)))
        await world.start_api()
        world.say("the API server is back")
        await asyncio.sleep(40.0)  # an agent that was started meanwhile asks again at last

    async def _time_passes(self) -> None:
        await asyncio.sleep(self.random.choice((5.0, 12.0, 45.0, 320.0, 700.0)))


def run(seed: int, pods: int, steps: int, folder: Path) -> World:
    """One history, to its end or its first problem. `folder`: for its node and the agent's log. The process works below it."""
    random, loop = Random(seed), OrderedLoop()
    seed_agent(seed)
    (folder / "node").mkdir()
    os.chdir(folder / "node")
    world: World | None = None
    with (folder / "agent.log").open("w", buffering=1) as log, contextlib.redirect_stderr(log):
        set_up_logging(4)
        with asyncio.Runner(loop_factory=lambda: loop) as runner:

            async def live() -> None:
                nonlocal world
                world = World(folder / "node", loop, random)
                history = History(world, random, pods, steps)
                try:
                    await history.run()
                except Exception as error:  # noqa: BLE001 - whatever breaks is a finding
                    world.problems.append("".join(traceback.format_exception(error)))

            runner.run(live())
    assert world is not None
    return world


def show(seed: int, world: World) -> None:
    """Print the problems of a history, what happened, and the pods."""
    print(f"seed {seed}: {len(world.problems)} problems in {world.now - START:.0f} virtual seconds")
    for problem in world.problems:
        print(f"  {problem}")
    print("\n".join(world.log))
    for pod in world.truth.pods.values():
        print(account(pod))
    print(f"again: {AGAIN_BY} {seed} --log agent.log\n")


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})
    parser = argparse.ArgumentParser(prog=AGAIN_BY, description="Random histories of a node, compared with the model.")
    parser.add_argument("seeds", help="a seed, or a range such as 0-99")
    parser.add_argument("--pods", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--verbose", action="store_true", help="also show histories without problems")
    parser.add_argument("--log", type=Path, help="keep the agent's log of the last history in this file")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    seeds, failed = range(int(first), int(last or first) + 1), 0
    log = asked.log.absolute() if asked.log is not None else None
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="lifecycle-", ignore_cleanup_errors=True) as name:
            world = run(seed, asked.pods, asked.steps, Path(name))
            if log is not None:
                shutil.copy(Path(name, "agent.log"), log)
        if world.problems or asked.verbose:
            show(seed, world)
        failed += bool(world.problems)
    print(f"{failed} of {len(seeds)} histories have problems")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

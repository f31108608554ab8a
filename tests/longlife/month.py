"""A month of a node, in minutes: `python -m longlife.month FOLDER [week]`, in mount and network namespaces of its own.

Prints a table of sizes; the exit code is 1 when something was not as it should be, with the reasons.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import resource
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from longlife.checks import Checks
from longlife.cluster import Cluster, InPods, container, pod, probes, resident
from longlife.machine import QUIET, USUAL, Lines, Node
from longlife.sizes import HEAD, Scale, Sizes, exceeded, grown, row
from support.virtual_time import VirtualLoop

from pykubelet.base.kit.log import set_up_logging
from pykubelet.testing.cri.fake_state import FakeImage

HOUR, DAY = 3600.0, 86400.0
RESIDENTS = ("web", "db")
Step = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Calendar:
    """When what happens, in days from 1 on. `lives`: the first day of each life of the agent. `api_away`: the server goes at the
    end of the first day and comes back on the second; on day 1 it is away for an hour, which is tried in production's periods.
    `runtime_away`: all of this day. `jumps`: seconds by which the wall clock jumps (a suspended machine: the monotonic clock rests).
    `unwell`: the pods fail their probes for two hours."""

    days: int
    lives: tuple[int, ...]
    api_away: tuple[int, int]
    runtime_away: int
    jumps: Mapping[int, float]
    unwell: int

    def last_of_life(self, first: int) -> int:
        return min([day - 1 for day in self.lives if day > first] or [self.days])

    def is_blind(self, day: int) -> bool:
        """The agent was started while the API server was away, and knows only static pods until it is back. Like the kubelet it touches
        no others then, and removes none."""
        since, until = self.api_away
        return since < day < until and any(since < first <= day for first in self.lives)

    def is_special(self, day: int) -> bool:
        """Other pods than usual are there at its end."""
        return self.api_away[0] <= day < self.api_away[1] or day == self.runtime_away


MONTH = Calendar(
    days=30,
    lives=(1, 2, 16, 23),
    api_away=(12, 19),
    runtime_away=21,
    jumps={4: 3 * HOUR, 5: -3 * HOUR, 7: 8 * HOUR, 8: -DAY, 9: DAY},
    unwell=6,
)
#: The same in short, for `make test`.
WEEK = Calendar(
    days=9, lives=(1, 2, 8), api_away=(6, 7), runtime_away=8, jumps={3: 3 * HOUR, 4: -3 * HOUR, 5: 8 * HOUR}, unwell=3
)


class Month:
    """`problems`: what was not as it should be, in words."""

    def __init__(self, folder: Path, loop: VirtualLoop, calendar: Calendar) -> None:
        self.calendar = calendar
        self.node = Node(folder, loop, time.time())
        self.cluster = Cluster(self.node.api, self.node.clock)
        self.in_pods = InPods()
        self.checks = Checks(self.node, self.cluster)
        self.days: list[Sizes] = []
        self._log = Lines((folder / "agent.log").open("w", buffering=1), loop, loop.now)
        node = self.node
        doubles = (self, node, node.api, node.api.store, node.runtime, node.runtime.state, node.cgroups, loop)
        self._scale = Scale(node, self._log, *doubles, self._log, self.cluster, self.in_pods, self.checks)

    @property
    def problems(self) -> list[str]:
        return self.checks.problems

    async def live(self) -> None:
        """All of it."""
        with contextlib.redirect_stderr(self._log):
            set_up_logging(2)
        print(HEAD, end="", flush=True)
        await self.node.start()
        await self.in_pods.start()
        self.cluster.settings("color-0")
        self.cluster.keys("key-0")
        self.node.runtime.registry["registry.test/app:1"] = FakeImage("registry.test/app:1")
        signing = asyncio.ensure_future(self.cluster.sign_for_ever())
        marking = asyncio.ensure_future(self._send_bookmarks())

        for first in self.calendar.lives:
            last = self.calendar.last_of_life(first)
            periods = USUAL if first == 1 else QUIET
            async with self.node.life(periods) as agent:
                failing = asyncio.ensure_future(agent.supervisor.wait_failed())
                living = asyncio.ensure_future(self._live_days(first, last))
                await asyncio.wait((failing, living), return_when=asyncio.FIRST_COMPLETED)
                if failing.done():
                    living.cancel()
                    raise failing.result()
                failing.cancel()
                await living
        for task in (signing, marking):
            task.cancel()
        self.in_pods.stop()
        await self.node.api.stop()
        self.problems.extend(f"log: {line}" for line in self._log.errors if "crash" in line)
        for life in range(1, self.node.lives + 1):
            self.problems.extend(f"life {life}: {what}" for what in exceeded([d for d in self.days if d.life == life]))
            quiet = [day for day in self.days if day.life == life and not self.calendar.is_special(day.day)]
            self.problems.extend(f"grows in life {life}: {what}" for what in grown(quiet))

    async def _send_bookmarks(self) -> None:
        while True:
            await asyncio.sleep(95)
            self.node.api.send_bookmarks()

    async def _live_days(self, first: int, last: int) -> None:
        for day in range(first, last + 1):
            for hour, step in sorted(self._steps(day), key=lambda pair: pair[0]):
                await self._sleep_until(day, hour)
                await step()
            await self._sleep_until(day, 23.5)
            self.days.append(self._scale.weigh(day))
            with (self.node.folder / "sizes.jsonl").open("a") as stream:
                stream.write(json.dumps({"day": day, **dict(sorted(self.days[-1].sizes.items()))}) + "\n")
            print(row(self.days[-1]), end="", flush=True)
        await self._sleep_until(last + 1, 0)

    async def _sleep_until(self, day: int, hour: float) -> None:
        at = self.node.began + (day - 1) * DAY + hour * HOUR
        await asyncio.sleep(max(0.0, at - self.node.loop.now))

    # The calendar

    def _steps(self, day: int) -> list[tuple[float, Step]]:
        calendar = self.calendar
        away = calendar.api_away[0] < day < calendar.api_away[1]
        runtime_away = day == calendar.runtime_away
        steps: list[tuple[float, Step]] = []
        if day == 1:
            steps.append((0.1, self._begin))
            steps += [(3, self.node.api.stop), (4, self._return_after_an_hour)]
        if not away and not runtime_away:
            steps.append((8, lambda: self._busy_hours(day)))
            steps.append((16, lambda: self._change(day)))
        if not runtime_away:
            steps.append((14, self._talk))
            steps.append((16.5, self._ask))
            if not calendar.is_blind(day):
                steps.append((15, self._crash))
            there = {*RESIDENTS, STATIC} if calendar.is_blind(day) else set(RESIDENTS)
            steps.append((22, lambda: self.checks.at_rest(there, api_away=away)))
        steps.append((12, lambda: self._bring_manifest(runs=not runtime_away)))
        steps.append((20, self._take_manifest))
        if day in calendar.jumps:
            steps.append((17, lambda: self._jump(calendar.jumps[day])))
        if day == calendar.unwell:
            steps += [(17, lambda: self._feel(False)), (19, lambda: self._feel(True))]
        if day == calendar.api_away[0]:
            steps.append((23.4, self.node.api.stop))
        if day == calendar.api_away[1]:
            steps.append((6, self.node.api.start))
        if runtime_away:
            steps.append((6, self._stop_runtime))
        if day == calendar.runtime_away + 1:
            steps.append((6, self._start_runtime))
        return steps

    async def _begin(self) -> None:
        for name, period_s in zip(RESIDENTS, (600, 900), strict=True):
            self.cluster.run(resident(name, period_s))

    async def _return_after_an_hour(self) -> None:
        """The server of the first day is back; the agent notices within its production periods."""
        await self.node.api.start()
        await self.checks.soon("the lease is renewed again", lambda: self.checks.lease_age() < 60, within_s=60)

    async def _busy_hours(self, day: int) -> None:
        """Pods come, do what they should not, and go."""
        cluster, names = self.cluster, [f"{what}-{day}" for what in ("done", "fails", "crash", "ill", "lost", "waits")]
        done, fails, crash, ill, lost, waits = names
        image = f"registry.test/app:day-{day}"
        self.node.runtime.registry[image] = FakeImage(image)
        cluster.run(
            pod(done, container(script="echo done; sleep 60; exit 0") | {"image": image}, restartPolicy="Never")
        )
        cluster.run(pod(fails, container(script="sleep 20; exit 3"), restartPolicy="OnFailure"))
        whole = {"cpu": "1", "memory": "16Mi"}  # with a CPU of its own
        pinned = {"resources": {"requests": whole, "limits": whole}}
        cluster.run(pod(crash, container(script="sleep 5; exit 1") | pinned))
        alive = {"exec": {"command": ["false"]}, "periodSeconds": 10, "failureThreshold": 2}
        cluster.run(pod(ill, container(livenessProbe=alive), container("well", **probes(60))))
        cluster.run(pod(lost, container() | {"image": f"registry.test/nothing:{day}"}))
        late = {"name": f"late-{day}", "key": "color"}
        cluster.run(pod(waits, container(env=[{"name": "COLOR", "valueFrom": {"configMapKeyRef": late}}])))
        await asyncio.sleep(20 * 60)
        await self.checks.busy(done, fails, crash, ill, lost, waits)
        await self.checks.soon("a CPU is taken from the others", lambda: self.checks.has_own_cpu(crash))
        cluster.put_config_map(f"late-{day}", {"color": "red"})
        await self.checks.soon("a ConfigMap that came late lets its pod run", lambda: self.checks.is_ready(waits))
        cluster.delete(*names)
        cluster.api.delete(f"/api/v1/namespaces/default/configmaps/late-{day}")
        await self.checks.soon("deleted pods are gone", lambda: self.checks.is_gone(*names))
        cluster.forget_events()

    async def _change(self, day: int) -> None:
        """ConfigMaps, Secrets and sizes change."""
        self.cluster.settings(f"color-{day}")
        self.cluster.keys(f"key-{day}")
        cpu = f"{100 + day}m"
        self.cluster.resize("web", cpu)
        await self.checks.soon("changed content is in the volumes", lambda: self.checks.has_content("web", day))
        await self.checks.soon("a resize is done", lambda: self.checks.is_resized("web", cpu))

    async def _talk(self) -> None:
        """A container writes a lot, which is rotated."""
        for _ in range(8):
            chatty = self.node.runtime.find("app", "web")
            assert chatty is not None
            self.node.runtime.state.write_log(chatty, b"so much to say of so little\n" * 1500)
            await asyncio.sleep(6 * 60)
        self.checks.logs_rotated()

    async def _ask(self) -> None:
        """Monitoring asks the read-only port for what it has."""
        for path in ("/metrics", "/metrics/cadvisor", "/metrics/resource", "/stats/summary", "/pods", "/healthz"):
            await self.checks.answers(path)

    async def _crash(self) -> None:
        """A container of a resident ends; the agent starts it again, with an API server or without."""
        found = self.node.runtime.find("side", "db")
        assert found is not None
        self.node.runtime.state.end(found, 1)
        await self.checks.soon("a crashed container runs again", lambda: self.checks.runs_anew("side", "db", found.id))

    async def _bring_manifest(self, *, runs: bool) -> None:
        (self.node.manifests / "agent.yaml").write_text(STATIC_POD)
        if runs:
            await self.checks.soon("a static pod runs", lambda: STATIC in self.checks.pods_at_runtime())

    async def _take_manifest(self) -> None:
        (self.node.manifests / "agent.yaml").unlink()

    async def _jump(self, seconds: float) -> None:
        self.node.clock.jump_wall(seconds)

    async def _feel(self, is_well: bool) -> None:
        """What the pods answer to probes."""
        self.in_pods.is_well = is_well

    async def _stop_runtime(self) -> None:
        self.node.runtime.stop()

    async def _start_runtime(self) -> None:
        self.node.runtime.start()


STATIC = "agent-node"
STATIC_POD = """
apiVersion: v1
kind: Pod
metadata: {name: agent, namespace: default}
spec:
  containers:
  - {name: app, image: "registry.test/app:1", command: [sh, -c, "trap 'exit 0' TERM; serve"]}
"""


def main(folder: str, which: str = "month") -> int:
    random.seed(1)
    loop = VirtualLoop(lasts_s=40 * DAY)
    began = time.monotonic()
    calendar = WEEK if which == "week" else MONTH
    month = Month(Path(folder), loop, calendar)
    problems: list[str] = []
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            runner.run(month.live())
        except Exception as error:  # noqa: BLE001 - a part of the agent crashed: that is a finding
            problems.append("".join(traceback.format_exception(error)))
    problems += month.problems
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"{calendar.days} days in {time.monotonic() - began:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of CPU;"
        f" {loop.iterations} iterations of the loop, {month.cluster.signed} certificates, {month.in_pods.asked} probes answered",
        flush=True,
    )
    for problem in problems:
        print(f"PROBLEM: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Lives of an agent that is killed at every point where it does something to the machine, and what must hold after each.

One life is a script: pods of several kinds start, one container crashes, a log is rotated, a manifest changes, pods are
removed, the agent is stopped. `crashing_agent` kills the agent at the first point that was not yet tried; it is started
again, and the script goes on. So a life has as many kills as it comes to new points, also in what the agent does after
a kill, and the last life has none.

Checked after each kill: the containers that ran run on, under their ids. Whenever the agent answers: no status went
backwards. At the end of each step of the script: what is wanted runs once, and no process ran more often than it should.
At the end of a life: nothing of any pod is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.agent import NODE_NAME, Agent, Json, NotYet, container_status, is_ready, make_container, make_pod
from testbed import host, images

from pykubelet.act.pods.hooks import FILE as HOOK_RECORDS
from pykubelet.base.kit.cpuset import parse_cpuset
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient

LAUNCHER = Path(__file__).with_name("crashing_agent.py")
STEP_S = 0.05
#: A machine may be slow; between two kills this is enough for anything.
WITHIN_S = 90.0
SLEEP = 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
SETTINGS = {
    "containerLogMaxSize": "8Ki",
    "containerLogMaxFiles": 3,
    "containerLogMonitorInterval": "3s",
    "cpuManagerPolicy": "static",
    "systemReserved": {"cpu": "100m"},
}
#: The container with a CPU of its own.
PINNED = "filed/main"
RANKS = ["Pending", "Running", "Succeeded", "Failed"]


@dataclass(frozen=True)
class Kill:
    """A point at which the agent killed itself."""

    point: str
    effect: str
    object: str
    stack: tuple[str, ...]
    calling: tuple[str, ...]

    @property
    def site(self) -> str:
        return self.point.partition("-")[0]

    @property
    def moment(self) -> str:
        return self.point.partition("-")[2]

    @property
    def starting(self) -> set[str]:
        """The containers, as `pod/container`, of which the runtime was asked for at the time, or had been just before."""
        calls = [*self.calling, f"{self.effect} {self.object}"]
        named = [call.partition(" ") for call in calls]
        return {
            name.replace(f"-{NODE_NAME}", "")
            for call, _, name in named
            if call in ("CreateContainer", "StartContainer")
        }

    def __str__(self) -> str:
        where = self.stack[-1] if self.stack else "?"
        return f"{self.point} {self.effect} {self.object} at {where}"


@dataclass
class CrashingAgent(Agent):
    """An agent that can be started with crash points; `points` are the launcher's variables."""

    points: dict[str, str] = field(default_factory=dict)

    def command(self, *more: str) -> list[str]:
        command = super().command(*more)
        command = [sys.executable, str(LAUNCHER), *command[1:]] if self.points else command
        # hundreds of them are started by a run that may be ended itself: none outlives it
        return ["setpriv", "--pdeathsig", "KILL", "--", *command]

    @property
    def env(self) -> dict[str, str]:
        # without compiled modules a start takes twice as long, and there are hundreds of them
        return {k: v for k, v in super().env.items() if k != "PYTHONDONTWRITEBYTECODE"} | self.points


def assert_not_backwards(name: str, before: Json, status: Json) -> None:
    """What is over stays over, what runs goes on running, and counts do not shrink."""
    assert RANKS.index(status["phase"]) >= RANKS.index(before["phase"]), f"{name}: {before} then {status}"
    for kind in ("initContainerStatuses", "containerStatuses"):
        counts = {entry["name"]: entry["restartCount"] for entry in status.get(kind, [])}
        for entry in before.get(kind, []):
            assert counts.get(entry["name"], 0) >= entry["restartCount"], f"{name}: {before} then {status}"
        started = {entry["containerID"]: entry["state"]["running"] for entry in before.get(kind, []) if _runs(entry)}
        for entry in status.get(kind, []):
            if _runs(entry) and entry["containerID"] in started:
                assert entry["state"]["running"] == started[entry["containerID"]], f"{name}: {before} then {status}"


def _runs(entry: Json) -> bool:
    return bool(entry["state"].get("running"))


def counted(pod: str, name: str = "main", script: str = SLEEP, **spec: Any) -> Json:
    """A container that writes a line to a file of the host whenever its process starts."""
    mounts = [{"name": "runs", "mountPath": "/runs"}, *spec.pop("volumeMounts", ())]
    return make_container(name, f"echo run >> /runs/{pod}.{name}; {script}", volumeMounts=mounts, **spec)


class Life:
    """One agent's folder, through any number of lives."""

    def __init__(self, agent: CrashingAgent, image: str = images.BUSYBOX, **points: str) -> None:
        self.agent = agent
        self.runs = agent.folder / "runs"
        self.runs.mkdir()
        self.done = agent.folder / "points.jsonl"
        self.kills: list[Kill] = []
        self._lives = 0
        self._image = image
        self._points = {
            "PYKUBELET_CRASH_DONE": str(self.done),
            "PYKUBELET_CRASH_PLACES": f"{agent.root}:{agent.logs}:{agent.cgroup}",
            **{f"PYKUBELET_CRASH_{name.upper()}": value for name, value in points.items()},
        }
        self._forget()

    def _forget(self) -> None:
        self._running: dict[str, str] = {}
        self._statuses: dict[str, Json] = {}
        self._ending: set[str] = set()
        self._removed: set[str] = set()
        self._allowed = Counter[str]()
        self._since = 0
        self._own_cpus = frozenset[int]()
        for path in self.runs.iterdir():
            path.rmdir() if path.is_dir() else path.unlink()

    # Pods

    @property
    def _number(self) -> dict[str, str]:
        """An annotation that gives the pods of each life UIDs of their own."""
        return {"test/life": str(self._lives)}

    def pods(self) -> list[Json]:
        runs = {"name": "runs", "hostPath": {"path": str(self.runs)}}
        hook = {
            "postStart": {"exec": {"command": ["/bin/sh", "-c", "echo run >> /runs/hooked.postStart"]}},
            "preStop": {"exec": {"command": ["/bin/sh", "-c", "echo run >> /runs/hooked.preStop"]}},
        }
        probe = {"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 10}
        staged_volumes = [
            runs,
            {"name": "disk", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        ]
        in_disk = [{"name": "disk", "mountPath": "/part", "subPath": "one/two"}, {"name": "memory", "mountPath": "/m"}]
        fields = {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}
        filed_volumes = [
            runs,
            {"name": "fields", "downwardAPI": fields},
            {"name": "all", "projected": {"sources": [{"downwardAPI": fields}]}},
            {"name": "host", "hostPath": {"path": f"{self.runs}/of-host", "type": "DirectoryOrCreate"}},
            {"name": "disk", "emptyDir": {}},
        ]
        in_files = [{"name": v["name"], "mountPath": f"/{v['name']}"} for v in filed_volumes[1:]]
        amounts = {"cpu": "1", "memory": "32Mi"}
        crash = f"if [ -e /runs/once ]; then {SLEEP}; fi; touch /runs/once; exit 3"
        chatter = "n=0; while :; do n=$((n+1)); echo line $n of the log that shall be rotated; usleep 10000; done"

        def pod(name: str, *containers: Json, volumes: list[Json] | None = None, **spec: Any) -> Json:
            return make_pod(name, *containers, annotations=self._number, volumes=volumes or [runs], **spec)

        return [
            pod("hooked", counted("hooked", lifecycle=hook, readinessProbe=probe)),
            pod(
                "staged",
                counted("staged", volumeMounts=in_disk),
                counted("staged", "second"),
                initContainers=[
                    counted("staged", "prepare", "true", volumeMounts=in_disk),
                    counted("staged", "side", restartPolicy="Always"),
                    counted("staged", "last", "true"),
                ],
                volumes=staged_volumes,
            ),
            pod(
                "filed",
                counted("filed", volumeMounts=in_files, resources={"requests": amounts, "limits": amounts}),
                volumes=filed_volumes,
                securityContext={"fsGroup": 1234},
            ),
            pod("hostnet", counted("hostnet"), hostNetwork=True),
            pod("pulled", counted("pulled", image=self._image, imagePullPolicy="IfNotPresent")),
            pod("once", counted("once", script="true"), restartPolicy="Never"),
            pod("crasher", counted("crasher", script=crash)),
            pod("chatty", counted("chatty", script=chatter)),
            self.changed(1),
        ]

    def changed(self, version: int) -> Json:
        return make_pod(
            "changed",
            counted("changed", f"v{version}"),
            annotations=self._number,
            volumes=[{"name": "runs", "hostPath": {"path": str(self.runs)}}],
        )

    # The script

    async def run(self) -> int:
        """One life; the number of its kills."""
        before, agent = len(self.kills), self.agent
        self._lives += 1
        self._forget()
        agent.points = self._points
        agent.start(wait=False)
        pods = self.pods()
        agent.put(*pods)
        names = [pod["metadata"]["name"] for pod in pods]
        lasting = [name for name in names if name != "once"]
        self._ending = {"once/main", "staged/prepare", "staged/last", "crasher/main"}
        await self._reach(
            "all pods run", lambda pods: self._up(pods, lasting) and self._over(pods) and self._restarted(pods)
        )
        self._ending = {"once/main", "staged/prepare", "staged/last"}
        self._running.pop("crasher/main", None)
        await self._check(lasting)

        self._ending |= {"changed/v1"}
        agent.put(self.changed(2))
        await self._reach("the changed pod runs", self._has_changed)
        await self._check(lasting)

        await self._reach("a log is rotated", lambda _: any(agent.logs.glob(f"*_chatty-{NODE_NAME}_*/main/*.gz")))

        removed = ["hooked", "staged", "once", "pulled"]
        self._removed |= set(removed)
        agent.remove(*removed)
        await self._reach("some pods are gone", lambda pods: pods and not set(pods) & set(removed))
        lasting = [name for name in lasting if name not in removed]
        await self._reach("the others run", lambda pods: self._up(pods, lasting))
        await self._gone(removed)
        await self._check(lasting)

        await self._stop()
        agent.start(wait=False)
        await self._reach("the others run on", lambda pods: self._up(pods, lasting))
        await self._check(lasting)

        self._removed |= set(lasting)
        for path in agent.manifests.iterdir():
            path.unlink()
        await self._reach(
            "all pods are gone", lambda pods: agent.get("/healthz", agent.health_port)[0] == 200 and not pods
        )
        await self._gone(names)
        await self._stop()
        agent.points = {}
        agent.start()
        await agent.remove_all()
        await self._nothing_left()
        assert agent.stop() == 0
        return len(self.kills) - before

    def _up(self, pods: dict[str, Json], names: list[str]) -> bool:
        return all(name in pods and is_ready(pods[name]) for name in names)

    def _over(self, pods: dict[str, Json]) -> bool:
        return "once" in pods and pods["once"]["status"]["phase"] == "Succeeded"

    def _restarted(self, pods: dict[str, Json]) -> bool:
        return "crasher" in pods and bool(container_status(pods["crasher"])["restartCount"] >= 1)

    def _has_changed(self, pods: dict[str, Json]) -> bool:
        return self._up(pods, ["changed"]) and pods["changed"]["spec"]["containers"][0]["name"] == "v2"

    async def _reach(self, what: str, goal: Callable[[dict[str, Json]], Any]) -> None:
        """Until the goal holds; the agent is started again whenever it has killed itself."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            if await self._restart_killed():
                deadline = time.monotonic() + WITHIN_S
            pods = self.agent.pods()
            self._watch(pods)
            if goal(pods):
                return
            if time.monotonic() > deadline:
                raise NotYet(
                    f"not within {WITHIN_S} s: {what}\n{self.timeline()}\n{self.agent._account()}\n{self.agent.log_tail()}"
                )
            await asyncio.sleep(STEP_S)

    async def _gone(self, names: list[str]) -> None:
        full = {f"{name}-{NODE_NAME}" for name in names}
        deadline = time.monotonic() + WITHIN_S
        while True:
            if await self._restart_killed():
                deadline = time.monotonic() + WITHIN_S
            view = await self.agent.look()
            left = [s.id for s in view.sandboxes if s.metadata.name in full]
            if not left:
                return
            assert time.monotonic() < deadline, (
                f"sandboxes are left: {left}\n{self.timeline()}\n{self.agent.log_tail()}"
            )
            await asyncio.sleep(STEP_S)

    async def _stop(self) -> None:
        """SIGTERM, again after each kill on the way."""
        while True:
            await self._reach("it answers", lambda _: self.agent.get("/healthz", self.agent.health_port)[0] == 200)
            process = self.agent.process
            assert process is not None
            process.terminate()
            code = process.wait(60)
            if code != -signal.SIGKILL:
                assert code == 0, f"exit code {code}\n{self.agent.log_tail()}"
                self.agent.process = None
                return
            await self._restart_killed()

    async def _restart_killed(self) -> bool:
        """Start the agent again if it has killed itself, and look at what its end left."""
        process = self.agent.process
        if process is None or process.poll() is None:
            return False
        code = process.returncode
        assert code == -signal.SIGKILL, f"it ended by itself with {code}\n{self.timeline()}\n{self.agent.log_tail()}"
        lines = self.done.read_text().splitlines()
        kill = json.loads(lines[-1])
        self.kills.append(
            Kill(kill["point"], kill["effect"], kill["object"], tuple(kill["stack"]), tuple(kill["calling"]))
        )
        self.agent.process = None
        last = self.kills[-1]
        for name in last.starting:
            self._allowed[name] += 1
        self._allowed["hooked/postStart"] += self._has_open_hook()
        await self._look(last.starting)
        with self.agent.log_file.open("a") as log:
            log.write(f"==== killed: {last}\n")
        self.agent.start(wait=False)
        return True

    def _has_open_hook(self) -> bool:
        """Whether the agent has a record of a postStart hook, which runs again then. The only one is that of `hooked`."""
        records = self.agent.root / HOOK_RECORDS
        return any(path.exists() for path in (records, records.with_name(f"{records.name}.bak")))

    # Checks

    async def _look(self, unsure: Collection[str] = ()) -> None:
        """What ran runs on. `unsure`: containers of which the runtime was asked when the agent was killed."""
        now = {k.replace(f"-{NODE_NAME}/", "/"): v for k, v in (await self.agent.look()).running_ids().items()}
        for name, instance in self._running.items():
            if name in self._ending or name.partition("/")[0] in self._removed:
                continue
            assert now.get(name) == instance, (
                f"{name} ran as {instance}, now {now.get(name)}\n{self.timeline()}\n{self.agent.log_tail(80)}"
            )
        self._running.update({name: instance for name, instance in now.items() if name not in unsure})

    def _watch(self, pods: dict[str, Json]) -> None:
        for pod in pods.values():
            uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
            if "phase" not in pod["status"]:
                continue
            if uid in self._statuses:
                assert_not_backwards(f"{name}\n{self.timeline()}", self._statuses[uid], pod["status"])
            self._statuses[uid] = pod["status"]

    async def _check(self, lasting: list[str]) -> None:
        """What is wanted runs once, and nothing ran more often than it should."""
        await self._look()
        view = await self.agent.look()
        names = view.running_names()
        assert len(names) == len(set(names)), f"{names}\n{self.timeline()}"
        pods = {name.partition(f"-{NODE_NAME}/")[0] for name in names}
        assert pods == set(lasting), f"{names}, not those of {lasting}\n{self.timeline()}\n{self.agent.log_tail(80)}"
        uids = [s.metadata.uid for s in view.ready]
        assert len(uids) == len(set(uids)), f"two sandboxes of one pod\n{self.timeline()}"
        for path in self.runs.iterdir():
            if not path.is_file() or path.name in ("once", "hooked.preStop"):
                continue
            count = len(path.read_text().splitlines())
            name = path.name.replace(".", "/")
            most = (2 if path.name == "crasher.main" else 1) + self._allowed[name]
            assert count <= most, f"{name} ran {count} times, not {most}\n{self.timeline()}\n{self.agent.log_tail(80)}"
        for pod in self.agent.pods().values():
            for entry in (*pod["status"].get("initContainerStatuses", ()), *pod["status"].get("containerStatuses", ())):
                name = f"{pod['metadata']['name'].removesuffix('-' + NODE_NAME)}/{entry['name']}"
                most = (1 if name == "crasher/main" else 0) + self._allowed[name]
                assert entry["restartCount"] <= most, (
                    f"{name} restarted {entry['restartCount']} times\n{self.timeline()}"
                )
        mounts = host.mounts_below(self.agent.root)
        assert len(mounts) == len(set(mounts)), f"mounted twice: {mounts}\n{self.timeline()}"
        await self._check_cpus(lasting)
        damaged = [path for path in self._files() if ".corrupt-" in path]
        assert not damaged, f"{damaged}\n{self.timeline()}"

    async def _check_cpus(self, lasting: list[str]) -> None:
        """A container has the same CPU through all kills, and soon no other container may use it."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            await self._restart_killed()
            cpusets = await self._cpusets()
            own = cpusets.pop(PINNED, frozenset())
            if PINNED.partition("/")[0] in lasting:
                assert len(own) == 1, f"{own}\n{self.timeline()}"
                self._own_cpus = self._own_cpus or own
                assert own == self._own_cpus, f"{own}, before {self._own_cpus}\n{self.timeline()}"
            if not any(own & cpus for cpus in cpusets.values()):
                return
            assert time.monotonic() < deadline, f"{own} and {cpusets}\n{self.timeline()}\n{self.agent.log_tail(80)}"
            await asyncio.sleep(STEP_S)

    async def _cpusets(self) -> dict[str, frozenset[int]]:
        """The CPUs of each running container, as the runtime has them."""
        found = {}
        client = CriClient(self.agent.testbed.endpoint)
        try:
            for name, instance in (await self.agent.look()).running_ids().items():
                status = (await client.container_status(instance)).status
                cpus = parse_cpuset(status.resources.linux.cpuset_cpus)
                found[name.replace(f"-{NODE_NAME}/", "/")] = cpus
        finally:
            await client.close()
        return found

    async def _nothing_left(self) -> None:
        agent = self.agent
        try:
            await agent.wait_for("no address, file or mount left", lambda: not self._left())
        except NotYet as error:
            raise NotYet(f"{error}\nleft: {self._left()}\n{self.timeline()}") from None

    def _left(self) -> list[str]:
        testbed, agent = self.agent.testbed, self.agent
        addresses = [str(p) for p in (testbed.root / "ipam").rglob("*") if p.is_file() and p.name[0].isdigit()]
        # `default` is Docker Engine's own, for all pods on the host's network
        netns = [str(p) for p in (testbed.state / "netns").glob("*") if p.name != "default"]
        parts = [path for path in self._files() if ".tmp" in os.path.basename(path)]
        links = [str(p) for p in host.links_into(agent.logs)]
        records = [str(p) for p in (agent.root / "image_manager" / "pulling").glob("*")]
        return [*addresses, *netns, *parts, *links, *records]

    def _files(self) -> list[str]:
        """All files below the agent's root directory; what vanishes meanwhile is passed over."""
        return [f"{folder}/{name}" for folder, _, names in os.walk(self.agent.root) for name in names]

    def timeline(self) -> str:
        """The last kills, newest last."""
        lines = ["the last kills (PYKUBELET_CRASH_ONLY=<point> does one of them alone):"]
        for kill in self.kills[-8:]:
            lines += [str(kill), "     " + " > ".join(kill.stack[-6:])]
        return "\n".join(lines)


async def remove_image(endpoint: str, image: str) -> None:
    client = CriClient(endpoint)
    try:
        await client.remove_image(pb.ImageSpec(image=image))
    finally:
        await client.close()

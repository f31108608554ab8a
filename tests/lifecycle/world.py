"""A node of doubles under virtual time, and what can be done to it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from lifecycle.model import Model
from lifecycle.runtime import OrderedRuntime
from lifecycle.shapes import IMAGE
from lifecycle.truth import By, Json, Life, PodTruth, Truth
from support.memory_api import MemoryApiServer
from support.virtual_time import VirtualClock, VirtualLoop
from support.world import kubeconfig

from pykubelet.app.flags import CommandLine, parse_command_line
from pykubelet.app.load import load
from pykubelet.app.wiring import Agent
from pykubelet.base.api.codec import from_object, to_object
from pykubelet.base.api.core import ContainerState, Pod, PodStatus
from pykubelet.base.kit.values import replace
from pykubelet.base.manifests.defaults import default_pod
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.paths import Paths
from pykubelet.config.settings import Settings
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.testing.agent import doubled_agent, prepare_directories
from pykubelet.testing.cri.fake_answers import FakeFeatures
from pykubelet.testing.cri.fake_state import FakeContainer, FakeImage, FakeSandbox
from pykubelet.testing.host import MemoryCgroups

NODE = "node"
PODS = "/api/v1/namespaces/default/pods"
START = 1_750_000_000.0


def configuration(folder: Path) -> Json:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": "/proc/self/cwd/manifests",  # the UIDs of static pods follow from it
        "containerRuntimeEndpoint": f"unix://{folder}/cri.sock",
        "podLogsDir": str(folder / "logs"),
        "volumePluginDir": str(folder / "volumeplugins"),
        "cgroupDriver": "cgroupfs",
        "makeIPTablesUtilChains": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,  # it would be written to this very process
        "failCgroupV1": False,
        "enableServer": False,
        "healthzPort": 0,
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "evictionHard": {
            "memory.available": "0%",
            "nodefs.available": "0%",
        },  # the memory of this machine must not matter
        "imageGCHighThresholdPercent": 100,
    }


class OwnLinks(Settings):
    """The links to logs are in the node's folder instead of /var/log."""

    @property
    def paths(self) -> Paths:
        found = super().paths
        return replace(found, log_links=str(Path(found.root).parent / "links"))


def with_own_links(line: CommandLine) -> Settings:
    found = load(line)
    return OwnLinks(**{name: getattr(found, name) for name in found.__struct_fields__})


class Seen:
    """A status that the agent has published. `is_remembered`: it is from before the agent's restart."""

    def __init__(self, at: float, status: PodStatus, is_remembered: bool) -> None:
        self.at = at
        self.status = status
        self.is_remembered = is_remembered


class World:
    """`problems`: what was found to be wrong so far. `seen`: the published statuses by UID."""

    def __init__(self, folder: Path, loop: VirtualLoop, random: Random) -> None:
        self.folder, self.loop, self.random = folder, loop, random
        self.clock = VirtualClock(loop, START)
        self.manifests = folder / "manifests"
        for name in ("manifests", "logs", "root", "pki"):
            (folder / name).mkdir(parents=True)
        self.truth = Truth()
        self.api = MemoryApiServer(self.clock)
        self.runtime = OrderedRuntime(
            str(folder / "cri.sock"), self.clock, FakeFeatures(cgroup_driver=pb.CGROUPFS), self.truth, random
        )
        self.runtime.on_pod = self._take_up
        self.cgroups = MemoryCgroups()
        self.problems: list[str] = []
        self.seen: dict[str, list[Seen]] = {}
        self.wanted: dict[str, PodTruth | None] = {}
        self.specs: dict[str, tuple[Json, bool]] = {}
        self.restored: list[PodTruth] = []  # their manifests came back a moment ago
        self.log: list[str] = []
        self.api_is_up = False
        self._agent: Agent | None = None
        self._watching: asyncio.Task[None] | None = None
        self._machine: Any = None

    @property
    def now(self) -> float:
        return self.loop.now

    def say(self, text: str) -> None:
        self.log.append(f"{self.now - 1000:9.3f} {text}")

    # The machine

    async def boot(self) -> None:
        self.runtime.state.images[IMAGE] = FakeImage(IMAGE)
        self.runtime.start()
        await self.start_api()
        kubeconfig(self.api, self.folder / "kubeconfig")
        (self.folder / "kubelet.json").write_text(json.dumps(configuration(self.folder)))
        await self.start_agent()

    async def start_agent(self) -> None:
        folder = self.folder
        settings = with_own_links(
            parse_command_line(
                [
                    *("--config", str(folder / "kubelet.json"), "--kubeconfig", str(folder / "kubeconfig")),
                    *("--root-dir", str(folder / "root"), "--cert-dir", str(folder / "pki")),
                    *("--hostname-override", NODE),
                ]
            )
        )
        self._machine = self._machine or prepare_directories(settings)
        ended_at = self.truth.lives[-1].ended_at if self.truth.lives else None
        for pod in self.truth.pods.values():
            if ended_at is not None and pod.forgotten_at >= ended_at:
                pod.forgotten_at = self.now
        self.truth.lives.append(Life(self.now))
        self.say("the agent starts")
        for pod in self.restored:  # this run of the agent does not know that the manifest was away
            is_same = self.truth.pods[pod.uid] is pod  # it has not begun anew
            if is_same and pod.gone_at is not None and any(box.removed_at is None for box in pod.boxes):
                self.forget_kills(pod)
                pod.gone_at, self.wanted[pod.name] = None, pod
        agent = doubled_agent(settings, self.clock, self._machine, self.runtime, self.cgroups)
        await agent.start()
        self._agent = agent
        self._watching = asyncio.ensure_future(self._watch(agent))

    async def _watch(self, agent: Agent) -> None:
        known: dict[PodUID, PodStatus] = {}
        failing = asyncio.ensure_future(agent.supervisor.wait_failed())
        try:
            async for now in agent.cells.statuses.cell.changes():
                for uid, status in now.pods.items():
                    if known.get(uid) is not status:
                        self.seen.setdefault(uid, []).append(Seen(self.now, status, uid in now.remembered))
                        self.say(
                            f"{self.truth.pods[uid].name if uid in self.truth.pods else uid}: status {in_short(status)}"
                        )
                known = dict(now.pods)
                if failing.done():
                    self.problems.append(f"a part of the agent crashed: {failing.result()!r}")
        finally:
            failing.cancel()

    def status(self, uid: str) -> PodStatus | None:
        """The status that the agent publishes now."""
        if self._agent is None:
            return None
        return self._agent.cells.statuses.cell.get().pods.get(PodUID(uid))

    async def stop_agent(self) -> None:
        """SIGTERM."""
        self.say("the agent gets SIGTERM")
        assert self._agent is not None
        await self._agent.__aexit__(None, None, None)
        self._end_life()

    async def kill_agent(self) -> None:
        """SIGKILL: nothing that it does from here on has an effect."""
        self.say("the agent is killed")
        agent, self._agent = self._agent, None
        assert agent is not None
        self.truth.lives[-1].ended_at = self.now
        kept = self.folder / "killed"
        shutil.copytree(self.folder / "root", kept, symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
        self.runtime.kill_client()
        was_up = self.api_is_up
        await self.stop_api()
        await agent.__aexit__(None, None, None)
        await asyncio.sleep(0.01)
        shutil.rmtree(self.folder / "root")
        kept.rename(self.folder / "root")
        if was_up:
            await self.start_api()
        self._end_life()

    def _end_life(self) -> None:
        self._agent = None
        if self._watching is not None:
            self._watching.cancel()
        life = self.truth.lives[-1]
        life.ended_at = life.ended_at if life.ended_at is not None else self.now

    @property
    def is_up(self) -> bool:
        return self._agent is not None

    async def start_api(self) -> None:
        await self.api.start()
        self.api_is_up = True

    async def stop_api(self) -> None:
        if self.api_is_up:
            self.api_is_up = False
            await self.api.stop()

    def lose_unsynced(self) -> None:
        """What was written without being synced may be gone after a power cut."""
        for pod in self.truth.pods.values():
            there, seen = self.of_api(pod.uid), self.seen.get(pod.uid)
            if pod.is_static or (there and seen and there["status"] != to_object(seen[-1].status)):
                pod.forgotten_at, pod.counts_lost = self.now, pod.has_past
        for name in ("pod_statuses", "post_start_hooks"):
            path = self.folder / "root" / name
            with contextlib.suppress(FileNotFoundError):
                data = path.read_bytes()
                path.write_bytes(data[: self.random.randint(0, len(data))])

    # Pods

    def _take_up(self, meta: pb.PodSandboxMetadata) -> PodTruth | None:
        """The record of a pod whose first sandbox is being made."""
        name = meta.name.removesuffix(f"-{NODE}") if meta.name.endswith(f"-{NODE}") else meta.name
        if name not in self.specs:
            self.problems.append(f"a sandbox of {name} is made, which is not desired")
            return None
        spec, is_static = self.specs[name]
        before = self.truth.pods.get(meta.uid)
        pod = PodTruth(meta.uid, name, spec["spec"], is_static, self.now, has_past=before is not None)
        if before is not None and before.gone_at is not None:
            pod.counts_lost = before.forgotten_at >= before.gone_at
        self.truth.pods[meta.uid] = pod
        self.wanted[name] = pod
        return pod

    def go_on(self, pod: PodTruth) -> None:
        """A pod whose manifest is back goes on as it was, unless the agent has begun anew."""
        if self.truth.pods[pod.uid] is not pod:
            return
        if pod.gone_at is not None and self.truth.lives[-1].began_at > pod.gone_at:
            self.forget_kills(pod)
        over = pod.over or Model(dataclasses.replace(pod, gone_at=None), self.truth.lives, self.now).over()
        if over or (pod.boxes and pod.boxes[-1].ended_at is None):
            pod.gone_at, self.wanted[pod.name] = None, pod

    def forget_kills(self, pod: PodTruth) -> None:
        """This run of the agent does not know that the one before was to end the pod."""
        for i in pod.instances:
            if i.by is By.AGENT and i.ended_at is not None and pod.gone_at is not None and i.ended_at >= pod.gone_at:
                i.by = By.ITSELF

    def path_of(self, name: str) -> Path:
        return next(iter(self.manifests.glob(f"{name}.*")), self.manifests / f"{name}.yaml")

    def want(self, manifest: Json, *, is_static: bool) -> None:
        name = manifest["metadata"]["name"]
        self.specs[name], self.wanted[name] = (manifest, is_static), None
        if is_static:
            write(self.path_of(name), manifest)
            return
        bound = manifest | {"spec": manifest["spec"] | {"nodeName": NODE}}
        made = self.api.create(PODS, to_object(default_pod(from_object(Pod, bound))))
        uid = made["metadata"]["uid"]
        self.wanted[name] = self.truth.pods[uid] = PodTruth(uid, name, manifest["spec"], False, self.now)

    def resize(self, name: str, size: Json) -> Json:
        """Change the resources of a pod's first container at the API server. Returns the spec of the manifest."""
        manifest, _ = self.specs[name]
        changed = copy.deepcopy(manifest)
        changed["spec"]["containers"][0]["resources"] = size
        self.specs[name] = (changed, False)

        def change(pod: Json) -> None:
            pod["spec"]["containers"][0]["resources"] = copy.deepcopy(size)

        self.api.update(f"{PODS}/{name}", change)
        return dict(changed["spec"])

    def unwant(self, name: str) -> None:
        """A pod ceases to be desired."""
        manifest, is_static = self.specs.pop(name)
        pod = self.wanted.pop(name)
        if pod is not None:
            pod.gone_at = self.now
        if is_static:
            self.path_of(name).unlink()
        else:
            self.api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": manifest["spec"]["terminationGracePeriodSeconds"]})

    async def wait_agent(self) -> None:
        """Until the agent is back, if it is away."""
        for _ in range(100):
            if self.is_up:
                return
            await asyncio.sleep(1.0)

    async def wait_gone(self, pod: PodTruth) -> None:
        """Until the API server has nothing of a deleted pod."""
        for _ in range(100):
            if self.of_api(pod.uid) is None:
                return
            await asyncio.sleep(5.0)
        self.problems.append(f"{self.now - 1000:.3f} {pod.name} was deleted and stays")

    def sandbox(self, pod: PodTruth) -> FakeSandbox | None:
        """The pod's newest sandbox that is ready."""
        found = [s for s in self.runtime.state.sandboxes.values() if s.config.metadata.uid == pod.uid and s.ready]
        return found[-1] if found else None

    def running(self, pod: PodTruth) -> list[FakeContainer]:
        return [
            c
            for c in self.runtime.state.containers.values()
            if c.sandbox.config.metadata.uid == pod.uid and c.state == pb.CONTAINER_RUNNING
        ]

    def of_api(self, uid: str) -> Json | None:
        """The pod as the API server has it."""
        return next((p for p in self.api.objects("pods") if p["metadata"]["uid"] == uid), None)


def in_short(status: PodStatus) -> str:
    """A status for the log of a history."""
    words = [status.phase, *(c.type for c in status.conditions if c.status == "True")]
    for s in (*status.initContainerStatuses, *status.containerStatuses):
        words.append(f"{s.name}={_state_in_short(s.state)}#{s.restartCount}<{_state_in_short(s.lastState)}")
    return " ".join(words)


def _state_in_short(state: ContainerState | None) -> str:
    match state:
        case ContainerState(running=running) if running is not None:
            return "running"
        case ContainerState(waiting=waiting) if waiting is not None:
            return waiting.reason
        case ContainerState(terminated=end) if end is not None:
            return f"{end.reason}({end.exitCode})"
        case _:
            return "-"


def write(path: Path, manifest: Json) -> None:
    """Write a manifest as an editor does: under another name first."""
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(json.dumps(manifest))
    beside.rename(path)


Step = Callable[[], Any]

"""A node with a real runtime: pods of `shapes.py` whose containers do what a test asks, and the truth as the runtime shows it.

A container reads its exit code from a pipe in a directory of the node. Its hook waits for a file there, and its probes fail while
there is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from fcntl import ioctl
from io import FileIO
from pathlib import Path
from termios import FIONREAD

from lifecycle.checks import differences
from lifecycle.model import Model
from lifecycle.shapes import KINDS, POLITE, containers_of
from lifecycle.truth import Box, By, Instance, Json, Life, PodTruth, Probed
from lifecycle.world import in_short
from support.agent import NODE_NAME, Agent, container_status, runtime_client
from testbed import containerd, images

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import PodStatus
from pykubelet.base.model import labels
from pykubelet.base.model.ids import ContainerID, SandboxID
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError

#: Seconds between two looks at the runtime.
LOOK_S = 0.1
#: Seconds for a process that has just been started to read what it is to do.
READ_S = 5.0
#: Seconds for the agent to learn the result of a hook, and at most until it shows that it has.
HOOKED_S, MOST_HOOKED_S = 1.0, 20.0
#: Probes run once a second; the first ones are over by then.
PROBED_S = 2.5
SETTLE_S = 6.0
#: As long as a busy machine may take without anything new, and in all, to get where the model is.
WITHIN_S, MOST_S, AGAIN_S = 40.0, 400.0, 0.5


class RealPod:
    """One static pod. `folder`: the directory that its containers look into."""

    def __init__(self, manifest: Json, folder: Path) -> None:
        self.name, self.folder = str(manifest["metadata"]["name"]), folder
        folder.mkdir()
        self.manifest = manifest
        spec = manifest["spec"]
        self.truth = PodTruth("", self.name, spec, is_static=True, wanted_at=time.time())
        spec["terminationGracePeriodSeconds"] = 2
        spec["volumes"] = [{"name": "node", "hostPath": {"path": str(folder), "type": "Directory"}}]
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            self._adapt(container)

    def _adapt(self, container: Json) -> None:
        name, is_polite = container["name"], container["command"][2] == POLITE
        os.mkfifo(self.folder / name)
        # open for both, so that it waits in `read`, which a signal interrupts
        script = f"{'''trap 'exit 0' TERM; ''' if is_polite else ''}read code <> /node/{name}; exit ${{code:-0}}"
        container.pop("resources", None)
        container |= {"image": images.BUSYBOX, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", script]}
        container["volumeMounts"] = [{"name": "node", "mountPath": "/node"}]
        if "lifecycle" in container:
            path = f"/node/{name}.hook"
            hook = f"until [ -e {path} ]; do sleep 0.1; done; touch {path}.seen; exit $(cat {path})"
            container["lifecycle"]["postStart"]["exec"]["command"] = ["/bin/sh", "-c", hook]
        for kind in KINDS:
            if (probe := container.get(f"{kind}Probe")) is not None:
                probe["exec"]["command"] = ["/bin/sh", "-c", f"! [ -e /node/{name}.{kind} ]"]

    def hidden(self, instance: Instance) -> bool:
        """Whether its hook has not ended."""
        return containers_of(self.truth)[instance.name].has_hook and instance.hooked is None

    async def ends(self, instance: Instance, code: int) -> bool:
        """Its first process exits with this code. False: it does not read, so that nothing happens to it."""
        with (self.folder / instance.name).open("r+b", buffering=0) as pipe:
            instance.by = By.ITSELF
            pipe.write(f"{code}\n".encode())
            if await _comes(lambda: not _unread(pipe)):
                return True
        instance.by = By.AGENT  # what no process has read is gone when the last one closes the pipe
        return False

    async def hook_ends(self, instance: Instance, code: int, is_known: Callable[[], bool]) -> bool:
        """Its hook exits with this code. False: no hook runs, so that nothing happens. `is_known`: the agent shows the result. It may
        run the hook once more, when the runtime has cut off the call of one whose process goes on."""
        path = self.folder / f"{instance.name}.hook"
        beside, seen = path.with_suffix(".part"), path.with_suffix(".hook.seen")
        beside.write_text(str(code))
        beside.rename(path)
        has_ended = await _comes(seen.exists)
        await asyncio.sleep(HOOKED_S)
        if has_ended:
            await _comes(is_known, MOST_HOOKED_S)
        path.unlink()
        seen.unlink(missing_ok=True)
        if has_ended:
            instance.hooked, instance.hooked_at = code == 0, time.time()
        return has_ended

    async def toggle(self, name: str, kind: str) -> None:
        """Its probes of this kind give the other result from now on."""
        path = self.folder / f"{name}.{kind}"
        path.unlink() if path.exists() else path.touch()

    def note_probes(self) -> None:
        """What the probes of each running container have found, after a rest."""
        for i in self.truth.instances:
            c = containers_of(self.truth)[i.name]
            is_young = time.time() - max(i.created_at, i.hooked_at or 0.0) < PROBED_S
            if is_young or not i.runs or (c.has_hook and not i.hooked):
                continue
            for kind in KINDS:
                if kind not in c.probes or _has_started(i, c.probes) == (kind == "startup"):
                    continue  # the startup probe comes first and then ends
                is_ok = not (self.folder / f"{i.name}.{kind}").exists()
                i.probed += [Probed(kind, time.time(), is_ok)] * (1 if is_ok else c.probes[kind])


async def _comes(condition: Callable[[], bool], within_s: float = READ_S) -> bool:
    for _ in range(int(within_s / LOOK_S)):
        await asyncio.sleep(LOOK_S)
        if condition():
            return True
    return False


def _unread(pipe: FileIO) -> int:
    """The bytes in a pipe."""
    return int.from_bytes(ioctl(pipe, FIONREAD, bytes(4)), sys.byteorder)


def _has_started(instance: Instance, probes: dict[str, int]) -> bool:
    return "startup" not in probes or any(p.kind == "startup" and p.is_ok for p in instance.probed)


class RealNode:
    """An agent, its pods, and what the runtime has shown of them."""

    def __init__(self, agent: Agent, folder: Path) -> None:
        self.agent, self.folder = agent, folder
        self.pods: dict[str, RealPod] = {}
        self.lives: list[Life] = []
        self.log: list[str] = []
        self.cuts: list[float] = []  # when the agent or the runtime was ended
        self._began = time.time()
        self._asked: dict[str, tuple[int, float]] = {}  # exit codes by instance, and when they were asked for
        self._seen: dict[str, float] = {}  # when an instance was there
        self._boxes: dict[str, Box] = {}
        self._removed: set[str] = set()  # sandboxes that were removed from outside
        self._statuses: dict[str, str] = {}
        self._instances: dict[str, Instance] = {}

    def say(self, text: str) -> None:
        self.log.append(f"{time.time() - self._began:7.2f} {text}")

    async def start_agent(self) -> None:
        self.lives.append(Life(time.time()))
        self.say("the agent starts")
        await asyncio.to_thread(self.agent.start)

    async def end_agent(self, *, kills: bool) -> None:
        self.say("the agent is killed" if kills else "the agent gets SIGTERM")
        self.lives[-1].ended_at = time.time()
        self.cuts.append(time.time())
        if kills:
            self.agent.kill9()
        else:
            assert await asyncio.to_thread(self.agent.stop) == 0

    async def restart_runtime(self, after_s: float) -> None:
        self.say("the runtime is killed")
        self.cuts.append(time.time())
        await asyncio.to_thread(containerd.kill, self.agent.testbed)
        await asyncio.sleep(after_s)
        await asyncio.to_thread(containerd.start, self.agent.testbed)
        self.say("the runtime is back")

    def add(self, manifest: Json) -> None:
        pod = RealPod(manifest, self.folder / str(manifest["metadata"]["name"]))
        self.pods[pod.name] = pod
        self.agent.put(pod.manifest)

    # The truth

    async def record(self) -> None:
        """Look at the runtime, and at the agent's statuses, until cancelled."""
        async with runtime_client(self.agent.testbed) as client:
            while True:
                with contextlib.suppress(CriError):
                    await self._look(client)
                await asyncio.to_thread(self._note_statuses)
                await asyncio.sleep(LOOK_S)

    def _note_statuses(self) -> None:
        for name, pod in self.agent.pods().items():
            status = in_short(from_object(PodStatus, pod["status"]))
            if self._statuses.get(name) != status:
                self._statuses[name] = status
                self.say(f"{name}: status {status}")

    async def _look(self, client: CriClient) -> None:
        began = time.time()
        sandboxes, containers = await client.list_pod_sandboxes(), await client.list_containers()
        now = time.time()
        for sandbox in sorted(sandboxes, key=lambda s: s.created_at):
            pod = self._of(sandbox.labels)
            if pod is None:
                continue
            if sandbox.id not in self._boxes:
                box = Box(sandbox.id, sandbox.metadata.attempt, sandbox.created_at / 1e9 or now)  # 0: not created yet
                self._boxes[sandbox.id] = box
                pod.truth.boxes.append(box)
            box = self._boxes[sandbox.id]
            if sandbox.state != pb.SANDBOX_READY and box.ended_at is None:
                box.ended_at = now
        for container in sorted(containers, key=lambda c: c.created_at):
            self._seen[container.id] = began
            with contextlib.suppress(CriError):  # it may have been removed since
                await self._see(client, container)
        there = {*(s.id for s in sandboxes), *(c.id for c in containers)}
        for box in self._boxes.values():
            if box.id not in there and box.removed_at is None:
                box.removed_at, box.ended_at = now, box.ended_at or now
        for instance in self._instances.values():
            if instance.id not in there and instance.removed_at is None:
                instance.removed_at = now
                if instance.ended_at is None:  # it ended and was removed between two looks, before its successor came
                    code, at = self._asked.get(instance.id, (137, 0.0))
                    instance.ended_at, instance.code = max(at, self._seen[instance.id]), code
                    instance.reason = "Error" if code else "Completed"

    def _of(self, found: Mapping[str, str]) -> RealPod | None:
        return self.pods.get(found.get(labels.POD_NAME, "").removesuffix(f"-{NODE_NAME}"))

    async def _see(self, client: CriClient, container: pb.Container) -> None:
        pod = self._of(container.labels)
        if pod is None or container.pod_sandbox_id not in self._boxes:
            return
        if container.id not in self._instances:
            name, count = container.labels[labels.CONTAINER_NAME], container.annotations[labels.CONTAINER_RESTART_COUNT]
            at = container.created_at / 1e9 or time.time()  # a runtime that was killed meanwhile has lost it
            made = Instance(
                container.id, name, container.pod_sandbox_id, container.metadata.attempt, int(count), at, tried=None
            )
            self._add_cut_off(pod.truth, made)
            self._instances[container.id] = made
            pod.truth.instances.append(made)
            pod.truth.instances.sort(key=lambda i: i.created_at)
            if (box := self._boxes[made.box]).by is By.OUTSIDE:
                self._ends_with(pod, box, made)
        instance = self._instances[container.id]
        if instance.started_at is None or (container.state == pb.CONTAINER_EXITED and instance.ended_at is None):
            status = (await client.container_status(ContainerID(container.id))).status
            if status.started_at > 0 or (status.state == pb.CONTAINER_EXITED and not self._is_cut_off(instance)):
                instance.started_at = max(status.started_at / 1e9, instance.created_at)
            if status.state == pb.CONTAINER_EXITED and instance.ended_at is None:
                instance.ended_at, instance.code, instance.reason = (
                    status.finished_at / 1e9,
                    status.exit_code,
                    status.reason,
                )
                self.say(f"{pod.name}/{instance.name} #{instance.count} ended with {status.exit_code} {status.reason}")

    def _add_cut_off(self, pod: PodTruth, made: Instance) -> None:
        """Add the creations before this one that were cut off by the end of the agent or of the runtime. A real runtime may never
        show them, but it holds their names for a while, and then the agent takes the next number."""
        before = next(iter(pod.of(made.name)[-1:]), None)
        least, since = (before.count + 1, before.created_at) if before is not None else (0, 0.0)
        if made.count > least:
            self.say(f"{pod.name}/{made.name} #{made.count} comes after #{least - 1}")
        if any(since <= at <= made.created_at for at in self.cuts):
            at = made.created_at - 0.001
            pod.instances += [Instance("", made.name, made.box, n, n, at, tried=True) for n in range(least, made.count)]

    def _is_cut_off(self, instance: Instance) -> bool:
        """Whether its start has failed because the agent that asked for it ended: it never ran. A real runtime reports that as
        an exit with the reason StartError, at any time, also when the next agent has started the successor."""
        return any(
            life.ended_at is not None and life.began_at <= instance.created_at <= life.ended_at for life in self.lives
        )

    def running(self, pod: RealPod) -> list[Instance]:
        return [i for i in pod.truth.instances if i.runs]

    # What a test does

    async def ends(self, pod: RealPod, instance: Instance, code: int) -> None:
        if not instance.runs:
            return
        self._asked[instance.id] = code, time.time()
        if not await pod.ends(instance, code):
            self.say(f"{pod.name}/{instance.name} does not read")
            del self._asked[instance.id]

    async def hook_ends(self, pod: RealPod, instance: Instance, code: int) -> None:
        def is_known() -> bool:
            shown = self.agent.pods().get(pod.name)
            return shown is not None and (
                not instance.runs or "running" in container_status(shown, instance.name)["state"]
            )

        if not await pod.hook_ends(instance, code, is_known):
            self.say(f"{pod.name}/{instance.name} runs no hook")

    async def is_killed(self, instance: Instance) -> None:
        if not instance.runs:
            return
        by, instance.by = instance.by, By.OUTSIDE
        self._asked[instance.id] = 137, time.time()
        if not await self.agent.kill_container(instance.id):
            self.say(f"{instance.name} has ended already")
            instance.by = by
            del self._asked[instance.id]

    async def sandbox_ends(self, pod: RealPod, *, removes: bool) -> None:
        """As `crictl stopp` and `crictl rmp` do it."""
        box = next((b for b in reversed(pod.truth.boxes) if b.ended_at is None), None)
        if box is None:
            return
        box.by = By.OUTSIDE
        self._removed |= {box.id} if removes else set()
        for i in pod.truth.instances:
            if i.box == box.id and i.removed_at is None:
                self._ends_with(pod, box, i)
        async with runtime_client(self.agent.testbed, WITHIN_S) as client:
            end = client.remove_pod_sandbox if removes else client.stop_pod_sandbox
            with contextlib.suppress(CriError):  # the agent may remove a dead container at the same time
                await end(SandboxID(box.id))

    def _ends_with(self, pod: RealPod, box: Box, instance: Instance) -> None:
        """The instance is in a sandbox that is stopped or removed from outside."""
        if instance.ended_at is None:
            instance.by = By.OUTSIDE
            self._asked[instance.id] = 137, time.time()
        instance.taken = box.id in self._removed
        pod.truth.lost.append(instance)  # its successor may come and go between two looks

    # The comparison

    async def compare(self) -> list[str]:
        """The differences that stay."""
        await asyncio.sleep(SETTLE_S)
        known, quiet_s = 0, 0.0
        for _ in range(int(MOST_S / AGAIN_S)):
            if not list(self._differences()):
                return []
            quiet_s = quiet_s + AGAIN_S if len(self.log) == known else 0.0
            if quiet_s >= WITHIN_S:
                break
            known = len(self.log)
            await asyncio.sleep(AGAIN_S)
        return list(self._differences())

    def explain(self, pod: str) -> str:
        """The answer of `explain` about a pod, and the lines of the log about it."""
        lines = [line for line in self.agent.log_text().splitlines() if f"/{pod}-{NODE_NAME}" in line]
        return "\n".join((self.agent.ask("explain", f"{pod}-{NODE_NAME}").stdout, *lines))

    def _differences(self) -> Iterator[str]:
        shown, now = self.agent.pods(), time.time()
        for pod in self.pods.values():
            pod.note_probes()
            model = Model(pod.truth, self.lives, now)
            if model.is_unsure:
                continue
            if pod.name not in shown:
                yield f"{pod.name} is not shown"
                continue
            for late, (_, at) in model.due().items():
                if at < now - 1.0 and not model.over():
                    yield f"{pod.name}: {late} does not run, though it is due"
            status = from_object(PodStatus, shown[pod.name]["status"])
            over = pod.truth.over
            pod.truth.over = over or model.over()
            found = [f"{pod.name}: {text}" for text in differences(pod.truth, model, status)]
            if found:
                pod.truth.over = over
            yield from found

"""The runtime baseline: pods made and removed by nothing but the raw CRI calls that a node agent needs.

Owns: its own pods, their folders and cgroups. Their requests are copies of those the agent sent for its own pod, read
back from the runtime, under other names; their labels do not name a pod, so the agent does not take them for its own.
Everything that is not a runtime call (folders, files, cgroups) is made before the clock starts.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message
from testbed import host

from bench.runtime import BenchError, RuntimeWatch
from pykubelet.base.model.labels import POD_NAME
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient

_GRACE_S = 30
_SETTLE_S = 0.15
#: So often the runtime is asked when a container has started.
_STARTED_LOOKS = 20
NS_PER_MS = 1e6
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Template:
    """The requests of one pod with one container."""

    sandbox: pb.PodSandboxConfig
    container: pb.ContainerConfig


@dataclass(frozen=True, slots=True)
class Prepared:
    """A pod ready to be made: requests, with all that they refer to on the host."""

    sandbox: pb.PodSandboxConfig
    container: pb.ContainerConfig


@dataclass(frozen=True, slots=True)
class Made:
    """A running pod of the baseline, with the wall clock (ns) before RunPodSandbox and before CreateContainer."""

    sandbox: str
    container: str
    began_ns: int
    between_ns: int


@dataclass(frozen=True, slots=True)
class Cycle:
    """One pod made and removed, in milliseconds: first call to the container's start, CreateContainer to its start,
    StopContainer to its exit, StopContainer to the end of its sandbox."""

    start_ms: float
    container_ms: float
    exit_ms: float
    gone_ms: float


async def find_pod(cri: CriClient, name: str) -> tuple[str, str]:
    """Ids of the newest sandbox and container of the agent's pod `name`."""
    labels = {POD_NAME: name}
    sandboxes = await cri.list_pod_sandboxes(labels=labels)
    containers = await cri.list_containers(labels=labels)
    if not sandboxes or not containers:
        raise BenchError(f"the runtime has no pod {name}")
    newest = max(containers, key=lambda c: c.created_at)
    return max(sandboxes, key=lambda s: s.created_at).id, newest.id


async def read_template(cri: CriClient, name: str) -> Template:
    """The requests with which the agent made its pod `name`, as the runtime kept them."""
    sandbox, container = await find_pod(cri, name)
    sandbox_info = (await cri.pod_sandbox_status(sandbox, verbose=True)).info["info"]
    container_info = (await cri.container_status(container, verbose=True)).info["info"]
    return Template(_request(sandbox_info, pb.PodSandboxConfig()), _request(container_info, pb.ContainerConfig()))


async def read_templates(cri: CriClient, name: str) -> list[Template]:
    """The same of a pod with several containers: one for each, in the order of their starts."""
    sandbox, _ = await find_pod(cri, name)
    sandbox_info = (await cri.pod_sandbox_status(sandbox, verbose=True)).info["info"]
    found = [await cri.container_status(c.id, verbose=True) for c in await cri.list_containers(labels={POD_NAME: name})]
    found.sort(key=lambda answer: answer.status.started_at)
    return [
        Template(_request(sandbox_info, pb.PodSandboxConfig()), _request(answer.info["info"], pb.ContainerConfig()))
        for answer in found
    ]


def _request(info: str, message: M) -> M:
    config = json.loads(info)["config"]
    for env in config.get("envs", ()):  # bytes in our messages, text in the runtime's account of them
        env["value"] = base64.b64encode(env.get("value", "").encode()).decode()
    return json_format.ParseDict(config, message, ignore_unknown_fields=True)


class Baseline:
    """`folder` and `cgroup` are the baseline's own."""

    def __init__(self, cri: CriClient, watch: RuntimeWatch, folder: Path, cgroup: str) -> None:
        self._cri = cri
        self._watch = watch
        self._folder = folder
        self._cgroup = cgroup
        self._made = 0

    def prepare(self, template: Template) -> Prepared:
        """Copy the requests under a new name, and make what they refer to."""
        return self.prepare_all([template])[0]

    def prepare_all(self, templates: Sequence[Template]) -> list[Prepared]:
        """The same for the containers of one pod."""
        self._made += 1
        name = f"baseline-{self._made}"
        folder = self._folder / name
        sandbox = pb.PodSandboxConfig()
        sandbox.CopyFrom(templates[0].sandbox)
        sandbox.metadata.name = sandbox.metadata.uid = name
        sandbox.hostname = name
        sandbox.log_directory = str(folder / "logs")
        depth = [part for part in templates[0].sandbox.linux.cgroup_parent.split("/") if part]
        sandbox.linux.cgroup_parent = "/".join((self._cgroup, *depth[1:-1], f"pod{name}"))
        _rename_labels(sandbox.labels)
        host.make_cgroup(sandbox.linux.cgroup_parent)
        return [Prepared(sandbox, self._container(template.container, folder)) for template in templates]

    def _container(self, template: pb.ContainerConfig, folder: Path) -> pb.ContainerConfig:
        container = pb.ContainerConfig()
        container.CopyFrom(template)
        _rename_labels(container.labels)
        (folder / "logs" / container.log_path).parent.mkdir(parents=True, exist_ok=True)
        for number, mount in enumerate(container.mounts):
            copy = folder / f"{container.metadata.name}-mount-{number}"
            if Path(mount.host_path).is_dir():
                copy.mkdir()
            else:
                copy.write_bytes(Path(mount.host_path).read_bytes() if Path(mount.host_path).exists() else b"")
            mount.host_path = str(copy)
        return container

    async def make(self, pod: Prepared) -> Made:
        """RunPodSandbox, CreateContainer, StartContainer."""
        began = time.time_ns()
        sandbox = await self._cri.run_pod_sandbox(pod.sandbox)
        between = time.time_ns()
        container = await self._cri.create_container(sandbox, pod.container, pod.sandbox)
        await self._cri.start_container(container)
        return Made(sandbox, container, began, between)

    async def started_at(self, container: str) -> int:
        """By the runtime's own word, which its event of the start comes before."""
        for _ in range(_STARTED_LOOKS):
            if at := (await self._cri.container_status(container)).status.started_at:
                return at
            await asyncio.sleep(_SETTLE_S)
        raise BenchError(f"the runtime does not state when container {container[:12]} started")

    async def remove(self, pod: Made) -> tuple[float, float]:
        """StopContainer, StopPodSandbox, RemovePodSandbox; milliseconds to the exit, and until the sandbox is gone."""
        began = time.time_ns()
        await self._cri.stop_container(pod.container, _GRACE_S)
        await self._cri.stop_pod_sandbox(pod.sandbox)
        await self._cri.remove_pod_sandbox(pod.sandbox)
        exited = await self._watch.exited_at(pod.container)
        gone = await self._watch.deleted_at(pod.sandbox)
        return (exited - began) / NS_PER_MS, (gone - began) / NS_PER_MS

    async def cycle(self, template: Template) -> Cycle:
        """One pod, made and removed."""
        made = await self.make(self.prepare(template))
        await asyncio.sleep(_SETTLE_S)
        started = await self.started_at(made.container)
        exit_ms, gone_ms = await self.remove(made)
        await asyncio.sleep(_SETTLE_S)
        return Cycle(
            start_ms=(started - made.began_ns) / NS_PER_MS,
            container_ms=(started - made.between_ns) / NS_PER_MS,
            exit_ms=exit_ms,
            gone_ms=gone_ms,
        )

    async def burst(self, template: Template, count: int) -> tuple[float, float]:
        """`count` pods at once, made and removed: milliseconds until the last has started, and until the last is gone."""
        prepared = [self.prepare(template) for _ in range(count)]
        began = time.time_ns()
        made = await asyncio.gather(*(self.make(pod) for pod in prepared))
        return await self.last_started_at(made, began), await self.remove_all(made)

    async def last_started_at(self, made: Sequence[Made], began_ns: int) -> float:
        """Milliseconds until the last of them had started."""
        return (max([await self.started_at(pod.container) for pod in made]) - began_ns) / NS_PER_MS

    async def remove_all(self, made: Sequence[Made]) -> float:
        """All at once: milliseconds until the last is gone."""
        began = time.time_ns()
        await asyncio.gather(*(self.remove(pod) for pod in made))
        return (max([await self._watch.deleted_at(pod.sandbox) for pod in made]) - began) / NS_PER_MS


def _rename_labels(labels: MutableMapping[str, str]) -> None:
    """As many and as long, but no node agent's."""
    for key in list(labels):
        if key.startswith("io.kubernetes."):
            labels[key.replace("io.kubernetes.", "io.benchmarks.", 1)] = labels.pop(key)

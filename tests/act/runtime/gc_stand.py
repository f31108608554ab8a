"""A runtime on a socket with pods in it, and the cells that the collector and the log rotation read."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field

from support.virtual_time import clock_of_loop

from pykubelet.act.runtime.collect.gc import GcInputs
from pykubelet.base.api.core import ObjectMeta, Pod
from pykubelet.base.kit.cells import CellWriter, Sink, make_cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.model import labels
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.observed import Observed, PodReadWanted, PodView
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.roster import Roster, RosterPod
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.observe.pleg.read import complete_pod, list_pods

BUSYBOX = "registry.k8s.io/busybox:test"


def ref_of(name: str) -> PodRef:
    return PodRef("shop", name, PodUID(f"uid-{name}"))


def pod_of(name: str) -> Pod:
    ref = ref_of(name)
    return Pod(metadata=ObjectMeta(name=ref.name, namespace=ref.namespace, uid=ref.uid))


def lifecycle(name: str, stage: Stage = Stage.SYNCING, reason: KillReason | None = None) -> PodLifecycle:
    return PodLifecycle(ref_of(name), pod_of(name), stage, 0.0, 0.0, kill_reason=reason)


def names_in(path: str) -> list[str]:
    return sorted(os.listdir(path))


def exists(path: str) -> bool:
    return os.path.exists(path)


def write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def targets_in(path: str) -> set[str]:
    """Where the links of a directory point."""
    return {os.readlink(f"{path}/{name}") for name in os.listdir(path)}


@dataclass
class Stand:
    """`cri` speaks to the runtime; `relist` reads it into the cell."""

    cri: CriClient
    paths: Paths
    image: str = BUSYBOX
    cgroup: str = ""
    clock: Clock = field(default_factory=clock_of_loop)
    touched: Sink[PodReadWanted] = field(default_factory=Sink)
    recorder: Sink[KubeEvent] = field(default_factory=Sink)
    observed: CellWriter[Observed] = field(default_factory=lambda: make_cell("observed", Observed())[1])
    lifecycles: CellWriter[Lifecycles] = field(default_factory=lambda: make_cell("lifecycles", Lifecycles())[1])
    roster: CellWriter[Roster] = field(default_factory=lambda: make_cell("roster", Roster(sources_ready=True))[1])
    configs: dict[str, pb.PodSandboxConfig] = field(default_factory=dict)

    @property
    def inputs(self) -> GcInputs:
        return GcInputs(self.observed.cell, self.lifecycles.cell, self.roster.cell)

    async def sandbox(self, name: str, attempt: int = 0) -> str:
        ref = ref_of(name)
        config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=name, namespace=ref.namespace, uid=ref.uid, attempt=attempt),
            hostname=name,
            log_directory=self.paths.pod_logs(ref),
            labels={labels.POD_NAME: name, labels.POD_NAMESPACE: ref.namespace, labels.POD_UID: ref.uid},
        )
        config.linux.cgroup_parent = self.cgroup
        self.configs[name] = config
        return await self.cri.run_pod_sandbox(config)

    async def container(self, pod: str, sandbox: str, script: str, name: str = "main", attempt: int = 0) -> str:
        """Create and start one, with the link to its log that the starter makes."""
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=name, attempt=attempt),
            image=pb.ImageSpec(image=self.image, user_specified_image=self.image),
            command=["sh", "-c", script],
            labels={**self.configs[pod].labels, labels.CONTAINER_NAME: name},
            log_path=f"{name}/{attempt}.log",
        )
        config.linux.resources.memory_limit_in_bytes = 64 << 20
        logs, link = self.paths.container_logs(ref_of(pod), name), self.paths.log_link
        os.makedirs(logs, exist_ok=True)
        os.makedirs(self.paths.log_links, exist_ok=True)
        made = await self.cri.create_container(sandbox, config, self.configs[pod])
        await self.cri.start_container(made)
        os.symlink(f"{logs}/{attempt}.log", link(ref_of(pod), name, made))
        return made

    async def dead(self, pod: str, sandbox: str, count: int, name: str = "main") -> list[str]:
        """That many instances, one after the other, all ended."""
        made = [await self.container(pod, sandbox, "echo hello; exit 1", name, attempt) for attempt in range(count)]
        for container in made:
            for _ in range(1000):
                if (await self.cri.container_status(container)).status.state == pb.CONTAINER_EXITED:
                    break
                await asyncio.sleep(0.01)
        return made

    def want(self, *names: str) -> None:
        """These pods are desired and run."""
        roster = {ref_of(n).uid: RosterPod(pod_of(n), "file", 0.0) for n in names}
        self.roster.publish(Roster(roster, sources_ready=True))
        self.show(*(lifecycle(n) for n in names))

    def show(self, *lifecycles: PodLifecycle) -> None:
        self.lifecycles.publish(Lifecycles({life.ref.uid: life for life in lifecycles}))

    async def relist(self) -> Observed:
        read_at, listed = await list_pods(self.cri, self.clock)
        views: dict[PodUID, PodView] = {}
        for ref, found in listed.items():
            views[ref.uid] = await complete_pod(self.cri, ref, found, None, read_at)
        self.observed.publish(Observed(views, read_at))
        return self.observed.get()

    async def left(self) -> tuple[set[str], set[str]]:
        """Ids of the containers and sandboxes in the runtime."""
        containers, sandboxes = await self.cri.list_containers(), await self.cri.list_pod_sandboxes()
        return {str(c.id) for c in containers}, {str(s.id) for s in sandboxes}

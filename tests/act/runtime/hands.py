"""act/runtime on a fake runtime in virtual time: what the tests of starting, stopping and sandboxes share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from act.pods.scenes import IMAGE
from support.runtimes import memory_runtime
from support.virtual_time import virtual_clock

from pykubelet.act.runtime.lifecycle.hooks import HookRunner
from pykubelet.act.runtime.lifecycle.sandbox import Sandbox, SandboxCells, Sandboxes
from pykubelet.act.runtime.lifecycle.start import ContainerFiles, ContainerStarter, SandboxEnded, wants_hosts
from pykubelet.act.runtime.lifecycle.stop import ContainerStopper
from pykubelet.act.runtime.render.context import AnyContainer, ContainerContext, RenderSettings
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Cell, Sink, make_cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.content import Content
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import StartError
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.node import HandlerFeatures, NodeView, RuntimeReady
from pykubelet.base.model.observed import ContainerView, StopInProgress
from pykubelet.base.model.paths import Paths
from pykubelet.edges.host.fs.files import make_dirs, write_in_place
from pykubelet.testing.cri.in_memory import MemoryRuntime


@dataclass
class Hands:
    fake: MemoryRuntime
    paths: Paths
    sandboxes: Sandboxes
    starter: ContainerStarter
    stopper: ContainerStopper
    recorder: Sink[KubeEvent]
    resolv_conf: str
    flight: SingleFlight

    async def sandbox(self, of: Pod) -> Sandbox:
        return await self.sandboxes.create(of, 0, "/kubepods/x")

    async def prepare(self, of: Pod, container: AnyContainer, *instances: ContainerView) -> ContainerFiles:
        return await self.starter.make_files(of, container, instances, self.paths)

    async def hosts(self, of: Pod, container: AnyContainer, home: Sandbox) -> str:
        if not wants_hosts(of, container, home.ips):
            return ""
        return await self.starter.write_hosts(of, self.sandboxes.settings(), home.ips)

    async def start(
        self, of: Pod, container: AnyContainer, home: Sandbox, *instances: ContainerView
    ) -> ContainerID | StartError:
        try:
            with self.starter.reporting(of, container):
                return await self._start(of, container, home, *instances)
        except ContainerStartError as error:
            if error.unstarted is not None:
                assert error.unstarted in self.fake.state.containers
            if error.instance is not None:
                pod_ip = home.ips[0] if home.ips else ""
                await self.starter.stop_after_failed_hook(of, container, error.instance, pod_ip)
            return error.value

    async def _start(self, of: Pod, container: AnyContainer, home: Sandbox, *instances: ContainerView) -> ContainerID:
        files = await self.prepare(of, container, *instances)
        ctx = ContainerContext(
            image_ref=IMAGE,
            restart_count=files.restart_count,
            sandbox=home.context,
            pod_ips=home.ips,
            termination_log_host_path=files.termination_log,
            etc_hosts_host_path=await self.hosts(of, container, home),
        )
        settings = self.sandboxes.settings()
        created = await self.starter.create(of, container, home, settings, ctx)
        assert not isinstance(created, SandboxEnded)
        made = await self.starter.start(of, container, created, home, settings)
        assert not isinstance(made, SandboxEnded)
        await self.starter.post_start(of, container, made, home.ips[0] if home.ips else "")
        return made

    async def started(self, of: Pod, container: AnyContainer, home: Sandbox) -> ContainerID:
        made = await self.start(of, container, home)
        assert not isinstance(made, StartError), made
        return made

    def events(self) -> list[tuple[str, str, str]]:
        return [(event.reason, event.message, event.field_path) for event in self.recorder.events]

    def reasons(self) -> list[str]:
        return [event.reason for event in self.recorder.events]


@asynccontextmanager
async def hands(folder: Path, clock: Clock | None = None, mounts: Cell[Mounts] | None = None) -> AsyncIterator[Hands]:
    with memory_runtime(folder, IMAGE) as fake:
        async with _hands_on(fake, folder, clock or virtual_clock(), mounts) as made:
            yield made


@asynccontextmanager
async def _hands_on(
    fake: MemoryRuntime, folder: Path, clock: Clock, mounts: Cell[Mounts] | None
) -> AsyncIterator[Hands]:
    client = fake.connect()
    paths = Paths(str(folder / "root"), str(folder / "logs"), str(folder / "links"))
    make_dirs(paths.log_links, 0o755)
    view = NodeView("n1", "n1", ("192.0.2.1",), {"memory": 1 << 34, "cpu": 4000})
    node, _ = make_cell("node", view)
    runtime, _ = make_cell("runtime", RuntimeReady(True, "", handlers={"": HandlerFeatures()}))
    content, _ = make_cell("content", Content())
    recorder: Sink[KubeEvent] = Sink()
    stopped: Sink[StopInProgress] = Sink()
    mounts = mounts or make_cell("mounts", Mounts())[0]
    cells = SandboxCells(node, runtime, content, mounts=mounts)
    hooks, flight = HookRunner(client, recorder), SingleFlight("test")
    stopper = ContainerStopper(client, hooks, clock, recorder, stopped)
    resolv_conf = str(folder / "resolv.conf")
    write_in_place(resolv_conf, b"nameserver 192.0.2.53\n")
    settings = RenderSettings(paths, view)
    try:
        yield Hands(
            fake,
            paths,
            Sandboxes(client, flight, settings, cells, resolv_conf, recorder),
            ContainerStarter(client, hooks, stopper, flight, recorder),
            stopper,
            recorder,
            resolv_conf,
            flight,
        )
    finally:
        await client.close()

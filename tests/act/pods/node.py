"""A small node for whole lives of pods in virtual time: the pod workers and the PLEG on a fake runtime, with small components beside them.

Images, volumes and cgroups are stand-ins that do their part at once unless a test sets something else.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from act.pods.scenes import IMAGE, pod
from support.virtual_time import virtual_clock

from pykubelet.act.pods.decide import Rules
from pykubelet.act.pods.hooks import HookRecords
from pykubelet.act.pods.loop import PodInputs, PodOutputs, PodsLoop
from pykubelet.act.pods.needs import NEEDS
from pykubelet.act.pods.tools import MakeNeed, PodCells, PodTools
from pykubelet.act.runtime.lifecycle.hooks import HookRunner
from pykubelet.act.runtime.lifecycle.resize import ContainerResizer
from pykubelet.act.runtime.lifecycle.sandbox import SandboxCells, Sandboxes
from pykubelet.act.runtime.lifecycle.start import ContainerStarter
from pykubelet.act.runtime.lifecycle.stop import ContainerStopper
from pykubelet.act.runtime.lifecycle.userns import UserNamespaceManager
from pykubelet.act.runtime.render.context import RenderSettings
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell, CellWriter, LazyCell, Mailbox, Sink, make_cell, make_lazy_cell, set_on_change
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.claims import Claims
from pykubelet.base.model.containers import container_hash
from pykubelet.base.model.content import Content
from pykubelet.base.model.diagnostics import Diagnostics, PodDiagnostics
from pykubelet.base.model.evictions import Evictions, NodeShutdown
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent, normal
from pykubelet.base.model.labels import CONFIG_SOURCE
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage, Starts
from pykubelet.base.model.mounts import MountedVolume, Mounts, PodMounts
from pykubelet.base.model.node import HandlerFeatures, NodeView, RuntimeReady
from pykubelet.base.model.observed import Observed, PodReadWanted, StopInProgress
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.reasons import EVENT_PULLED
from pykubelet.base.model.roster import Rejection, Roster, RosterPod, pod_ref
from pykubelet.base.model.statuses import Statuses
from pykubelet.base.model.waits import Wait
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.host.fs.files import make_dirs
from pykubelet.observe.pleg.decide import RelistPeriods
from pykubelet.observe.pleg.loop import Pleg, PlegCells
from pykubelet.provide.cgroups.execute import PodCgroups
from pykubelet.provide.cgroups.model import CgroupError
from pykubelet.provide.images.execute import ImagePuller
from pykubelet.provide.images.model import ImageError, ImageReady, ImageRequest
from pykubelet.provide.volumes.subpath import Subpaths
from pykubelet.testing.cri.fake_state import FakeContainer
from pykubelet.testing.cri.in_memory import MemoryRuntime

CRASH = BackoffPolicy(initial_s=10.0, cap_s=300.0)
#: Longer than anything takes that a test waits for.
WITHIN_S = 600.0


class Images:
    """Every image is there, but those in `missing`; `hook` may wait, or raise as a bug would."""

    def __init__(self) -> None:
        self.missing: dict[str, ImageError] = {}
        self.asked: list[str] = []
        self.requests: list[ImageRequest] = []
        self.hook: Callable[[ImageRequest], Any] | None = None

    async def ensure(self, request: ImageRequest) -> ImageReady | ImageError:
        self.asked.append(request.image)
        self.requests.append(request)
        if self.hook is not None and (waits := self.hook(request)) is not None:
            await waits
        present = normal(EVENT_PULLED, f"{request.image} is present", request.pod, request.field_path)
        return self.missing.get(request.image) or ImageReady(IMAGE, "sha256:1", present=present)

    def forget(self, uid: PodUID) -> None:
        """Nothing is kept here."""


class Groups:
    """Pod cgroups by uid; `broken` gives an error for a pod's name, `busy` are those that cannot be removed yet. `writes`: the changes of
    limits, by the names of the calls."""

    def __init__(self) -> None:
        self.pods: set[PodUID] = set()
        self.writes: list[str] = []
        self.broken: dict[str, CgroupError] = {}
        self.busy: set[PodUID] = set()

    async def ensure_pod(self, of: Pod, *, exclusive_cpus: bool = False) -> CgroupError | None:
        self.writes.append("ensure_pod")
        if error := self.broken.get(of.metadata.name):
            return error
        self.pods.add(PodUID(of.metadata.uid))
        return None

    async def widen_pod(self, before: Pod, after: Pod, *, exclusive_cpus: bool = False) -> CgroupError | None:
        """Sizes are not kept here."""
        self.writes.append("widen_pod")
        return None

    async def is_gone(self, of: Pod) -> bool:
        return PodUID(of.metadata.uid) not in self.pods

    def cgroup_parent(self, of: Pod) -> str:
        return f"/kubepods/pod{of.metadata.uid}"

    async def remove_pod(self, uid: PodUID) -> bool:
        if uid in self.busy:
            return False
        self.pods.discard(uid)
        return True


class Volumes:
    """Mounts for every pod that is not terminated, but those named in `stuck`; those in `mounting` are nearly there. `failures`: what
    is the matter with those that are stuck. Volumes of a pod's spec are there until the runtime was seen to run no container.
    `made`: the volumes of every pod, by name."""

    def __init__(self, lifecycles: Cell[Lifecycles], observed: Cell[Observed], mounts: CellWriter[Mounts]) -> None:
        self._lifecycles = lifecycles
        self._observed = observed
        self._mounts = mounts
        self.stuck: set[str] = set()
        self.mounting: set[str] = set()
        self.failures: tuple[Wait, ...] = ()
        self.made: dict[str, MountedVolume] = {}

    async def run(self) -> None:
        changed = asyncio.Event()
        with set_on_change(changed, self._lifecycles, self._observed):
            while True:
                await changed.wait()
                changed.clear()
                self.project()

    def project(self) -> None:
        views = self._observed.get().pods
        pods = {
            uid: PodMounts(
                self.made,
                ready=life.ref.name not in self.stuck | self.mounting,
                mounting=life.ref.name in self.mounting,
                waits=self.failures if life.ref.name in self.stuck else (),
                holds=any(volume.hostPath is None for volume in life.pod.spec.volumes),
            )
            for uid, life in self._lifecycles.get().pods.items()
            if life.stage in (Stage.SYNCING, Stage.TERMINATING)
            or (life.pod.spec.volumes and uid in views and views[uid].is_running)
        }
        self._mounts.publish(Mounts(pods, reconstructed=True))


@dataclass
class Node:
    fake: MemoryRuntime
    clock: Clock
    paths: Paths
    images: Images
    groups: Groups
    volumes: Volumes
    roster: CellWriter[Roster]
    runtime: CellWriter[RuntimeReady]
    content: CellWriter[Content]
    evictions: CellWriter[Evictions]
    shutdown: CellWriter[NodeShutdown]
    lifecycles: Cell[Lifecycles]
    observed: Cell[Observed]
    recorder: Sink[KubeEvent]
    claims: CellWriter[Claims]
    diagnostics: LazyCell[Diagnostics]
    wanted: dict[PodUID, RosterPod] = field(default_factory=dict)
    sources_ready: bool = True

    # What is wanted

    def want(self, *pods: Pod, rejection: Rejection | None = None) -> None:
        for of in pods:
            known = self.wanted.get(PodUID(of.metadata.uid))
            seen_at = known.seen_at if known is not None else self.clock.wall()
            self.wanted[PodUID(of.metadata.uid)] = RosterPod(of, "file", seen_at, rejection)
        self.publish()

    def unwant(self, *names: str) -> None:
        self.wanted = {uid: entry for uid, entry in self.wanted.items() if entry.pod.metadata.name not in names}
        self.publish()

    def publish(self) -> None:
        self.roster.publish(Roster(dict(self.wanted), self.sources_ready))

    # What is so

    def life(self, name: str) -> PodLifecycle | None:
        return next((life for life in self.lifecycles.get().pods.values() if life.ref.name == name), None)

    def account(self) -> list[object]:
        """Where all pods are, for the message of a test that failed."""
        return [
            (
                str(life.ref),
                life.stage,
                life.start_errors,
                [(line.what, line.cause) for line in self.known(life.ref.uid).timeline],
                self.known(life.ref.uid).waits,
            )
            for life in self.lifecycles.get().pods.values()
        ]

    def known(self, uid: PodUID) -> PodDiagnostics:
        """What is known of a pod besides its lifecycle, as `explain` shows it."""
        return self.diagnostics.get().pods.get(uid, PodDiagnostics())

    async def wait_known(self, name: str, condition: Callable[[PodDiagnostics], bool]) -> PodDiagnostics:
        """Wait until the diagnostics of a pod of this name are so."""
        seen: list[PodDiagnostics] = []

        def is_so() -> bool:
            every = (self.known(life.ref.uid) for life in self.lifecycles.get().pods.values() if life.ref.name == name)
            seen[:] = filter(condition, every)
            return bool(seen)

        await self.wait_for(is_so)
        return seen[0]

    async def wait_life(
        self, name: str, condition: Callable[[PodLifecycle], bool], within_s: float = WITHIN_S
    ) -> PodLifecycle:
        """Wait until the lifecycle of a pod of this name is so."""
        seen: list[PodLifecycle] = []

        def is_so(now: Lifecycles) -> bool:
            seen[:] = [life for life in now.pods.values() if life.ref.name == name and condition(life)]
            return bool(seen)

        try:
            async with asyncio.timeout(within_s):
                await self.lifecycles.wait_for(is_so)
        except TimeoutError:
            raise AssertionError(f"never so: {self.account()}") from None
        return seen[0]

    async def wait_gone(self, *names: str, within_s: float = WITHIN_S) -> None:
        """No lifecycle, container, sandbox or cgroup is left of these pods."""
        await self.wait_for(lambda: not any(self.life(name) or self.sandboxes(name) for name in names), within_s)

    async def wait_for(self, condition: Callable[[], bool], within_s: float = WITHIN_S) -> None:
        end = asyncio.get_running_loop().time() + within_s
        while not condition():
            if asyncio.get_running_loop().time() > end:
                raise AssertionError(f"never so: {self.account()}")
            await asyncio.sleep(0.01)

    async def wait_running(self, name: str, *containers: str, within_s: float = WITHIN_S) -> None:
        wanted = set(containers or ("app",))
        await self.wait_for(lambda: wanted <= {c.config.metadata.name for c in self.running(name)}, within_s)

    async def wait_seen(self, name: str) -> None:
        """The agent has seen its container run."""

        def is_seen() -> bool:
            view = self.observed.get().pods.get(PodUID(f"uid-{name}"))
            return view is not None and bool(view.running)

        await self.wait_for(is_seen)

    def running(self, name: str) -> list[FakeContainer]:
        return [c for c in self.containers(name) if c.state == pb.CONTAINER_RUNNING]

    def logs(self, of: Pod) -> bool:
        """Whether the log directory of the pod is there."""
        return Path(self.paths.pod_logs(pod_ref(of))).is_dir()

    def log_links(self) -> list[str]:
        return [link.name.partition("-")[0] for link in Path(self.paths.log_links).iterdir()]

    def remove_log_links(self) -> None:
        shutil.rmtree(self.paths.log_links)

    def containers(self, name: str) -> list[FakeContainer]:
        return [c for c in self.fake.state.containers.values() if c.sandbox.config.metadata.name == name]

    def sandboxes(self, name: str) -> list[str]:
        return [s.config.metadata.uid for s in self.fake.state.sandboxes.values() if s.config.metadata.name == name]

    def messages(self, reason: str, name: str = "") -> list[str]:
        """Messages of the Events of one reason."""
        events = [event for event in self.recorder.events if event.reason == reason]
        return [event.message for event in events if not name or (event.pod and event.pod.name == name)]


def named(of: Pod, name: str, uid: str = "") -> Pod:
    meta = replace(of.metadata, name=name, uid=uid or f"uid-{name}")
    return replace(of, metadata=meta)


WEB = named(pod(terminationGracePeriodSeconds=1), "web")


def static(of: Pod, name: str, uid: str) -> Pod:
    made = named(of, name, uid)
    meta = replace(made.metadata, annotations={**made.metadata.annotations, CONFIG_SOURCE: "file"})
    return replace(made, metadata=meta)


@asynccontextmanager
async def node(
    folder: Path,
    *,
    fake: MemoryRuntime | None = None,
    crash: BackoffPolicy = CRASH,
    sources_ready: bool = True,
    wanted: Iterable[Pod] = (),
    clock: Clock | None = None,
    touched: Mailbox[PodReadWanted | StopInProgress] | None = None,
    periods: RelistPeriods | None = None,
    needs: tuple[MakeNeed, ...] = NEEDS,
    secrets_at_once: bool = False,
) -> AsyncIterator[Node]:
    """Run the components until the block ends; a given `fake` is used and left as it is, else one is made."""
    own = fake is None
    if fake is None:
        fake = MemoryRuntime(str(folder / "cri.sock"), virtual_clock())
        fake.add_image(IMAGE)
        fake.start()
    clock, flight = clock or virtual_clock(), SingleFlight("test")
    client = fake.connect()
    roster, roster_writer = make_cell("roster", Roster())
    lifecycles, lifecycles_writer = make_cell("lifecycles", Lifecycles())
    observed, observed_writer = make_cell("observed", Observed())
    mounts, mounts_writer = make_cell("mounts", Mounts())
    probes, _ = make_cell("probes", ProbeResults())
    view, _ = make_cell("node", NodeView("n1", "n1", ("192.0.2.1",), {"memory": 1 << 34, "cpu": 4000}))
    ready = RuntimeReady(checked=True, runtime_error="", handlers={"": HandlerFeatures()})
    runtime, runtime_writer = make_cell("runtime", ready)
    recorder: Sink[KubeEvent] = Sink()
    touched = touched if touched is not None else Mailbox("pleg")
    paths = Paths(str(folder / "root"), str(folder / "logs"), str(folder / "links"))
    hooks, images, groups = HookRunner(client, recorder), Images(), Groups()
    stopper = ContainerStopper(client, hooks, clock, recorder, touched)
    groups.pods |= {PodUID(sandbox.config.metadata.uid) for sandbox in fake.state.sandboxes.values()}
    volumes = Volumes(lifecycles, observed, mounts_writer)
    content, content_writer = make_cell("content", Content())
    claims, claims_writer = make_cell("claims", Claims())
    make_dirs(paths.log_links, 0o755)
    settings = RenderSettings(paths, view.get())
    work = Supervisor("work")
    hook_records = HookRecords(paths.root, flight)
    hook_records.load(paths.pods)
    userns = UserNamespaceManager(client, flight, paths)
    tools = PodTools(
        clock=clock,
        flight=flight,
        cells=PodCells(mounts, observed, view, runtime, make_cell("statuses", Statuses())[0], content, claims),
        sandboxes=Sandboxes(client, flight, settings, SandboxCells(view, runtime, content), "", recorder, userns),
        starter=ContainerStarter(client, hooks, stopper, flight, recorder),
        stopper=stopper,
        resizer=ContainerResizer(client, runtime),
        images=cast(ImagePuller, images),
        subpaths=Subpaths(mounts, paths, flight),
        cgroups=cast(PodCgroups, groups),
        supervisor=work,
        recorder=recorder,
        starts=make_cell("starts", Starts())[1],
        hook_records=hook_records,
        needs=needs,
        reports_secrets_at_once=secrets_at_once,
    )
    rules = Rules(container_hash, crash, 60.0, probes.get())
    evictions, evictions_writer = make_cell("evictions", Evictions())
    shutdown, shutdown_writer = make_cell("shutdown", NodeShutdown())
    diagnostics, diagnostics_writer = make_lazy_cell("diagnostics", Diagnostics())
    pod_inputs = PodInputs(roster, observed, probes, content, evictions, shutdown)
    pods = PodsLoop(pod_inputs, PodOutputs(lifecycles_writer, diagnostics_writer), tools, rules, touched)
    pleg = Pleg(client, clock, PlegCells(observed_writer, runtime), touched, periods or RelistPeriods(), recorder)
    writers = (roster_writer, runtime_writer, content_writer, evictions_writer, shutdown_writer)
    ends = (lifecycles, observed, recorder, claims_writer, diagnostics)
    made = Node(fake, clock, paths, images, groups, volumes, *writers, *ends)
    made.sources_ready = sources_ready
    made.want(*wanted)
    async with Supervisor("test") as supervisor, work:
        components = [
            supervisor.start_root(name, loop)
            for name, loop in (("pods", pods.run()), ("pleg", pleg.run()), ("volumes", volumes.run()))
        ]
        try:
            yield made
            for component in components:
                assert not component.done(), component
        finally:
            for component in components:
                component.cancel()
            await asyncio.gather(*components, return_exceptions=True)
            await client.close()
            if own:
                fake.stop()

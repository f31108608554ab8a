"""A placement loop with all its cells, on a machine of the test's choice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from provide.placement.cpu_pods import make_policy
from support.machines import Shape
from support.virtual_time import clock_of_loop

from pykubelet.base.api.core import Container, Pod
from pykubelet.base.kit.cells import make_cell, make_lazy_cell
from pykubelet.base.kit.cpuset import format_cpuset
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.diagnostics import Diagnostics
from pykubelet.base.model.ids import ContainerID, PodUID, SandboxID
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.machine import ResourceHints, TopologyHint
from pykubelet.base.model.observed import ContainerView, Observed, ObservedState, PodView, ResourcesView
from pykubelet.base.model.placement import AssignedDevices, DeviceResource, Devices, Placements, PodPlacement
from pykubelet.base.model.roster import Rejection, Roster, RosterPod, pod_ref
from pykubelet.provide.placement.cpu_manager import CpuManager, CpuState, start
from pykubelet.provide.placement.loop import PlacementInputs, PlacementLoop
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.provider import (
    Allocation,
    AllocationError,
    ManagerStartError,
    NeedsPluginAnswer,
    PreferredAllocationRequest,
)
from pykubelet.provide.placement.store import StateFiles
from pykubelet.provide.placement.topology_options import Policy, Scope, Topology

GPU = "example.com/gpu"
#: Longer than any pause between two attempts.
LIMIT_S = 600.0


def cpu_managers(shape: Shape, options: tuple[str, ...] = (), *, is_new: bool = False, **others: Any) -> Managers:
    """Managers whose CPU policy is static; CPU 0 is reserved."""
    policy = make_policy(shape, options)
    state = start(policy, CpuState())
    assert not isinstance(state, ManagerStartError)
    return Managers(cpus=CpuManager(policy, state), machine=shape.machine, is_new=is_new, **others)


def single_numa(shape: Shape, scope: Scope = Scope.CONTAINER) -> Topology:
    return Topology(Policy.SINGLE_NUMA_NODE, scope, tuple(node.id for node in shape.machine.nodes))


class PlacementStand:
    """Desired pods go in; `placements` comes out."""

    def __init__(self, managers: Managers, root: Path, plugins: Any = None, *, listed: bool = True) -> None:
        self.roster = make_cell("roster", Roster(sources_ready=True))[1]
        self.lifecycles = make_cell("lifecycles", Lifecycles())[1]
        self.observed = make_cell("observed", Observed(listed_at=1.0 if listed else None))[1]
        self.placements, writer = make_cell("placements", Placements())
        self.diagnostics, diagnostics = make_lazy_cell("diagnostics", Diagnostics())
        inputs = PlacementInputs(self.roster.cell, self.lifecycles.cell, self.observed.cell)
        self.files = StateFiles(str(root), SingleFlight("placement", workers=1))
        self.files.read()
        self.loop = PlacementLoop(managers, inputs, (writer, diagnostics), self.files, clock_of_loop(), plugins)

    def desire(
        self,
        *pods: Pod,
        awaiting_placement: bool = True,
        ready: bool = True,
        seen_at: float = 1.0,
        rejected_anyway: tuple[str, ...] = (),
    ) -> None:
        """These pods are desired now, and none else. Those that are not placed yet wait for it."""
        items = {PodUID(pod.metadata.uid): RosterPod(pod, "api", seen_at) for pod in pods}
        known = self.placements.get().pods
        waiting = (uid for uid in items if uid not in known or known[uid].seen_at != seen_at)
        self.roster.publish(
            Roster(
                items,
                ready,
                awaiting_placement=tuple(waiting) if awaiting_placement else (),
                rejected_anyway=frozenset(map(PodUID, rejected_anyway)),
            )
        )

    def end(self, pod: Pod, stage: Stage = Stage.TERMINATED, reason: KillReason | None = None) -> None:
        """The pod has reached a stage."""
        ref = pod_ref(pod)
        life = PodLifecycle(ref, pod, stage, 0.0, 0.0, kill_reason=reason)
        self.lifecycles.publish(Lifecycles({**self.lifecycles.get().pods, ref.uid: life}))

    async def placed(self, pod: Pod, seen_at: float = 1.0) -> PodPlacement:
        """The decision on a pod."""
        uid = PodUID(pod.metadata.uid)
        found = await asyncio.wait_for(
            self.placements.wait_for(lambda p: uid in p.pods and p.pods[uid].seen_at == seen_at), LIMIT_S
        )
        return found.pods[uid]

    async def cpus(self, pod: Pod) -> Mapping[str, str]:
        """The exclusive CPUs of the pod's containers."""
        placement = await self.placed(pod)
        assert placement.rejection is None, placement.rejection
        return {name: format_cpuset(container.cpus) for name, container in placement.containers.items()}

    async def rejected(self, pod: Pod) -> Rejection:
        """Why the pod is rejected."""
        rejection = (await self.placed(pod)).rejection
        assert rejection is not None
        return rejection

    async def shared(self, cpus: str) -> None:
        """Wait until the shared pool has these CPUs."""

        def has(placements: Placements) -> bool:
            return placements.shared is not None and format_cpuset(placements.shared) == cpus

        await asyncio.wait_for(self.placements.wait_for(has), LIMIT_S)


@asynccontextmanager
async def placing(
    managers: Managers, root: Path, plugins: Any = None, *, listed: bool = True
) -> AsyncIterator[PlacementStand]:
    stand = PlacementStand(managers, root, plugins, listed=listed)
    async with Supervisor("test") as supervisor:
        supervisor.start_root("placement", stand.loop.run())
        yield stand


def view(pod: Pod, cpusets: Mapping[str, str], mems: Mapping[str, str] | None = None) -> PodView:
    """The pod as the runtime has it: running containers with these CPUs and memory nodes, by name."""
    containers = (
        ContainerView(
            ContainerID(f"{pod.metadata.uid}-{name}"),
            name,
            SandboxID("s"),
            ObservedState.RUNNING,
            0,
            1,
            resources=ResourcesView(cpuset_cpus=cpus, cpuset_mems=(mems or {}).get(name, "")),
        )
        for name, cpus in cpusets.items()
    )
    return PodView(pod_ref(pod), (), tuple(containers), 1.0)


# Devices


class Call(Value):
    container: str
    resource: str


class FakeDevices(Value):
    """One resource; a container that requests one asks its plugin for a preference and then for `Allocate`."""

    free: frozenset[str] = frozenset({"a", "b"})
    answers: Mapping[PreferredAllocationRequest, frozenset[str]] = field(default_factory=dict)
    taken: Mapping[str, str] = field(default_factory=dict)
    responses: Mapping[str, bytes] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()

    @property
    def resources(self) -> Mapping[str, DeviceResource]:
        return {GPU: DeviceResource(healthy=self.free.union(self.taken.values()))}

    @property
    def holders(self) -> Collection[str]:
        return self.taken.keys()

    @property
    def in_use(self) -> frozenset[str]:
        return frozenset({GPU}) if self.taken else frozenset()

    def hints(self, pod: Pod, container: Container) -> ResourceHints:
        return {}

    def pod_hints(self, pod: Pod) -> ResourceHints:
        return {}

    def allocate(self, pod: Pod, container: Container, hint: TopologyHint) -> Allocation[FakeDevices]:
        uid = pod.metadata.uid
        if container.resources is None or GPU not in container.resources.limits or uid in self.taken:
            return Allocation(self)
        if not self.free:
            return Allocation(AllocationError("requested number of devices unavailable"))
        request = PreferredAllocationRequest(uid, container.name, GPU, self.free, frozenset(), 1)
        if request not in self.answers:
            return Allocation(NeedsPluginAnswer("", request=request))
        chosen = min(self.answers[request] or self.free)
        return Allocation(replace(self, free=self.free - {chosen}, taken={**self.taken, uid: chosen}))

    def allocate_pod(self, pod: Pod, hint: TopologyHint) -> Allocation[FakeDevices]:
        return self.allocate(pod, pod.spec.containers[0], hint)

    def with_answer(self, request: PreferredAllocationRequest, ids: Collection[str]) -> FakeDevices:
        return replace(self, answers={**self.answers, request: frozenset(ids)})

    def unanswered(self, pod_uid: str) -> tuple[Call, ...]:
        return (Call("c0", GPU),) if pod_uid in self.taken and pod_uid not in self.responses else ()

    def with_response(self, pod_uid: str, call: Call, response: bytes) -> FakeDevices:
        return replace(self, responses={**self.responses, pod_uid: response})

    def release(self, pod_uids: Collection[str]) -> FakeDevices:
        back = {self.taken[uid] for uid in pod_uids if uid in self.taken}
        taken = {uid: device for uid, device in self.taken.items() if uid not in pod_uids}
        return replace(self, free=self.free | back, taken=taken)

    def settled(self, pod_uid: str) -> FakeDevices:
        return self

    def assigned(self, pod_uid: str, container: str) -> tuple[AssignedDevices, ...]:
        return (AssignedDevices(GPU, {-1: frozenset({self.taken[pod_uid]})}),) if pod_uid in self.taken else ()

    def options(self, pod_uid: str, container: str) -> Devices:
        return Devices(env={"GPU": self.responses[pod_uid].decode()}) if pod_uid in self.responses else Devices()


class FakePlugins:
    """Plugins that answer once the test lets them. `allocations`: the answer to `Allocate` by pod UID."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.open = asyncio.Event()
        self.asked: list[str] = []
        self.allocations: dict[str, bytes | AllocationError] = {}
        self.held: set[str] = set()
        self.saves: asyncio.Queue[bool] = asyncio.Queue()
        self.failing_saves = 0

    def refresh(self, devices: FakeDevices) -> FakeDevices:
        return devices

    async def prefer(self, request: PreferredAllocationRequest) -> Collection[str]:
        self.asked.append(request.pod_uid)
        await self._let_go(request.pod_uid)
        return {max(request.available)}

    async def allocate(self, pod_uid: str, call: Call) -> bytes | AllocationError:
        await self._let_go(pod_uid)
        return self.allocations.get(pod_uid, b"yes")

    async def _let_go(self, pod_uid: str) -> None:
        if pod_uid in self.held:
            await self.open.wait()

    def is_saved(self, devices: FakeDevices) -> bool:
        return False

    async def save(self, devices: FakeDevices) -> bool:
        is_saved = self.failing_saves == 0
        self.failing_saves -= not is_saved
        self.saves.put_nowait(is_saved)
        return is_saved

    async def run(self) -> None:
        await asyncio.Event().wait()

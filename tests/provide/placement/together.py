"""A node with all resource managers, which is filled, restarted and drained, for tests of all of them together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from provide.placement.cpu_pods import make_manager
from support.machines import Shape

from pykubelet.base.api.core import ObjectMeta, Pod
from pykubelet.base.api.quantity import parse
from pykubelet.base.api.resource_claims import ApiClaim
from pykubelet.base.kit.values import replace
from pykubelet.base.model.claims import ClaimDevice
from pykubelet.base.model.diagnostics import StepLog
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.machine import MachineTopology
from pykubelet.base.model.placement import DeviceResource, group_by_nodes
from pykubelet.base.model.restart import is_sidecar
from pykubelet.config.gates import FeatureGates
from pykubelet.config.kubelet import MemoryReservation
from pykubelet.provide.claims.decide import take_claim
from pykubelet.provide.claims.model import Cache, ClaimKey, PodClaimRef, claims_of, with_info, without_pod
from pykubelet.provide.claims.state import decode_state, encode_state
from pykubelet.provide.placement import cpu_manager, cpu_state, memory_state
from pykubelet.provide.placement.cpu_manager import sharers
from pykubelet.provide.placement.cpu_policy import pool_size
from pykubelet.provide.placement.devices import device_checkpoint
from pykubelet.provide.placement.devices.device_manager import DeviceManager
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.memory_manager import MemoryManager, MemoryPolicy, start_memory_manager
from pykubelet.provide.placement.provider import PreferredAllocationRequest
from pykubelet.provide.placement.recording import KEPT_STEPS, add_admission, add_release
from pykubelet.provide.placement.topology_options import Topology, read_topology
from pykubelet.provide.placement.topology_scopes import Admitted, PlacementRejection, admit

GPU, NIC = "example.com/gpu", "example.com/nic"
RESERVED_MI = 512


def make_devices(nodes: int) -> Mapping[str, DeviceResource]:
    """Four GPUs on each node, whose plugin wants to choose; NICs, the last of which is on two nodes; disks without a node."""
    gpus = {f"gpu-{number}": (number % nodes,) for number in range(4 * nodes)}
    nics = {f"nic-{number}": (number,) for number in range(nodes)} | {"nic-wide": tuple(range(min(nodes, 2)))}
    return {
        GPU: DeviceResource(frozenset(gpus), nodes=gpus, groups=group_by_nodes(gpus), prefers=True),
        NIC: DeviceResource(frozenset(nics), nodes=nics, groups=group_by_nodes(nics)),
    }


def make_managers(
    shape: Shape, policy: str, scope: str, options: tuple[str, ...] = (), *, pod_level: bool = False
) -> Managers:
    """All managers on an unused machine. CPU 0 and some memory are reserved. `pod_level`: gate PodLevelResourceManagers."""
    machine = shape.machine
    topology = read_topology(policy, scope, {}, machine.nodes, FeatureGates({"PodLevelResourceManagers": pod_level}))
    assert isinstance(topology, Topology)
    cpus = make_manager(shape, options)
    return Managers(
        topology=topology,
        cpus=replace(cpus, policy=replace(cpus.policy, pod_level=pod_level)),
        memory=start_memory(machine, None, pod_level=pod_level),
        devices=DeviceManager(tuple(node.id for node in machine.nodes), make_devices(len(machine.nodes))),
        machine=machine,
    )


def start_memory(machine: MachineTopology, text: str | None, *, pod_level: bool = False) -> MemoryManager:
    reservation = [MemoryReservation(numaNode=0, limits={"memory": f"{RESERVED_MI}Mi"})]
    started = start_memory_manager(
        MemoryPolicy.STATIC,
        machine.nodes,
        {"memory": parse(f"{RESERVED_MI}Mi")},
        reservation,
        ("memory", text),
        pod_level=pod_level,
    )
    assert isinstance(started, MemoryManager)
    return started


class FilledNode:
    """A node on which pods are admitted and released, as the agent does it. All steps are logged."""

    def __init__(self, managers: Managers) -> None:
        self.managers = managers
        self.pods: dict[str, Pod] = {}
        self.restarts = 0
        self.claims: Cache = {}
        self.log = StepLog(maxlen=KEPT_STEPS)
        self.rejections: list[str] = []
        #: The managers that the last rejected pod was rejected by.
        self.rejected_by = managers

    @property
    def devices(self) -> DeviceManager:
        found: object = self.managers.devices
        assert isinstance(found, DeviceManager)
        return found

    def claim(self, pod: Pod, names: Sequence[str]) -> None:
        """The pod uses claims with these names, which other pods may use too; their driver prepares them."""
        uid = PodUID(pod.metadata.uid)
        for name in names:
            ref = PodClaimRef(name, ClaimKey("default", name))
            claim = ApiClaim(metadata=ObjectMeta(name=name, namespace="default", uid=f"{name}-uid"))
            info = take_claim(self.claims, ref, claim, ("tpu.example.com",), uid)
            device = ClaimDevice(
                "tpu.example.com", "pool", f"{name}-device", ("request",), (f"example.com/tpu={name}",)
            )
            prepared = replace(info, drivers={"tpu.example.com": (device,)}, is_prepared=True)
            self.claims = with_info(self.claims, prepared)

    def _with_devices(self, devices: DeviceManager) -> None:
        self.managers = replace(self.managers, devices=devices)

    def admit(self, pod: Pod, *, fails: bool = False) -> bool:
        """Admit a pod; its plugins answer. `fails`: the last plugin fails, so that the pod is rejected after all."""
        uid = pod.metadata.uid
        while True:
            before = self.managers
            result = admit(before.topology, before.providers, pod)
            add_admission(self.log, 1.0, before, pod, result)
            if not isinstance(result, PreferredAllocationRequest):
                break
            self._with_devices(self.devices.with_answer(result, sorted(result.available)[-result.size :]))
        if isinstance(result, PlacementRejection):
            assert self.managers is before, "a rejected pod leaves nothing"
            self.rejected_by = before
            self._with_devices(self.devices.settled(uid))
            self.rejections.append(result.reason)
            return False
        assert isinstance(result, Admitted)
        self.managers = self.managers.with_providers(result.providers)
        self.pods[uid] = pod
        if fails:
            self.release([uid])
            return False
        for call in self.devices.unanswered(uid):
            self._with_devices(self.devices.with_response(uid, call, b"\x08"))
        self._with_devices(self.devices.settled(uid))
        return True

    def release(self, uids: Sequence[str]) -> None:
        """The pods are gone for good."""
        before = self.managers
        self.managers = before.release(uids)
        add_release(self.log, 2.0, before, uids, self.managers)
        for uid in uids:
            del self.pods[uid]
            held = [info.key for info in claims_of(self.claims, PodUID(uid))]
            self.claims = without_pod(self.claims, PodUID(uid), held)

    def restart(self) -> None:
        """Write the state files, start again from them, and admit every pod again, as a restarted agent does."""
        managers, machine = self.managers, self.managers.machine
        assert managers.cpus is not None
        assert machine is not None
        self.restarts += 1
        has_data = self.restarts % 2 == 0
        cpus = cpu_state.decode(cpu_state.encode("static", managers.cpus.state, has_data=has_data), "static", {})
        started = cpu_manager.start(managers.cpus.policy, cpus)
        assert isinstance(started, cpu_manager.CpuState), started
        text = memory_state.encode(MemoryPolicy.STATIC, managers.memory.state, has_data=has_data)
        memory = start_memory(machine, text, pod_level=managers.memory.pod_level)
        healthy = {name: resource.healthy for name, resource in self.devices.resources.items()}
        file = device_checkpoint.decode(device_checkpoint.encode(self.devices.state, healthy))
        assert file.resources == healthy.keys()
        devices = DeviceManager(self.devices.nodes, self.devices.resources, file.state)
        self.managers = replace(managers, cpus=replace(managers.cpus, state=started), memory=memory, devices=devices)
        restored = decode_state(encode_state(self.claims))
        assert restored == {key: replace(info, is_prepared=False) for key, info in self.claims.items()}
        self.claims = restored
        for pod in list(self.pods.values()):
            before = self.managers.placement(pod, 0.0)
            result = admit(self.managers.topology, self.managers.providers, pod)
            if isinstance(result, Admitted):
                self.managers = self.managers.with_providers(result.providers)
            else:  # a pod that has all it needs stays, as in the agent
                assert self.managers.has_all(pod), result
            assert self.managers.placement(pod, 0.0) == before, "a restart changes nothing"
        assert self.managers.cpu_state.pools == managers.cpu_state.pools
        assert self.managers.memory.state == managers.memory.state

    def check(self) -> None:
        """Nothing is given to two pods, and nothing is neither taken nor free."""
        cpus, memory = self.managers.cpus, self.managers.memory
        assert cpus is not None
        pools = cpus.state.pools
        own = [frozenset[int]().union(*pod.values(), pools.get(uid, ())) for uid, pod in cpus.state.assignments.items()]
        check_disjoint([*own, cpus.state.default])
        assert frozenset[int]().union(*own, cpus.state.default) == cpus.policy.allocatable | cpus.policy.reserved
        for uid, pod in self.pods.items():
            init, regular = pod.spec.initContainers, pod.spec.containers
            staying = [c.name for c in (*init, *regular) if c in regular or is_sidecar(c)]
            exclusive = [name for name in staying if name not in sharers(cpus.state, pod)]
            check_disjoint(cpus.state.own(uid, name) for name in exclusive)
            if uid in pools:
                self.check_pool(pod, staying, exclusive)
            for resource in (GPU, NIC):
                entries = [self.devices.state.entry(uid, name, resource) for name in staying]
                check_disjoint(entry.ids for entry in entries if entry is not None)
        wholes = memory.state.pools
        listed = [has for uid, held in memory.state.entries.items() if uid not in wholes for has in held.values()]
        blocks = [block for has in (*listed, *wholes.values()) for block in has]
        tables = [node.tables["memory"] for node in memory.state.machine.values()]
        assert sum(table.reserved for table in tables) == sum(block.size for block in blocks)
        assert all(table.reserved + table.free == table.allocatable for table in tables)
        for resource in (GPU, NIC):
            ids = [self.devices.state.pod_ids(uid, resource) for uid in self.pods]
            check_disjoint(ids)
            assert frozenset[str]().union(*ids) == self.devices.state.in_use.get(resource, frozenset())
        assert all(info.pods and info.pods <= self.pods.keys() for info in self.claims.values())
        for held in (cpus.state.assignments, memory.state.entries, self.devices.state.entries, pools, wholes):
            assert held.keys() <= self.pods.keys()

    def check_pool(self, pod: Pod, staying: Sequence[str], exclusive: Sequence[str]) -> None:
        """The containers of the pod divide its CPUs and none of them is without any."""
        state, uid = self.managers.cpu_state, pod.metadata.uid
        pool = state.pools[uid]
        assert len(pool) == pool_size(pod)
        left = pool.difference(*(state.own(uid, name) for name in exclusive))
        for name in names_of(pod):
            assert state.own(uid, name), "an empty cpuset would be the node's shared pool"
            assert state.own(uid, name) <= pool
        assert all(state.own(uid, name) == left for name in staying if name not in exclusive)


def check_disjoint(sets: Iterable[frozenset[int]] | Iterable[frozenset[str]]) -> None:
    listed: list[frozenset[int] | frozenset[str]] = [held for held in sets if held]
    assert not any(left & right for left, right in combinations(listed, 2))


def names_of(pod: Pod) -> Iterator[str]:
    return (c.name for c in (*pod.spec.initContainers, *pod.spec.containers))

"""Starts the resource managers from the configuration, the machine and the state files. Pure.

The texts are the reference's; to those about a state file that does not fit, what to do is added. The reference refuses a
damaged state file also where the manager has no policy; then nothing depends on it here.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.quantity import NANO, Amount, Format
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.machine import MachineTopology
from pykubelet.config.settings import Settings
from pykubelet.provide.placement import cpu_manager
from pykubelet.provide.placement.checkpoint import PolicyDiffers, StateFileError
from pykubelet.provide.placement.cpu_manager import CpuManager, CpuState
from pykubelet.provide.placement.cpu_policy import NONE, ChooseCpus, CpuConfig, read_policy
from pykubelet.provide.placement.cpu_state import ContainerIds, decode, restore_error
from pykubelet.provide.placement.managers import DeviceProvider, Managers
from pykubelet.provide.placement.memory_hints import ChooseNodes
from pykubelet.provide.placement.memory_manager import MemoryManager, MemoryPolicy, start_memory_manager
from pykubelet.provide.placement.provider import ManagerStartError
from pykubelet.provide.placement.topology_options import read_topology

CPU_PREFIX, MEMORY_PREFIX = "start cpu manager error: ", "start memory manager error: "


class StateTexts(Value):
    """The state files: their paths, which errors name, and their texts; None for one that does not exist.

    `containers`: the running containers, for a file of the CPU manager's first format, which names them.
    """

    cpu_path: str = "cpu_manager_state"
    memory_path: str = "memory_manager_state"
    cpu: str | None = None
    memory: str | None = None
    containers: ContainerIds = field(default_factory=dict)


def start_managers(
    settings: Settings,
    machine: MachineTopology,
    eviction_reserved: Mapping[str, int],
    texts: StateTexts,
    devices: DeviceProvider | None = None,
    choose: ChooseCpus | None = None,
    choose_memory: ChooseNodes | None = None,
) -> Managers | ManagerStartError:
    """The managers of the configuration on this machine, with their state. `eviction_reserved`: what hard eviction keeps free, in bytes.
    `choose`, `choose_memory`: ask the extension that is the policy of the CPU (the Memory) Manager.
    """
    config = settings.config
    topology = read_topology(
        config.topologyManagerPolicy,
        config.topologyManagerScope,
        config.topologyManagerPolicyOptions,
        machine.nodes,
        settings.gates,
    )
    if isinstance(topology, ManagerStartError):
        return topology
    cpus = _cpu_manager(settings, machine, texts, choose)
    if isinstance(cpus, ManagerStartError):
        return cpus
    own = MemoryPolicy.STATIC if choose_memory is not None else config.memoryManagerPolicy
    memory = _memory_manager(settings, own, machine, eviction_reserved, texts)
    if isinstance(memory, ManagerStartError):
        return memory
    if choose_memory is not None:
        memory = replace(memory, choose=choose_memory)
    return Managers(
        topology=topology,
        cpus=cpus,
        memory=memory,
        devices=devices,
        no_quota_gate=settings.enabled("DisableCPUQuotaWithExclusiveCPUs"),
        machine=machine,
        is_new=cpus is not None and texts.cpu is None,
        is_memory_new=memory.policy is MemoryPolicy.STATIC and texts.memory is None,
    )


def _cpu_manager(
    settings: Settings, machine: MachineTopology, texts: StateTexts, choose: ChooseCpus | None
) -> CpuManager | ManagerStartError | None:
    policy = read_policy(cpu_config(settings, choose), machine, settings.gates)
    if isinstance(policy, ManagerStartError):
        return policy
    name = settings.config.cpuManagerPolicy if policy is not None else NONE
    try:
        state = CpuState() if texts.cpu is None else decode(texts.cpu, name, texts.containers)
    except StateFileError as error:
        if policy is None and not isinstance(error, PolicyDiffers):
            return None  # it holds nothing, and is written anew
        return ManagerStartError(CPU_PREFIX + restore_error(error, texts.cpu_path))
    if policy is None:
        return None
    started = cpu_manager.start(policy, state)
    if isinstance(started, ManagerStartError):
        how = f'please drain this node and delete the CPU manager checkpoint file "{texts.cpu_path}" before restarting Kubelet'
        return ManagerStartError(f"{CPU_PREFIX}{started.text}, {how}")
    return CpuManager(policy, started)


def cpu_config(settings: Settings, choose: ChooseCpus | None = None) -> CpuConfig:
    """The configuration of the CPU manager."""
    config, reserved = settings.config, settings.reserved
    amounts = [listed["cpu"].milli_value() for listed in (reserved.kube, reserved.system) if "cpu" in listed]
    return CpuConfig(
        policy=config.cpuManagerPolicy,
        options=config.cpuManagerPolicyOptions,
        reserved_milli=sum(amounts) if amounts else None,
        reserved_cpus=reserved.cpus,
        topology_policy=config.topologyManagerPolicy,
        choose=choose,
    )


def _memory_manager(
    settings: Settings, policy: str, machine: MachineTopology, eviction_reserved: Mapping[str, int], texts: StateTexts
) -> MemoryManager | ManagerStartError:
    config, reserved = settings.config, settings.reserved
    kept = {name: Amount(size * NANO, Format.BINARY_SI) for name, size in eviction_reserved.items()}
    for listed in (reserved.kube, reserved.system):
        for name, amount in listed.items():
            kept[name] = kept[name] + amount if name in kept else amount
    given = (policy, machine.nodes, kept, config.reservedMemory)
    pod_level = settings.enabled("PodLevelResourceManagers")
    empty = start_memory_manager(*given, (texts.memory_path, None), pod_level=pod_level)
    if isinstance(empty, ManagerStartError) or texts.memory is None:
        return empty
    started = start_memory_manager(*given, (texts.memory_path, texts.memory), pod_level=pod_level)
    if not isinstance(started, ManagerStartError):
        return started
    how = f'please drain this node and delete the memory manager checkpoint file "{texts.memory_path}" before restarting Kubelet'
    return ManagerStartError(MEMORY_PREFIX + (started.text if how in started.text else f"{started.text}, {how}"))

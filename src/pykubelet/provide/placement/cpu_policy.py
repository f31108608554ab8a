"""The CPU manager's static policy on one machine: its reserved CPUs and options, and which containers get exclusive CPUs. Pure.

A container gets exclusive CPUs if its pod is Guaranteed and it requests a whole number of CPUs; init containers too. Of a pod with
pod-level resources, no container does without the gate PodLevelResourceManagers; `pod_level.py` has the rules with it.
Source: the Kubernetes documentation "Control CPU Management Policies on the Node".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pykubelet.base.api.core import Container, Pod, ResourceRequirements
from pykubelet.base.api.quantity import milli_value, value
from pykubelet.base.kit.cpuset import format_cpuset
from pykubelet.base.kit.values import Value
from pykubelet.base.model.machine import MachineTopology
from pykubelet.base.model.sizing import QOSClass, qos_class
from pykubelet.config.gates import FeatureGates
from pykubelet.provide.placement.cpu_options import CpuOptions, check_cpu_options, read_cpu_options
from pykubelet.provide.placement.cpu_pick import NotEnough, pick_cpus
from pykubelet.provide.placement.cpu_topology import CpuTopology, cpus_in, mask_of, topology_of
from pykubelet.provide.placement.pod_level import has_pod_level_resources, may_be_exclusive
from pykubelet.provide.placement.provider import ManagerStartError

NONE = "none"
STATIC = "static"


class CpuDemand(Value):
    """The exclusive CPUs that a container is to get. `free`: the CPUs that it may have, `reusable` among them: those of init containers of
    its pod that have completed. `nodes`: the NUMA nodes of the Topology Manager, None for any; `near`: the free CPUs there,
    which must be used up before any other. `whole_cores`: as full-pcpus-only demands.
    """

    pod: Pod
    container: str
    count: int
    free: frozenset[int]
    reusable: frozenset[int]
    nodes: frozenset[int] | None
    near: frozenset[int]
    whole_cores: bool


#: Asks the extension of a policy which CPUs a container gets; None: those that `static` would choose.
ChooseCpus = Callable[["StaticPolicy", CpuDemand], frozenset[int] | None]


class StaticPolicy(Value):
    """The policy `static`. `reserved`: CPUs for the system, which no container gets exclusively. `pod_level`: feature gate
    PodLevelResourceManagers. `name`: another one if an extension chooses the CPUs of containers, which `choose` asks."""

    topology: CpuTopology
    reserved: frozenset[int]
    options: CpuOptions
    pod_level: bool = False
    name: str = STATIC
    choose: ChooseCpus | None = None

    @property
    def allocatable(self) -> frozenset[int]:
        """The CPUs that containers can get exclusively when none are taken."""
        return cpus_in(self.topology.all) - self.reserved

    @property
    def reserved_cores(self) -> frozenset[int]:
        """All threads of the cores with a reserved CPU."""
        return cpus_in(self.topology.siblings(mask_of(self.reserved)))


class CpuConfig(Value):
    """The configuration of the CPU manager.

    `reserved_milli`: CPU of systemReserved and kubeReserved in thousandths; None if neither has any. `reserved_cpus`:
    reservedSystemCPUs. `topology_policy`: that of the topology manager. `choose`: set if the policy is that of an extension.
    """

    policy: str = NONE
    options: Mapping[str, str] = {}
    reserved_milli: int | None = None
    reserved_cpus: frozenset[int] = frozenset()
    topology_policy: str = "none"
    choose: ChooseCpus | None = None


def read_policy(
    config: CpuConfig, machine: MachineTopology, gates: FeatureGates
) -> StaticPolicy | ManagerStartError | None:
    """The policy of the configuration; None for the policy `none`, under which no CPUs are managed."""
    if config.policy == NONE:
        if not config.options:
            return None
        shown = " ".join(f"{name}:{text}" for name, text in sorted(config.options.items()))
        return ManagerStartError(f"new none policy error: None policy: received unsupported options=map[{shown}]")
    if config.policy != STATIC and config.choose is None:
        return ManagerStartError(f'unknown policy: "{config.policy}"')
    if config.reserved_milli is None:
        return ManagerStartError("[cpumanager] unable to determine reserved CPU resources for static policy")
    if config.reserved_milli <= 0:
        return ManagerStartError(
            "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
        )
    policy = _static_policy(config, config.reserved_milli, topology_of(machine), gates)
    return (
        ManagerStartError(f"new static policy error: {policy.text}")
        if isinstance(policy, ManagerStartError)
        else policy
    )


def _static_policy(
    config: CpuConfig, reserved_milli: int, topology: CpuTopology, gates: FeatureGates
) -> StaticPolicy | ManagerStartError:
    options = read_cpu_options(config.options, gates)
    if isinstance(options, ManagerStartError):
        return options
    problem = check_cpu_options(options, topology, config.topology_policy)
    if problem is not None:
        return problem
    count = -(-reserved_milli // 1000)
    reserved = config.reserved_cpus
    if not reserved:
        picked = pick_cpus(topology, topology.all, count, options)
        reserved = frozenset() if isinstance(picked, NotEnough) else cpus_in(picked)
    if len(reserved) != count:
        what = f"(size of {format_cpuset(reserved)} did not equal {count})"
        return ManagerStartError(f"[cpumanager] unable to reserve the required amount of CPUs {what}")
    unknown = sorted(reserved - cpus_in(topology.all))
    if unknown:
        what = f"the reserved physical CPUs from the reserved set: unknown CPU ID: {unknown[0]}"
        return ManagerStartError(f"[cpumanager] unable to build {what}")
    pod_level = gates.enabled("PodLevelResourceManagers")
    return StaticPolicy(topology, reserved, options, pod_level, config.policy, config.choose)


# who gets exclusive CPUs


def exclusive_counts(pod: Pod, *, pod_level: bool = False) -> dict[str, int]:
    """The number of exclusive CPUs of each init and regular container that gets some, by name in the order of their start.

    `pod_level`: as of the policy.
    """
    containers = (*pod.spec.initContainers, *pod.spec.containers)
    counted = ((c.name, exclusive_count(pod, c, pod_level=pod_level)) for c in containers)
    return {name: count for name, count in counted if count}


def exclusive_count(pod: Pod, container: Container, *, pod_level: bool = False) -> int:
    """The number of exclusive CPUs of one init or regular container; 0: it gets none."""
    count = _whole_cpus(container.resources)
    return count if count and may_be_exclusive(pod, container, pod_level=pod_level) else 0


def pool_size(pod: Pod) -> int:
    """The CPUs of a Guaranteed pod as a whole, if its pod-level resources are a whole number of them, else 0."""
    if not has_pod_level_resources(pod) or qos_class(pod) is not QOSClass.GUARANTEED:
        return 0
    return _whole_cpus(pod.spec.resources)


def _whole_cpus(resources: ResourceRequirements | None) -> int:
    """The CPU request if it is a whole number, else 0."""
    request = resources.requests.get("cpu") if resources is not None else None
    return value(request) if value(request) * 1000 == milli_value(request) else 0


def pod_count(pod: Pod, counts: Mapping[str, int]) -> int:
    """The exclusive CPUs that the pod needs at any one time. `counts`: of its containers, as of `exclusive_counts`.

    An init container runs beside the restartable ones before it, and its CPUs are free again for what follows.
    """
    sidecars = start_up = 0
    for container in pod.spec.initContainers:
        count = counts.get(container.name, 0)
        if is_restartable(container):
            sidecars += count
        else:
            start_up = max(start_up, sidecars + count)
    return max(start_up, sidecars + sum(counts.get(container.name, 0) for container in pod.spec.containers))


def is_restartable(container: Container) -> bool:
    """Whether an init container runs beside the regular ones (KEP-753)."""
    return container.restartPolicy == "Always"

"""Pods with resources as a whole, and managers with the gate PodLevelResourceManagers."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec
from provide.placement.cpu_pods import make_policy
from provide.placement.together import start_memory
from support.machines import Shape

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cpuset import format_cpuset
from pykubelet.base.kit.values import replace
from pykubelet.config.gates import FeatureGates
from pykubelet.provide.placement.cpu_manager import CpuManager, CpuState, start
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.provider import ManagerStartError
from pykubelet.provide.placement.topology_options import Topology, read_topology
from pykubelet.provide.placement.topology_scopes import Admitted, PlacementRejection, admit

GATES = FeatureGates({"PodLevelResourceManagers": True})
GIB = 1 << 30
#: CPUs 1 to 7 can be allocated, one for each core, on one NUMA node.
EIGHT = Shape(cores_per_node=8, threads=1)
#: CPUs 0 to 3 on node 0, the others on node 1.
TWO = Shape(sockets=2, cores_per_node=4, threads=1)


def amounts(cpu: str, memory: str = "1Gi") -> dict[str, Any]:
    """Equal requests and limits; "" for `cpu`: none."""
    both = {"cpu": cpu, "memory": memory}
    return {"requests": both, "limits": both} if cpu else {}


def one(name: str, cpu: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": amounts(cpu), **more}


def whole_pod(
    uid: str,
    cpu: str,
    *containers: str,
    init: tuple[str, ...] = (),
    sidecars: tuple[str, ...] = (),
    memory: str = "8Gi",
) -> Pod:
    """A pod with these CPUs as a whole. Its containers are init containers i0.., sidecars s0.. and regular ones c0.., with these CPUs
    and 1Gi of memory each; "" for one that states nothing and shares."""
    first = [one(f"i{n}", own) for n, own in enumerate(init)]
    beside = [one(f"s{n}", own, restartPolicy="Always") for n, own in enumerate(sidecars)]
    regular = [one(f"c{n}", own) for n, own in enumerate(containers)]
    spec = {"resources": amounts(cpu, memory), "initContainers": first + beside, "containers": regular}
    return msgspec.convert({"metadata": {"uid": uid, "name": uid, "namespace": "default"}, "spec": spec}, Pod)


def whole_managers(
    shape: Shape, policy: str = "single-numa-node", scope: str = "pod", options: tuple[str, ...] = ()
) -> Managers:
    """CPU and memory managers with the gate on an unused machine. CPU 0 and half a GiB are reserved."""
    machine = shape.machine
    topology = read_topology(policy, scope, {}, machine.nodes, GATES)
    assert isinstance(topology, Topology)
    cpu_policy = replace(make_policy(shape, options), pod_level=True)
    state = start(cpu_policy, CpuState())
    assert not isinstance(state, ManagerStartError)
    memory = start_memory(machine, None, pod_level=True)
    return Managers(topology=topology, cpus=CpuManager(cpu_policy, state), memory=memory, machine=machine)


def shown(managers: Managers, pod: Pod) -> Mapping[str, str]:
    """The CPUs that the pod and its containers have, as text; those of sharers in parentheses."""
    placement = managers.placement(pod, 0.0)
    parts = {
        name: f"({format_cpuset(has.cpus)})" if has.shares_cpus else format_cpuset(has.cpus)
        for name, has in placement.containers.items()
    }
    return {"pod": format_cpuset(placement.cpus), **parts}


def random_whole_pod(random: Random, number: int, *, cpus: int) -> Pod:
    """A pod as a whole, most of them large enough for their containers, some of which share. `cpus`: the most of one container."""

    def own() -> dict[str, Any]:
        kind = random.random()
        if kind < 0.4:
            return {}
        if kind < 0.5:  # its memory is its own, its CPUs are not
            return amounts("500m", f"{random.randint(1, 512)}Mi")
        if kind < 0.6:  # it may use more than it requests
            return {"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "128Mi"}}
        return amounts(str(random.randint(1, cpus)), f"{random.randint(1, 512)}Mi")

    init: list[dict[str, Any]] = [
        {"name": f"init-{n}", "resources": own(), "restartPolicy": random.choice(("", "Always"))}
        for n in range(random.choice((0, 0, 1, 2, 3)))
    ]
    regular: list[dict[str, Any]] = [{"name": f"app-{n}", "resources": own()} for n in range(random.randint(1, 3))]
    listed = [c["resources"].get("requests", {}).get("cpu", "0") for c in (*init, *regular)]
    counts = [0 if cpu.endswith("m") else int(cpu) for cpu in listed]
    cpu = str(random.choice((max(sum(counts), 1), sum(counts) + 1, sum(counts) + 2)))
    whole = amounts(cpu if random.random() < 0.9 else f"{cpu}.5", f"{random.choice((2048, 3072, 4096))}Mi")
    name = f"whole-{number}"
    spec = {"resources": whole, "initContainers": init, "containers": regular}
    metadata = {"name": name, "namespace": "random", "uid": f"{name}-uid"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


def admitted(managers: Managers, pod: Pod) -> Managers:
    result = admit(managers.topology, managers.providers, pod)
    assert isinstance(result, Admitted), result
    return managers.with_providers(result.providers)


def rejected(managers: Managers, pod: Pod) -> PlacementRejection:
    result = admit(managers.topology, managers.providers, pod)
    assert isinstance(result, PlacementRejection), result
    return result


def memory_of(managers: Managers, pod: Pod) -> dict[str, int]:
    """The bytes of each container in the state, and of the pod, in GiB."""
    state, uid = managers.memory.state, pod.metadata.uid
    parts = {name: sum(block.size for block in blocks) // GIB for name, blocks in state.entries.get(uid, {}).items()}
    return {"pod": sum(block.size for block in state.pools.get(uid, ())) // GIB, **parts}

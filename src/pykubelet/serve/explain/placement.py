"""The map of the node: who has which CPUs, memory, devices and claims, and what is free, as plain values for JSON. Pure.

`pykubelet explain node` shows it for a running agent, `pykubelet simulate placement` for a machine that was filled. Its time
and size have bounds: a plugin may have 100,000 devices, of which only counts and the first ids are listed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from pykubelet.base.kit.cpuset import format_cpuset
from pykubelet.base.model.claims import ClaimDevice, Claims, ContainerClaim
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.placement import ContainerPlacement, DeviceResource, MemoryBlock, Placements, PodPlacement

Document = dict[str, Any]
#: Of one container's devices, and of those that are free or unhealthy, as many ids are listed.
MAX_IDS = 32
#: The ids of free and unhealthy devices are listed for resources with at most as many devices.
MAX_DEVICES = 2000
NO_NODE = -1
#: Stands for the container where containers of a pod share what it has as a whole.
SHARED = "(shared)"
_PARTS = re.compile("([^0-9]+)|([0-9]+)")

_Nodes = tuple[int, ...]
_Owner = tuple[str, str]


def placement_document(placements: Placements, claims: Claims, names: Mapping[PodUID, str]) -> Document:
    """`{"numa_nodes", "memory", "devices", "claims"}`, all of them lists.

    `names`: `namespace/name` of pods; others are shown by their UID.
    """
    return {**map_document(placements, claims, names), "devices": list(device_documents(placements, names))}


def map_document(placements: Placements, claims: Claims, names: Mapping[PodUID, str]) -> Document:
    """The same without the devices, whose documents may take long."""
    return {
        "numa_nodes": _numa_nodes(placements, names),
        "memory": _memory(placements, names),
        "claims": _claims(claims, names),
    }


def device_documents(placements: Placements, names: Mapping[PodUID, str]) -> Iterator[Document]:
    """One document for each resource of device plugins, by name. A caller may let other tasks run in between."""
    held: dict[str, list[tuple[_Owner, Mapping[int, frozenset[str]]]]] = {}
    for uid, pod in placements.pods.items():
        for container, has in pod.containers.items():
            for assigned in has.devices:
                held.setdefault(assigned.resource, []).append(((_name(names, uid), container), assigned.by_node))
    for resource in sorted({*placements.devices, *held}):
        yield _resource(resource, placements.devices.get(resource, DeviceResource()), held.get(resource, ()))


def pod_placement_document(placements: Placements, claims: Claims, uid: PodUID) -> Document | None:
    """What the containers of one pod have, and why the pod was rejected; None if it has nothing of its own.

    `{"explanation", "cpus", "memory", "containers": [{"name", "cpus", "shares_cpus", "mems", "memory", "devices", "claims"}]}`;
    `cpus` and `memory` are those of the pod as a whole.
    """
    pod, pod_claims = placements.pods.get(uid), claims.pods.get(uid)
    names = [*(pod.containers if pod is not None else ()), *(pod_claims.containers if pod_claims is not None else ())]
    containers = [
        _container(name, placements.container(uid, name), pod_claims.containers.get(name, ()) if pod_claims else ())
        for name in dict.fromkeys(names)
    ]
    explanation = pod.explanation if pod is not None else ""
    if not containers and not explanation:
        return None
    whole = pod if pod is not None else PodPlacement()
    return {
        "explanation": explanation,
        "cpus": format_cpuset(whole.cpus),
        "memory": _blocks(whole.memory),
        "containers": containers,
    }


def _container(name: str, has: ContainerPlacement, claims: Iterable[ContainerClaim]) -> Document:
    return {
        "name": name,
        "cpus": format_cpuset(has.cpus),
        "shares_cpus": has.shares_cpus,
        "mems": has.mems,
        "memory": _blocks(has.memory),
        "devices": [
            {"resource": assigned.resource, "count": len(assigned.ids), "ids": _first(assigned.ids)}
            for assigned in has.devices
        ],
        "claims": [
            {
                "namespace": claim.namespace,
                "name": claim.name,
                "devices": [_claim_device(device) for device in claim.devices],
            }
            for claim in claims
        ],
    }


def _blocks(blocks: Iterable[MemoryBlock]) -> list[Document]:
    return [{"type": block.type, "size": block.size, "numa_nodes": list(block.nodes)} for block in blocks]


def _name(names: Mapping[PodUID, str], uid: PodUID) -> str:
    return names.get(uid, f"pod {uid}")


# CPUs


def _numa_nodes(placements: Placements, names: Mapping[PodUID, str]) -> list[Document]:
    machine = placements.machine
    if machine is None:
        return []
    every = frozenset(cpu.id for cpu in machine.cpus)
    shared = (every if placements.shared is None else placements.shared) - placements.reserved
    found = []
    for node in machine.nodes:
        cpus = frozenset(cpu.id for cpu in machine.cpus if cpu.numa_node == node.id)
        found.append(
            {
                "id": node.id,
                "sockets": sorted({cpu.socket for cpu in machine.cpus if cpu.numa_node == node.id}),
                "memory": node.memory,
                "cpus": format_cpuset(cpus),
                "reserved": format_cpuset(placements.reserved & cpus),
                "shared": format_cpuset(shared & cpus),
                "exclusive": [
                    {"pod": pod, "container": container, "cpus": format_cpuset(own & cpus)}
                    for (pod, container), own in _exclusive(placements, names)
                    if own & cpus
                ],
            }
        )
    return found


def _exclusive(placements: Placements, names: Mapping[PodUID, str]) -> Iterator[tuple[_Owner, frozenset[int]]]:
    for uid, pod in placements.pods.items():
        for container, has in pod.containers.items():
            if has.cpus and not has.shares_cpus:
                yield (_name(names, uid), container), has.cpus
        if pod.shared_cpus:
            yield (_name(names, uid), SHARED), pod.shared_cpus


# memory


def _memory(placements: Placements, names: Mapping[PodUID, str]) -> list[Document]:
    """One document for each memory type and group of nodes. Nodes that containers use together are one group."""
    blocks = [
        ((_name(names, uid), container), block)
        for uid, pod in placements.pods.items()
        for container, own in ((*((c, has.memory) for c, has in pod.containers.items()), (SHARED, pod.shared_memory)))
        for block in own
        if block.size  # later containers may have taken over all of an init container's
    ]
    groups: dict[int, _Nodes] = {node: block.nodes for _, block in blocks for node in block.nodes}
    pools: dict[tuple[_Nodes, str], Document] = {}
    for allocatable in placements.allocatable_memory:
        nodes = tuple(dict.fromkeys(other for node in allocatable.nodes for other in groups.get(node, (node,))))
        pool = pools.setdefault(
            (nodes, allocatable.type),
            {"numa_nodes": list(nodes), "type": allocatable.type, "allocatable": 0, "free": 0, "held": []},
        )
        pool["allocatable"] += allocatable.size
        pool["free"] += allocatable.size
    for (pod, container), block in blocks:
        pool = pools.get((block.nodes, block.type), {"free": 0, "held": []})
        pool["free"] = max(0, pool["free"] - block.size)
        pool["held"].append({"pod": pod, "container": container, "size": block.size})
    return list(pools.values())


# devices


def _resource(
    resource: str, found: DeviceResource, held: Iterable[tuple[_Owner, Mapping[int, frozenset[str]]]]
) -> Document:
    """One resource: its counts, and for each set of NUMA nodes that its devices have, who has which of them."""
    taken: list[Collection[str]] = []
    groups: dict[_Nodes, Document] = {}
    for (pod, container), by_node in held:
        for nodes, own in _by_nodes(found, by_node).items():
            entry = {"pod": pod, "container": container, "count": len(own), "ids": _first(own)}
            _group(groups, nodes)["held"].append(entry)
            taken.append(own)
    free = found.healthy.difference(*taken)
    for key, ids in (("free", free), ("unhealthy", found.unhealthy)):
        for listed, count in _counts(found, ids).items():
            _group(groups, listed or ())[key] += count
        if len(found.healthy) + len(found.unhealthy) <= MAX_DEVICES:
            for nodes, some in _split(found, ids).items():
                _group(groups, nodes)[f"{key}_ids"] = _first(some)
    return {
        "resource": resource,
        "stopped": found.is_stopped,
        "healthy": len(found.healthy),
        "unhealthy": len(found.unhealthy),
        "free": len(free),
        "groups": [groups[nodes] for nodes in sorted(groups, key=lambda nodes: (not nodes, nodes))],
    }


def _group(groups: dict[_Nodes, Document], nodes: _Nodes) -> Document:
    """The document of the devices on these nodes; no nodes: of those without a topology."""
    new = {"numa_nodes": list(nodes), "free": 0, "free_ids": [], "unhealthy": 0, "unhealthy_ids": [], "held": []}
    return groups.setdefault(nodes, new)


def _by_nodes(found: DeviceResource, by_node: Mapping[int, frozenset[str]]) -> dict[_Nodes, frozenset[str]]:
    """A container's devices by their nodes; by the node they were allocated for if their plugin does not name them now."""
    groups: dict[_Nodes, frozenset[str]] = {}
    for node, ids in by_node.items():
        allocated_for = () if node == NO_NODE else (node,)
        counts = _counts(found, ids)
        if len(counts) == 1:
            (nodes,) = counts
            parts = {allocated_for if nodes is None else nodes: ids}
        else:
            parts = {nodes: frozenset(some) for nodes, some in _split(found, ids, allocated_for).items()}
        for listed, some in parts.items():
            groups[listed] = groups[listed] | some if listed in groups else some
    return groups


def _counts(found: DeviceResource, ids: Collection[str]) -> Mapping[_Nodes | None, int]:
    """How many of the devices have which nodes; None: the plugin does not name them now."""
    every = set(map(found.nodes.get, ids))
    if len(every) == 1:  # a plugin that has very many devices rarely gives each other nodes
        return dict.fromkeys(every, len(ids))
    return Counter(map(found.nodes.get, ids))


def _split(found: DeviceResource, ids: Iterable[str], unknown: _Nodes = ()) -> dict[_Nodes, list[str]]:
    """The ids by the nodes of their devices; `unknown`: those of ids that the plugin does not name now."""
    groups: dict[_Nodes, list[str]] = {}
    for id_ in ids:
        groups.setdefault(found.nodes.get(id_, unknown), []).append(id_)
    return groups


def _first(ids: Collection[str]) -> list[str]:
    return sorted(ids, key=_by_number)[:MAX_IDS] if len(ids) <= MAX_DEVICES else list(islice(ids, MAX_IDS))


def _by_number(id_: str) -> list[tuple[int, str]]:
    """The key by which gpu-9 comes before gpu-10."""
    parts = ((text, number and (number.lstrip("0") or "0")) for text, number in _PARTS.findall(id_))
    return [(len(digits), digits or text) for text, digits in parts]


# claims


def _claims(claims: Claims, names: Mapping[PodUID, str]) -> list[Document]:
    """One document for each claim: its prepared devices, and the containers that have it."""
    found: dict[_Owner, Document] = {}
    for uid, pod in claims.pods.items():
        for container, listed in pod.containers.items():
            for claim in listed:
                key = claim.namespace, claim.name
                new: Document = {"namespace": claim.namespace, "name": claim.name, "devices": [], "held": []}
                document = found.setdefault(key, new)
                document["held"].append({"pod": _name(names, uid), "container": container})
                document["devices"] += [
                    shown for device in claim.devices if (shown := _claim_device(device)) not in document["devices"]
                ]
    return [found[key] for key in sorted(found)]


def _claim_device(device: ClaimDevice) -> Document:
    return {"driver": device.driver, "pool": device.pool, "device": device.device, "share_id": device.share_id}

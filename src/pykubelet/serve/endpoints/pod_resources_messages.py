"""The messages of the pod resources API, made from what containers have.

Long lists are built in steps, between which other tasks run: a device plugin may have 100,000 devices. The messages of v1alpha1
have a part of the fields of those of v1, under the same numbers. Source: KEP-606, KEP-2043, KEP-3695, KEP-5526.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator

from pykubelet.base.api.core import Pod
from pykubelet.base.model.claims import ContainerClaim, PodClaims
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.placement import AssignedDevices, ContainerPlacement, MemoryBlock, Placements, PodPlacement
from pykubelet.base.model.restart import is_sidecar
from pykubelet.edges.plugins import podresources_pb2 as pb

#: Devices, or containers, that are added to a message without a pause.
STEP = 2000
NO_NODE = -1
#: The most devices in one answer. They need 100 MB while it is made.
MAX_ENTRIES = 200_000

#: Resource, device, NUMA node; the node is None for a device without a topology.
_Entry = tuple[str, str, int | None]


class TooManyDevices(Exception):
    """The devices do not fit into one answer."""


def check_size(devices: int) -> None:
    """Raise TooManyDevices if one answer cannot have so many devices."""
    if devices > MAX_ENTRIES:
        raise TooManyDevices(f"more than {MAX_ENTRIES} devices, which is too much for one answer")


async def pod_message(pod: Pod, placements: Placements, claims: PodClaims) -> pb.PodResources:
    """What a pod has as a whole, and what its sidecars and regular containers have to themselves, in this order."""
    uid = PodUID(pod.metadata.uid)
    whole = placements.pods.get(uid, PodPlacement())
    message = pb.PodResources(name=pod.metadata.name, namespace=pod.metadata.namespace, cpu_ids=sorted(whole.cpus))
    message.memory.extend(_memory(whole.memory))
    names = [c.name for c in pod.spec.initContainers if is_sidecar(c)] + [c.name for c in pod.spec.containers]
    for name in names:
        added, has = message.containers.add(name=name), placements.container(uid, name)
        added.cpu_ids.extend(() if has.shares_cpus else sorted(has.cpus))
        added.memory.extend(_memory(has.memory))
        added.dynamic_resources.extend(_claim(claim) for claim in claims.containers.get(name, ()))
        await _add_devices(added, _assigned(has.devices))
    return message


async def old_pod_message(pod: Pod, placements: Placements) -> pb.PodResources:
    """The same for v1alpha1: the devices of the regular containers."""
    uid = PodUID(pod.metadata.uid)
    message = pb.PodResources(name=pod.metadata.name, namespace=pod.metadata.namespace)
    for container in pod.spec.containers:
        has: ContainerPlacement = placements.container(uid, container.name)
        added = message.containers.add(name=container.name)
        await _add_devices(added, ((resource, id_, None) for resource, id_, _ in _assigned(has.devices)))
    return message


async def allocatable_message(placements: Placements) -> pb.AllocatableResourcesResponse:
    """What pods can get: healthy devices, taken or not, CPUs that are not reserved, and memory."""
    message = pb.AllocatableResourcesResponse(cpu_ids=sorted(placements.allocatable_cpus))
    message.memory.extend(_memory(placements.allocatable_memory))
    await _add_devices(message, _healthy(placements))
    return message


def _assigned(devices: Iterable[AssignedDevices]) -> Iterator[_Entry]:
    for assigned in devices:
        for node, ids in sorted(assigned.by_node.items()):
            for id_ in _in_order(ids):
                yield assigned.resource, id_, None if node == NO_NODE else node


def _healthy(placements: Placements) -> Iterator[_Entry]:
    for resource, found in sorted(placements.devices.items()):
        for id_ in _in_order(found.healthy):
            nodes = found.nodes.get(id_)
            if nodes is None:
                yield resource, id_, None
            for node in nodes or ():
                yield resource, id_, node


def _in_order(ids: Collection[str]) -> Collection[str]:
    """The ids by name; many of them as they are, because sorting them takes long."""
    return sorted(ids) if len(ids) <= STEP else ids


async def _add_devices(
    message: pb.ContainerResources | pb.AllocatableResourcesResponse, entries: Iterable[_Entry]
) -> None:
    """Add one entry for each device and NUMA node. Raises TooManyDevices."""
    for number, (resource, id_, node) in enumerate(entries, 1):
        check_size(number)
        entry = message.devices.add(resource_name=resource, device_ids=(id_,))
        if node is not None:
            entry.topology.nodes.add(ID=node)
        if number % STEP == 0:
            await asyncio.sleep(0)


def _memory(blocks: Iterable[MemoryBlock]) -> Iterator[pb.ContainerMemory]:
    for block in blocks:
        nodes = [pb.NUMANode(ID=node) for node in block.nodes]
        yield pb.ContainerMemory(memory_type=block.type, size=block.size, topology=pb.TopologyInfo(nodes=nodes))


def _claim(claim: ContainerClaim) -> pb.DynamicResource:
    devices = [
        pb.ClaimResource(
            cdi_devices=[pb.CDIDevice(name=name) for name in device.cdi],
            driver_name=device.driver,
            pool_name=device.pool,
            device_name=device.device,
            share_id=device.share_id or None,
        )
        for device in claim.devices
    ]
    return pb.DynamicResource(claim_name=claim.name, claim_namespace=claim.namespace, claim_resources=devices)

"""The memory of each NUMA node that is reserved for the system: checks, and what is left for containers. Pure.

The texts are the reference's. Source: the Kubernetes documentation "Utilizing the NUMA-aware Memory Manager", "Reserved memory
flag".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pykubelet.base.api.quantity import HUGE_PAGES, NANO, Amount, page_resource, parse_text
from pykubelet.base.model.machine import NumaNode
from pykubelet.config.kubelet import MemoryReservation
from pykubelet.provide.placement.memory_state import MemoryTable, NodeMemory
from pykubelet.provide.placement.provider import ManagerStartError

MEMORY = "memory"

#: Bytes by NUMA node id and memory type.
ReservedMemory = Mapping[int, Mapping[str, int]]


def is_memory_type(resource: str) -> bool:
    """Whether the Memory Manager manages this resource."""
    return resource == MEMORY or resource.startswith(HUGE_PAGES)


def read_reserved_memory(
    nodes: Sequence[NumaNode], reservation: Mapping[str, Amount], given: Sequence[MemoryReservation]
) -> ReservedMemory | ManagerStartError:
    """The configuration's `reservedMemory`, checked for policy `Static`.

    `reservation`: what Node Allocatable keeps back, by resource: systemReserved, kubeReserved and hard eviction. For each memory
    type, the sum over the nodes must equal it. Amounts are valid quantities, as the validation of the configuration checks.
    """
    reserved: dict[int, dict[str, int]] = {node.id: {} for node in nodes}
    totals: dict[str, Amount] = {}
    for entry in given:
        if entry.numaNode not in reserved:
            what = f"references a NUMA node {entry.numaNode} that does not exist on this machine"
            return ManagerStartError(f"the reserved memory configuration {what}")
        for name, text in entry.limits.items():
            amount = parse_text(text)
            totals[name] = amount + totals.get(name, Amount(0))
    problem = _sum_problem(totals, reservation)
    if problem is not None:
        return problem
    for entry in given:
        for name, text in entry.limits.items():
            amount = parse_text(text)
            if amount.nano % NANO:
                return ManagerStartError("could not covert a variable of type Quantity to int64")
            if amount.nano < 0:
                return ManagerStartError(
                    f'the reserved memory of type "{name}" on NUMA node {entry.numaNode} is negative: {text}'
                )
            reserved[entry.numaNode][name] = amount.value()
    if not any(types.get(MEMORY, 0) for types in reserved.values()):
        return ManagerStartError("[memorymanager] you should specify the system reserved memory")
    return reserved


def _sum_problem(totals: Mapping[str, Amount], reservation: Mapping[str, Amount]) -> ManagerStartError | None:
    for name in sorted({*totals, *filter(is_memory_type, reservation)}):
        total, wanted = totals.get(name, Amount(0)), reservation.get(name, Amount(0))
        if total.nano != wanted.nano:
            what = f'"{total}" of type "{name}" is not equal to the value "{wanted}"'
            return ManagerStartError(f"the total amount {what} determined by Node Allocatable feature")
    return None


def unused_machine(nodes: Sequence[NumaNode], reserved: ReservedMemory) -> Mapping[int, NodeMemory]:
    """Each NUMA node's memory when no container has any. What is reserved beyond a node's memory leaves 0."""
    machine = {}
    for node in nodes:
        kept = reserved.get(node.id, {})
        tables = {}
        for size, pages in node.huge_pages.items():
            name = page_resource(size)
            tables[name] = _unused(pages * size, kept.get(name, 0), 0)
        huge = sum(pages * size for size, pages in node.huge_pages.items())
        tables[MEMORY] = _unused(node.memory, kept.get(MEMORY, 0), huge)
        machine[node.id] = NodeMemory(0, tables, (node.id,))
    return machine


def _unused(total: int, reserved: int, huge: int) -> MemoryTable:
    allocatable = max(0, total - reserved - huge)
    return MemoryTable(total, reserved, allocatable, 0, allocatable)

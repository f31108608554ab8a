"""The Memory Manager's state, and its file `memory_manager_state`. Pure.

The format is the reference's, so that either can take over the other's file. It has three: the second has also the memory of pods as
a whole (gate PodLevelResourceManagers of 1.36), the third, of 1.37, is the first with all of the state as `data`. The reference ignores
or refuses entries of pods without the gate; here they stay until their pods have ended.
Source: KEP-1769 (Memory Manager), "State file".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.placement import MemoryBlock
from pykubelet.provide.placement.checkpoint import (
    CORRUPT,
    PolicyDiffers,
    StateFileError,
    add_data,
    as_list,
    as_number,
    as_object,
    as_text,
    checksum,
    dump_list,
    dump_map,
    member,
    read_data,
    read_json,
    write_json,
)

FILE_NAME = "memory_manager_state"

_STRUCT = "MemoryManagerCheckpoint"
_BLOCKS = "memoryBlocks"
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_TABLE = (
    ("total", "TotalMemSize"),
    ("systemReserved", "SystemReserved"),
    ("allocatable", "Allocatable"),
    ("reserved", "Reserved"),
    ("free", "Free"),
)


class MemoryTable(Value):
    """Memory of one type on one NUMA node, in bytes. `total` of type `memory` includes all huge pages."""

    total: int
    system_reserved: int
    allocatable: int
    reserved: int
    free: int


class NodeMemory(Value):
    """One NUMA node. `assignments`: its blocks. `tables`: by memory type. `cells`: the group of nodes it is used with."""

    assignments: int
    tables: Mapping[str, MemoryTable]
    cells: tuple[int, ...]


#: Blocks by pod UID and container name.
Entries = Mapping[str, Mapping[str, tuple[MemoryBlock, ...]]]


class MemoryState(Value):
    """What is on the nodes, by id, and who has it. `pools`: the memory of pods as a whole by UID; the entries of their containers are
    parts of it."""

    machine: Mapping[int, NodeMemory] = field(default_factory=dict)
    entries: Entries = field(default_factory=dict)
    pools: Mapping[str, tuple[MemoryBlock, ...]] = field(default_factory=dict)

    @property
    def holders(self) -> frozenset[str]:
        """The UIDs of the pods that have memory."""
        return frozenset(self.entries).union(self.pools)

    def blocks(self, pod: str, container: str) -> tuple[MemoryBlock, ...] | None:
        """The container's blocks; None if it has no entry."""
        return self.entries.get(pod, {}).get(container)

    def with_entries(self, pod: str, changed: Mapping[str, tuple[MemoryBlock, ...]]) -> MemoryState:
        """The state in which these containers' entries are those of `changed`."""
        return replace(self, entries={**self.entries, pod: {**self.entries.get(pod, {}), **changed}})

    def without(self, pod: str, containers: Collection[str]) -> MemoryState:
        """The state without the containers' entries."""
        left = {name: blocks for name, blocks in self.entries.get(pod, {}).items() if name not in containers}
        others = {uid: containers for uid, containers in self.entries.items() if uid != pod}
        return replace(self, entries={**others, pod: left} if left else others)


def encode(policy: str, state: MemoryState, *, has_data: bool = False) -> str:
    """The file's text. `has_data`: in the format of 1.37."""
    machine = {
        str(number): {
            "numberOfAssignments": node.assignments,
            "memoryMap": {
                name: {
                    key: getattr(table, attribute)
                    for (key, _), attribute in zip(_TABLE, table.__struct_fields__, strict=True)
                }
                for name, table in sorted(node.tables.items())
            },
            "cells": list(node.cells),
        }
        for number, node in sorted(state.machine.items(), key=lambda item: str(item[0]))
    }
    entries = {
        pod: {name: _written(blocks) for name, blocks in sorted(containers.items())}
        for pod, containers in sorted(state.entries.items())
    }
    pods = {pod: {_BLOCKS: _written(blocks)} for pod, blocks in sorted(state.pools.items())}
    document: dict[str, Any] = {"policyName": policy, "machineState": machine}
    listed = {**document, "entries": entries} if entries else document
    whole = {**listed, "podEntries": pods} if pods else listed
    full = {**document, "entries": entries, "podEntries": pods}
    plain = {**listed, "checksum": checksum(_dump(full, _STRUCT))}
    if has_data:
        return write_json(add_data(plain, whole))
    return write_json({**whole, "checksum": checksum(_dump(full, _STRUCT, has_pods=True))} if pods else plain)


def _written(blocks: Iterable[MemoryBlock]) -> list[dict[str, Any]]:
    return [{"numaAffinity": list(block.nodes), "type": block.type, "size": block.size} for block in blocks]


def decode(text: str, policy: str) -> MemoryState:
    """The state in a file's text. Raises CheckpointError: no such file, a wrong checksum, or another policy."""
    given = read_json(text)
    data = read_data(given, "v3")
    document = _normalize(given if data is None else data)
    found = 0 if data is not None else as_number(member(given, "checksum"), "checksum")
    has_pods = data is not None or found in _checksums(document, "V2", has_pods=True)
    # Files of old versions have the checksum 0.
    if found and not has_pods and found not in _checksums(document, "V1", has_pods=False):
        raise StateFileError(CORRUPT)
    if document["policyName"] != policy:
        text = f'configured policy "{policy}" differs from state checkpoint policy "{document["policyName"]}"'
        raise PolicyDiffers(f"[memorymanager] {text}")
    machine = {int(number): _read_node(node) for number, node in (document["machineState"] or {}).items()}
    entries = {
        pod: {name: tuple(map(_read_block, blocks or ())) for name, blocks in (containers or {}).items()}
        for pod, containers in (document["entries"] or {}).items()
    }
    pods = (document["podEntries"] or {}) if has_pods else {}
    return MemoryState(
        machine, entries, {pod: tuple(map(_read_block, has[_BLOCKS] or ())) for pod, has in pods.items()}
    )


def _checksums(document: Mapping[str, Any], version: str, *, has_pods: bool) -> list[int]:
    """The checksums that the document may have: some kubelets took it over a struct with the version in its name."""
    return [checksum(_dump(document, struct, has_pods=has_pods)) for struct in (_STRUCT, _STRUCT + version)]


def _read_node(node: Mapping[str, Any]) -> NodeMemory:
    tables = {name: MemoryTable(*table.values()) for name, table in (node["memoryMap"] or {}).items()}
    return NodeMemory(node["numberOfAssignments"], tables, tuple(node["cells"] or ()))


def _read_block(block: Mapping[str, Any]) -> MemoryBlock:
    return MemoryBlock(tuple(block["numaAffinity"] or ()), block["type"], block["size"])


# The document with all keys in their order. Null maps and lists are kept: in the checksum they differ from empty ones.
# Null nodes and tables are refused: no kubelet writes them, and the reference cannot use them.

_Reader = Callable[[Any, str], Any]


def _map_of(value: Any, name: str, read: _Reader) -> dict[str, Any] | None:
    return None if value is None else {key: read(item, f"{name}.{key}") for key, item in as_object(value, name).items()}


def _list_of(value: Any, name: str, read: _Reader) -> list[Any] | None:
    return None if value is None else [read(item, name) for item in as_list(value, name)]


def _normalize(given: Mapping[str, Any]) -> dict[str, Any]:
    names = {key.lower() for key in given}
    machine = member(given, "machineState") if "machinestate" in names else {}
    entries = member(given, "entries") if "entries" in names else {}
    pods = member(given, "podEntries") if "podentries" in names else {}
    nodes = _map_of(machine, "machineState", _node)
    for number in nodes or ():
        if not _NUMBER.fullmatch(number):
            raise StateFileError(f'json: machineState: "{number}" is not the id of a NUMA node')
    return {
        "policyName": as_text(member(given, "policyName"), "policyName"),
        "machineState": None if nodes is None else {str(int(number)): node for number, node in nodes.items()},
        "entries": _map_of(entries, "entries", lambda pod, name: _map_of(pod, name, _blocks)),
        "podEntries": _map_of(pods, "podEntries", _pod),
    }


def _node(value: Any, name: str) -> dict[str, Any]:
    given = as_object(value, name)
    return {
        "numberOfAssignments": _integer(member(given, "numberOfAssignments"), name),
        "memoryMap": _map_of(member(given, "memoryMap"), name, _table),
        "cells": _list_of(member(given, "cells"), name, _integer),
    }


def _table(value: Any, name: str) -> dict[str, int]:
    given = as_object(value, name)
    return {key: as_number(member(given, key), f"{name}.{key}") for key, _ in _TABLE}


def _pod(value: Any, name: str) -> dict[str, Any]:
    return {_BLOCKS: _blocks(member(as_object({} if value is None else value, name), _BLOCKS), name)}


def _blocks(value: Any, name: str) -> list[Any] | None:
    return _list_of(value, name, _block)


def _block(value: Any, name: str) -> dict[str, Any]:
    given = as_object({} if value is None else value, name)
    return {
        "numaAffinity": _list_of(member(given, "numaAffinity"), name, _integer),
        "type": as_text(member(given, "type"), name),
        "size": as_number(member(given, "size"), name),
    }


def _integer(value: Any, name: str) -> int:
    return as_number(value, name, -(2**63), 2**63 - 1)


# The dump under the checksum


def _dump(document: Mapping[str, Any], struct: str, *, has_pods: bool = False) -> str:
    entries = dump_map(document["entries"], lambda pod: dump_map(pod, lambda blocks: dump_list(blocks, _dump_block)))
    pods = f" PodEntries:(state.PodMemoryAssignments){dump_map(document['podEntries'], _dump_pod)}" if has_pods else ""
    return (
        f"(*state.{struct}){{PolicyName:(string){document['policyName']}"
        f" MachineState:(state.NUMANodeMap){dump_map(document['machineState'], _dump_node, int)}"
        f" Entries:(state.ContainerMemoryAssignments){entries}{pods} Checksum:(checksum.Checksum)0}}"
    )


def _dump_node(node: Mapping[str, Any]) -> str:
    tables = dump_map(node["memoryMap"], _dump_table)
    return (
        f"<*>{{NumberOfAssignments:(int){node['numberOfAssignments']}"
        f" MemoryMap:(map[v1.ResourceName]*state.MemoryTable){tables} Cells:([]int){dump_list(node['cells'])}}}"
    )


def _dump_table(table: Mapping[str, int]) -> str:
    return f"<*>{{{' '.join(f'{name}:(uint64){table[key]}' for key, name in _TABLE)}}}"


def _dump_pod(pod: Mapping[str, Any]) -> str:
    return f"{{MemoryBlocks:([]state.Block){dump_list(pod[_BLOCKS], _dump_block)}}}"


def _dump_block(block: Mapping[str, Any]) -> str:
    nodes = dump_list(block["numaAffinity"])
    return f"{{NUMAAffinity:([]int){nodes} Type:(v1.ResourceName){block['type']} Size:(uint64){block['size']}}}"

"""Reads the machine for placement from sysfs: CPUs with cores, sockets, NUMA nodes and caches, and the nodes' memory.

Rules, as the reference has them: only online CPUs count, and one without topology files does not. Threads with one `core_id` on
one socket of a NUMA node are one core. A cache beyond level 2 counts if it is shared by other CPUs than just all of the node;
without one, the socket's id stands for it. On a kernel without NUMA, each socket is a node of unknown memory. A file that may
be missing is skipped; one with unexpected content is an error.
Source: the kernel's documents `sysfs-devices-system-cpu` and `sysfs-devices-node`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pykubelet.base.kit.cpuset import parse_cpuset
from pykubelet.base.kit.values import Value
from pykubelet.base.model.machine import Cpu, MachineTopology, NumaNode
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError, suppress_not_found

_CPU = re.compile(r"cpu([0-9]{1,7})", re.ASCII)
_NODE = re.compile(r"node([0-9]{1,7})", re.ASCII)
_INDEX = re.compile(r"index[0-9]{1,4}", re.ASCII)
_PAGES = re.compile(r"hugepages-([0-9]{1,12})kB", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_MEMORY = re.compile(r"MemTotal:\s*([0-9]{1,18}) kB", re.ASCII)
_PRIVATE_LEVELS = 2


class _Place(Value):
    """Where a CPU is: its socket, and the number of its core there."""

    socket: int
    core: int


def read_topology(root: str = "/") -> MachineTopology:
    """The machine as placement sees it. `root`: a directory with a tree `sys/devices/system`.

    Raises HostError, which names the file, if there is no online CPU or a file has unexpected content.
    """
    base = f"{root.rstrip('/')}/sys/devices/system"
    places = _read_places(f"{base}/cpu")
    numbers = _numbered(f"{base}/node", _NODE)
    if numbers:
        members = {node: [c for c in _numbered(f"{base}/node/node{node}", _CPU) if c in places] for node in numbers}
        nodes = tuple(_read_node(f"{base}/node/node{node}", node, numbers) for node in numbers)
    else:
        sockets = sorted({place.socket for place in places.values()})
        members = {socket: [cpu for cpu, place in places.items() if place.socket == socket] for socket in sockets}
        nodes = tuple(NumaNode(socket, 0) for socket in sockets)
    cpus = [cpu for node, ids in members.items() for cpu in _cpus_of(f"{base}/cpu", node, ids, places)]
    if not cpus:
        raise HostError("read", f"{base}/node", "", "no NUMA node has an online CPU")
    return MachineTopology(tuple(sorted(cpus, key=lambda cpu: cpu.id)), nodes)


def _numbered(directory: str, shape: re.Pattern[str]) -> list[int]:
    """The numbers in the names of a directory's entries, ascending; none if it does not exist."""
    return sorted(int(match[1]) for match in map(shape.fullmatch, files.names_in(directory)) if match)


def _optional(path: str) -> str | None:
    """The stripped text of a file; None if there is no such file."""
    with suppress_not_found:
        return files.read_text(path).strip()
    return None


def _number(path: str) -> int | None:
    """The number in a file; None if there is no such file."""
    text = _optional(path)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise _unexpected(path, text, "a number")
    return int(text)


def _unexpected(path: str, text: str, wanted: str) -> HostError:
    return HostError("read", path, "", f'"{text[:80]}" is not {wanted}')


# CPUs


def _read_places(directory: str) -> dict[int, _Place]:
    """The places of all online CPUs, by id."""
    path = f"{directory}/online"
    text = _optional(path)
    try:
        online = None if text is None else parse_cpuset(text)
    except ValueError as error:
        raise HostError("read", path, "", str(error)) from None
    places: dict[int, _Place] = {}
    for cpu in _numbered(directory, _CPU):
        if online is not None and cpu not in online:
            continue
        core = _number(f"{directory}/cpu{cpu}/topology/core_id")
        socket = _number(f"{directory}/cpu{cpu}/topology/physical_package_id")
        if core is not None and socket is not None:
            places[cpu] = _Place(socket, core)
    if not places:
        raise HostError("read", directory, "", "no online CPU with the files topology/core_id and physical_package_id")
    return places


def _cpus_of(directory: str, node: int, ids: Iterable[int], places: Mapping[int, _Place]) -> Iterable[Cpu]:
    """The CPUs of one NUMA node."""
    cores: dict[_Place, list[int]] = {}
    for cpu in ids:
        cores.setdefault(places[cpu], []).append(cpu)
    for place, threads in cores.items():
        cache = _shared_cache(f"{directory}/cpu{threads[0]}/cache", len(cores) * len(threads))
        shared = place.socket if cache is None else cache
        yield from (Cpu(cpu, threads[0], place.socket, node, shared) for cpu in threads)


def _shared_cache(directory: str, node_size: int) -> int | None:
    """The id of the core's last-level cache; None if there is none, or if it is the one cache of all CPUs of the node."""
    for name in sorted(filter(_INDEX.fullmatch, files.names_in(directory))):
        level, cache = _number(f"{directory}/{name}/level"), _number(f"{directory}/{name}/id")
        shared = _optional(f"{directory}/{name}/shared_cpu_map")
        if level is None or cache is None or shared is None or level <= _PRIVATE_LEVELS:
            continue
        try:
            count = sum(int(part, 16).bit_count() for part in shared.split(","))
        except ValueError:
            raise _unexpected(f"{directory}/{name}/shared_cpu_map", shared, "a mask of CPUs") from None
        if count != node_size:
            return cache
    return None


# NUMA nodes


def _read_node(directory: str, node: int, numbers: list[int]) -> NumaNode:
    pages = _numbered(f"{directory}/hugepages", _PAGES)
    counts = {size * 1024: _number(f"{directory}/hugepages/hugepages-{size}kB/nr_hugepages") or 0 for size in pages}
    return NumaNode(
        node, _read_memory(f"{directory}/meminfo"), counts, _read_distances(f"{directory}/distance", numbers)
    )


def _read_memory(path: str) -> int:
    """Bytes of a node; 0 if the kernel does not state it."""
    text = _optional(path)
    if text is None:
        return 0
    match = _MEMORY.search(text)
    if match is None:
        raise _unexpected(path, text, "memory information with MemTotal")
    return int(match[1]) * 1024


def _read_distances(path: str, numbers: list[int]) -> dict[int, int]:
    """The distances to all nodes by id, which the kernel lists in the order of the ids; empty if it lists none."""
    text = _optional(path)
    if text is None:
        return {}
    fields = text.split()
    if len(fields) != len(numbers) or not all(_NUMBER.fullmatch(field) for field in fields):
        raise _unexpected(path, text, f"a list of {len(numbers)} distances")
    return {number: int(distance) for number, distance in zip(numbers, fields, strict=True)}

"""Reads what `pykubelet simulate placement` works on: a machine, pods, and the kubelet's configuration."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from pykubelet.base.api.codec import DecodeError, from_object
from pykubelet.base.api.core import Container, Pod
from pykubelet.base.api.document import DocumentError
from pykubelet.base.api.documents import load_document
from pykubelet.base.api.quantity import QuantityError, parse, value
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.manifests.defaults import default_pod
from pykubelet.base.model.machine import Cpu, MachineTopology, NumaNode
from pykubelet.base.model.placement import DeviceResource, group_by_nodes
from pykubelet.config.combine import File, FlagInput, combine
from pykubelet.config.errors import ConfigError
from pykubelet.config.settings import Flags, Settings
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc.topology import read_topology as read_sysfs
from pykubelet.provide.placement.cpu_policy import ChooseCpus
from pykubelet.provide.placement.devices.device_manager import DeviceManager
from pykubelet.provide.placement.memory_hints import ChooseNodes
from pykubelet.provide.placement.provider import ManagerStartError
from pykubelet.provide.placement.start import StateTexts, start_managers
from pykubelet_offline.simulation import Simulation

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_CPUS = 4096
MAX_NODES = 16
MAX_DEVICES = 100_000
DEFAULT_CONFIG = b"""\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
reservedSystemCPUs: "0"
"""


class InputError(Exception):
    """An input cannot be used; the text names the file and the field."""


class _Devices(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Devices of one resource. `count`: on each of `numaNodes`, or, without any, in all."""

    resource: str
    count: int = 1
    numaNodes: tuple[int, ...] = ()


class _Shape(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A machine file. All numbers are for the whole machine, except where the name states a unit. 0: as many as sockets."""

    sysfs: str = ""
    sockets: int = 1
    numaNodes: int = 0
    coresPerSocket: int = 4
    threadsPerCore: int = 2
    uncoreCaches: int = 0
    memoryPerNode: str | int = "16Gi"
    devices: tuple[_Devices, ...] = ()


class DescribedMachine(Value):
    """A machine, and the resources of its device plugins by name."""

    machine: MachineTopology
    devices: Mapping[str, DeviceResource]


def read_machine(path: str) -> DescribedMachine:
    """The machine that a file describes. Raises InputError."""
    shape = _decode(path, _Shape, read_document(path))
    machine = _read_shape(path, shape)
    problem = _devices_problem(shape.devices, machine)
    if problem:
        raise InputError(f"{path}: devices{problem}")
    return DescribedMachine(machine, _build_devices(shape.devices))


def _read_shape(path: str, shape: _Shape) -> MachineTopology:
    if shape.sysfs:
        if shape != _Shape(sysfs=shape.sysfs, devices=shape.devices):
            raise InputError(f"{path}: sysfs: may not be combined with other fields, except devices")
        try:
            return read_sysfs(shape.sysfs)
        except HostError as error:
            raise InputError(f"{path}: sysfs: {error}") from None
    problem = _shape_problem(shape)
    if problem:
        raise InputError(f"{path}: {problem}")
    try:
        memory = value(shape.memoryPerNode)
    except QuantityError as error:
        raise InputError(f'{path}: memoryPerNode: "{shape.memoryPerNode}": {error}') from None
    return _build(shape, memory)


def _devices_problem(devices: Sequence[_Devices], machine: MachineTopology) -> str:
    """The place of the first entry that is wrong, and why; empty if none is."""
    nodes, total = {node.id for node in machine.nodes}, 0
    for number, entry in enumerate(devices):
        prefix, _, name = entry.resource.partition("/")
        if not prefix or not name:
            return (
                f'[{number}].resource: "{entry.resource}" is not the name of an extended resource, like example.com/gpu'
            )
        if entry.count < 1:
            return f"[{number}].count: must be at least 1"
        unknown = sorted({*entry.numaNodes} - nodes)
        if unknown:
            return f"[{number}].numaNodes: the machine has no NUMA node {unknown[0]}"
        total += entry.count * max(1, len(entry.numaNodes))
        if total > MAX_DEVICES:
            return f"[{number}].count: the machine would have more than {MAX_DEVICES} devices"
    return ""


def _build_devices(devices: Sequence[_Devices]) -> dict[str, DeviceResource]:
    """Devices are named by the last part of their resource's name, and numbered."""
    ids: dict[str, list[str]] = {}
    nodes: dict[str, dict[str, tuple[int, ...]]] = {}
    for entry in devices:
        known, placed = ids.setdefault(entry.resource, []), nodes.setdefault(entry.resource, {})
        for node in entry.numaNodes or (None,):
            for _ in range(entry.count):
                known.append(f"{entry.resource.rpartition('/')[2]}-{len(known)}")
                if node is not None:
                    placed[known[-1]] = (node,)
    return {
        resource: DeviceResource(frozenset(listed), nodes=nodes[resource], groups=group_by_nodes(nodes[resource]))
        for resource, listed in ids.items()
    }


def _shape_problem(shape: _Shape) -> str:
    """The first field that is wrong, and why; empty if none is."""
    for name in ("sockets", "coresPerSocket", "threadsPerCore"):
        if not 1 <= getattr(shape, name) <= MAX_CPUS:
            return f"{name}: must be from 1 to {MAX_CPUS}"
    if shape.sockets * shape.coresPerSocket * shape.threadsPerCore > MAX_CPUS:
        return f"coresPerSocket: the machine would have more than {MAX_CPUS} CPUs"
    nodes, caches, cores = _nodes(shape), _caches(shape), shape.sockets * shape.coresPerSocket
    if not 1 <= nodes <= MAX_NODES:
        return f"numaNodes: must be from 1 to {MAX_NODES}"
    if nodes % shape.sockets and shape.sockets % nodes:
        return f"numaNodes: {nodes} NUMA nodes and {shape.sockets} sockets cannot be divided evenly"
    if cores % nodes:
        return f"numaNodes: {cores} cores cannot be divided among {nodes} NUMA nodes"
    if caches < 1 or cores % caches:
        return f"uncoreCaches: {cores} cores cannot be divided among {caches} caches"
    return ""


def _nodes(shape: _Shape) -> int:
    return shape.numaNodes or shape.sockets


def _caches(shape: _Shape) -> int:
    return shape.uncoreCaches or shape.sockets


def _build(shape: _Shape, memory: int) -> MachineTopology:
    """Threads are numbered as Linux does on x86: first one thread of every core, then the second ones."""
    count, caches, cores = _nodes(shape), _caches(shape), shape.sockets * shape.coresPerSocket
    cpus = tuple(
        Cpu(
            id=core + thread * cores,
            core=core,
            socket=core // shape.coresPerSocket,
            numa_node=core * count // cores,
            uncore_cache=core * caches // cores,
        )
        for thread in range(shape.threadsPerCore)
        for core in range(cores)
    )
    distances = {node: {other: 10 if other == node else 20 for other in range(count)} for node in range(count)}
    return MachineTopology(cpus, tuple(NumaNode(node, memory, {}, distances[node]) for node in range(count)))


# pods


def read_pods(path: str) -> list[Pod]:
    """The pods of a file: a list, a `List` object, or one pod. Each gets a UID of its own. Raises InputError."""
    document = read_document(path)
    if isinstance(document, dict) and isinstance(document.get("items"), list):
        listed, prefix = document["items"], "items"
    else:
        listed, prefix = document if isinstance(document, list) else [document], ""
    return [_read_pod(path, f"{prefix}[{number}]", number, item) for number, item in enumerate(listed)]


def _read_pod(path: str, where: str, number: int, item: Any) -> Pod:
    try:
        pod = from_object(Pod, item)
    except DecodeError as error:
        inner = error.path.removeprefix("$").removeprefix(".")
        raise InputError(f"{path}: {f'{where}.{inner}' if inner else where}: {error.reason}") from None
    if not pod.spec.containers:
        raise InputError(f"{path}: {where}.spec.containers: must have at least one container")
    names: set[str] = set()
    for part in ("initContainers", "containers"):
        for index, container in enumerate(getattr(pod.spec, part)):
            problem = _container_problem(container, names)
            if problem:
                raise InputError(f"{path}: {where}.spec.{part}[{index}].{problem}")
    metadata = pod.metadata
    metadata = replace(
        metadata,
        uid=f"{number}",
        name=metadata.name or f"pod-{number}",
        namespace=metadata.namespace or "default",
    )
    return default_pod(replace(pod, metadata=metadata))


def _container_problem(container: Container, names: set[str]) -> str:
    """The field of a container that is wrong, and why; empty if none is. `names`: of those before, completed here."""
    if not container.name or container.name in names:
        return f'name: "{container.name}" is not a name of its own'
    names.add(container.name)
    if container.resources is None:
        return ""
    for part in ("requests", "limits"):
        for resource, quantity in getattr(container.resources, part).items():
            try:
                amount = parse(quantity)
            except QuantityError as error:
                return f'resources.{part}.{resource}: "{quantity}": {error}'
            if amount.nano < 0:
                return f'resources.{part}.{resource}: "{quantity}" is negative'
    return ""


# configuration


def read_settings(config_path: str | None, extensions: Sequence[str] = (), policy: str = "static") -> Settings:
    """The settings of a configuration file, or the built-in ones with this policy. Raises InputError as the start would fail.

    `extensions`: as `--extension` names them; the policy of a configuration file may be one of them.
    """
    path = config_path or "the built-in configuration"
    data = DEFAULT_CONFIG + f"cpuManagerPolicy: {policy}\n".encode() if config_path is None else _read(config_path)
    try:
        return combine(File(path, data), (), FlagInput(flags=Flags(extension=tuple(extensions))), None)
    except ConfigError as error:
        raise InputError(f"{path}: {'; '.join(error.problems)}") from None


def start_simulation(
    described: DescribedMachine,
    settings: Settings,
    choose: ChooseCpus | None = None,
    choose_memory: ChooseNodes | None = None,
) -> Simulation:
    """The managers of the configuration on this machine, with nothing allocated. Raises InputError as the start would fail."""
    machine = described.machine
    reserved = settings.eviction_reserved({"memory": sum(node.memory for node in machine.nodes)})
    devices = DeviceManager(tuple(node.id for node in machine.nodes), described.devices) if described.devices else None
    managers = start_managers(settings, machine, reserved, StateTexts(), devices, choose, choose_memory)
    if isinstance(managers, ManagerStartError):
        raise InputError(f"{settings.files[0]}: {managers.text}")
    return Simulation(managers)


# files


def _decode(path: str, kind: type[_Shape], document: Any) -> _Shape:
    try:
        return from_object(kind, {} if document is None else document)
    except DecodeError as error:
        raise InputError(f"{path}: {error}") from None


def read_document(path: str) -> Any:
    """The only document of a file. Raises InputError."""
    try:
        return load_document(_read(path))
    except DocumentError as error:
        raise InputError(f"{path}: {error}") from None


def _read(path: str) -> bytes:
    """The content of a file; `-` is stdin."""
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    return data

"""Records the newest decisions of placement as a JSON document. Pure.

Who gets what is a function of the machine, the policies, what is taken, and the pod. A recording has all of these: the rules, which
stay the same, and for each step the pod to admit or the pods that have gone, and the result. What is taken before a step follows
from the steps before it; where it does not (the first step, new devices, a plugin's answers), the step has it.

`pykubelet replay`, a program of its own, runs the steps through `admit` again. A recording has names and resources of pods, and no other
part of their specification.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pykubelet.base.api import core
from pykubelet.base.kit.cpuset import format_cpuset
from pykubelet.base.kit.values import Value, field, remember_last, replace
from pykubelet.base.model.diagnostics import StepLog, WorkerStep
from pykubelet.base.model.machine import MachineTopology
from pykubelet.base.model.placement import DeviceResource, MemoryBlock
from pykubelet.provide.placement.cpu_manager import CpuState
from pykubelet.provide.placement.cpu_options import CpuOptions
from pykubelet.provide.placement.devices.device_manager import DeviceManager
from pykubelet.provide.placement.devices.device_state import Entries
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.memory_manager import MemoryPolicy
from pykubelet.provide.placement.memory_state import MemoryState
from pykubelet.provide.placement.provider import PreferenceKey, PreferredAllocationRequest
from pykubelet.provide.placement.topology_options import Topology
from pykubelet.provide.placement.topology_scopes import Admitted, PlacementRejection

#: The version of the document.
VERSION = 1
KIND = "placement"
#: Steps that are kept.
KEPT_STEPS = 256
#: The most devices of plugins in all kept steps; above, older steps are dropped. A node with more devices records nothing.
KEPT_DEVICES = 20_000
#: The most entries of other kinds in all kept steps; above, older steps are dropped. A device in use and a plugin's answer
#: are one entry, and a container is eight: some 40 bytes each.
KEPT_ENTRIES = 40_000
_CONTAINER_ENTRIES = 8

#: The name of what a pod has as a whole, which is no container's.
POOL = "whole pod"

Document = dict[str, Any]


class AdmitPod(Value):
    """A pod is admitted or rejected."""

    pod: core.Pod


class ReleasePods(Value):
    """Pods are gone for good."""

    uids: tuple[str, ...]


class AskedPlugin(Value):
    """A plugin was asked which devices it prefers. `choices`: how many were offered; a step that had them would keep most of a node's."""

    container: str
    resource: str
    choices: int


class NoRules(Value):
    """The rules of placement are part of its state."""


# the log


def add_admission(log: StepLog, at: float, before: Managers, pod: core.Pod, result: Value) -> None:
    """Add an admission. `at`: monotonic seconds. `result`: that of `admit`."""
    after = before.with_providers(result.providers) if isinstance(result, Admitted) else before
    _add(log, WorkerStep(at, before, AdmitPod(_requests_of(pod)), NoRules(), after, (_shortened(result),)))


def add_release(log: StepLog, at: float, before: Managers, uids: Sequence[str], after: Managers) -> None:
    """Add the release of what pods had."""
    _add(log, WorkerStep(at, before, ReleasePods(tuple(uids)), NoRules(), after, ()))


def _shortened(result: Value) -> Value:
    if not isinstance(result, PreferredAllocationRequest):
        return result
    return AskedPlugin(result.container, result.resource, len(result.available))


def _add(log: StepLog, step: WorkerStep) -> None:
    before = log[-1] if log else None
    log.append(step)
    _drop_large(log)
    if before is not None and _resources(before.state) is _resources(step.state):
        return
    if _devices_in(log) > KEPT_DEVICES:
        log.clear()
        log.append(step)
        if _devices_in(log) > KEPT_DEVICES:
            log.clear()


def _drop_large(log: StepLog) -> None:
    """Drop the oldest steps, as far as all have too many entries. What steps have in common counts once."""
    left, kept, seen = KEPT_ENTRIES, 0, set[int]()
    for step in reversed(log):
        left -= sum(entries for _, entries in _new_parts(step, seen))
        if left < 0:
            break
        kept += 1
    while len(log) > kept:
        log.popleft()


def _new_parts(step: WorkerStep, seen: set[int]) -> Iterator[tuple[object, int]]:
    """The parts of a step that may be large and are not in `seen`, which has their identities, each with the number of its entries."""
    for part, entries in _parts(step, seen):
        if id(part) not in seen:
            seen.add(id(part))
            yield part, entries


def _parts(step: WorkerStep, seen: Collection[int]) -> Iterator[tuple[object, int]]:
    if isinstance(step.event, AdmitPod):
        pod = step.event.pod
        yield pod, _CONTAINER_ENTRIES * (len(pod.spec.initContainers) + len(pod.spec.containers))
    for managers in (step.after, step.state):
        devices: object = managers.devices if isinstance(managers, Managers) else None
        if isinstance(devices, DeviceManager):
            yield devices.answers, len(devices.answers)
            in_use = devices.state.in_use
            if id(in_use) not in seen:
                yield from ((ids, len(ids)) for ids in in_use.values())
                yield in_use, len(in_use)


def _devices_in(log: StepLog) -> int:
    kept = {id(found): found for step in log if (found := _resources(step.state)) is not None}
    return sum(
        len(resource.healthy) + len(resource.unhealthy) for found in kept.values() for resource in found.values()
    )


def _resources(managers: Value) -> Mapping[str, DeviceResource] | None:
    assert isinstance(managers, Managers)
    return managers.devices.resources if managers.devices is not None else None


@remember_last
def _requests_of(pod: core.Pod) -> core.Pod:
    """The pod's names and resources."""
    spec = core.PodSpec(
        initContainers=tuple(map(_container, pod.spec.initContainers)),
        containers=tuple(map(_container, pod.spec.containers)),
        resources=pod.spec.resources,
    )
    metadata = core.ObjectMeta(name=pod.metadata.name, namespace=pod.metadata.namespace, uid=pod.metadata.uid)
    return core.Pod(metadata=metadata, spec=spec)


def _container(container: core.Container) -> core.Container:
    return core.Container(name=container.name, resources=container.resources, restartPolicy=container.restartPolicy)


# the document


class RecordedRules(Value):
    """The machine and the policies. `options` None: the CPU manager's policy is `none`."""

    topology: Topology
    machine: MachineTopology | None
    reserved: frozenset[int]
    options: CpuOptions | None
    memory_policy: MemoryPolicy
    allocatable_memory: tuple[MemoryBlock, ...]


class RecordedMemory(Value):
    """The memory manager's state. `reusable`: nodes, memory type, bytes."""

    state: MemoryState
    reusable_pod: str = ""
    reusable: tuple[tuple[frozenset[int], str, int], ...] = ()


class RecordedDevices(Value):
    """The device manager's state without its resources."""

    nodes: tuple[int, ...] = ()
    entries: Entries = field(default_factory=dict)
    running: frozenset[tuple[str, str]] | None = None
    reusable_pod: str = ""
    reusable: Mapping[str, frozenset[str]] = field(default_factory=dict)
    answers: tuple[tuple[PreferenceKey, frozenset[str]], ...] = ()


class RecordedResource(Value):
    """One resource of a device plugin, as far as decisions depend on it."""

    healthy: frozenset[str]
    unhealthy: frozenset[str]
    nodes: Mapping[str, tuple[int, ...]]
    prefers: bool


class GivenState(Value):
    """What is taken before a step, as far as it does not follow from the step before."""

    cpus: CpuState | None = None
    memory: RecordedMemory | None = None
    devices: RecordedDevices | None = None
    resources: Mapping[str, RecordedResource] | None = None


class RecordedPlacementStep(Value):
    """One step: monotonic seconds, the pod to admit or the UIDs of those that have gone, and the result."""

    at: float
    given: GivenState
    pod: core.Pod | None
    released: tuple[str, ...]
    result: Document


class PlacementRecording(Value):
    """The document."""

    version: int
    kind: str
    agent: str
    rules: RecordedRules
    steps: tuple[RecordedPlacementStep, ...]


def record_placement(steps: Sequence[WorkerStep], agent: str) -> Document | None:
    """The recording of these steps, as plain objects for JSON; None without steps. `agent`: the version of this agent."""
    if not steps:
        return None
    recorded: list[RecordedPlacementStep] = []
    before: GivenState | None = None
    for step in steps:
        assert isinstance(step.state, Managers)
        assert isinstance(step.after, Managers)
        outcome = step.commands[0] if step.commands else None
        now, event = _given(step.state, outcome), step.event
        pod = event.pod if isinstance(event, AdmitPod) else None
        uids = event.uids if isinstance(event, ReleasePods) else ()
        result = step_result(step.after, pod, outcome)
        recorded.append(RecordedPlacementStep(step.at, _changed(before, now), pod, uids, as_document(result)))
        before = _given(step.after)
    managers = steps[0].state
    assert isinstance(managers, Managers)
    made = PlacementRecording(VERSION, KIND, agent, _rules(managers), tuple(recorded))
    return as_document(made)


def step_result(after: Managers, pod: core.Pod | None, outcome: Value | None) -> Document:
    """What came out of a step: the shared pool, and what the pod got or why it got nothing."""
    result: Document = {"shared": format_cpuset(after.cpu_state.default)}
    if isinstance(outcome, PlacementRejection):
        result |= {"reason": outcome.reason, "message": outcome.message}
    elif isinstance(asked := _shortened(outcome) if outcome is not None else None, AskedPlugin):
        result |= {"asks": f"{asked.resource} for {asked.container}", "choices": asked.choices}
    elif pod is not None:
        decided = after.placement(pod, 0.0)
        if decided.cpus or decided.memory:
            result[POOL] = {"cpus": format_cpuset(decided.cpus), "memory": _blocks(decided.memory), "devices": {}}
        result |= {
            name: {
                "cpus": format_cpuset(has.cpus),
                "memory": _blocks(has.memory),
                "devices": {assigned.resource: sorted(assigned.ids) for assigned in has.devices},
            }
            for name, has in decided.containers.items()
        }
    return result


def _blocks(blocks: Iterable[MemoryBlock]) -> list[Any]:
    return [[list(block.nodes), block.type, block.size] for block in blocks]


def as_document(value: object) -> Document:
    """The value as plain objects for JSON."""
    plain = msgspec.to_builtins(value, str_keys=True)
    assert isinstance(plain, dict)
    return plain


# managers into the document


def _rules(managers: Managers) -> RecordedRules:
    cpus, memory = managers.cpus, managers.memory
    return RecordedRules(
        managers.topology,
        managers.machine,
        cpus.policy.reserved if cpus is not None else frozenset(),
        cpus.policy.options if cpus is not None else None,
        memory.policy,
        memory.allocatable,
    )


def _given(managers: Managers, outcome: Value | None = None) -> GivenState:
    """What is taken. Of the plugins' answers without the one to what the step asks again, because the devices have changed."""
    memory = managers.memory
    devices: object = managers.devices
    reusable = tuple((nodes, type_, size) for (nodes, type_), size in memory.reusable.items())
    given = GivenState(
        cpus=managers.cpu_state,
        memory=RecordedMemory(memory.state, memory.reusable_pod, reusable),
    )
    if not isinstance(devices, DeviceManager):
        return given
    entries = {
        uid: {
            name: {resource: replace(entry, response=entry.response and b"") for resource, entry in has.items()}
            for name, has in pod.items()
        }
        for uid, pod in devices.state.entries.items()
    }
    own = RecordedDevices(
        devices.nodes,
        entries,
        devices.running,
        devices.reusable_pod,
        devices.reusable,
        tuple(
            (replace(key, offered=None), ids)
            for key, ids in devices.answers.items()
            if not isinstance(outcome, AskedPlugin)
            or (key.container, key.resource) != (outcome.container, outcome.resource)
        ),
    )
    resources = {
        name: RecordedResource(resource.healthy, resource.unhealthy, resource.nodes, resource.prefers)
        for name, resource in devices.resources.items()
    }
    return replace(given, devices=own, resources=resources)


def _changed(before: GivenState | None, now: GivenState) -> GivenState:
    """The parts of `now` that are not the same in `before`."""
    if before is None:
        return now
    return GivenState(
        *(part if (part := getattr(now, name)) != getattr(before, name) else None for name in now.__struct_fields__)
    )

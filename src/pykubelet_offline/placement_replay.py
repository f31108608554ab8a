"""Runs the recorded decisions of placement again, and compares the results. Pure.

The recordings are those of `pykubelet/provide/placement/recording.py`. On the version of the agent that made the recording nothing differs.
"""

from __future__ import annotations

import msgspec

from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.placement import DeviceResource, group_by_nodes
from pykubelet.provide.placement.cpu_manager import CpuManager, CpuState
from pykubelet.provide.placement.cpu_policy import ChooseCpus, StaticPolicy
from pykubelet.provide.placement.cpu_topology import topology_of
from pykubelet.provide.placement.devices.device_manager import DeviceManager
from pykubelet.provide.placement.devices.device_state import state_of
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.memory_manager import MemoryManager
from pykubelet.provide.placement.memory_state import MemoryState
from pykubelet.provide.placement.recording import (
    VERSION,
    Document,
    GivenState,
    PlacementRecording,
    RecordedPlacementStep,
    RecordedRules,
    as_document,
    step_result,
)
from pykubelet.provide.placement.topology_scopes import Admitted, admit


class PlacementRecordingError(ValueError):
    """The document is not a recording of this version. The text names the wrong field."""


class ReplayedPlacement(Value):
    """One replayed step: the result now, and one line for each difference from the recorded one."""

    step: RecordedPlacementStep
    result: Document
    differences: tuple[str, ...]


def parse_placement(head: Document) -> PlacementRecording:
    """The recording in a decoded JSON document. PlacementRecordingError names the wrong field."""
    if head.get("version") != VERSION:
        raise PlacementRecordingError(f"version: {head.get('version')!r} is not supported, only {VERSION}")
    try:
        return msgspec.convert(head, PlacementRecording, str_keys=True)
    except msgspec.ValidationError as error:
        raise PlacementRecordingError(str(error)) from error


def replay_placement(recording: PlacementRecording, choose: ChooseCpus | None = None) -> tuple[ReplayedPlacement, ...]:
    """Run the recorded steps again, each on what the one before has left. `choose`: an extension that chooses CPUs."""
    managers, done = _managers(recording.rules, choose), []
    for step in recording.steps:
        managers = _with(managers, step.given)
        outcome: Value | None = None
        if step.pod is not None:
            outcome = admit(managers.topology, managers.providers, step.pod)
            if isinstance(outcome, Admitted):
                managers = managers.with_providers(outcome.providers)
        if step.released:
            managers = managers.release(step.released)
        result = as_document(step_result(managers, step.pod, outcome))
        names = sorted({*step.result, *result})
        differences = tuple(
            f"{name}: recorded {_short(step.result.get(name))}, now {_short(result.get(name))}"
            for name in names
            if step.result.get(name) != result.get(name)
        )
        done.append(ReplayedPlacement(step, result, differences))
    return tuple(done)


def _short(value: object) -> str:
    text = "nothing" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else f"{text[:200]}..."


def _managers(rules: RecordedRules, choose: ChooseCpus | None) -> Managers:
    cpus = None
    if rules.options is not None and rules.machine is not None:
        pod_level = rules.topology.pod_level
        topology = topology_of(rules.machine)
        policy = StaticPolicy(topology, rules.reserved, rules.options, pod_level=pod_level, choose=choose)
        cpus = CpuManager(policy, CpuState())
    memory = MemoryManager(
        rules.memory_policy, MemoryState(), rules.allocatable_memory, pod_level=rules.topology.pod_level
    )
    return Managers(rules.topology, cpus, memory, None, machine=rules.machine)


def _with(managers: Managers, given: GivenState) -> Managers:
    cpus, memory = managers.cpus, managers.memory
    if cpus is not None and given.cpus is not None:
        cpus = replace(cpus, state=given.cpus)
    if given.memory is not None:
        reusable = {(nodes, type_): size for nodes, type_, size in given.memory.reusable}
        uid = given.memory.reusable_pod
        memory = replace(memory, state=given.memory.state, reusable_pod=uid, reusable=reusable, lenders=None)
    known: object = managers.devices
    devices = known if isinstance(known, DeviceManager) else None
    if given.devices is not None:
        own = given.devices
        devices = DeviceManager(
            nodes=own.nodes,
            resources=devices.resources if devices is not None else {},
            state=state_of(own.entries),
            running=own.running,
            reusable_pod=own.reusable_pod,
            reusable=own.reusable,
            answers=dict(own.answers),
        )
    if devices is not None and given.resources is not None:
        resources = {
            name: DeviceResource(
                resource.healthy,
                resource.unhealthy,
                resource.nodes,
                group_by_nodes(resource.nodes),
                prefers=resource.prefers,
            )
            for name, resource in given.resources.items()
        }
        devices = replace(devices, resources=resources)
    return replace(managers, cpus=cpus, memory=memory, devices=devices)

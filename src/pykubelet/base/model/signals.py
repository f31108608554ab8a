"""The eviction signals: their names, the resource that each measures, and the node's pressure conditions that they set. Pure.

`observe/eviction/signals.py` defines how each is measured, how pods are ranked and what is reclaimed first; it alone writes
`NodePressure`. Source: the
Kubernetes documentation "Node-pressure Eviction".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pykubelet.base.kit.values import Value

#: The unit of stall signals is a hundredth of a percent of the time.
STALL_SCALE = 100


class PressureCondition(StrEnum):
    """The pressure conditions of a node, in the order in which messages list them."""

    MEMORY = "MemoryPressure"
    DISK = "DiskPressure"
    PID = "PIDPressure"


class EvictionSignal(Value):
    """One eviction signal. `resource`: as messages call it.

    `reserves`: the node resource from which a hard threshold is subtracted to get allocatable; empty: none. `default`: the
    hard threshold if `evictionHard` is not set; empty: none. `is_bytes`: the signal is an amount of bytes, else a count.
    `is_configurable`: thresholds of the KubeletConfiguration may name it.
    """

    name: str
    resource: str
    condition: PressureCondition
    default: str = ""
    reserves: str = ""
    is_bytes: bool = True
    is_configurable: bool = True


_MEMORY, _DISK, _PID = PressureCondition.MEMORY, PressureCondition.DISK, PressureCondition.PID
_TABLE = (
    EvictionSignal("memory.available", "memory", _MEMORY, default="100Mi", reserves="memory"),
    EvictionSignal("allocatableMemory.available", "memory", _MEMORY),
    EvictionSignal("nodefs.available", "ephemeral-storage", _DISK, default="10%", reserves="ephemeral-storage"),
    EvictionSignal("nodefs.inodesFree", "inodes", _DISK, default="5%", is_bytes=False),
    EvictionSignal("imagefs.available", "ephemeral-storage", _DISK, default="15%"),
    EvictionSignal("imagefs.inodesFree", "inodes", _DISK, default="5%", is_bytes=False),
    EvictionSignal("containerfs.available", "ephemeral-storage", _DISK),
    EvictionSignal("containerfs.inodesFree", "inodes", _DISK, is_bytes=False),
    EvictionSignal("pid.available", "pids", _PID, is_bytes=False),
    EvictionSignal("memory.stall.some", "memory", _MEMORY, is_bytes=False, is_configurable=False),
    EvictionSignal("memory.stall.full", "memory", _MEMORY, is_bytes=False, is_configurable=False),
    EvictionSignal("io.stall.some", "io", _DISK, is_bytes=False, is_configurable=False),
    EvictionSignal("io.stall.full", "io", _DISK, is_bytes=False, is_configurable=False),
)
EVICTION_SIGNALS: Mapping[str, EvictionSignal] = {signal.name: signal for signal in _TABLE}


class NodePressure(Value):
    """The pressure conditions of the node that hold."""

    memory: bool = False
    disk: bool = False
    pid: bool = False

    @property
    def conditions(self) -> tuple[PressureCondition, ...]:
        """The conditions that hold, in the order in which messages list them."""
        held = (self.memory, self.disk, self.pid)
        return tuple(kind for kind, holds in zip(PressureCondition, held, strict=True) if holds)


def node_pressure(conditions: tuple[PressureCondition, ...]) -> NodePressure:
    """The pressure of a node on which these conditions hold."""
    return NodePressure(*(kind in conditions for kind in PressureCondition))

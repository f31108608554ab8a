"""Evictions: the signals and the node's pressure conditions that they set, and the pods that the node ends, by eviction or because
the machine shuts down. Pure.

`observe/eviction/signals.py` defines how each signal is measured, how pods are ranked and what is reclaimed first; observe/eviction
alone writes `NodePressure`.

Under disk pressure, observe/eviction also posts `ReclaimWanted`; the component that removes what it can publishes `Reclaimed`.
`NodeShutdown` is written by observe/shutdown alone. Source: the Kubernetes documentation "Node-pressure Eviction".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodRef, PodUID

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


class PodEviction(Value):
    """An order to end one pod: its status becomes Failed with `reason` and `message`.

    `grace_s`: the most seconds from SIGTERM to SIGKILL; None: the pod's own grace period. `disrupts`: the pod gets the
    condition DisruptionTarget, because the cause lies outside of it. `for_shutdown`: the machine is shutting down.
    """

    ref: PodRef
    reason: str
    message: str
    grace_s: int | None = None
    disrupts: bool = True
    for_shutdown: bool = False


class Evictions(Value):
    """The pods that the eviction manager ends, until they have left the node. Written by observe/eviction alone."""

    pods: Mapping[PodUID, PodEviction] = field(default_factory=dict)


class SignalState(Value):
    """One threshold and its last observation. `value`, `available` and `capacity` are None if it was not measured.

    `value`: the threshold in the unit of `available`. `per_s`: the change of `available` per second since the previous
    observation; None: not known. `met_since`: wall seconds; None: not met.
    """

    signal: str
    grace_s: float
    value: int | None = None
    available: int | None = None
    capacity: int | None = None
    per_s: float | None = None
    met_since: float | None = None


class WouldEvict(Value):
    """A pod that a dry run did not evict. `at`: wall seconds."""

    at: float
    eviction: PodEviction
    signal: str


class SignalStates(Value):
    """All thresholds in force. Written by observe/eviction alone, for `pykubelet explain node`.

    `layout`: which file systems hold images and containers. `dry_run`: no pod is evicted. `would_evict`: the last pods that
    the dry run would have evicted.
    """

    at: float = 0.0
    states: tuple[SignalState, ...] = ()
    layout: str = ""
    dry_run: bool = False
    would_evict: tuple[WouldEvict, ...] = ()


class NodeShutdown(Value):
    """Whether the machine is shutting down, and the pods that are stopped for it.

    `active`: set when the shutdown is announced, cleared when it is cancelled. While it is set, the Node is not Ready and no
    pod is admitted. `pods`: the pods that are stopped now. They stay listed after a cancellation, because their termination
    has begun.
    """

    active: bool = False
    pods: Mapping[PodUID, PodEviction] = field(default_factory=dict)


class ReclaimWanted(Value):
    """A request to remove everything that is unused. `at`: monotonic seconds."""

    at: float


class Reclaimed(Value):
    """The last removal. `at`: as in the newest request that it answers. `error`: what could not be removed, and why."""

    at: float = float("-inf")
    error: str = ""

"""Snapshots of the pods that the node ends, by eviction or because the machine shuts down, and of the signals that cause an eviction. Pure.

Under disk pressure, observe/eviction also posts `ReclaimWanted`; the component that removes what it can publishes `Reclaimed`.
`NodeShutdown` is written by observe/shutdown alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodRef, PodUID


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

"""Metrics of the phases of a node's start, set once, when a node that this run has registered becomes ready."""

from __future__ import annotations

from pykubelet.base.kit.metrics import Gauge
from pykubelet.base.kit.values import Value

PRE_KUBELET = Gauge(
    "kubelet_node_startup_pre_kubelet_duration_seconds",
    "Duration in seconds of node startup before kubelet starts.",
)
PRE_REGISTRATION = Gauge(
    "kubelet_node_startup_pre_registration_duration_seconds",
    "Duration in seconds of node startup before registration.",
)
REGISTRATION = Gauge(
    "kubelet_node_startup_registration_duration_seconds", "Duration in seconds of node startup during registration."
)
POST_REGISTRATION = Gauge(
    "kubelet_node_startup_post_registration_duration_seconds",
    "Duration in seconds of node startup after registration.",
)
WHOLE = Gauge("kubelet_node_startup_duration_seconds", "Duration in seconds of node startup in total.")


class NodeStart(Value):
    """The times of the machine's start, the agent's start, the first attempt to register, and its success, in wall seconds."""

    booted_at: float
    agent_at: float
    tried_at: float
    registered_at: float


def record_node_start(start: NodeStart, ready_at: float) -> None:
    """Set the metrics. `ready_at`: when the node became ready (wall seconds)."""
    PRE_KUBELET.set(start.agent_at - start.booted_at)
    PRE_REGISTRATION.set(start.tried_at - start.agent_at)
    REGISTRATION.set(start.registered_at - start.tried_at)
    POST_REGISTRATION.set(ready_at - start.registered_at)
    WHOLE.set(ready_at - start.booted_at)


class NodeStartTimer:
    """Collects the times of a node's start, in wall seconds."""

    def __init__(self) -> None:
        self._tried_at: float | None = None
        self._start: NodeStart | None = None

    def note_attempt(self, now: float) -> None:
        """Note an attempt to register; the first one counts."""
        if self._tried_at is None:
            self._tried_at = now

    def note_registered(self, booted_at: float, agent_at: float, now: float) -> None:
        """Record when the node was registered. All times are wall seconds."""
        self._start = NodeStart(booted_at, agent_at, now if self._tried_at is None else self._tried_at, now)

    def note_ready(self, now: float) -> None:
        """Set the metrics if this run has registered the node, once."""
        if self._start is not None:
            record_node_start(self._start, now)
            self._start = None

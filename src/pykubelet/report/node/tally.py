"""How long the phases of a node's start took, for `/metrics`: once, when a node that this run has registered is ready."""

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
    """Wall seconds: of the machine's start, the agent's, the first attempt to register, and its success."""

    booted_at: float
    agent_at: float
    tried_at: float
    registered_at: float


def tell_node_start(start: NodeStart, ready_at: float) -> None:
    PRE_KUBELET.set(start.agent_at - start.booted_at)
    PRE_REGISTRATION.set(start.tried_at - start.agent_at)
    REGISTRATION.set(start.registered_at - start.tried_at)
    POST_REGISTRATION.set(ready_at - start.registered_at)
    WHOLE.set(ready_at - start.booted_at)

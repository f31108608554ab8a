"""How long the phases of a node's start took."""

from __future__ import annotations

from pykubelet.report.node.reporter import (
    POST_REGISTRATION,
    PRE_KUBELET,
    PRE_REGISTRATION,
    REGISTRATION,
    WHOLE,
    NodeStart,
    record_node_start,
)


def test_the_phases_add_up() -> None:
    record_node_start(NodeStart(booted_at=100.0, agent_at=130.0, tried_at=131.0, registered_at=131.5), ready_at=140.0)
    phases = [metric.value() for metric in (PRE_KUBELET, PRE_REGISTRATION, REGISTRATION, POST_REGISTRATION)]
    assert phases == [30.0, 1.0, 0.5, 8.5]
    assert WHOLE.value() == sum(phases)

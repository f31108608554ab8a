"""Which resources the node is short of. `NodePressure` is written by observe/eviction alone."""

from __future__ import annotations

from pykubelet.base.kit.values import Value
from pykubelet.base.model.signals import PressureCondition


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

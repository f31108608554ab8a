"""What the node runs short of. `Pressure` is written by observe/eviction alone."""

from __future__ import annotations

from pykubelet.base.kit.values import Value


class Pressure(Value):
    """The node's pressure conditions, as they are to be told."""

    memory: bool = False
    disk: bool = False
    pid: bool = False

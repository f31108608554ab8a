"""The shutdown of the machine, as a snapshot. `NodeShutdown` is written by observe/shutdown alone."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.evictions import PodEviction
from pykubelet.base.model.ids import PodUID


class NodeShutdown(Value):
    """Whether the machine is shutting down, and the pods that are stopped for it.

    `active`: set when the shutdown is announced, cleared when it is cancelled. While it is set, the Node is not Ready and no
    pod is admitted. `pods`: the pods that are stopped now. They stay listed after a cancellation, because their termination
    has begun.
    """

    active: bool = False
    pods: Mapping[PodUID, PodEviction] = field(default_factory=dict)

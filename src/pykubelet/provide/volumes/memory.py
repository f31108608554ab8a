"""The maximum size of a volume in memory. Pure.

Source: KEP-1967 (size of memory backed volumes).
"""

from __future__ import annotations

from pykubelet.base.api.core import Pod, Quantity
from pykubelet.base.api.quantity import in_units, parse
from pykubelet.base.kit.values import remember_last
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.sizing import is_limited, pod_limits


def memory_size(pod: Pod, size_limit: Quantity | None, node: NodeView) -> int:
    """The least of the volume's limit, the pod's memory limit and the node's allocatable memory, in bytes; 0 when none is known."""
    sizes = [node.allocatable.get("memory", 0), _pod_memory_limit(pod)]
    if size_limit is not None:
        sizes.append(parse(size_limit).value())
    return min((size for size in sizes if size > 0), default=0)


@remember_last
def _pod_memory_limit(pod: Pod) -> int:
    """The pod's memory limit in bytes; 0 when the pod has none and not every container has one."""
    return in_units(pod_limits(pod, overhead=False)).get("memory", 0) if is_limited(pod, "memory") else 0

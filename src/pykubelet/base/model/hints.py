"""Topology hints: on which NUMA nodes a resource can be allocated.

Source: KEP-693 (Topology Manager).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pykubelet.base.kit.values import Value


class TopologyHint(Value):
    """A set of NUMA nodes on which a request fits. `nodes` None: any node. `preferred`: no smaller set could ever hold it."""

    nodes: frozenset[int] | None
    preferred: bool


#: A provider's hints by resource name. The value None: no preference for this resource. An empty sequence: it fits nowhere.
ResourceHints = Mapping[str, Sequence[TopologyHint] | None]

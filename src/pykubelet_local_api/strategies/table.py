"""Which strategy a kind has. Pure."""

from __future__ import annotations

from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.table import KINDS
from pykubelet_local_api.strategies.common import ObjectStrategy
from pykubelet_local_api.strategies.pods import PodStrategy
from pykubelet_local_api.strategies.strategy import KindStrategy

#: By the resource; kinds that are not here have the common rules only.
_STRATEGIES: dict[str, type[ObjectStrategy]] = {
    "pods": PodStrategy,
}

_BY_KIND: dict[tuple[str, str], KindStrategy] = {
    (kind.group, kind.plural): _STRATEGIES.get(kind.resource, ObjectStrategy)(kind) for kind in KINDS
}


def strategy_of(kind: ResourceKind) -> KindStrategy:
    """The strategy of a kind; the subresource of a write is in the `Context`."""
    return _BY_KIND[kind.group, kind.plural]

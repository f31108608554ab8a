"""The configuration as `/configz` shows it: what the reference leaves out of its JSON when it is zero is left out. Pure."""

from __future__ import annotations

from typing import Any

from pykubelet.config.kubelet import KubeletConfiguration
from pykubelet.config.schema import Field, Object, Scalar, config_shape, to_plain

#: Shown although they may be zero and are no pointers.
_ALWAYS = frozenset({"enforceNodeAllocatable", "verbosity"})
#: An object that is left out while nothing in it is given.
_NOT_EMPTY = "userNamespaces"


def shown(config: KubeletConfiguration) -> dict[str, Any]:
    """The configuration as JSON values."""
    found = _shown(config_shape(), to_plain(config))
    if taints := found.get("registerWithTaints"):
        found["registerWithTaints"] = [
            {name: item for name, item in taint.items() if item or name != "value"} for taint in taints
        ]
    return found


def _shown(node: Object, value: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, item in value.items():
        entry = node.fields[name]
        if isinstance(entry.node, Object):
            item = _shown(entry.node, item)
            if item or name != _NOT_EMPTY:
                found[name] = item
        elif item or name in _ALWAYS or _is_shown_when_zero(entry):
            found[name] = item
    return found


def _is_shown_when_zero(entry: Field) -> bool:
    return isinstance(entry.node, Scalar) and (entry.pointer or entry.node.kind in ("duration", "quantity"))

"""Whether a toleration matches a taint. Pure.

Source: the Kubernetes documentation "Taints and Tolerations"; KEP-5471 (numeric operators).
"""

from __future__ import annotations

from pykubelet.base.api.core import Taint, Toleration
from pykubelet.base.kit.text import parse_integer


def tolerates(toleration: Toleration, taint: Taint, comparisons: bool = False) -> bool:
    """Whether the toleration matches the taint. `comparisons`: the operators Lt and Gt count (KEP-5471)."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    if toleration.operator in ("Lt", "Gt"):
        limit, value = parse_integer(toleration.value), parse_integer(taint.value)
        if not comparisons or limit is None or value is None:
            return False
        return value < limit if toleration.operator == "Lt" else value > limit
    return bool(toleration.key) and toleration.operator in ("", "Equal") and toleration.value == taint.value

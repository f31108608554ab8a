"""Finds given settings without effect; the agent logs them once at start. Pure.

Fields without effect are marked in `kubelet.py`, and gates in `gates.py`. Flags without effect are listed here.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.config.gates import FeatureGates
from pykubelet.config.schema import inert_paths

#: Flags without effect in the Kubernetes kubelet. They configure parts of cAdvisor that it does not use.
INERT_FLAGS = frozenset(
    {
        "event-storage-age-limit",
        "event-storage-event-limit",
        "storage-driver-buffer-duration",
        "storage-driver-db",
        "storage-driver-host",
        "storage-driver-password",
        "storage-driver-secure",
        "storage-driver-table",
        "storage-driver-user",
    }
)
#: Flags that are refused wherever the Kubernetes kubelet gives them an effect (`flag_values.py`, `validate_host.py`, `load.py`).
REFUSED_FLAGS = frozenset(
    {"application-metrics-count-limit", "container-hints", "enable-load-reader", "experimental-mounter-path"}
)


def without_effect(fields: Iterable[str], flags: Iterable[str]) -> tuple[str, ...]:
    """The given field paths and flag names that have no effect, here and in the Kubernetes kubelet; flags with their dashes."""
    inert = inert_paths() & set(fields)
    return tuple(sorted(inert.union(f"--{name}" for name in flags if name in INERT_FLAGS | REFUSED_FLAGS)))


def unmoved_gates(gates: FeatureGates) -> tuple[str, ...]:
    """The warning about gates that `AllAlpha` and `AllBeta` do not change here; empty for none."""
    names = ", ".join(gates.unmoved())
    return (f"AllAlpha and AllBeta do not change these feature gates here: {names}",) if names else ()

"""The metrics of the PLEG, named as in the kubelet."""

from __future__ import annotations

from pykubelet.base.kit.metrics import Counter, Gauge, Histogram

RELIST_DURATIONS = Histogram("kubelet_pleg_relist_duration_seconds", "Duration in seconds for relisting pods in PLEG.")
RELIST_INTERVALS = Histogram("kubelet_pleg_relist_interval_seconds", "Interval in seconds between relisting in PLEG.")
READ_DURATIONS = Histogram(
    "kubelet_pleg_pod_relist_duration_seconds", "Duration in seconds for relisting a single pod in PLEG."
)
LAST_SEEN = Gauge("kubelet_pleg_last_seen_seconds", "Timestamp in seconds when PLEG was last seen active.")
SUBSCRIPTIONS = Counter(
    "kubelet_evented_pleg_connection_success_count",
    "The number of times a streaming client was obtained to receive CRI Events.",
)
SUBSCRIPTIONS_LOST = Counter(
    "kubelet_evented_pleg_connection_error_count",
    "The number of errors encountered during the establishment of streaming connection with the CRI runtime.",
)

"""Metrics of the calls to CSI drivers."""

from __future__ import annotations

from pykubelet.base.kit.metrics import Histogram

CALLS = Histogram(
    "csi_operations_seconds",
    "Container Storage Interface operation duration with gRPC error code status total",
    ("driver_name", "method_name", "grpc_status_code", "migrated"),
    (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600),
)

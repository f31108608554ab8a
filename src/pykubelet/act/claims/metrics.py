"""Metrics of dynamic resource allocation."""

from __future__ import annotations

from pykubelet.base.kit.metrics import Histogram

#: From 0.1 s to 15 s in fourteen equal factors.
_BOUNDS_S = (
    0.1,
    0.143,
    0.2046,
    0.2926,
    0.4185,
    0.5987,
    0.8563,
    1.2247,
    1.7518,
    2.5056,
    3.5839,
    5.1261,
    7.332,
    10.4871,
    15.0,
)
OPERATIONS = Histogram(
    "dra_operations_duration_seconds",
    "Latency histogram in seconds for the duration of handling all ResourceClaims referenced by a pod when the pod "
    "starts or stops. Identified by the name of the operation (PrepareResources or UnprepareResources) and separated by "
    "the success of the operation.",
    ("operation_name", "is_error"),
    _BOUNDS_S,
)
GRPC_OPERATIONS = Histogram(
    "dra_grpc_operations_duration_seconds",
    "Duration in seconds of the DRA gRPC operations",
    ("driver_name", "method_name", "grpc_status_code"),
    _BOUNDS_S,
)

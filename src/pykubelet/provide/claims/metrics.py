"""Metrics of dynamic resource allocation."""

from __future__ import annotations

from pykubelet.base.kit.metrics import Histogram

#: From 0.1 s to 40 s in fourteen equal factors, to the last digit as the kubelet reports them: bounds are labels.
_BOUNDS_S = (
    0.1,
    0.1534127404634391,
    0.23535468936502524,
    0.36106407876409946,
    0.5539182980610752,
    0.849781240983936,
    1.303672689737678,
    1.9999999999999993,
    3.0682548092687805,
    4.7070937873005025,
    7.221281575281985,
    11.078365961221499,
    16.995624819678714,
    26.07345379475354,
    39.99999999999997,
)
OPERATIONS = Histogram(
    "dra_operations_duration_seconds",
    "Latency histogram in seconds for the duration of handling all ResourceClaims referenced by a pod when the pod "
    "starts or stops. Identified by the name of the operation (PrepareResources or UnprepareResources) and separated by "
    "the success of the operation. The number of failed operations is provided through the histogram's overall count.",
    ("operation_name", "is_error"),
    _BOUNDS_S,
)
GRPC_OPERATIONS = Histogram(
    "dra_grpc_operations_duration_seconds",
    "Duration in seconds of the DRA gRPC operations",
    ("driver_name", "method_name", "grpc_status_code"),
    _BOUNDS_S,
)

"""Metrics: when the last graceful shutdown of the machine began and ended."""

from __future__ import annotations

from pykubelet.base.kit.metrics import Gauge

START_TIME = Gauge(
    "kubelet_graceful_shutdown_start_time_seconds", "Last graceful shutdown start time since unix epoch in seconds"
)
END_TIME = Gauge(
    "kubelet_graceful_shutdown_end_time_seconds", "Last graceful shutdown end time since unix epoch in seconds"
)

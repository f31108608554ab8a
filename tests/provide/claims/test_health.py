"""How long reports on devices count, and what becomes of their messages."""

from __future__ import annotations

import pytest

from pykubelet.base.model.claims import ClaimDeviceHealth
from pykubelet.base.model.plugins import dra_health_service
from pykubelet.edges.plugins.dra_client import DeviceReport
from pykubelet.provide.claims.health import HealthReports, cut_message

A, B = ("gpu", "pool", "a"), ("gpu", "pool", "b")
OLD, NEW = "/r/old.sock", "/r/new.sock"
HEALTHY, UNHEALTHY = ClaimDeviceHealth("Healthy"), ClaimDeviceHealth("Unhealthy", "hot")


def report(device: str, health: str, timeout_s: int = 0, message: str = "") -> DeviceReport:
    return DeviceReport("pool", device, health, timeout_s, message)


def test_a_report_counts_until_its_timeout() -> None:
    reports = HealthReports(with_messages=True)
    reports.take(OLD, "gpu", [report("a", "Healthy"), report("b", "Unhealthy", 5, "hot")], 100.0)
    assert reports.read([A, B], 104.0) == {A: HEALTHY, B: UNHEALTHY}
    assert reports.next_expiry([A, B], 100.0) == 105.0
    assert reports.read([A, B], 105.0) == {A: HEALTHY}
    assert reports.next_expiry([A, B], 105.0) == 130.0
    assert reports.read([A, B], 130.0) == {}
    assert reports.next_expiry([A, B], 130.0) is None


def test_devices_that_a_message_leaves_out_keep_their_reports() -> None:
    reports = HealthReports(with_messages=True)
    reports.take(OLD, "gpu", [report("a", "Healthy")], 100.0)
    reports.take(OLD, "gpu", [report("b", "Unhealthy", message="hot")], 110.0)
    assert reports.read([A, B], 120.0) == {A: HEALTHY, B: UNHEALTHY}
    reports.take(OLD, "gpu", [], 135.0)
    assert reports.size(OLD) == 1


def test_the_end_of_a_stream_clears_its_reports_only() -> None:
    reports = HealthReports(with_messages=True)
    reports.take(OLD, "gpu", [report("a", "Unhealthy", message="hot")], 100.0)
    reports.take(NEW, "gpu", [report("a", "Healthy")], 101.0)
    assert reports.read([A], 102.0) == {A: HEALTHY}
    reports.clear(NEW)
    assert reports.read([A], 102.0) == {A: UNHEALTHY}
    reports.clear(OLD)
    assert reports.read([A], 102.0) == {}


def test_messages_are_cut_or_left_out() -> None:
    assert cut_message("x" * 1024) == "x" * 1024
    assert cut_message("x" * 1025) == "x" * 1021 + "..."
    assert len(cut_message("ä" * 1000).encode()) == 1023
    reports = HealthReports(with_messages=False)
    reports.take(OLD, "gpu", [report("a", "Unhealthy", message="hot")], 100.0)
    assert reports.read([A], 102.0) == {A: ClaimDeviceHealth("Unhealthy")}


@pytest.mark.parametrize(
    ("versions", "unlisted", "chosen"),
    [
        (("v1.DRAPlugin", "v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth"), "", "v1.DRAResourceHealth"),
        (("v1.DRAPlugin", "v1alpha1.DRAResourceHealth"), "", "v1alpha1.DRAResourceHealth"),
        (("v1.DRAPlugin",), "", ""),
        (("v1.DRAPlugin",), "v1alpha1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"),
    ],
)
def test_the_best_registered_service_reports_the_health(versions: tuple[str, ...], unlisted: str, chosen: str) -> None:
    assert dra_health_service(versions, unlisted) == chosen

"""The last reports of drivers on the health of their devices. Pure.

A report counts until its timeout has passed; then the health is unknown. The end of a driver's stream clears its reports.
Source: KEP-4680.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from pykubelet.base.model.claims import ClaimDeviceHealth, DeviceKey
from pykubelet.edges.plugins.dra_client import DeviceReport

DEFAULT_TIMEOUT_S = 30
LONGEST_TIMEOUT_S = 365 * 24 * 3600
MAX_MESSAGE_BYTES = 1024
_CUT = "..."


class _Report(Struct, frozen=True):
    health: ClaimDeviceHealth
    until: float


class HealthReports:
    """The reports by the socket of the plugin that sent them. `with_messages`: the gate ResourceHealthStatusMessage."""

    def __init__(self, *, with_messages: bool) -> None:
        self._with_messages = with_messages
        self._reports: dict[str, dict[DeviceKey, _Report]] = {}

    def take(self, socket: str, driver: str, reports: Iterable[DeviceReport], now: float) -> None:
        """Add the reports of one message; devices that it leaves out keep theirs until they expire."""
        known = self._reports.setdefault(socket, {})
        for key in [key for key, report in known.items() if report.until <= now]:
            del known[key]
        for report in reports:
            message = cut_message(report.message) if self._with_messages else ""
            timeout_s = min(report.timeout_s or DEFAULT_TIMEOUT_S, LONGEST_TIMEOUT_S)
            health = ClaimDeviceHealth(report.health, message)
            known[driver, report.pool, report.device] = _Report(health, now + timeout_s)

    def size(self, socket: str) -> int:
        """The number of devices that a plugin has reported."""
        return len(self._reports.get(socket, ()))

    def clear(self, socket: str) -> None:
        """Drop the reports of a plugin, because its stream has ended."""
        self._reports.pop(socket, None)

    def read(self, wanted: Iterable[DeviceKey], now: float) -> dict[DeviceKey, ClaimDeviceHealth]:
        """The health of these devices. One without a report that still counts is left out."""
        found: dict[DeviceKey, ClaimDeviceHealth] = {}
        for key in wanted:
            reports = [known[key] for known in self._reports.values() if key in known]
            newest = max(reports, key=lambda report: report.until, default=None)
            if newest is not None and newest.until > now:
                found[key] = newest.health
        return found

    def next_expiry(self, wanted: Iterable[DeviceKey], now: float) -> float | None:
        """When the next report on one of these devices stops to count."""
        ends = [known[key].until for key in wanted for known in self._reports.values() if key in known]
        return min((end for end in ends if end > now), default=None)


def cut_message(message: str) -> str:
    """The message, cut to `MAX_MESSAGE_BYTES`."""
    data = message.encode()
    if len(data) <= MAX_MESSAGE_BYTES:
        return message
    return data[: MAX_MESSAGE_BYTES - len(_CUT)].decode(errors="ignore") + _CUT

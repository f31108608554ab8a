"""Notifies the service manager that the agent is ready, and that it is healthy. Source: sd_notify(3), sd_watchdog_enabled(3)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from pykubelet.edges.host.fs.errors import HostError, Translating

READY = "READY=1"
WATCHDOG = "WATCHDOG=1"


def notify(state: str, environ: Mapping[str, str] | None = None) -> bool:
    """Send a state. Returns False if no service manager expects it. Raises HostError if it cannot be reached."""
    address = (os.environ if environ is None else environ).get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with Translating("notify", address), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as end:
        end.setblocking(False)
        end.sendto(state.encode(), address)
    return True


def watchdog_interval_s(environ: Mapping[str, str] | None = None) -> float:
    """The seconds within which the service manager expects WATCHDOG=1; 0: never. Raises HostError for an invalid value."""
    given = os.environ if environ is None else environ
    wanted, pid = given.get("WATCHDOG_USEC", ""), given.get("WATCHDOG_PID", "")
    if not wanted or (pid and pid != str(os.getpid())):
        return 0.0
    if not wanted.isdigit():
        raise HostError("watchdog", "", "EINVAL", f"WATCHDOG_USEC is no number: {wanted!r}")
    seconds = int(wanted) / 1e6
    if seconds <= 1.0:
        raise HostError("watchdog", "", "EINVAL", f"the watchdog interval must be more than 1 s, not {seconds:g} s")
    return seconds

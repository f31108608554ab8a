"""Notifies systemd that the agent is ready, and then, periodically, that it is healthy.

Owns: the period, half of the watchdog interval. While a health check fails, nothing is sent, so that systemd restarts the agent. The
log then has the stacks of all tasks and threads.
Source: the Kubernetes documentation "Configure systemd watchdog for kubelet"; KEP-4580's checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.stacks import all_stacks
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.notify import READY, WATCHDOG
from pykubelet.serve.endpoints.health import Check

log = Log("server")
PAUSES_S = (1.0, 2.0)


async def notify_service_manager(checks: Mapping[str, Check], interval_s: float, notify: Callable[[str], bool]) -> None:
    """Send the notifications. `interval_s`: the watchdog interval; 0: there is no watchdog, and only readiness is sent."""
    await _send(READY, notify)
    was_failing = False
    while interval_s:
        await asyncio.sleep(interval_s / 2)
        failing = ", ".join(sorted(name for name, check in checks.items() if check()))
        if failing:
            stacks = "" if was_failing else all_stacks(asyncio.get_running_loop())
            log.error("health checks fail, not notifying the watchdog", failing=failing, stack=stacks)
        else:
            await _send(WATCHDOG, notify)
        was_failing = bool(failing)


async def _send(state: str, notify: Callable[[str], bool]) -> None:
    for pause in (*PAUSES_S, 0.0):
        try:
            notify(state)
            return
        except HostError as error:
            if not pause:
                log.error("cannot notify the service manager", state=state, error=error)
        await asyncio.sleep(pause)

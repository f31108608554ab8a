"""Tells systemd that the agent is ready, and then again and again that it is well.

Owns: the rhythm, half of what the service manager wants. A failing health check is told by silence: systemd then restarts the
agent. Source: the Kubernetes documentation "Configure systemd watchdog for kubelet"; KEP-4580's checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from pykubelet.base.kit.log import Log
from pykubelet.edges.host.errors import HostError
from pykubelet.edges.host.notify import READY, WATCHDOG
from pykubelet.report.server.health import Check

log = Log("server")
PAUSES_S = (1.0, 2.0)


async def tell_service_manager(checks: Mapping[str, Check], interval_s: float, notify: Callable[[str], bool]) -> None:
    """`interval_s`: as `watchdog_interval_s` tells it; 0: only that the agent is ready."""
    await _tell(READY, notify)
    while interval_s:
        await asyncio.sleep(interval_s / 2)
        failing = {name: problem for name, check in checks.items() if (problem := check())}
        if failing:
            log.error("not telling the watchdog that all is well", failing=", ".join(sorted(failing)))
            continue
        await _tell(WATCHDOG, notify)


async def _tell(state: str, notify: Callable[[str], bool]) -> None:
    for pause in (*PAUSES_S, 0.0):
        try:
            notify(state)
            return
        except HostError as error:
            if not pause:
                log.error("the service manager cannot be told", state=state, error=error)
        await asyncio.sleep(pause)

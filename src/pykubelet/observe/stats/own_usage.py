"""Logs the CPU and memory that the agent itself uses (`--log-cadvisor-usage`)."""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.log import Log
from pykubelet.edges.host.proc.self_stats import read_self

log = Log("stats")


async def log_own_usage(period_s: float) -> None:
    """Log the usage of the last `period_s` seconds, again and again. Never returns."""
    loop = asyncio.get_running_loop()
    before, began = read_self(), loop.time()
    while True:
        await asyncio.sleep(period_s)
        now, at = read_self(), loop.time()
        cores = (now.cpu_s - before.cpu_s) / max(at - began, 1e-3)
        log.info("usage of the agent", cores=round(cores, 3), memory_bytes=now.resident)
        before, began = now, at

"""Runs the agent: start, signals, end.

Start order is for speed: the health port answers before the runtime does. The end is staged: on SIGTERM or SIGINT the
loops stop, and no container is touched. A root task that crashes ends the process with exit code 1.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from pykubelet.app.once import OnceCells, run_once
from pykubelet.app.prepare import StartError, take_lock
from pykubelet.app.version import FULL
from pykubelet.app.wiring import Agent, build_agent
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.log import Log, set_up_logging
from pykubelet.config.errors import ConfigError
from pykubelet.config.settings import Settings

log = Log("app")
SWITCH_INTERVAL_S = 0.001
GC_THRESHOLDS = (20_000, 20, 50)


def run(settings: Settings) -> int:
    """Run until told to stop. Exit code 0: stopped on a signal, or `--runonce` brought all pods up."""
    set_up_logging(settings.verbosity, settings.log_json)
    log.info("starting", version=FULL, root_dir=settings.root_dir, runtime=settings.runtime_endpoint)
    for warning in settings.warnings:
        log.warning(warning)
    if settings.no_effect:
        log.warning("these settings are accepted and have no effect yet", fields=", ".join(settings.no_effect))
    try:
        take_lock(settings.flags.lock_file)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(settings))
    except (StartError, ConfigError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop where it is installed; the agent runs without it too."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _serve(settings: Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    while True:
        async with await build_agent(settings, SystemClock()) as agent:
            if not await _started(agent, stop):
                return 0
            _settle()
            once = None
            if settings.run_once:
                cells = agent.cells
                once = run_once(OnceCells(cells.roster.cell, cells.observed.cell, cells.statuses.cell))
            code = await _until_done(agent, stop, once)
        if code is not None:
            return code


async def _started(agent: Agent, stop: asyncio.Event) -> bool:
    """Start the agent; False: a signal came first. A start may wait for systemd for minutes."""
    starting = agent.supervisor.start_child("start", agent.start())
    stopping = agent.supervisor.start_child("early signal", stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        log.info("stopping before the start was complete")
        return False
    stopping.cancel()
    await starting
    return True


def _settle() -> None:
    """Threads do short work beside the loop: let neither wait long for the other (Python's default is 5 ms).

    Take what lives as long as the process out of the garbage collector's rounds, and make these rare.

    Cycles are few here (tasks that failed); a full round over all loaded modules costs 30 ms, in the middle of a pod.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def _until_done(agent: Agent, stop: asyncio.Event, once: Coroutine[Any, Any, int] | None) -> int | None:
    """The exit code. Whatever comes first: a crash of any part, the end of `once`, a signal. None: begin anew."""
    supervisor = agent.supervisor
    stopping = supervisor.start_child("signal", stop.wait())
    failing = supervisor.start_child("failure", supervisor.wait_failed())
    changing = supervisor.start_child("outdated", agent.outdated.wait())
    working = supervisor.start_child("once", once) if once is not None else None
    awaited = [task for task in (stopping, failing, changing, working) if task is not None]
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
    if failing.done():
        log.error("ending because a part of the agent crashed", error=repr(failing.result()))
        return 1
    if changing.done() and not stopping.done():
        log.info("beginning anew with the runtime's cgroup driver; containers go on")
        return None
    if working is not None:
        return working.result() if working.done() else 1
    log.info("stopping; containers go on")
    return 0

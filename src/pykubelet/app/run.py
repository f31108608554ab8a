"""Runs the agent from its start to its end, and handles signals.

The start does not wait for the runtime: the health port answers before the runtime does. On SIGTERM or SIGINT the loops
stop, the health port's as the last one; containers are left alone. If a root task crashes, or if not everything stops in time
(`ending.py`), the process ends with exit code 1.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from pykubelet.app.last_run import begin_run
from pykubelet.app.lock import stop_on_contention, take_lock
from pykubelet.app.once import OnceCells, run_once
from pykubelet.app.prepare import AgentStartError
from pykubelet.app.wiring import Agent, build_agent
from pykubelet.app.wiring_server import watchdog_interval
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.flight import noted_key
from pykubelet.base.kit.log import Log, flush_log, matches, set_up_logging
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.config.errors import ConfigError
from pykubelet.config.settings import Settings
from pykubelet.config.shown import shown_safely
from pykubelet.edges.host.services.allocator import spare_memory
from pykubelet.edges.host.services.ending import Ending
from pykubelet.edges.host.services.monitor import Monitor
from pykubelet.edges.host.services.run_record import Blame, RunRecord

log = Log("app")
SWITCH_INTERVAL_S = 0.001
GC_THRESHOLDS = (20_000, 20, 50)


def run(settings: Settings) -> int:
    """Run until a signal to stop. Returns the exit code; 0: stopped by a signal, or `--runonce` started all pods."""
    spare_memory()
    _tune()
    set_up_logs(settings)
    faulthandler.enable()  # a signal such as SIGSEGV leaves the stacks of all threads
    log.info(
        "starting",
        version=settings.version,
        root_dir=settings.flags.root_dir,
        runtime=settings.config.containerRuntimeEndpoint,
    )
    if settings.behavior.is_configuration_logged:
        config = json.dumps(shown_safely(settings.config, without_headers=True), separators=(",", ":"))
        log.info("the effective configuration", config=config)
    for gate, stage in settings.gates.leaving():
        text = f"Warning: setting {stage} feature gate. It will be removed in a future release."
        log.info(text, featureGate=gate, value=settings.enabled(gate))
    for warning in settings.warnings:
        log.warning(warning)
    for remark in settings.remarks:
        log.warning(
            "remark about the configuration",
            file=remark.origin,
            field=remark.field_path or None,
            reason=remark.reason,
        )
    if settings.inert:
        log.info("these settings have no effect in the Kubernetes kubelet either", fields=", ".join(settings.inert))
    record = None
    try:
        take_lock(settings.flags.lock_file)
        record = begin_run(settings.flags.root_dir, SystemClock())
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            code = runner.run(_serve(settings, record))
        if code == 0:
            record.end()
        return code
    except (AgentStartError, ConfigError) as error:
        if record is not None:
            record.end()
        log.fatal(str(error))
        return 1
    except Exception as error:
        log.error("the agent crashed", exc_info=error)
        return 1
    finally:
        flush_log()


def set_up_logs(settings: Settings) -> None:
    """Set up the log as the field `logging` configures it, and warn of patterns of `vmodule` that name no module."""
    vmodule = [(item.filePattern, item.verbosity) for item in settings.config.logging.vmodule]
    split, buffer_bytes = settings.log_routing.splitStream, settings.log_buffer_bytes
    set_up_logging(
        settings.config.logging.verbosity,
        settings.log_json,
        split_stream=split,
        buffer_bytes=buffer_bytes,
        vmodule=vmodule,
    )
    if vmodule:
        modules = [f"pykubelet.{name}" for name in module_names()]
        for pattern, _ in vmodule:
            if not any(matches(pattern, name) for name in modules):
                log.warning("a pattern of --vmodule names no module of the agent", pattern=pattern)


def module_names() -> Iterator[str]:
    """The modules of the agent, with dots, without the name of the package."""
    top = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for folder, _, files in os.walk(top):
        below = folder[len(top) :].replace("/", ".")
        yield from (f"{below}.{file[:-3]}".removeprefix(".") for file in files if file.endswith(".py"))


async def flush_regularly(period_s: float) -> None:
    """Write the log's buffer at every `logging.flushFrequency`."""
    while True:
        await asyncio.sleep(period_s)
        flush_log()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The factory of uvloop's event loop if uvloop is installed, else that of asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _serve(settings: Settings, record: RunRecord) -> int:
    stop, clock = asyncio.Event(), SystemClock()
    ending = Ending(stop.set, clock)
    ending.install(asyncio.get_running_loop())
    monitor = Monitor(ending, clock, watchdog_interval(settings), record)
    async with Supervisor("process") as supervisor:
        supervisor.start_root("monitor", monitor.run())
        if settings.flags.exit_on_lock_contention:
            supervisor.start_child("lock", stop_on_contention(settings.flags.lock_file, stop))
        return await _serve_until(settings, stop, ending, record)


async def _serve_until(settings: Settings, stop: asyncio.Event, ending: Ending, record: RunRecord) -> int:
    while True:
        code: int | None = 1
        async with await build_agent(settings, SystemClock()) as agent:
            try:
                code = await _run_agent(agent, settings, stop, record)
            finally:
                if code is not None:
                    ending.begin()
        if code is not None:
            return code


async def _run_agent(agent: Agent, settings: Settings, stop: asyncio.Event, record: RunRecord) -> int | None:
    """Run an agent until it is to end. Returns the exit code; None: the agent must be built again."""
    if not await _started(agent, stop):
        return 0
    gc.freeze()
    if settings.log_routing.splitStream and settings.log_buffer_bytes:
        agent.supervisor.start_root("log-flush", flush_regularly(settings.config.logging.flushFrequency.s))
    once = None
    if settings.run_once:
        cells = agent.cells
        once = run_once(OnceCells(cells.roster.cell, cells.observed.cell, cells.statuses.cell))
    return await _until_done(agent, stop, once, record)


async def _started(agent: Agent, stop: asyncio.Event) -> bool:
    """Start the agent. Returns False if a signal came first: a start may wait for systemd for minutes."""
    starting = agent.supervisor.start_child("start", agent.start())
    stopping = agent.supervisor.start_child("early signal", stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        log.info("stopping before the start was complete")
        return False
    stopping.cancel()
    await starting
    return True


def _tune() -> None:
    """Tune thread switching and garbage collection.

    Threads do short work beside the event loop, and the imports of the start, so they switch more often than Python's default of 5 ms.
    Collections are made rare: there are few cycles (failed tasks), and a full collection over all loaded modules takes 30 ms, possibly
    while a pod starts. After the start, `gc.freeze` excludes what lives as long as the process.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)


async def _until_done(
    agent: Agent, stop: asyncio.Event, once: Coroutine[Any, Any, int] | None, record: RunRecord
) -> int | None:
    """Wait for a crash of a root task, the end of `once`, a signal, or an outdated agent, whichever comes first.

    Returns the exit code; None: the agent must be built again.
    """
    supervisor = agent.supervisor
    stopping = supervisor.start_child("signal", stop.wait())
    failing = supervisor.start_child("failure", supervisor.wait_failed())
    changing = supervisor.start_child("outdated", agent.outdated.wait())
    working = supervisor.start_child("once", once) if once is not None else None
    awaited = [task for task in (stopping, failing, changing, working) if task is not None]
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
    if failing.done():
        error = failing.result()
        log.error("ending because a root task crashed", error=repr(error))
        if key := noted_key(error):
            record.blame(Blame(key, f"a task crashed ({error!r})"))
        return 1
    if changing.done() and not stopping.done():
        log.info("starting over with the runtime's cgroup driver; containers keep running")
        return None
    if working is not None:
        return working.result() if working.done() else 1
    log.info("stopping; containers keep running")
    return 0

"""Finds the drivers of flexVolume volumes in `volumePluginDir`. Writes `Plugins.flex`.

Owns: a watch of the directory, and one task for each driver that is not initialized yet. File events only lead to a scan. A
driver whose file has changed is initialized again; one that fails is tried again after a growing pause.
Source: as `edges/plugins/flexvolume.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial

from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import CellWriter
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.plugins import FlexDriver, FlexDrivers, Plugins
from pykubelet.edges.plugins.flexvolume import INIT_S, FlexProgram, FlexScan, init_driver, scan_drivers
from pykubelet.observe.plugins.watch import DirectoryWatch

log = Log("plugins")
RETRY = BackoffPolicy(initial_s=0.5, cap_s=122.0)
#: Seconds between scans that no event asks for.
SCAN_PERIOD_S = 60.0
SCAN_DEADLINE_S = 30.0


class FlexLoop:
    """Watches `directory` and publishes the drivers that can be used. `period_s`: between scans that no event asks for."""

    def __init__(
        self,
        directory: str,
        plugins: CellWriter[Plugins],
        flight: SingleFlight,
        clock: Clock,
        period_s: float = SCAN_PERIOD_S,
    ) -> None:
        self._directory = directory.rstrip("/")
        self._plugins = plugins
        self._flight = flight
        self._watch = DirectoryWatch(directory, clock)
        self._period_s = period_s
        self._drivers: dict[str, tuple[FlexProgram, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Follow the directory until cancelled."""
        async with Supervisor("flexvolume") as tasks:
            tasks.start_root("flexvolume watch", self._watch.run())
            tasks.start_root("flexvolume loop", self._watch.follow(partial(self._scan, tasks), self._period_s))
            raise await tasks.wait_failed()

    async def _scan(self, tasks: Supervisor) -> Iterable[str] | None:
        outcome = await self._flight.run_next("flexvolume", lambda: scan_drivers(self._directory), SCAN_DEADLINE_S)
        if isinstance(outcome, Done):
            self._watch.report("")
            self._take(outcome.value, tasks)
            return outcome.value.directories
        reason = getattr(outcome, "error", "the directory does not answer")
        self._watch.report(f"drivers of flexVolume volumes cannot be found: {reason}")
        self._settle()
        return None

    def _take(self, scan: FlexScan, tasks: Supervisor) -> None:
        """Forget the drivers that are gone, and initialize those that are new or have changed."""
        for name, (program, task) in list(self._drivers.items()):
            if scan.programs.get(name) != program:
                task.cancel()
                del self._drivers[name]
                if name not in scan.programs:
                    self._publish(name)
        for name, program in scan.programs.items():
            if name not in self._drivers:
                task = tasks.start_child(
                    f"flexvolume {name}", self._initialize(program), lambda _: self._watch.wakeup.set()
                )
                self._drivers[name] = program, task
        self._settle()

    async def _initialize(self, program: FlexProgram) -> None:
        """Try to initialize the driver until it succeeds."""
        failures = 0
        while True:
            found = await self._attempt(program)
            self._publish(program.driver, found)
            if isinstance(found, FlexDriver):
                return
            failures += 1
            await asyncio.sleep(RETRY.delay_s(failures))

    async def _attempt(self, program: FlexProgram) -> FlexDriver | str:
        key, deadline_s = f"flexvolume/{program.driver}", INIT_S + SCAN_DEADLINE_S
        match await self._flight.run_next(key, lambda: init_driver(program), deadline_s):
            case Done(driver):
                return driver
            case Failed(error):
                return str(error)
        return "the driver does not end"

    def _publish(self, name: str, found: FlexDriver | str | None = None) -> None:
        """Publish what is known about one driver: that it can be used, why not, or (None) that it is gone."""
        now = self._plugins.get().flex
        usable: Mapping[str, FlexDriver] = {other: driver for other, driver in now.usable.items() if other != name}
        problems = {other: why for other, why in now.problems.items() if other != name}
        if isinstance(found, FlexDriver):
            log.info("flexVolume driver found", name=name, program=found.program, attaches=found.attaches)
            usable = {**usable, name: found}
        elif found is not None:
            if now.problems.get(name) != found:
                log.warning("flexVolume driver not usable", name=name, reason=found)
            problems[name] = found
        self._put(replace(now, usable=usable, problems=problems))
        self._settle()

    def _settle(self) -> None:
        now = self._plugins.get().flex
        if not now.is_settled and all(name in now.usable or name in now.problems for name in self._drivers):
            self._put(replace(now, is_settled=True))

    def _put(self, flex: FlexDrivers) -> None:
        now = self._plugins.get()
        if flex != now.flex:
            self._plugins.publish(replace(now, flex=flex))

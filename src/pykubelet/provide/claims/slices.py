"""Deletes the ResourceSlices of drivers that are gone from this node, so that the scheduler does not count on its devices.

All slices of the node are deleted at the start, because their drivers may be gone; a driver that is there publishes its own again.
Later those of a driver are deleted that had no connection for `DELAY_S`.
Source: KEP-4381.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from pykubelet.base.api.resource_claims import RESOURCE_API
from pykubelet.base.api.selectors import field_selector
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.provide.claims.drivers import DriversState

if TYPE_CHECKING:  # a node that stands alone does not need it
    from pykubelet.edges.kubeapi.client import ApiClient

log = Log("claims")
DELAY_S = 30.0
RETRY = BackoffPolicy(initial_s=1.0, cap_s=300.0)
JITTER = 0.2


class SliceCleaner:
    """Deletes ResourceSlices. `run` never returns."""

    def __init__(self, client: ApiClient, node: str, drivers: Cell[DriversState]) -> None:
        self._client = client
        self._node = node
        self._drivers = drivers
        self._known: set[str] = set()
        self._due: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Delete all slices of the node, then follow the drivers."""
        async with Supervisor("slices") as tasks:
            tasks.start_root("slices at the start", self._delete(None))
            tasks.start_root("slices of drivers", self._follow(tasks))
            raise await tasks.wait_failed()

    async def _follow(self, tasks: Supervisor) -> None:
        async for state in self._drivers.changes():
            self._known |= {plugin.name for plugin in state.plugins.values()}
            usable = state.usable()
            for driver in self._known:
                if driver in usable:
                    task = self._due.pop(driver, None)
                    if task is not None:
                        task.cancel()
                elif driver not in self._due:
                    self._due[driver] = tasks.start_root(f"slices of {driver}", self._delete_later(driver))

    async def _delete_later(self, driver: str) -> None:
        await asyncio.sleep(DELAY_S)
        await self._delete(driver)
        self._known.discard(driver)
        self._due.pop(driver, None)

    async def _delete(self, driver: str | None) -> None:
        """Delete the slices of one driver, or, for None, all of the node; try again until it succeeds."""
        of_driver = () if driver is None else (("spec.driver", driver),)
        selector = field_selector(("spec.nodeName", self._node), *of_driver)
        failures = 0
        while True:
            try:
                await self._client.request("DELETE", f"{RESOURCE_API}/resourceslices", {"fieldSelector": selector})
            except ApiError as error:
                if error.is_not_found:
                    return  # the API server does not serve them
                failures += 1
                if failures == 1:
                    log.warning("ResourceSlices cannot be deleted", driver=driver, error=error.message)
                await asyncio.sleep(RETRY.delay_s(failures) * (1 + JITTER * random.random()))
                continue
            log.info("ResourceSlices deleted", node=self._node, driver=driver)
            return

"""Drivers of flexVolume volumes come, change and go."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from support.flex_driver import DRIVER, FlexScript

from pykubelet.base.kit.cells import Cell, make_cell
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.plugins import FlexDrivers, Plugins
from pykubelet.observe.plugins.flexvolume import FlexLoop


@asynccontextmanager
async def watching(root: Path) -> AsyncIterator[Cell[Plugins]]:
    cell, writer = make_cell("plugins", Plugins())
    async with Supervisor("test") as tasks:
        tasks.start_root("flex", FlexLoop(f"{root}/", writer, SingleFlight("test"), SystemClock()).run())
        yield cell


async def until(cell: Cell[Plugins], condition: Callable[[FlexDrivers], bool]) -> FlexDrivers:
    async with asyncio.timeout(30):
        return (await cell.wait_for(lambda now: condition(now.flex))).flex


async def test_a_driver_comes_changes_and_goes(tmp_path: Path) -> None:
    root = tmp_path / "exec"
    async with watching(root) as cell:
        assert (await until(cell, lambda now: now.is_settled)).usable == {}
        driver = FlexScript(root)
        now = await until(cell, lambda now: DRIVER in now.usable)
        assert not now.usable[DRIVER].attaches and now.usable[DRIVER].program == str(driver.program)
        text = driver.program.read_text()
        driver.program.write_text(text.replace('"attach": false', '"attach": true'))
        await until(cell, lambda now: DRIVER in now.usable and now.usable[DRIVER].attaches)
        assert set(driver.calls()) == {"init"}
        shutil.rmtree(driver.folder)
        assert (await until(cell, lambda now: DRIVER not in now.usable)).problems == {}


async def test_a_driver_that_cannot_be_initialized_hides_no_other(tmp_path: Path) -> None:
    bad = FlexScript(tmp_path)
    bad.say("init", {"status": "Failure", "message": "no licence"})
    (tmp_path / "plain").mkdir()
    good = tmp_path / "plain" / "plain"
    good.write_text("""#!/bin/sh\necho '{"status": "Success"}'\n""")
    good.chmod(0o755)
    async with watching(tmp_path) as cell:
        now = await until(cell, lambda now: now.is_settled)
        assert now.problems == {DRIVER: "init command failed, status: Failure, reason: no licence"}
        assert now.usable.keys() == {"plain"}
        bad.obey("init")
        now = await until(cell, lambda now: DRIVER in now.usable)
        assert now.problems == {}

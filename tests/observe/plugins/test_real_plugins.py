"""Plugins register over real sockets: another process, another implementation of gRPC."""

from __future__ import annotations

from pathlib import Path

from observe.plugins.test_loop import GPU, until, watching
from support.csi import DRIVER, csi_driver
from support.drivers import dra_driver

from pykubelet.base.model.plugins import PluginType


async def test_processes_register_and_go(folder: Path) -> None:
    async with watching(folder) as cell, dra_driver(folder) as driver, csi_driver(folder, folder / "data") as csi:
        now = await until(cell, lambda now: len(now.plugins) == 2)
        (plugin,) = now.of(PluginType.DRA)
        assert (plugin.name, plugin.socket) == (GPU, str(driver.socket))
        found = now.csi_driver(DRIVER)
        assert found is not None and found.endpoint == str(csi.endpoint)
        (notified,) = driver.calls("NotifyRegistrationStatus")
        assert notified["registered"]
        await driver.stop()
        await csi.stop()
        await until(cell, lambda now: not now.plugins)

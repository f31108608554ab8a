"""A local API in this process, on loopback, with its real files in a temporary folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pykubelet.base.kit.clock import Clock, SystemClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet_local_api.options import LocalApiOptions
from pykubelet_local_api.wiring import LocalApi, build

NODE = "node-1"


async def account_made(api: LocalApi) -> None:
    """Wait for the default service account, without which no pod is admitted. It is made after the start."""
    wakeup = asyncio.Event()
    api.store.watch("serviceaccounts", wakeup)
    async with asyncio.timeout(30):
        while api.store.get("serviceaccounts", "default", "default") is None:
            await wakeup.wait()
            wakeup.clear()
    api.store.unwatch("serviceaccounts", wakeup)


@asynccontextmanager
async def serving(folder: Path, clock: Clock | None = None, apply_dir: str = "") -> AsyncIterator[LocalApi]:
    """A server that runs until the block ends. The folder can be served again afterwards."""
    api = build(LocalApiOptions(str(folder), 0, NODE, apply_dir=apply_dir), clock or SystemClock())
    try:
        async with Supervisor("local-api") as tasks:
            for name, part in api.parts().items():
                tasks.start_root(name, part)
            yield api
    finally:
        api.close()

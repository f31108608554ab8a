"""Which cgroup driver is in force: the runtime's choice where it tells one (KEP-4033), else the configured one.

At the start the runtime is asked once and not waited for. When it does not answer, nothing is done that rests on the
driver (the node's cgroups, the pods) until it has been asked again; an answer that differs begins the agent anew.
"""

from __future__ import annotations

import asyncio

from pykubelet.act.resources.model import CgroupDriver
from pykubelet.base.kit.log import Log
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError

log = Log("app")
CRI_DRIVERS = {pb.SYSTEMD: CgroupDriver.SYSTEMD, pb.CGROUPFS: CgroupDriver.CGROUPFS}
DEADLINE_S = 2.0
TRIES = 3
PAUSE_S = 2.0


async def ask_driver(cri: CriClient, configured: CgroupDriver) -> CgroupDriver | None:
    """The driver in force. None: the runtime does not answer, so it is not known."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            answer = await cri.runtime_config()
    except CriError as error:
        return configured if error.is_unimplemented else None
    except TimeoutError:
        return None
    told = CRI_DRIVERS.get(answer.linux.cgroup_driver, configured)
    if told is not configured:
        log.info("the runtime's cgroup driver is used, not the configured one", runtime=told, configured=configured)
    return told


async def insist_on_driver(cri: CriClient, configured: CgroupDriver, pause_s: float = PAUSE_S) -> CgroupDriver:
    """The same of a runtime that answers other questions: after three tries the configured driver counts."""
    for again in range(TRIES):
        if again:
            await asyncio.sleep(pause_s)
        if (told := await ask_driver(cri, configured)) is not None:
            return told
    log.warning("the runtime does not tell its cgroup driver; the configured one is used", configured=configured)
    return configured

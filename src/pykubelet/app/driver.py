"""Determines the cgroup driver: the runtime's if it reports one (KEP-4033), else the configured one.

At start the runtime is asked once, without a retry. If it does not answer, everything that depends on the driver (the node's
cgroups, the pods) waits until the runtime was asked again. If that answer differs from the configured driver, the agent is
built again.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.log import Log
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.cri.wire import LOSING_SUPPORT
from pykubelet.edges.host.cgroups.cgroup_detect import detect_cgroups
from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.provide.cgroups.model import CgroupDriver

log = Log("app")
CRI_DRIVERS = {pb.SYSTEMD: CgroupDriver.SYSTEMD, pb.CGROUPFS: CgroupDriver.CGROUPFS}
DEADLINE_S = 2.0
TRIES = 3
PAUSE_S = 2.0


async def ask_driver(cri: CriClient, configured: CgroupDriver, required_in: str) -> CgroupDriver | None:
    """Ask the runtime once for the cgroup driver. None: the runtime does not answer, so the driver is not known.

    `required_in`: the version of Kubernetes that refuses a runtime which does not report it.
    """
    try:
        async with asyncio.timeout(DEADLINE_S):
            answer = await cri.runtime_config()
    except CriError as error:
        if not error.is_unimplemented:
            return None
        LOSING_SUPPORT.set(1, required_in)
        return configured
    except TimeoutError:
        return None
    driver = CRI_DRIVERS.get(answer.linux.cgroup_driver, configured)
    if driver is not configured:
        log.info("the runtime's cgroup driver is used, not the configured one", runtime=driver, configured=configured)
    return driver


async def insist_on_driver(
    cri: CriClient, configured: CgroupDriver, required_in: str, pause_s: float = PAUSE_S
) -> CgroupDriver:
    """As `ask_driver`, for a runtime that answers other calls: after three tries the configured driver is used."""
    for again in range(TRIES):
        if again:
            await asyncio.sleep(pause_s)
        if (driver := await ask_driver(cri, configured, required_in)) is not None:
            return driver
    log.warning("the runtime does not report its cgroup driver; the configured one is used", configured=configured)
    return configured


def cgroups_of(driver: CgroupDriver) -> Cgroups:
    """The machine's cgroups, created and changed through `driver`."""
    if driver is not CgroupDriver.SYSTEMD:
        return detect_cgroups()
    from pykubelet.edges.host.cgroups.systemd import SliceUnits, Systemd  # takes 50 ms, because of a D-Bus library

    return detect_cgroups(units=SliceUnits(Systemd()))

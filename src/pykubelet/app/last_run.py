"""What the last run of the agent has left: charges its unexpected end to pods, and begins the record of this run.

Nothing here stops a start.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Iterable

from pykubelet.app.decide_last_run import charges_of
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import WORK
from pykubelet.base.kit.log import Log
from pykubelet.desired.sources.quarantine import charge
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc.kmsg import KernelLog, KernelRecord
from pykubelet.edges.host.services.run_record import EndedRun, RunRecord

log = Log("app")


def begin_run(root: str, clock: Clock) -> RunRecord:
    """Charge the end of the last run with this root directory, if it was unexpected, and begin the record of this one."""
    record = RunRecord(root)
    ended = record.read_ended(clock.monotonic(), clock.wall())
    if ended is not None:
        _charge(root, ended, clock)
    try:
        begun = record.begin(clock.monotonic())
    except HostError as error:
        log.info("the work of this run is not recorded", error=error)
        return record
    if begun is not None:
        memory, stacks = begun
        WORK.attach(memory)
        faulthandler.enable(file=stacks)
    return record


def _charge(root: str, ended: EndedRun, clock: Clock) -> None:
    charges = charges_of(ended, _kernel_records() if ended.works and not ended.fatal else ())
    log.info("the last run of the agent did not end in order", last_pid=ended.pid, signal=ended.fatal or None)
    if ended.stacks:
        log.error("the stacks at the end of the last run", signal=ended.fatal, stack=ended.stacks)
    for charged in charges:
        log.error("the end of the last run is charged to a pod", key=charged.key, cause=charged.cause)
    if not charges:
        return
    try:
        charge(root, [(charged.key, charged.cause) for charged in charges], clock.wall())
    except HostError as error:
        log.error("the end of the last run cannot be charged to a pod", error=error)


def _kernel_records() -> Iterable[KernelRecord]:
    try:
        kernel = KernelLog()
    except HostError:
        return ()
    try:
        return kernel.read_all()
    except HostError:
        return ()
    finally:
        kernel.close()

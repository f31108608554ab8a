"""Decides which pods the unexpected end of the last run is charged to. Pure.

Only an end that shows its reason is charged. A run that was ended from outside (SIGKILL, a power cut, an error elsewhere) is not, whatever
it was at. The reasons:

- A pod was in the way when the run ended: the event loop had been blocked by work for it, or a root task crashed in such work (`Blame`).
- SIGABRT, which the watchdog sends, ended the run, and work for the pod had been under way for `BLOCKED_S`.
- Another fatal signal, such as SIGSEGV, ended the run while work for the pod was under way.
- The kernel ended the process for want of memory while work for the pod was under way, which had got much memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.extensions import is_extension_key
from pykubelet.edges.host.proc.kmsg import KernelRecord
from pykubelet.edges.host.services.run_record import EndedRun

BLOCKED_S = 5.0
#: The memory that work must have got for the kernel's choice to be its own fault.
GROWTH = 64 << 20
#: How far the kernel's clock may be from the monotonic one.
CLOCKS_S = 60.0
_KILLED = re.compile(r"Killed process (\d{1,10}) \([^)]{0,64}\).{0,80}anon-rss:(\d{1,18})kB")
_ABORTED = "Aborted"


class Charge(Value):
    """An end that is charged to a pod. `key`: as in `OpenWork`. `cause`: what happened, as a part of a sentence."""

    key: str
    cause: str


def charges_of(run: EndedRun, kernel: Iterable[KernelRecord]) -> tuple[Charge, ...]:
    """The charges for a run. `kernel`: the messages of the kernel since the boot."""
    if run.blame is not None:
        return (Charge(run.blame.key, run.blame.cause),)
    # an extension was asked in work for a pod, which has nothing to do with it
    asked = tuple(work for work in run.works if is_extension_key(work.key))
    run = replace(run, works=asked or run.works)
    if run.fatal == _ABORTED:
        works = [work for work in run.works if run.fatal_at - work.since >= BLOCKED_S]
        return tuple(Charge(work.key, f"it was aborted after {run.fatal_at - work.since:.0f} s") for work in works)
    if run.fatal:
        return tuple(Charge(work.key, f"it had a fatal error ({run.fatal})") for work in run.works)
    memory = killed_with(run, kernel) if run.works else None
    if memory is None or memory - run.memory < GROWTH:
        return ()
    return tuple(Charge(work.key, f"it used up {memory - run.memory >> 20} MiB of memory") for work in run.works)


def killed_with(run: EndedRun, kernel: Iterable[KernelRecord]) -> int | None:
    """The bytes of memory that the process had when the kernel ended it for want of memory; None if it did not."""
    for record in kernel:
        found = _KILLED.search(record.message) if record.at >= run.started_at - CLOCKS_S else None
        if found is not None and parse_decimal(found[1]) == run.pid:
            return (parse_decimal(found[2]) or 0) << 10
    return None

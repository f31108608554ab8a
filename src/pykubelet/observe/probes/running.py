"""The running or queued probe of a worker: its times, and whether it is late. Pure.

All times are monotonic seconds. Only commands (exec probes) can be late: the others end within their time-out.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from pykubelet.base.model.ids import ContainerID
from pykubelet.observe.probes.decide import EARLY_S, Worker
from pykubelet.observe.probes.messages import Lateness

#: A probe is shown as hanging this long after its time-out.
OVERDUE_S = 3.0


class RunningProbe(Struct):
    """A running or queued probe. `queue_s`: the longest time until it may begin, from now. `cancel`: ends its task.
    `began_at` None: it is queued.
    """

    container: ContainerID
    timeout_s: float
    queue_s: Callable[[], float]
    cancel: Callable[[], object]
    began_at: float | None = None


def expected_end(worker: Worker, running: RunningProbe | None, now: float) -> float:
    """The expected end of a worker's probe."""
    began = (running.began_at if running is not None else None, worker.due, now)
    ends_at = next(at for at in began if at is not None) + worker.timeout_s
    return ends_at if now < ends_at - EARLY_S else ends_at + OVERDUE_S


def lateness(
    worker: Worker, running: RunningProbe | None, now: float, answer_s: float
) -> tuple[Lateness, float] | None:
    """Why a command is late, and when that ends at the latest; None: it is not late. `answer_s`: as in `ProbeLimits`."""
    if running is None or worker.due is None:
        return None
    now += EARLY_S
    if running.began_at is None:
        is_late = now >= worker.due + running.timeout_s
        return (Lateness.QUEUED, now + running.queue_s()) if is_late else None
    late_at = running.began_at + running.timeout_s
    return (Lateness.HANGS, late_at + answer_s) if now >= late_at + OVERDUE_S else None

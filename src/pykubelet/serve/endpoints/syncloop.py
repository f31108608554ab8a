"""The health check `syncloop`: whether the loops that run pods still make progress.

The reference's sync loop is three loops here: the roster, the pods and the PLEG. Roster and pods fail the check if their last
heartbeat is older than twice `syncFrequency`, at least 5 minutes. The reference's loop also pauses while its PLEG is
unhealthy, that is after 3 minutes without a relist. So the limit for the PLEG is the sum of both.
Source: the Kubernetes documentation "Configure systemd watchdog for kubelet".
"""

from __future__ import annotations

from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.heartbeat import Heartbeat
from pykubelet.base.kit.values import Value
from pykubelet.base.model.observed import Observed
from pykubelet.serve.endpoints.health import Check

MIN_LIMIT_S = 300.0
RELIST_LATE_S = 180.0
TOO_LONG = "sync Loop took longer than expected"


class SyncLoopInputs(Value):
    """The inputs of the check. `heartbeats`: those of the roster and the pods. Times are monotonic seconds."""

    heartbeats: tuple[Cell[Heartbeat], ...]
    observed: Cell[Observed]
    sync_frequency_s: float


def syncloop_check(inputs: SyncLoopInputs, clock: Clock) -> Check:
    """The check `syncloop`. A loop without a first heartbeat does not fail it."""
    limit_s = max(2 * inputs.sync_frequency_s, MIN_LIMIT_S)

    def check() -> str:
        now, listed_at = clock.monotonic(), inputs.observed.get().listed_at
        is_late = any(at is not None and now - at > limit_s for at in (one.get().at for one in inputs.heartbeats))
        is_unlisted = listed_at is not None and now - listed_at > limit_s + RELIST_LATE_S
        return TOO_LONG if is_late or is_unlisted else ""

    return check

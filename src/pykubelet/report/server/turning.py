"""The health check `syncloop`: whether what makes pods run still comes round.

The reference's one loop is three here: the roster, the pods and the look-out at the runtime. Roster and pods fail the check
when their last turn is longer ago than twice `syncFrequency`, at least 5 minutes. The reference's loop does not turn either
while its look-out counts as lost, which it does after 3 minutes: for the look-out both add up.
Source: the Kubernetes documentation "Configure systemd watchdog for kubelet".
"""

from __future__ import annotations

from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.turns import Turn
from pykubelet.base.kit.values import Value
from pykubelet.base.model.observed import Observed
from pykubelet.report.server.health import Check

MIN_LIMIT_S = 300.0
LOOK_LOST_S = 180.0
TOO_LONG = "sync Loop took longer than expected"


class TurningInputs(Value):
    """`turns`: of the roster and the pods. Times are monotonic."""

    turns: tuple[Cell[Turn], ...]
    observed: Cell[Observed]
    sync_frequency_s: float


def syncloop_check(inputs: TurningInputs, clock: Clock) -> Check:
    """What has not come round for the first time yet does not fail."""
    limit_s = max(2 * inputs.sync_frequency_s, MIN_LIMIT_S)

    def check() -> str:
        now, looked_at = clock.monotonic(), inputs.observed.get().listed_at
        late = any(at is not None and now - at > limit_s for at in (turn.get().at for turn in inputs.turns))
        lost = looked_at is not None and now - looked_at > limit_s + LOOK_LOST_S
        return TOO_LONG if late or lost else ""

    return check

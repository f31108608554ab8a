"""What components know of their work, for users alone: `pykubelet explain`, `pykubelet replay`, the node's page.

Each component with diagnostics is the writer of a lazy cell of `Diagnostics`. No decision reads them.
The newest steps of a state machine are kept for inspection and replay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import MountStatus
from pykubelet.base.model.waits import TimelineEntry, Wait

#: Steps kept for each pod. A start takes about eight; a restart after a crash about four.
KEPT_STEPS = 24


class WorkerStep(Value):
    """One step of a state machine: `state`, `event`, `at` and `rules` went in; `after` and `commands` came out.

    `at`: monotonic seconds. The machine holds all these values anyway, so keeping a step costs little.
    """

    at: float
    state: Value
    event: Value
    rules: Value
    after: Value
    commands: tuple[Value, ...]


#: The newest steps of one machine, oldest first, `maxlen` at most. Only its owner adds steps; others get a tuple of them.
StepLog = deque[WorkerStep]


class PodDiagnostics(Value):
    """What one component knows of one pod.

    `waits`: everything that it waits for. `timeline`: the newest transitions, `steps`: the newest steps of the pod's state
    machine, both oldest first. `volumes`: where each volume of the pod stands.
    """

    waits: tuple[Wait, ...] = ()
    timeline: tuple[TimelineEntry, ...] = ()
    steps: tuple[WorkerStep, ...] = ()
    volumes: tuple[MountStatus, ...] = ()


class Diagnostics(Value):
    """What one component knows of all pods. `steps`: those of a state machine that serves all pods, oldest first."""

    pods: Mapping[PodUID, PodDiagnostics] = field(default_factory=dict)
    steps: tuple[WorkerStep, ...] = ()


def of_waits(waits: Mapping[PodUID, tuple[Wait, ...]]) -> Diagnostics:
    """The diagnostics of a component that knows nothing but waits."""
    return Diagnostics({uid: PodDiagnostics(found) for uid, found in waits.items() if found})

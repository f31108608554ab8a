"""What is recorded of a pod's state machine. That it runs again to the same end is in `tests/offline`."""

from __future__ import annotations

import json
from typing import Any

from act.pods.playbook import RULES
from act.pods.scenes import REF, WALL, box, container, instance, pod, view

from pykubelet.act.pods.decide import step
from pykubelet.act.pods.model import Event, KillRequested, PodWorkerState, RuntimeChanged, StopEnded, SyncEnded
from pykubelet.act.pods.recording import record
from pykubelet.base.model.containers import container_hash
from pykubelet.base.model.diagnostics import StepLog, WorkerStep
from pykubelet.base.model.lifecycle import KillReason, Stage
from pykubelet.base.model.observed import ObservedState

RUNNING = ObservedState.RUNNING


def life_of_a_pod() -> StepLog:
    """Started, seen running, deleted."""
    log = StepLog()
    wanted = pod(container("app"))
    state = PodWorkerState(ref=REF, pod=wanted, stage=Stage.SYNCING, started_wall=WALL)
    running = view(box(0), instance("app", RUNNING, hash_of=container_hash(wanted.spec.containers[0])), read_at=3.0)
    events: list[tuple[float, Event]] = [
        (1.0, RuntimeChanged(view(read_at=1.0), WALL)),
        (2.0, SyncEnded(("app",))),
        (3.0, RuntimeChanged(running, WALL)),
        (4.0, KillRequested(KillReason.DELETED, "deleted", 5)),
        (5.0, StopEnded()),
    ]
    for at, event in events:
        after, commands = step(state, event, at, RULES)
        log.append(WorkerStep(at, state, event, RULES, after, commands))
        state = after
    return log


def document() -> dict[str, Any]:
    made = record(life_of_a_pod(), "1.0")
    assert made is not None
    decoded: dict[str, Any] = json.loads(json.dumps(made))
    return decoded

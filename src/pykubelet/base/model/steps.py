"""The newest steps of a pod's state machine, kept for inspection and replay."""

from __future__ import annotations

from collections import deque

from pykubelet.base.kit.values import Value

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


class StepLog:
    """The newest steps of one machine, oldest first, `kept` at most. Only its owner adds steps; others take snapshots."""

    def __init__(self, kept: int = KEPT_STEPS) -> None:
        self.kept = kept
        self._steps: deque[WorkerStep] = deque(maxlen=kept)

    def add(self, step: WorkerStep) -> None:
        """Add a step. If the log is full, the oldest one is dropped."""
        self._steps.append(step)

    def clear(self) -> None:
        """Drop all steps."""
        self._steps.clear()

    def snapshot(self) -> tuple[WorkerStep, ...]:
        """The kept steps, oldest first."""
        return tuple(self._steps)

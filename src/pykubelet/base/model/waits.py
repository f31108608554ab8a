"""Waits: everything the agent waits for on behalf of a pod has a name, a start and an owner.

They answer "why is my pod not starting?" in `pykubelet explain`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from pykubelet.base.kit.values import Value


class Wait(Value):
    """`what` the pod waits for, `since` when (wall seconds), which room `owner` has it, and what comes next.

    `subject` narrows it down (a container, a volume, an image). `reason` and `detail` say why it is not done yet, in
    the reference's words where there are some. `next_at` (wall seconds) and `next_step` say what happens without
    anybody's help; None where only the outside can end the wait.
    """

    what: str
    owner: str
    since: float
    subject: str = ""
    reason: str = ""
    detail: str = ""
    next_step: str = ""
    next_at: float | None = None


SANDBOX, CONTAINER_START = "sandbox", "container start"
"""What a pod waits for while the runtime makes it."""


class Waits(Protocol):
    """Where work says what it waits for."""

    def waiting(self, wait: Wait) -> AbstractContextManager[None]:
        """The block waits for `wait`; its `since` is set when the block begins."""
        ...


class UnrecordedWaits:
    """For work that nobody asks about."""

    def waiting(self, wait: Wait) -> AbstractContextManager[None]:  # noqa: ARG002 - nobody is told
        return nullcontext()


UNRECORDED = UnrecordedWaits()


class StoryLine(Value):
    """One transition or Event of a pod: when (wall seconds), what, and what caused it."""

    at: float
    what: str
    cause: str = ""

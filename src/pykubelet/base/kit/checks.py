"""Whether the state machines of pods and volumes check their states after every step.

Owns: `CHECKS`. A check can cost more than the step, so an agent checks only with `PYKUBELET_CHECK_STATES=1` in its environment. The
tests always do. A state machine raises `BrokenInvariantError` if its state breaks an invariant, as for any other bug.
"""

from __future__ import annotations

import os

VARIABLE = "PYKUBELET_CHECK_STATES"


class BrokenInvariantError(Exception):
    """A bug: the text names the pod, volume or device, and the rule that its state breaks."""


class Checks:
    """The switch. `is_on` may be set at any time."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on


CHECKS = Checks(is_on=os.environ.get(VARIABLE) == "1")

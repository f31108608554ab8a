"""What one try of a probe came to. Every failure of the network is such a value, never an exception."""

from __future__ import annotations

from enum import StrEnum

from pykubelet.base.kit.text import shorten
from pykubelet.base.kit.values import Value

#: Characters of output or error that are kept: as many as the reference keeps bytes of what a command printed.
OUTPUT_LIMIT = 10 << 10


class Verdict(StrEnum):
    """Spelled as the reference prints them. A warning passes and says something."""

    SUCCESS = "success"
    WARNING = "warning"
    FAILURE = "failure"
    UNKNOWN = "unknown"


class Outcome(Value):
    """`output` is for people, in the reference's words; the functions below bound it. With an `error` the try tells nothing
    about the container, and where that `is_final` another one now would not either.

    `timed_out`: it did not end in time. `late_s`: of such a try, by how many seconds this agent noticed the end too late; an agent that was
    held up itself cannot tell a slow container from a good one.
    """

    verdict: Verdict
    output: str = ""
    error: str = ""
    late_s: float = 0.0
    timed_out: bool = False
    is_final: bool = False


def passed(output: str = "") -> Outcome:
    return Outcome(Verdict.SUCCESS, shorten(output, OUTPUT_LIMIT))


def warned(output: str) -> Outcome:
    return Outcome(Verdict.WARNING, shorten(output, OUTPUT_LIMIT))


def failed(output: str, late_s: float = 0.0, *, timed_out: bool = False) -> Outcome:
    return Outcome(Verdict.FAILURE, shorten(output, OUTPUT_LIMIT), late_s=late_s, timed_out=timed_out)


def errored(error: str, verdict: Verdict = Verdict.UNKNOWN, late_s: float = 0.0, *, is_final: bool = False) -> Outcome:
    return Outcome(verdict, error=shorten(error, OUTPUT_LIMIT), late_s=late_s, is_final=is_final)

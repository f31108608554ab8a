"""The result of one attempt of a probe. Network failures are such values too, not exceptions."""

from __future__ import annotations

from enum import StrEnum

from pykubelet.base.kit.text import shorten
from pykubelet.base.kit.values import Value

#: The most characters of output or error that are kept. The reference keeps as many bytes of a command's output.
OUTPUT_LIMIT = 10 << 10


class ProbeVerdict(StrEnum):
    """The verdicts, as the reference prints them. A warning counts as passed, and an Event reports it."""

    SUCCESS = "success"
    WARNING = "warning"
    FAILURE = "failure"
    UNKNOWN = "unknown"


class Outcome(Value):
    """The result. `output`: text for users, in the reference's wording; the functions below limit its length.

    `error`: set if the attempt gives no information about the container. `is_final`: another attempt now would not either.
    `timed_out`: it did not end in time. `late_s`: how many seconds after the deadline the agent noticed the time-out; an agent
    that was delayed itself cannot distinguish a slow container from a good one.
    """

    verdict: ProbeVerdict
    output: str = ""
    error: str = ""
    late_s: float = 0.0
    timed_out: bool = False
    is_final: bool = False


def passed(output: str = "") -> Outcome:
    """The probe passed."""
    return Outcome(ProbeVerdict.SUCCESS, shorten(output, OUTPUT_LIMIT))


def warned(output: str) -> Outcome:
    """The probe passed with a warning, as after a redirect to another host."""
    return Outcome(ProbeVerdict.WARNING, shorten(output, OUTPUT_LIMIT))


def failed(output: str, late_s: float = 0.0, *, timed_out: bool = False) -> Outcome:
    """The probe failed. `late_s`, `timed_out`: see `Outcome`."""
    return Outcome(ProbeVerdict.FAILURE, shorten(output, OUTPUT_LIMIT), late_s=late_s, timed_out=timed_out)


def errored(
    error: str, verdict: ProbeVerdict = ProbeVerdict.UNKNOWN, late_s: float = 0.0, *, is_final: bool = False
) -> Outcome:
    """The probe could not be carried out. `verdict`, `late_s`, `is_final`: see `Outcome`."""
    return Outcome(verdict, error=shorten(error, OUTPUT_LIMIT), late_s=late_s, is_final=is_final)

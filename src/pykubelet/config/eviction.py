"""Eviction settings: the default thresholds, and parsing of the thresholds, grace periods and reclaim amounts. Pure.

How a met threshold is handled is not here. Source: the doc page Node-pressure Eviction.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Mapping

from pykubelet.base.api.quantity import NANO, Amount, Format, QuantityError, parse_text
from pykubelet.base.kit.durations import SECOND, Duration, duration
from pykubelet.base.kit.values import Value
from pykubelet.base.model.evictions import EVICTION_SIGNALS, STALL_SCALE
from pykubelet.config.errors import ConfigProblem
from pykubelet.config.kubelet import KubeletConfiguration

DEFAULT_HARD: Mapping[str, str] = {name: signal.default for name, signal in EVICTION_SIGNALS.items() if signal.default}
SIGNALS = tuple(name for name, signal in EVICTION_SIGNALS.items() if signal.is_configurable)
#: Numbers that Go's `ParseFloat` accepts; Python's `float` accepts more.
_FLOAT = re.compile(r"[+-]?(\d+(?:\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_LARGEST_SINGLE = 3.4028234e38
#: How long a stall must last before a pod is evicted for it.
STALL_GRACE_S = 10
#: The values that disable a signal.
_OFF = ("0%", "100%")


class Limit(Value):
    """Either an amount or a fraction of the capacity (1: all of it, in single precision)."""

    amount: Amount | None = None
    fraction: float | None = None


class Threshold(Value):
    """A threshold, met if `signal` is less than `limit`. `grace`: how long it must be met before pods are evicted.

    `reclaim`: how far above the limit eviction should raise the signal.
    """

    signal: str
    limit: Limit
    grace: Duration = Duration(0)
    reclaim: Limit | None = None

    @property
    def is_soft(self) -> bool:
        """Whether it has a grace period. A soft threshold without one behaves like a hard one."""
        return self.grace.ns > 0


class Thresholds(Value):
    """The thresholds of one configuration, and the problems of entries that cannot be used."""

    thresholds: tuple[Threshold, ...]
    problems: tuple[ConfigProblem, ...]


def with_default_hard(given: Mapping[str, str] | None, merge: bool) -> dict[str, str]:
    """`evictionHard` of a configuration file with its defaults. If absent, all defaults apply; `merge` adds missing signals."""
    if given is None:
        return dict(DEFAULT_HARD)
    return {**DEFAULT_HARD, **given} if merge else dict(given)


def read_thresholds(config: KubeletConfiguration) -> Thresholds:
    """Parse all thresholds, hard ones first. `0%` and `100%` disable a signal."""
    problems: list[ConfigProblem] = []
    hard = _limits("evictionHard", config.evictionHard, problems)
    soft = _limits("evictionSoft", config.evictionSoft, problems)
    grace = _graces(config, problems)
    reclaim = _reclaims(config, problems)
    for signal in soft:
        if signal not in config.evictionSoftGracePeriod:
            text = f"evictionSoft[{signal}]: grace period must be specified for the soft eviction threshold {signal}"
            problems.append(ConfigProblem("evictionSoft", text))
    found = [Threshold(signal, limit, Duration(0), reclaim.get(signal)) for signal, limit in hard.items()]
    found += [
        Threshold(signal, limit, grace.get(signal, Duration(0)), reclaim.get(signal)) for signal, limit in soft.items()
    ]
    return Thresholds(tuple(found), tuple(problems))


def stall_threshold(name: str, share: str) -> Threshold:
    """Parse a stall threshold such as `memory.full` and `20%`. Raises ValueError.

    This one is met if all tasks were stalled on memory for more than a fifth of the last 10 s, during `STALL_GRACE_S`. It
    stays met until they are stalled for less than a tenth.
    """
    resource, _, kind = name.partition(".")
    signal = f"{resource}.stall.{kind}"
    if signal not in EVICTION_SIGNALS:
        raise ValueError(f'unknown stall "{name}", must be one of memory.some, memory.full, io.some, io.full')
    limit = _limit(share)
    if isinstance(limit, str) or limit.fraction is None or not 0 < limit.fraction < 1:
        raise ValueError(f'invalid share of time "{share}", must be a percentage above 0% and below 100%')
    return Threshold(
        signal, _calm(1 - limit.fraction), Duration(STALL_GRACE_S * SECOND), reclaim=_calm(limit.fraction / 2)
    )


def _calm(share: float) -> Limit:
    """A share of the time in the unit of stall signals; a fraction in single precision would be rounded down by one."""
    return Limit(amount=Amount(round(share * 100 * STALL_SCALE) * NANO, Format.DECIMAL_SI))


def reserved_by(thresholds: Iterable[Threshold], capacity: Mapping[str, int]) -> dict[str, int]:
    """The amounts (bytes or pieces) by resource that the hard thresholds keep free of the node's `capacity`."""
    kept: dict[str, int] = {}
    for threshold in thresholds:
        resource = EVICTION_SIGNALS[threshold.signal].reserves
        if not resource or threshold.is_soft:
            continue
        if threshold.limit.amount is not None:
            kept[resource] = threshold.limit.amount.value()
        elif threshold.limit.fraction is not None:
            kept[resource] = int(capacity.get(resource, 0) * threshold.limit.fraction)
    return kept


def _limits(field: str, given: Mapping[str, str], problems: list[ConfigProblem]) -> dict[str, Limit]:
    limits = {}
    for signal, text in given.items():
        if not _known(field, signal, problems) or text in _OFF:
            continue
        limit = _limit(text)
        if isinstance(limit, str):
            problem = limit
        elif limit.fraction is not None and limit.fraction < 0:
            problem = f"eviction percentage threshold {signal} must be >= 0%: {text}"
        elif limit.fraction is not None and limit.fraction > 1:
            problem = f"eviction percentage threshold {signal} must be <= 100%: {text}"
        elif limit.amount is not None and limit.amount.nano <= 0:
            problem = f"eviction threshold {signal} must be positive: {limit.amount}"
        else:
            limits[signal] = limit
            continue
        problems.append(ConfigProblem(field, f'{field}[{signal}]: invalid value "{text}": {problem}'))
    return limits


def _graces(config: KubeletConfiguration, problems: list[ConfigProblem]) -> dict[str, Duration]:
    field = "evictionSoftGracePeriod"
    graces = {}
    for signal, text in config.evictionSoftGracePeriod.items():
        if not _known(field, signal, problems):
            continue
        try:
            graces[signal] = duration(text)
        except ValueError as error:
            problems.append(ConfigProblem(field, f'{field}[{signal}]: invalid value "{text}": {error}'))
            continue
        if graces[signal].ns < 0:
            problem = f"invalid eviction grace period specified: {text}, must be a positive value"
            problems.append(ConfigProblem(field, f"{field}[{signal}]: {problem}"))
    return graces


def _reclaims(config: KubeletConfiguration, problems: list[ConfigProblem]) -> dict[str, Limit]:
    field = "evictionMinimumReclaim"
    reclaims = {}
    for signal, text in config.evictionMinimumReclaim.items():
        if not _known(field, signal, problems):
            continue
        limit = _limit(text)
        if isinstance(limit, str):
            problem = limit
        elif limit.fraction is not None and limit.fraction <= 0:
            problem = f"eviction percentage minimum reclaim {signal} must be positive: {text}"
        elif limit.amount is not None and limit.amount.nano < 0:
            problem = f"negative eviction minimum reclaim specified for {signal}"
        else:
            reclaims[signal] = limit
            continue
        problems.append(ConfigProblem(field, f'{field}[{signal}]: invalid value "{text}": {problem}'))
    return reclaims


def _known(field: str, signal: str, problems: list[ConfigProblem]) -> bool:
    if signal in SIGNALS:
        return True
    text = f"unsupported eviction signal {signal} ({field}): must be one of {', '.join(SIGNALS)}"
    problems.append(ConfigProblem(field, text))
    return False


def _single(number: float) -> float:
    """Round to single precision, in which the kubelet keeps percentages; otherwise amounts would differ by a few bytes."""
    if abs(number) > _LARGEST_SINGLE:
        return math.copysign(math.inf, number)
    rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    return rounded


def _limit(text: str) -> Limit | str:
    """Parse a limit. Returns the problem as text if it is not one."""
    if text.endswith("%"):
        number = text.rstrip("%")
        if not _FLOAT.fullmatch(number):
            return "must be a quantity or a percentage"
        return Limit(fraction=_single(_single(float(number)) / 100))
    try:
        return Limit(amount=parse_text(text))
    except QuantityError as error:
        return str(error)

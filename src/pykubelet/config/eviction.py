"""Eviction settings: the default thresholds, and reading the maps of thresholds, grace periods and reclaim amounts. Pure.

Source: the doc page Node-pressure Eviction. What to do about a met threshold is not here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from pykubelet.base.api.quantity import Amount, QuantityError, parse_text
from pykubelet.base.kit.durations import Duration, duration
from pykubelet.base.kit.values import Value
from pykubelet.config.errors import Problem
from pykubelet.config.kubelet import KubeletConfiguration

DEFAULT_HARD: Mapping[str, str] = {
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}
SIGNALS = (
    "memory.available",
    "allocatableMemory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "pid.available",
)


#: Which hard threshold keeps which resource from pods.
_RESERVES = {"memory.available": "memory", "nodefs.available": "ephemeral-storage"}


class Limit(Value):
    """An amount, or a part of the capacity: exactly one of the two. `fraction`: 0 to 1, in single precision."""

    amount: Amount | None = None
    fraction: float | None = None


class Threshold(Value):
    """Met when `signal` is less than `limit`. `grace`: how long it must be met (zero: hard). `reclaim`: what eviction
    should win above the limit."""

    signal: str
    limit: Limit
    grace: Duration
    reclaim: Limit | None


class Thresholds(Value):
    """What the maps of one configuration say; `problems` where they say nothing usable."""

    thresholds: tuple[Threshold, ...]
    problems: tuple[Problem, ...]


def with_default_hard(given: Mapping[str, str] | None, merge: bool) -> dict[str, str]:
    """`evictionHard` of a configuration file: absent means the defaults; `merge` fills in the missing signals."""
    if given is None:
        return dict(DEFAULT_HARD)
    return {**DEFAULT_HARD, **given} if merge else dict(given)


def read_thresholds(config: KubeletConfiguration) -> Thresholds:
    """All thresholds, hard ones first. `0%` and `100%` turn a signal off."""
    problems: list[Problem] = []
    hard = _limits("evictionHard", config.evictionHard, problems)
    soft = _limits("evictionSoft", config.evictionSoft, problems)
    grace = _graces(config, problems)
    reclaim = _reclaims(config, problems)
    for signal in soft:
        if signal not in config.evictionSoftGracePeriod:
            text = f"grace period must be specified for the soft eviction threshold {signal}"
            problems.append(Problem("evictionSoft", text))
    found = [Threshold(signal, limit, Duration(0), reclaim.get(signal)) for signal, limit in hard.items()]
    found += [
        Threshold(signal, limit, grace.get(signal, Duration(0)), reclaim.get(signal)) for signal, limit in soft.items()
    ]
    return Thresholds(tuple(found), tuple(problems))


def reserved_by(thresholds: Iterable[Threshold], capacity: Mapping[str, int]) -> dict[str, int]:
    """Bytes by resource that the hard thresholds keep free of the `capacity` of the node."""
    kept: dict[str, int] = {}
    for threshold in thresholds:
        resource = _RESERVES.get(threshold.signal)
        if resource is None or threshold.grace.s > 0:
            continue
        if threshold.limit.amount is not None:
            kept[resource] = threshold.limit.amount.value()
        elif threshold.limit.fraction is not None:
            kept[resource] = int(capacity.get(resource, 0) * threshold.limit.fraction)
    return kept


def _limits(field: str, given: Mapping[str, str], problems: list[Problem]) -> dict[str, Limit]:
    limits = {}
    for signal, text in given.items():
        if not _known(field, signal, problems):
            continue
        limit = _limit(text)
        if limit is None or (limit.amount is not None and limit.amount.nano <= 0):
            what = "must be a quantity above zero or a percentage from 0% to 100%"
            problems.append(Problem(field, f'{field}[{signal}]: invalid value "{text}": {what}'))
        elif limit.fraction not in (0.0, 1.0):
            limits[signal] = limit
    return limits


def _graces(config: KubeletConfiguration, problems: list[Problem]) -> dict[str, Duration]:
    field = "evictionSoftGracePeriod"
    graces = {}
    for signal, text in config.evictionSoftGracePeriod.items():
        if not _known(field, signal, problems):
            continue
        try:
            graces[signal] = duration(text)
        except ValueError as error:
            problems.append(Problem(field, f'{field}[{signal}]: invalid value "{text}": {error}'))
            continue
        if graces[signal].ns < 0:
            problems.append(
                Problem(field, f"invalid eviction grace period specified: {text}, must be a positive value")
            )
    return graces


def _reclaims(config: KubeletConfiguration, problems: list[Problem]) -> dict[str, Limit]:
    field = "evictionMinimumReclaim"
    reclaims = {}
    for signal, text in config.evictionMinimumReclaim.items():
        if not _known(field, signal, problems):
            continue
        limit = _limit(text)
        if limit is None or (limit.amount is not None and limit.amount.nano < 0):
            what = "must be a quantity that is not negative or a percentage from 0% to 100%"
            problems.append(Problem(field, f'{field}[{signal}]: invalid value "{text}": {what}'))
        else:
            reclaims[signal] = limit
    return reclaims


def _known(field: str, signal: str, problems: list[Problem]) -> bool:
    if signal in SIGNALS:
        return True
    text = f"unsupported eviction signal {signal} ({field}): must be one of {', '.join(SIGNALS)}"
    problems.append(Problem(field, text))
    return False


def _single(number: float) -> float:
    """The nearest number of single precision, in which the kubelet keeps percentages: amounts differ by some bytes."""
    rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    return rounded


def _limit(text: str) -> Limit | None:
    if text.endswith("%"):
        try:
            percent = float(text[:-1])
        except ValueError:
            return None
        return Limit(fraction=_single(_single(percent) / 100)) if 0 <= percent <= 100 else None
    try:
        return Limit(amount=parse_text(text))
    except QuantityError:
        return None

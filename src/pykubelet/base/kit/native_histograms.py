"""Native histograms: counts in many buckets of one relative width, of which only those with values exist. Pure.

The values of Kubernetes' components: a bucket is at most 10 % wider than the one before, which is schema 3 (8 buckets for each power of
two), and there are at most 160. With more, pairs of buckets become one, which halves the resolution.
Source: the Prometheus specification "Native Histograms"; gate NativeHistograms.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from math import exp2, frexp, isfinite, ldexp

SCHEMA, MAX_BUCKETS = 3, 160
#: Prometheus knows none below.
LEAST_SCHEMA = -4
#: Values up to this one are counted as zero.
ZERO_THRESHOLD = ldexp(1, -128)
#: The upper bounds of the buckets between 0.5 and 1, of each schema above 0.
_BOUNDS = {schema: tuple(exp2(number / (1 << schema) - 1) for number in range(1 << schema)) for schema in (1, 2, 3)}
#: A run of buckets: how many empty ones are before it, and the counts.
Span = tuple[int, list[int]]


class NativeCounts:
    """The buckets of one series. The values up to 2 to the power of i / 2**schema are in the buckets up to index i. Mutable."""

    __slots__ = ("negative", "positive", "schema", "zero")

    def __init__(self) -> None:
        self.schema = SCHEMA
        self.zero = 0
        self.positive: dict[int, int] = {}
        self.negative: dict[int, int] = {}

    def copy(self) -> NativeCounts:
        """The counts of this moment."""
        found = NativeCounts()
        found.schema, found.zero = self.schema, self.zero
        found.positive, found.negative = self.positive.copy(), self.negative.copy()
        return found

    def observe(self, value: float) -> None:
        """Count a value. An infinite one, and NaN, are counted as zero: no bucket has them."""
        if abs(value) <= ZERO_THRESHOLD or not isfinite(value):
            self.zero += 1
            return
        side = self.positive if value > 0 else self.negative
        index = _index(abs(value), self.schema)
        if index in side:
            side[index] += 1
            return
        side[index] = 1
        while len(self.positive) + len(self.negative) > MAX_BUCKETS and self.schema > LEAST_SCHEMA:
            self.schema -= 1
            self.positive, self.negative = _halved(self.positive), _halved(self.negative)


def _index(value: float, schema: int) -> int:
    fraction, exponent = frexp(value)
    if schema > 0:
        bounds = _BOUNDS[schema]
        return bisect_left(bounds, fraction) + (exponent - 1) * len(bounds)
    index = exponent - (fraction == 0.5)
    return (index + (1 << -schema) - 1) >> -schema


def _halved(counts: dict[int, int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for index, count in counts.items():
        found[(index + 1) >> 1] = found.get((index + 1) >> 1, 0) + count
    return found


def spans(counts: dict[int, int]) -> Iterator[Span]:
    """The buckets in runs without gaps, in ascending order. The first offset is the index of the first bucket."""
    run: list[int] = []
    start = after = 0
    for index in sorted(counts):
        if run and index != start + len(run):
            yield start - after, run
            after = start + len(run)
            run = []
        if not run:
            start = index
        run.append(counts[index])
    if run:
        yield start - after, run

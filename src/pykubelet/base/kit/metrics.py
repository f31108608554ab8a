"""Counters, gauges and histograms of the process, and metrics as values.

Owns: `REGISTRY`. Every `Counter`, `Gauge` and `Histogram` is a constant of its module and registers itself when it is created.
Like a log line, a count is made where something happens and read elsewhere; no decision reads it. Figures that a cell
already holds at the time of a scrape have no metric object here. A histogram counts in the buckets that it declares, and in native ones.
Source: the Prometheus documentation "Data model", and its specification "Native Histograms" (gate NativeHistograms).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from math import exp2, frexp, isfinite, ldexp

from msgspec import Struct

from pykubelet.base.kit.values import Value, field

DEFAULT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: The most series that a metric may have; further label values are counted as `other`.
MAX_SERIES = 2000
OTHER = "other"
_EXPONENT_FROM = 1e6
Labels = tuple[tuple[str, str], ...]


class MetricSample(Value):
    """One line of the exposition. `labels`: in their order. `at`: wall seconds; None: the time of the scrape.

    `suffix`: appended to the family's name: `_bucket`, `_sum`, `_count`, or empty.
    """

    value: float
    labels: Labels = ()
    at: float | None = None
    suffix: str = ""


class MetricFamily(Value):
    """A metric with all its samples. `kind`: counter, gauge, histogram. `native`: the native histograms of its series, by labels."""

    name: str
    kind: str
    help: str
    samples: Iterable[MetricSample] = field(default_factory=tuple)
    native: Mapping[Labels, NativeCounts] = field(default_factory=dict)


class _Metric(ABC):
    """The parts that all metrics share: a name, a help text, and the names of the labels."""

    def __init__(self, name: str, help: str, labels: tuple[str, ...], registry: Registry | None) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        (registry or REGISTRY).add(self)

    @abstractmethod
    def family(self) -> MetricFamily:
        """All samples, now."""

    def _key(self, values: tuple[str, ...], known: Mapping[tuple[str, ...], object]) -> tuple[str, ...]:
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {values}")
        if values not in known and len(known) >= MAX_SERIES:
            return (OTHER,) * len(values)
        return values

    def _labelled(self, values: tuple[str, ...]) -> Labels:
        return tuple(zip(self.labels, values, strict=True))


class Counter(_Metric):
    """A value that only grows. A counter without labels begins at 0; others have no series before their first `inc`."""

    def __init__(self, name: str, help: str, labels: tuple[str, ...] = (), *, registry: Registry | None = None) -> None:
        super().__init__(name, help, labels, registry)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def inc(self, *labels: str, by: float = 1.0) -> None:
        """Add `by` to the sample with these label values."""
        key = labels if labels in self._values else self._key(labels, self._values)
        self._values[key] = self._values.get(key, 0.0) + by

    def forget(self, *labels: str) -> None:
        """What these labels stood for is gone."""
        self._values.pop(labels, None)

    def value(self, *labels: str) -> float:
        """The sample with these label values, 0 if it does not exist."""
        return self._values.get(labels, 0.0)

    def family(self) -> MetricFamily:
        """All samples as a family of type counter."""
        samples = [MetricSample(value, self._labelled(key)) for key, value in self._values.items()]
        return MetricFamily(self.name, "counter", self.help, samples)


class Gauge(_Metric):
    """A value that goes up and down; not for figures that a cell holds. Without labels it begins at 0, like a counter."""

    def __init__(self, name: str, help: str, labels: tuple[str, ...] = (), *, registry: Registry | None = None) -> None:
        super().__init__(name, help, labels, registry)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, by: float, *labels: str) -> None:
        """Add `by`, which may be negative, to the sample with these label values."""
        key = self._key(labels, self._values)
        self._values[key] = self._values.get(key, 0.0) + by

    def set(self, value: float, *labels: str) -> None:
        """Replace the sample with these label values."""
        self._values[self._key(labels, self._values)] = value

    def value(self, *labels: str) -> float:
        """The sample with these label values, 0 if it does not exist."""
        return self._values.get(labels, 0.0)

    def family(self) -> MetricFamily:
        """All samples as a family of type gauge."""
        samples = [MetricSample(value, self._labelled(key)) for key, value in self._values.items()]
        return MetricFamily(self.name, "gauge", self.help, samples)


# Native histograms: counts in many buckets of one relative width, of which only those with values exist

#: Those of Kubernetes' components: a bucket is at most 10 % wider than the one before, which is schema 3 (8 buckets for each power of two),
#: and there are at most 160. With more, pairs of buckets become one, which halves the resolution.
SCHEMA, MAX_NATIVE_BUCKETS = 3, 160
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
        while len(self.positive) + len(self.negative) > MAX_NATIVE_BUCKETS and self.schema > LEAST_SCHEMA:
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


# Metrics with buckets


class _Buckets(Struct):
    counts: list[int]
    total: float = 0.0
    native: NativeCounts = field(default_factory=NativeCounts)


class Histogram(_Metric):
    """Counts values in buckets. `bounds`: the upper limits of the buckets, in ascending order.

    Without labels it begins with empty buckets, so that clients see the first value as an increase.
    """

    def __init__(
        self,
        name: str,
        help: str,
        labels: tuple[str, ...] = (),
        bounds: tuple[float, ...] = DEFAULT_BUCKETS_S,
        *,
        registry: Registry | None = None,
    ) -> None:
        super().__init__(name, help, labels, registry)
        self._bounds = bounds
        self._values: dict[tuple[str, ...], _Buckets] = {}
        if not labels:
            self._values[()] = self._empty()

    def observe(self, value: float, *labels: str) -> None:
        """Count `value` in its bucket, for these label values."""
        found = self._values.get(labels)
        if found is None:
            key = self._key(labels, self._values)
            found = self._values.setdefault(key, self._empty())
        found.counts[bisect_left(self._bounds, value)] += 1
        found.total += value
        found.native.observe(value)

    def forget(self, *labels: str) -> None:
        """What these labels stood for is gone."""
        self._values.pop(labels, None)

    def _empty(self) -> _Buckets:
        return _Buckets([0] * (len(self._bounds) + 1))

    def count(self, *labels: str) -> int:
        """How many values were observed with these label values."""
        found = self._values.get(labels)
        return sum(found.counts) if found is not None else 0

    def family(self) -> MetricFamily:
        """All buckets, sums and counts as a family of type histogram."""
        samples: list[MetricSample] = []
        for key, found in self._values.items():
            samples += histogram_samples(self._bounds, found.counts, found.total, self._labelled(key))
        native = {self._labelled(key): found.native.copy() for key, found in self._values.items()}
        return MetricFamily(self.name, "histogram", self.help, samples, native)


def bound_text(bound: float) -> str:
    """The bound of a bucket as Go's Prometheus client writes it. Pure.

    Clients compare bounds as text, and queries add up the buckets of many nodes: the shortest digits that stand for the
    number, with an exponent of at least two digits from a million on.
    """
    if bound == float("inf"):
        return "+Inf"
    text = repr(float(bound))
    if abs(bound) < _EXPONENT_FROM:
        return text.removesuffix(".0")
    digits, _, exponent = f"{Decimal(text).normalize():e}".partition("e+")
    return f"{digits}e+{int(exponent):02d}"


def exponential_bounds(start: float, factor: float, count: int) -> tuple[float, ...]:
    """`count` bounds, each `factor` times the one before. Multiplied one by one, so that the last digits are those of Go. Pure."""
    bounds = [start]
    while len(bounds) < count:
        bounds.append(bounds[-1] * factor)
    return tuple(bounds)


def histogram_samples(
    bounds: tuple[float, ...], counts: list[int], total: float, labels: Labels = ()
) -> Iterator[MetricSample]:
    """The lines of one series. `counts` has one number more than `bounds`: the count of values above all bounds."""
    seen = 0
    for bound, number in zip((*bounds, float("inf")), counts, strict=True):
        seen += number
        yield MetricSample(seen, (*labels, ("le", bound_text(bound))), suffix="_bucket")
    yield MetricSample(total, labels, suffix="_sum")
    yield MetricSample(seen, labels, suffix="_count")


class Registry:
    """All metrics of the process, by name."""

    def __init__(self) -> None:
        self._metrics: dict[str, _Metric] = {}

    def add(self, metric: _Metric) -> None:
        """Register a metric. Raises ValueError if one with its name exists."""
        if metric.name in self._metrics:
            raise ValueError(f"the metric {metric.name} exists already")
        self._metrics[metric.name] = metric

    def __iter__(self) -> Iterator[_Metric]:
        """Iterate over the metrics, sorted by name."""
        return (self._metrics[name] for name in sorted(self._metrics))

    def families(self) -> Iterator[MetricFamily]:
        """The families of all registered metrics."""
        return (metric.family() for metric in self)


#: `REGISTRY` is served at `/metrics`; `PROBES`, which has series for single containers, at `/metrics/probes`.
REGISTRY = Registry()
PROBES = Registry()

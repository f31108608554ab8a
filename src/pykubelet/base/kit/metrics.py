"""Counters, gauges and histograms of the process, and metrics as values.

Owns: `REGISTRY`, to which every `Counter`, `Gauge` and `Histogram` adds itself when it is made, once, as a constant of its module. Like a
log line, a count is told where something happens and read elsewhere; no decision reads it. What can be read off a cell
when somebody asks is not counted here. Source: the Prometheus documentation "Data model".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from pykubelet.base.kit.values import Value, field

DEFAULT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: A metric has no more series than this; what goes beyond is counted under the label value `other`.
MAX_SERIES = 2000
OTHER = "other"
Labels = tuple[tuple[str, str], ...]


class Sample(Value):
    """One line. `labels` in their order. `at`: wall seconds, None: the moment of the scrape. `suffix`: `_bucket`, ..."""

    value: float
    labels: Labels = ()
    at: float | None = None
    suffix: str = ""


class Family(Value):
    """A metric with all its samples. `kind`: counter, gauge, histogram."""

    name: str
    kind: str
    help: str
    samples: Iterable[Sample] = field(default_factory=tuple)


class _Metric(ABC):
    """What all have: a name, words for people, and the names of the labels."""

    def __init__(self, name: str, help: str, labels: tuple[str, ...], registry: Registry | None) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        (registry or REGISTRY).add(self)

    @abstractmethod
    def family(self) -> Family:
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
    """Grows only. A counter without labels begins at 0, others with their first `inc`."""

    def __init__(self, name: str, help: str, labels: tuple[str, ...] = (), *, registry: Registry | None = None) -> None:
        super().__init__(name, help, labels, registry)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def inc(self, *labels: str, by: float = 1.0) -> None:
        key = labels if labels in self._values else self._key(labels, self._values)
        self._values[key] = self._values.get(key, 0.0) + by

    def forget(self, *labels: str) -> None:
        """What these labels stood for is gone."""
        self._values.pop(labels, None)

    def value(self, *labels: str) -> float:
        return self._values.get(labels, 0.0)

    def family(self) -> Family:
        samples = [Sample(value, self._labelled(key)) for key, value in self._values.items()]
        return Family(self.name, "counter", self.help, samples)


class Gauge(_Metric):
    """How many there are now of what comes and goes, or what was last said; not for what a cell tells. Nothing until then."""

    def __init__(self, name: str, help: str, labels: tuple[str, ...] = (), *, registry: Registry | None = None) -> None:
        super().__init__(name, help, labels, registry)
        self._values: dict[tuple[str, ...], float] = {}

    def add(self, by: float, *labels: str) -> None:
        key = self._key(labels, self._values)
        self._values[key] = self._values.get(key, 0.0) + by

    def set(self, value: float, *labels: str) -> None:
        self._values[self._key(labels, self._values)] = value

    def value(self, *labels: str) -> float:
        return self._values.get(labels, 0.0)

    def family(self) -> Family:
        samples = [Sample(value, self._labelled(key)) for key, value in self._values.items()]
        return Family(self.name, "gauge", self.help, samples)


class _Buckets(Struct):
    counts: list[int]
    total: float = 0.0


class Histogram(_Metric):
    """Counts by size, in buckets of at most `bounds`, which grow."""

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

    def observe(self, value: float, *labels: str) -> None:
        found = self._values.get(labels)
        if found is None:
            key = self._key(labels, self._values)
            found = self._values.setdefault(key, _Buckets([0] * (len(self._bounds) + 1)))
        found.counts[bisect_left(self._bounds, value)] += 1
        found.total += value

    def forget(self, *labels: str) -> None:
        """What these labels stood for is gone."""
        self._values.pop(labels, None)

    def count(self, *labels: str) -> int:
        found = self._values.get(labels)
        return sum(found.counts) if found is not None else 0

    def family(self) -> Family:
        samples: list[Sample] = []
        for key, found in self._values.items():
            samples += histogram_samples(self._bounds, found.counts, found.total, self._labelled(key))
        return Family(self.name, "histogram", self.help, samples)


def histogram_samples(
    bounds: tuple[float, ...], counts: list[int], total: float, labels: Labels = ()
) -> Iterator[Sample]:
    """The lines of one series; `counts` has one number more than `bounds`, for what is larger than all."""
    seen = 0
    for bound, number in zip((*bounds, float("inf")), counts, strict=True):
        seen += number
        limit = "+Inf" if bound == float("inf") else f"{bound:g}"
        yield Sample(seen, (*labels, ("le", limit)), suffix="_bucket")
    yield Sample(total, labels, suffix="_sum")
    yield Sample(seen, labels, suffix="_count")


class Registry:
    """All metrics of the process, by name."""

    def __init__(self) -> None:
        self._metrics: dict[str, _Metric] = {}

    def add(self, metric: _Metric) -> None:
        if metric.name in self._metrics:
            raise ValueError(f"the metric {metric.name} exists already")
        self._metrics[metric.name] = metric

    def __iter__(self) -> Iterator[_Metric]:
        """By name."""
        return (self._metrics[name] for name in sorted(self._metrics))

    def families(self) -> Iterator[Family]:
        return (metric.family() for metric in self)


#: `/metrics`, and `/metrics/probes`, whose series are of single containers.
REGISTRY = Registry()
PROBES = Registry()

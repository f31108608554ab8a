"""The rows of `python -m bench --cluster`: samples of the scenarios to figures. Pure.

The baseline of a start is that of the raw runtime calls plus what the API server itself needs to send a new pod to a
watch; of a Ready pod also what it needs to take a patch and to send that. What the Go kubelet needs on such a machine stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.baseline import Cycle
from bench.stats import spread
from bench.table import Figure

KINDS = {False: "plain", True: "with a token"}
"""Pods without and with the usual volume of a service account token."""


@dataclass(slots=True)
class RoundTrips:
    """Milliseconds from a call until the watch delivers it, with nothing else at work: a pod created, a status patched."""

    created: list[float] = field(default_factory=list)
    patched: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Singles:
    """Pods one by one, of one kind, in milliseconds; requests of the agent in a block of starts or deletes, by pod."""

    started: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    gone: list[float] = field(default_factory=list)
    cycles: list[Cycle] = field(default_factory=list)
    start_requests: list[float] = field(default_factory=list)
    delete_requests: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BaselineBurst:
    """Pods of the baseline at once: milliseconds until all were seen Ready, and until all were gone from the runtime."""

    ready_ms: float
    gone_ms: float


def single_figures(kind: str, seen: Singles, trips: RoundTrips, factor: float, go: str) -> list[Figure]:
    """`kind` names the kind of pods; `factor` of the baseline is the reach of a start."""
    created = spread(trips.created).median
    start = spread([cycle.start_ms + created for cycle in seen.cycles])
    gone = spread([cycle.gone_ms for cycle in seen.cycles])
    count = len(seen.started)
    return [
        Figure(
            f"create call to container started, {count} pods one by one, {kind}",
            "ms",
            spread(seen.started),
            start,
            factor * start.median,
            f"<= {factor:.2f} x baseline",
            go,
        ),
        Figure(f"started to Ready seen by a watch, {kind}", "ms", spread(seen.ready), None, 10, "<= 10 ms", "10 ms"),
        Figure(
            f"delete call to object gone, {kind}",
            "ms",
            spread(seen.gone),
            gone,
            1.3 * gone.median,
            "<= 1.3 x baseline",
            "3.9 x",
        ),
        Figure(
            f"requests per started pod, {kind}", "", spread(seen.start_requests), None, *_reach(kind, 4, "<= 4", "9")
        ),
        Figure(f"requests per deleted pod, {kind}", "", spread(seen.delete_requests), None, 4, "<= 4", "7.5"),
    ]


def round_trip_figures(trips: RoundTrips) -> list[Figure]:
    """What the API server needs by itself, for information."""
    return [
        Figure("a pod created to seen by a watch: the API server alone", "ms", spread(trips.created)),
        Figure("a status patched to seen by a watch: the API server alone", "ms", spread(trips.patched)),
    ]


def burst_figures(
    kind: str,
    count: int,
    ready: Sequence[float],
    gone: Sequence[float],
    baseline: Sequence[BaselineBurst],
    runtime: Sequence[float],
) -> list[Figure]:
    """`baseline`: of as many pods with one create and one patch each; `runtime`: their start by runtime calls alone."""
    start, end = spread([pod.ready_ms for pod in baseline]), spread([pod.gone_ms for pod in baseline])
    what = f"{count} pods at once, {kind}"
    return [
        Figure(
            f"{what}, all Ready",
            "ms",
            spread(ready),
            start,
            *_reach(kind, 1.08 * start.median, "<= 1.08 x baseline", "1.12 x"),
        ),
        Figure(f"{what}, all started by runtime calls alone", "ms", spread(runtime)),
        Figure(
            f"{what}, all gone", "ms", spread(gone), end, *_reach(kind, 1.2 * end.median, "<= 1.2 x baseline", "1.9 x")
        ),
    ]


def _reach(kind: str, limit: float, target: str, reference: str) -> tuple[float | None, str, str]:
    """No pod of the baseline gets a token, which is a request of its own: the rows of such pods are for comparison."""
    return (limit, target, reference) if kind == KINDS[False] else (None, "", "")


def crowd_figures(count: int, start_ms: float, delete_ms: float, peak_mib: float) -> list[Figure]:
    """`count` pods at once: CPU by pod, and the greatest RSS."""
    return [
        Figure(f"agent CPU per pod started, {count} at once", "ms", spread([start_ms]), None, 20, "<= 20 ms", "27 ms"),
        Figure(f"agent CPU per pod deleted, {count} at once", "ms", spread([delete_ms]), None, 15, "<= 15 ms", "21 ms"),
        Figure(f"RSS with {count} pods, peak", "MiB", spread([peak_mib]), None, 105, "<= 105 MiB", "120-136 MiB"),
    ]


def idle_figures(count: int, requests: float, synced: Sequence[float], ready: Sequence[float]) -> list[Figure]:
    """`count` pods: requests a minute, and seconds after a kill."""
    return [
        Figure(f"requests a minute, {count} idle pods", "", spread([requests]), None, 8, "<= 8"),
        Figure(
            f"killed with {count} pods, start to the node Ready again",
            "s",
            spread(ready),
            None,
            1.0,
            "<= 1.0 s",
            "1.2 s",
        ),
        Figure(f"killed with {count} pods, start to all in sync", "s", spread(synced), None, 1.8, "<= 1.8 s", "2.7 s"),
    ]


def content_figures(took_ms: Sequence[float]) -> list[Figure]:
    """From the call that changes a ConfigMap until the running pod's volume has it."""
    what, target = "a ConfigMap changed to in a running pod's volume", "<= 1 s"
    return [
        Figure(what, "ms", spread(took_ms), None, 1000, target),
        Figure(f"{what}, longest of {len(took_ms)}", "ms", spread([max(took_ms)]), None, 1000, target),
    ]

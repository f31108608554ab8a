"""Counts requests, and writes what `/metrics` and `/metrics/slis` answer.

The metrics are those of an API server that Kubernetes calls stable and that this one has; their help texts have the levels.
Source: the Kubernetes documentation "Kubernetes Metrics Reference".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import chain

from pykubelet.base.kit.exposition import CONTENT_TYPE, render_metrics
from pykubelet.base.kit.metrics import Counter, Histogram, MetricFamily, MetricSample, Registry
from pykubelet.base.kit.values import replace
from pykubelet.net.http.server import Answer, Response, StreamedResponse
from pykubelet.net.http.wire import Request
from pykubelet_local_api.kinds.table import KINDS
from pykubelet_local_api.rest.options import read_bool
from pykubelet_local_api.rest.paths import Target
from pykubelet_local_api.store.store import ObjectStore

_METRICS = Registry()
_OF = ("verb", "group", "version", "resource", "subresource", "scope")
REQUESTS = Counter(
    "apiserver_request_total",
    "[STABLE] Counter of apiserver requests broken out for each verb, group, version, resource, scope and HTTP response code.",
    (*_OF, "code"),
    registry=_METRICS,
)
SECONDS = Histogram(
    "apiserver_request_duration_seconds",
    "[STABLE] Response latency distribution in seconds for each verb, group, version, resource, subresource and scope.",
    _OF,
    (0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60),
    registry=_METRICS,
)
_VERBS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_CONNECTED = frozenset({"attach", "exec", "portforward", "proxy"})
_CHECKS = ("healthz", "livez", "readyz")


def count_request(request: Request, target: Target | None, answered: Answer, took_s: float) -> None:
    """Count a request. What is answered for as long as the client wants has no duration."""
    status = answered.status if isinstance(answered, Response | StreamedResponse) else 101
    labels = _labels(request, target, status < 400)
    REQUESTS.inc(*labels, str(status))
    if labels[0] not in ("WATCH", "CONNECT"):
        SECONDS.observe(took_s, *labels)


def _labels(request: Request, target: Target | None, is_allowed: bool) -> tuple[str, ...]:
    """The query of a request that was refused is not read: that takes time."""
    verb = {"HEAD": "GET"}.get(request.method, request.method if request.method in _VERBS else "other")
    if target is None:
        return (verb, "", "", "", "", "")
    if target.subresource in _CONNECTED:
        verb = "CONNECT"
    elif verb == "GET" and (target.is_watch or (is_allowed and read_bool(request, "watch"))):
        verb = "WATCH"
    elif not target.name and verb in ("GET", "DELETE"):
        verb = "LIST" if verb == "GET" else "DELETECOLLECTION"
    scope = "resource" if target.name else "namespace" if target.namespace else "cluster"
    kind = target.kind
    subresource = target.subresource if target.subresource in kind.subresources else ""
    return (verb, kind.group, kind.version, kind.plural, subresource, scope)


_HEALTH = "/metrics/slis"
#: So many lines are written before other tasks run.
SAMPLES_AT_ONCE = 2000
METRICS_PATHS = ("/metrics", _HEALTH)


def metrics(path: str, store: ObjectStore, problem: str) -> Answer:
    """The answer at one of the paths. `problem`: what keeps the server from being ready, "" for nothing."""
    if path == _HEALTH:
        return Response(200, render_metrics([_health(problem)]), CONTENT_TYPE)
    return StreamedResponse(200, _in_parts(chain(_METRICS.families(), [_stored(store)])), CONTENT_TYPE)


async def _in_parts(families: Iterable[MetricFamily]) -> AsyncIterator[bytes]:
    """The text of families. Other tasks run between its parts: a series has 25 lines for each verb, resource and scope."""
    for family in families:
        samples = list(family.samples)
        for start in range(0, len(samples), SAMPLES_AT_ONCE):
            text = render_metrics([replace(family, samples=samples[start : start + SAMPLES_AT_ONCE])])
            yield text.split(b"\n", 2)[2] if start else text  # the family is described once
            await asyncio.sleep(0)


def _stored(store: ObjectStore) -> MetricFamily:
    return MetricFamily(
        "apiserver_resource_objects",
        "gauge",
        "[ALPHA] Number of stored objects split by kind.",
        list(_counts(store)),
    )


def _counts(store: ObjectStore) -> Iterator[MetricSample]:
    for kind in KINDS:
        if not kind.is_review and not kind.stored_as:
            yield MetricSample(store.count(kind.storage), (("group", kind.group), ("resource", kind.plural)))


def _health(problem: str) -> MetricFamily:
    return MetricFamily(
        "kubernetes_healthcheck",
        "gauge",
        "[STABLE] This metric records the result of a single healthcheck.",
        [
            MetricSample(0 if problem and check == "readyz" else 1, (("name", "ping"), ("type", check)))
            for check in _CHECKS
        ],
    )

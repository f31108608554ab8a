"""Metrics by release of Kubernetes: which one has which, and how stable they are. Pure.

Source: the list of metrics of each release (documentation page "Kubernetes Metrics Reference").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pykubelet.base.kit.metrics import Labels, MetricFamily, MetricSample
from pykubelet.base.kit.values import replace
from pykubelet.base.model.version import Release

#: Metrics that a release brought. Our own are not in it, nor those of releases before 1.37.
SINCE: Mapping[str, Release] = {
    "kubelet_pod_deferred_resize_duration_seconds": Release.V1_37,
    "kubelet_pod_level_resources_admission_total": Release.V1_37,
    "kubelet_pod_requests_get_total": Release.V1_37,
    "kubelet_pod_requests_list_total": Release.V1_37,
    "kubelet_pod_requests_total": Release.V1_37,
    "kubelet_pod_requests_watch_total": Release.V1_37,
}
#: Metrics that a release removed.
GONE: Mapping[str, Release] = {"kubelet_volume_stats_health_status_abnormal": Release.V1_37}
#: Alpha metrics that a release made beta.
BETA: Mapping[str, Release] = {
    "storage_operation_duration_seconds": Release.V1_37,
    "volume_operation_total_seconds": Release.V1_37,
}
#: Labels that a release brought to a metric that has one number for each set of labels.
LABELS: Mapping[str, Mapping[str, Release]] = {
    "kubelet_pod_pending_resizes": {"priority_bucket": Release.V1_37},
}


def of_release(families: Iterable[MetricFamily], release: Release) -> Iterator[MetricFamily]:
    """The families without those that the release does not have, and without labels that it does not have."""
    for family in families:
        since, gone = SINCE.get(family.name), GONE.get(family.name)
        if (since is None or release.has(since)) and (gone is None or not release.has(gone)):
            later = {name for name, first in LABELS.get(family.name, {}).items() if not release.has(first)}
            yield _without_labels(family, later) if later else family


def _without_labels(family: MetricFamily, names: set[str]) -> MetricFamily:
    sums: dict[Labels, float] = {}
    for sample in family.samples:
        labels = tuple(label for label in sample.labels if label[0] not in names)
        sums[labels] = sums.get(labels, 0) + sample.value
    return replace(family, samples=[MetricSample(value, labels) for labels, value in sums.items()])


def is_beta(name: str, release: Release) -> bool:
    """Whether the release made an alpha metric beta, or one before it did."""
    since = BETA.get(name)
    return since is not None and release.has(since)

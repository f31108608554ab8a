from __future__ import annotations

from pykubelet.base.kit.exposition import render_metrics
from pykubelet.base.kit.metrics import MetricFamily, MetricSample
from pykubelet.base.model.version import Release
from pykubelet.serve.metrics.releases import of_release
from pykubelet.serve.metrics.stability import with_stability


def family(name: str, *samples: MetricSample) -> MetricFamily:
    return MetricFamily(name, "gauge", "Text.", samples or (MetricSample(1),))


def test_each_release_has_its_metrics() -> None:
    all_of_them = [
        family("kubelet_pod_requests_total"),
        family("kubelet_volume_stats_health_status_abnormal"),
        family("kubelet_running_pods"),
    ]
    names = {release: [metric.name for metric in of_release(all_of_them, release)] for release in Release}
    assert names[Release.V1_36] == ["kubelet_volume_stats_health_status_abnormal", "kubelet_running_pods"]
    assert names[Release.V1_37] == names[Release.V1_38] == ["kubelet_pod_requests_total", "kubelet_running_pods"]


def test_a_release_without_a_label_has_the_sums() -> None:
    def pending(bucket: str, reason: str, number: int) -> MetricSample:
        return MetricSample(number, (("priority_bucket", bucket), ("reason", reason)))

    resizes = family(
        "kubelet_pod_pending_resizes",
        pending("high", "deferred", 2),
        pending("low", "deferred", 3),
        pending("low", "infeasible", 1),
    )
    [old] = of_release([resizes], Release.V1_36)
    assert [(sample.labels, sample.value) for sample in old.samples] == [
        ((("reason", "deferred"),), 5),
        ((("reason", "infeasible"),), 1),
    ]
    assert list(of_release([resizes], Release.V1_37)) == [resizes]


def test_metrics_become_beta_with_a_release() -> None:
    for release, level in ((Release.V1_36, "ALPHA"), (Release.V1_37, "BETA")):
        text = render_metrics(with_stability([family("storage_operation_duration_seconds")], release)).decode()
        assert f"[{level}] Text." in text

"""The metrics of preemptions and sizes."""

from __future__ import annotations

from typing import Any

import pytest
from desired.roster.wants import make_pod

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.roster import RosterPod, pod_ref, priority_bucket
from pykubelet.base.model.sizing import PendingResize
from pykubelet.desired.roster.admission import demand_of
from pykubelet.desired.roster.metrics import (
    DEFERRED_FOR,
    INFEASIBLE,
    PREEMPTIONS,
    REJECTIONS,
    RESIZES,
    count_preemptions,
    count_rejection,
    count_resizes,
    detail_of,
    metric_reason,
    resized_fields,
    resource_level,
    time_deferred_resizes,
)
from pykubelet.desired.roster.model import AdmissionVerdict, Entry

UID = PodUID("a-1")


def pod(generation: int = 1, **resources: Any) -> Pod:
    container = {"name": "app", "image": "busybox", "resources": resources}
    return make_pod("a", metadata={"generation": generation}, containers=[container])


def entry(item: Pod, wanted: Pod | None = None, pending: PendingResize | None = None) -> Entry:
    made = RosterPod(item, "api", 0.0, pending=pending)
    return Entry(made, pod_ref(item), demand_of(item), 0, wanted=wanted)


def test_what_changes_of_a_size() -> None:
    before = pod(requests={"cpu": "1", "memory": "1Gi"}, limits={"memory": "2Gi"})
    after = pod(requests={"cpu": "2", "memory": "512Mi"}, limits={"cpu": "3"})
    assert set(resized_fields(before, after)) == {
        ("cpu", "requests", "increase"),
        ("cpu", "limits", "add"),
        ("memory", "requests", "decrease"),
        ("memory", "limits", "remove"),
    }
    assert list(resized_fields(before, before)) == []


@pytest.mark.parametrize(
    ("message", "detail"),
    [
        ("InPlacePodVerticalScaling is disabled", "feature_gate_off"),
        (
            'Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"',
            "guaranteed_pod_cpu_manager_static_policy",
        ),
        ("Node didn't have enough capacity: cpu", "insufficient_node_allocatable"),
    ],
)
def test_why_a_size_can_never_be(message: str, detail: str) -> None:
    assert detail_of(message) == detail


def test_a_new_size_is_counted_once_however_often_it_is_put_off() -> None:
    labels = "cpu", "requests", "increase"
    counted = RESIZES.value(*labels)
    old, new = pod(requests={"cpu": "1"}), pod(2, requests={"cpu": "2"})
    waiting = entry(old, new, PendingResize("Deferred", "no capacity", 2, 0.0))
    count_resizes({UID: entry(old, new)}, {UID: waiting})
    assert RESIZES.value(*labels) == counted + 1
    count_resizes({UID: waiting}, {UID: entry(old, new, PendingResize("Deferred", "less capacity", 2, 0.0))})
    count_resizes({UID: waiting}, {UID: entry(new, new)})
    assert RESIZES.value(*labels) == counted + 1


def test_a_size_that_can_never_be_is_counted_with_its_reason() -> None:
    counted = INFEASIBLE.value("feature_gate_off")
    old, new = pod(requests={"cpu": "1"}), pod(2, requests={"cpu": "2"})
    refused = entry(old, new, PendingResize("Infeasible", "InPlacePodVerticalScaling is disabled", 2, 0.0))
    count_resizes({UID: entry(old, new)}, {UID: refused})
    count_resizes({UID: refused}, {UID: refused})
    assert INFEASIBLE.value("feature_gate_off") == counted + 1


@pytest.mark.parametrize(
    ("reason", "reported"),
    [
        ("OutOfcpu", "OutOfcpu"),
        ("OutOfephemeral-storage", "OutOfephemeral-storage"),
        ("OutOfexample.com/gpu", "OutOfExtendedResources"),
        ("OutOfhugepages-2Mi", "OutOfExtendedResources"),
        ("SysctlForbidden", "SysctlForbidden"),
        ("NodeAffinity", "Other"),
        ("TaintToleration", "Other"),
    ],
)
def test_rejections_are_counted_by_few_reasons(reason: str, reported: str) -> None:
    assert metric_reason(reason) == reported


def test_a_preempted_pod_was_admitted_before() -> None:
    counted = REJECTIONS.value("Other")
    count_rejection("Preempting")
    count_rejection("NodePorts")
    assert REJECTIONS.value("Other") == counted + 1


def test_preempted_pods_are_counted_by_what_was_short() -> None:
    counted = PREEMPTIONS.value("cpu")
    before = entry(pod())
    victims = frozenset({PodUID("x"), PodUID("y")})
    after = replace(before, verdict=AdmissionVerdict.PREEMPTING, victims=victims, short_of="cpu")
    count_preemptions({UID: before}, {UID: after})
    count_preemptions({UID: after}, {UID: after})
    assert PREEMPTIONS.value("cpu") == counted + 2


@pytest.mark.parametrize(
    ("after", "resolution"),
    [
        (lambda old, new: {UID: entry(new, new)}, "accepted"),
        (lambda old, new: {UID: entry(old, old)}, "reverted"),
        (lambda old, new: {}, "terminated"),
        (lambda old, new: {UID: entry(old, new, PendingResize("Deferred", "still", 2, 100.0))}, None),
        (lambda old, new: {UID: entry(old, new, PendingResize("Infeasible", "never", 2, 130.0))}, None),
    ],
)
def test_the_time_for_which_a_resize_was_deferred(after: Any, resolution: str | None) -> None:
    old, new = pod(requests={"cpu": "1"}), pod(2, requests={"cpu": "2"})
    before = {UID: entry(old, new, PendingResize("Deferred", "no capacity", 2, 100.0))}
    labels = [("normal", name) for name in ("accepted", "reverted", "terminated")]
    counts = {label: DEFERRED_FOR.count(*label) for label in labels}
    time_deferred_resizes(before, after(old, new), 145.0)
    grown = [label[1] for label in labels if DEFERRED_FOR.count(*label) > counts[label]]
    assert grown == ([resolution] if resolution else [])


@pytest.mark.parametrize(
    ("whole", "container", "level"),
    [
        ({}, {}, ""),
        ({"limits": {"cpu": "1"}}, {}, "pod_level"),
        ({}, {"requests": {"cpu": "1"}}, "container_level"),
        ({"requests": {"cpu": "1"}}, {"requests": {"cpu": "1"}}, "pod_and_container_level"),
    ],
)
def test_the_level_at_which_a_pod_has_resources(whole: dict[str, Any], container: dict[str, Any], level: str) -> None:
    assert resource_level(make_pod("a", containers=[{"name": "c", "resources": container}], resources=whole)) == level


@pytest.mark.parametrize(
    ("priority", "bucket"),
    [
        (2_000_001_000, "system-critical"),
        (1_999_999_999, "high"),
        (99_999, "medium"),
        (0, "normal"),
        (None, "normal"),
        (-999, "low"),
        (-1000, "very-low"),
    ],
)
def test_priorities_have_buckets(priority: int | None, bucket: str) -> None:
    assert priority_bucket(make_pod("a", priority=priority)) == bucket

"""Quality of service: what requests and limits make of a pod."""

from __future__ import annotations

from typing import Any

import pytest
from act.pods.scenes import container, pod

from pykubelet.base.model.sizing import QOSClass, qos_class

G, B, E = QOSClass.GUARANTEED, QOSClass.BURSTABLE, QOSClass.BEST_EFFORT
FULL = {"cpu": "1", "memory": "1Gi"}


def with_resources(requests: Any = None, limits: Any = None, name: str = "app") -> Any:
    return container(name, resources={"requests": requests or {}, "limits": limits or {}})


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([container()], E),
        ([with_resources(FULL, FULL)], G),
        ([with_resources({}, FULL)], G),
        ([with_resources({"cpu": "1000m", "memory": "1024Mi"}, FULL)], G),
        ([with_resources(FULL)], B),
        ([with_resources({"cpu": "1"}, {"cpu": "1"})], B),
        ([with_resources({}, {"memory": "1Gi"})], B),
        ([with_resources({"cpu": "500m", "memory": "1Gi"}, FULL)], B),
        ([with_resources(FULL, FULL), container("b")], B),
        ([with_resources(FULL, FULL), with_resources(FULL, FULL, "b")], G),
        ([with_resources({"cpu": "0", "memory": "0"}, {})], E),
        ([with_resources({"ephemeral-storage": "1Gi"}, {"ephemeral-storage": "1Gi"})], E),
        ([with_resources({"hugepages-2Mi": "2Mi"}, {"hugepages-2Mi": "2Mi"})], E),
    ],
)
def test_class_by_containers(containers: list[Any], expected: QOSClass) -> None:
    assert qos_class(pod(*containers)) is expected


def test_init_containers_count() -> None:
    assert qos_class(pod(with_resources(FULL, FULL), init=(container("i1"),))) is B
    assert qos_class(pod(with_resources(FULL, FULL), init=(with_resources(FULL, FULL, "i1"),))) is G
    assert qos_class(pod(init=(with_resources({"cpu": "1"}, name="i1"),))) is B


def test_resources_of_the_pod_take_the_place_of_the_containers() -> None:
    assert qos_class(pod(resources={"requests": FULL, "limits": FULL})) is G
    assert qos_class(pod(with_resources(FULL, FULL), resources={"requests": {"cpu": "1"}})) is B
    assert qos_class(pod(with_resources(FULL, FULL), resources={})) is G

"""What claims of devices add to a pod, with the figures of KEP-5517."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pykubelet.base.api.core import Pod
from pykubelet.base.api.quantity import in_units
from pykubelet.base.model.sizing import claimed_memory, pod_limits, pod_requests, with_claimed

MI = 1 << 20
MAPPED = {"mapping": [{"name": "cpu", "quantity": "1"}, {"name": "memory", "quantity": "1000Mi"}]}
OVERHEAD = {
    "overhead": [
        {"name": "cpu", "perPod": "100m", "perContainer": "100m"},
        {"name": "memory", "perPod": "100Mi", "perContainer": "100Mi"},
    ]
}
SIZES = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
WHOLE = {"requests": {"cpu": "2500m", "memory": "2500Mi"}, "limits": {"cpu": "4", "memory": "4Gi"}}


def make(*claims: dict[str, Any], users: tuple[str, ...] = ("a", "b"), **spec: Any) -> Pod:
    containers = [{"name": name, "resources": SIZES} for name in ("a", "b")]
    statuses = [{"resourceClaimName": f"c{n}", "containers": list(users), **claim} for n, claim in enumerate(claims)]
    document = {
        "spec": {"containers": containers, **spec},
        "status": {"nodeAllocatableResourceClaimStatuses": statuses},
    }
    return msgspec.convert(document, Pod)


@pytest.mark.parametrize(
    ("pod", "requests", "limits", "own_limits", "share"),
    [
        (make(), (2000, 2048), (4000, 4096), (2000, 2048), 0),
        (make(MAPPED), (3000, 3048), (5000, 5096), (3000, 3048), 500),
        (make(OVERHEAD), (2300, 2348), (4300, 4396), (2200, 2248), 150),
        (make(MAPPED, OVERHEAD), (3300, 3348), (5300, 5396), (3200, 3248), 650),
        (make({**MAPPED, **OVERHEAD}), (3300, 3348), (5300, 5396), (3200, 3248), 650),
        (make(OVERHEAD, users=()), (2100, 2148), (4100, 4196), (2000, 2048), 0),
        (make(OVERHEAD, resources=WHOLE), (2500, 2500), (4000, 4096), (2200, 2248), 150),
    ],
)
def test_a_claim_counts_once_for_the_pod_and_for_each_container_that_refers_to_it(
    pod: Pod, requests: tuple[int, int], limits: tuple[int, int], own_limits: tuple[int, int], share: int
) -> None:
    assert in_units(pod_requests(pod)) == {"cpu": requests[0], "memory": requests[1] * MI}
    assert in_units(pod_limits(pod)) == {"cpu": limits[0], "memory": limits[1] * MI}
    found = with_claimed(SIZES["limits"], pod, "a")
    assert in_units_of(found) == (own_limits[0], own_limits[1] * MI)
    assert claimed_memory(pod, "a") == share * MI


def in_units_of(limits: Any) -> tuple[int, int]:
    limited = msgspec.convert({"spec": {"containers": [{"name": "x", "resources": {"limits": dict(limits)}}]}}, Pod)
    units = in_units(pod_limits(limited))
    return units["cpu"], units["memory"]


def test_what_has_no_limit_has_none_with_a_claim() -> None:
    pod = make(MAPPED)
    assert with_claimed({}, pod, "a") == {} and with_claimed({"cpu": "1"}, pod, "a") == {"cpu": "2"}
    assert with_claimed({"cpu": "1"}, pod, "other") == {"cpu": "1"}

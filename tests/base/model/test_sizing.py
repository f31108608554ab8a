"""What pods need and may use as a whole."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.cost import count_instructions

from pykubelet.base.api.core import Pod
from pykubelet.base.api.quantity import in_units
from pykubelet.base.model.sizing import cpu_quota_us, cpu_shares, is_limited, pod_limits, pod_requests

MI = 1 << 20


def container(requests: dict[str, str] | None = None, limits: dict[str, str] | None = None, **more: Any) -> Any:
    return {"name": "c", "resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def pod(*containers: Any, init: tuple[Any, ...] = (), **spec: Any) -> Pod:
    return msgspec.convert({"spec": {"containers": containers, "initContainers": init, **spec}}, Pod)


def test_sidecars_count_beside_the_containers_and_init_containers_in_their_moment() -> None:
    sidecar = container({"cpu": "100m"}, restartPolicy="Always")
    asked = pod(container({"cpu": "200m"}), init=(sidecar, container({"cpu": "150m", "memory": "8Mi"})))
    assert in_units(pod_requests(asked)) == {"cpu": 300, "memory": 8 * MI}
    heavy = pod(container({"cpu": "200m"}), init=(sidecar, container({"cpu": "1"})))
    assert in_units(pod_requests(heavy)) == {"cpu": 1100}


def test_resources_of_a_sidecar_cost_the_same_beside_many_init_containers() -> None:
    """A pod of 0.3 MB took 0.9 s each time that its requests were summed up."""
    names = {f"example.com/r{number}": "1" for number in range(200)}
    sidecar = container(names, restartPolicy="Always")

    def work(init_containers: int) -> int:
        asked = pod(container({"cpu": "1"}), init=(sidecar, *[container({"cpu": "2"})] * init_containers))
        assert in_units(pod_requests(asked)) == {"cpu": 2000, **dict.fromkeys(names, 1)}
        return count_instructions(lambda: pod_requests(asked))

    few, more, most = work(10), work(110), work(210)
    assert most - more < 1.1 * (more - few) < 100 * 500


def test_the_pods_own_figures_replace_sums_and_overhead_comes_on_top() -> None:
    whole = {"requests": {"cpu": "2", "hugepages-2Mi": "4Mi"}, "limits": {"memory": "64Mi"}}
    asked = pod(
        container({"cpu": "1", "ephemeral-storage": "1Mi"}, {"cpu": "1"}),
        resources=whole,
        overhead={"cpu": "250m", "memory": "1Mi"},
    )
    assert in_units(pod_requests(asked)) == {
        "cpu": 2250,
        "ephemeral-storage": MI,
        "hugepages-2Mi": 4 * MI,
        "memory": MI,
    }
    assert in_units(pod_requests(asked, overhead=False))["cpu"] == 2000
    assert in_units(pod_limits(asked)) == {"cpu": 1250, "memory": 65 * MI}
    assert in_units(pod_limits(asked, overhead=False)) == {"cpu": 1000, "memory": 64 * MI}


def test_overhead_does_not_make_a_limit() -> None:
    assert pod_limits(pod(container(), overhead={"cpu": "1"})) == {}
    assert in_units(pod_limits(pod(container(limits={"cpu": "0"}), overhead={"cpu": "1"}))) == {"cpu": 0}


@pytest.mark.parametrize(
    ("asked", "limited"),
    [
        (pod(container(limits={"cpu": "1"})), True),
        (pod(container(limits={"cpu": "1"}), container()), False),
        (pod(container(limits={"cpu": "1"}), init=(container(),)), False),
        (pod(container(limits={"cpu": "0"})), False),
        (pod(container(), resources={"limits": {"cpu": "1"}}), True),
        (pod({"name": "c"}), False),
    ],
)
def test_a_pod_is_limited_when_nothing_in_it_is_free(asked: Pod, limited: bool) -> None:
    assert is_limited(asked, "cpu") is limited


def test_units_round_up() -> None:
    assert in_units(pod_requests(pod(container({"cpu": "1100u", "memory": "1500m"})))) == {"cpu": 2, "memory": 2}


@pytest.mark.parametrize(
    ("milli", "shares"),
    [(0, 2), (1, 2), (2, 2), (100, 102), (1000, 1024), (256_000, 262_144), (256_001, 262_144), (10**9, 262_144)],
)
def test_shares_stay_within_the_kernels_bounds(milli: int, shares: int) -> None:
    assert cpu_shares(milli) == shares


@pytest.mark.parametrize(
    ("milli", "period", "quota"), [(0, 100_000, 0), (1, 100_000, 1000), (250, 100_000, 25_000), (1500, 10_000, 15_000)]
)
def test_quota_is_unset_or_at_least_a_millisecond(milli: int, period: int, quota: int) -> None:
    assert cpu_quota_us(milli, period) == quota

from typing import Any

import pytest
from act.runtime.rendering import CONTEXT, GIB, NODE, SETTINGS, make_container, make_pod, with_resources

from pykubelet.act.runtime.render.container_resources import (
    container_resources,
    oom_score_adj,
    sandbox_resources,
    swap_limit,
)
from pykubelet.act.runtime.render.context import ContainerContext, MemoryQos, RenderSettings, SandboxContext
from pykubelet.base.api.core import Container, NodeAllocatableOverheadResources, NodeAllocatableResourceClaimStatus
from pykubelet.base.kit.values import replace
from pykubelet.base.model.placement import CpuSet
from pykubelet.edges.cri import cri_pb2

V2 = replace(SETTINGS, cgroup_v2=True)


def resources_of(
    container: Container, settings: RenderSettings = SETTINGS, ctx: ContainerContext = CONTEXT, **spec: Any
) -> cri_pb2.LinuxContainerResources:
    return container_resources(make_pod(container, **spec), container, settings, ctx)


def test_requests_and_limits() -> None:
    found = resources_of(with_resources(requests={"cpu": "250m"}, limits={"cpu": "500m", "memory": "64Mi"}))
    assert (found.cpu_shares, found.cpu_period, found.cpu_quota) == (256, 100_000, 50_000)
    assert found.memory_limit_in_bytes == 64 << 20


def test_without_a_request_the_limit_weighs() -> None:
    assert resources_of(with_resources(limits={"cpu": "500m"})).cpu_shares == 512
    assert resources_of(with_resources(requests={"cpu": "0"}, limits={"cpu": "500m"})).cpu_shares == 2


def test_nothing_asked_for() -> None:
    found = resources_of(make_container())
    assert (found.cpu_shares, found.cpu_period, found.cpu_quota) == (2, 100_000, 0)
    assert (found.memory_limit_in_bytes, found.oom_score_adj) == (0, 1000)
    assert not found.unified


def test_quota_switched_off_and_period_changed() -> None:
    container = with_resources(limits={"cpu": "1"})
    off = resources_of(container, replace(SETTINGS, cpu_cfs_quota=False))
    assert (off.cpu_period, off.cpu_quota) == (0, 0)
    short = resources_of(container, replace(SETTINGS, cpu_cfs_quota_period_us=10_000))
    assert (short.cpu_period, short.cpu_quota) == (10_000, 10_000)


def test_exclusive_cpus_are_not_throttled() -> None:
    ctx = replace(CONTEXT, cpuset=CpuSet(cpus="2-3", mems="0", exclusive=True))
    found = resources_of(with_resources(limits={"cpu": "2", "memory": "1Gi"}), ctx=ctx)
    assert (found.cpu_quota, found.cpuset_cpus, found.cpuset_mems) == (-1, "2-3", "0")


def test_pod_level_limits_stand_in() -> None:
    found = resources_of(make_container(), resources={"limits": {"cpu": "1", "memory": "1Gi"}})
    assert (found.cpu_quota, found.memory_limit_in_bytes) == (100_000, GIB)


def test_huge_pages_of_every_size_of_the_machine() -> None:
    settings = replace(SETTINGS, node=replace(NODE, page_sizes=(2 << 20, GIB)))
    found = resources_of(with_resources(limits={"hugepages-2Mi": "8Mi", "hugepages-odd": "1"}), settings)
    assert [(limit.page_size, limit.limit) for limit in found.hugepage_limits] == [("2MB", 8 << 20), ("1GB", 0)]


def test_huge_pages_of_the_whole_pod_stand_in() -> None:
    settings = replace(SETTINGS, node=replace(NODE, page_sizes=(2 << 20, GIB)))
    whole: dict[str, Any] = {"resources": {"limits": {"hugepages-2Mi": "16Mi", "hugepages-1Gi": "1Gi"}}}
    found = resources_of(with_resources(limits={"hugepages-2Mi": "8Mi"}), settings, **whole)
    assert [(limit.page_size, limit.limit) for limit in found.hugepage_limits] == [("2MB", 8 << 20), ("1GB", GIB)]


def test_oom_group_on_v2_unless_single_processes_are_killed() -> None:
    def group(single: bool | None) -> str | None:
        return resources_of(make_container(), replace(V2, single_process_oom_kill=single)).unified.get(
            "memory.oom.group"
        )

    assert (group(None), group(False), group(True)) == ("1", "1", None)


GUARANTEED = {"cpu": "1", "memory": "1Gi"}


def mem(amount: str) -> dict[str, dict[str, str]]:
    return {"requests": {"memory": amount}}


@pytest.mark.parametrize(
    ("container", "spec", "score"),
    [
        (make_container(), {}, 1000),
        (with_resources(requests=GUARANTEED, limits=GUARANTEED), {}, -997),
        (with_resources(requests={"memory": "4Gi"}), {}, 750),
        (with_resources(requests={"memory": "16Gi"}), {}, 3),
        (with_resources(requests={"cpu": "1"}), {}, 999),
        (with_resources(requests={"memory": "1Mi"}), {}, 999),
        (make_container(), {"priority": 2_000_001_000, "priorityClassName": "system-node-critical"}, -997),
        (make_container(), {"priority": 2_000_000_000, "priorityClassName": "system-cluster-critical"}, 1000),
        (make_container(), {"priority": 5, "priorityClassName": "system-node-critical"}, 1000),
        (make_container(), {"resources": {"requests": {"memory": "8Gi"}}}, 500),
        (with_resources(requests={"memory": "4Gi"}), {"resources": {"requests": {"memory": "8Gi"}}}, 500),
    ],
)
def test_oom_scores(container: Container, spec: dict[str, Any], score: int) -> None:
    assert oom_score_adj(make_pod(container, **spec), container, 16 * GIB) == score


def test_sidecars_live_at_least_as_long_as_what_they_serve() -> None:
    small = with_resources("side", requests={"memory": "1Gi"}, restartPolicy="Always")
    setup = with_resources("setup", requests={"memory": "1Gi"})
    pod = make_pod(
        with_resources("a", requests={"memory": "4Gi"}),
        with_resources("b", requests={"memory": "8Gi"}),
        init=(setup, small),
    )
    assert oom_score_adj(pod, small, 16 * GIB) == 750
    assert oom_score_adj(pod, setup, 16 * GIB) == 938
    big = with_resources("side", requests={"memory": "12Gi"}, restartPolicy="Always")
    assert oom_score_adj(make_pod(*pod.spec.containers, init=(big,)), big, 16 * GIB) == 250


@pytest.mark.parametrize(
    ("users", "claim", "whole", "score"),
    [
        (("a",), {"perContainer": "500Mi"}, "", 738),
        (("a", "b"), {"perPod": "1000Mi"}, "", 738),
        (("a",), {"perPod": "200Mi", "perContainer": "300Mi"}, "", 738),
        (("a",), {"perContainer": "500Mi"}, "2000Mi", 673),
    ],
)
def test_memory_of_claims_counts_for_the_oom_score(
    users: tuple[str, ...], claim: dict[str, str], whole: str, score: int
) -> None:
    """The figures of the Kubernetes kubelet's own tests, on a node of 4 GB; the last one has 500Mi left for two containers."""
    names = ("a", "b") if whole or len(users) > 1 else ("a",)
    containers = [make_container(name=name, resources={"requests": {"memory": "500Mi"}}) for name in names]
    more: dict[str, Any] = {"resources": {"requests": {"memory": whole}}} if whole else {}
    status = NodeAllocatableResourceClaimStatus(
        resourceClaimName="c", containers=users, overhead=(NodeAllocatableOverheadResources(name="memory", **claim),)
    )
    pod = make_pod(*containers, **more)
    pod = replace(pod, status=replace(pod.status, nodeAllocatableResourceClaimStatuses=(status,)))
    assert oom_score_adj(pod, containers[0], 4_000_000_000) == score


def test_unknown_capacity_does_not_divide_by_zero() -> None:
    container = with_resources(requests={"memory": "1Gi"})
    assert oom_score_adj(make_pod(container), container, 0) == 999


def test_no_swap() -> None:
    container = with_resources(requests={"memory": "1Gi"}, limits={"memory": "2Gi"})
    v1 = resources_of(container, replace(SETTINGS, swap_controller=True))
    assert v1.memory_swap_limit_in_bytes == v1.memory_limit_in_bytes == 2 * GIB
    assert resources_of(container, replace(V2, swap_controller=True)).unified["memory.swap.max"] == "0"
    assert "memory.swap.max" not in resources_of(container, V2).unified


@pytest.mark.parametrize(
    ("container", "spec", "expected"),
    [
        (with_resources(requests={"memory": "4Gi"}, limits={"memory": "8Gi"}), {}, 2 * GIB),
        (with_resources(requests={"memory": "4Gi"}), {}, 2 * GIB),
        (with_resources(requests={"memory": "4Gi", "cpu": "1"}, limits={"memory": "4Gi"}), {}, 0),
        (with_resources(requests={"cpu": "1"}), {}, 0),
        (with_resources(requests={"memory": "20Gi"}), {}, 0),
        (with_resources(requests={"memory": "4Gi"}), {"priority": 2_000_000_000}, 0),
        (make_container(), {}, 0),
    ],
)
def test_limited_swap_is_shared_out_by_memory(container: Container, spec: dict[str, Any], expected: int) -> None:
    settings = replace(V2, swap_behavior="LimitedSwap", swap_controller=True, swap_capacity=8 * GIB)
    assert swap_limit(make_pod(container, **spec), container, settings) == expected
    assert resources_of(container, settings, **spec).unified["memory.swap.max"] == str(expected)


def test_memory_qos() -> None:
    settings = replace(V2, single_process_oom_kill=True, memory_qos=MemoryQos(0.9, tiered=True, for_pods=15 * GIB))
    burstable = with_resources(requests={"memory": "1000Mi"}, limits={"memory": "2000Mi"})
    assert dict(resources_of(burstable, settings).unified) == {
        "memory.min": "0",
        "memory.low": str(1000 << 20),
        "memory.high": str(1900 << 20),
    }
    guaranteed = with_resources(requests=GUARANTEED, limits=GUARANTEED)
    assert dict(resources_of(guaranteed, settings).unified) == {"memory.min": str(GIB), "memory.low": "0"}
    untiered = replace(settings, memory_qos=MemoryQos(0.9, for_pods=15 * GIB))
    assert dict(resources_of(make_container(), untiered).unified) == {"memory.min": "0", "memory.low": "0"}
    all_classes = replace(untiered, memory_qos=MemoryQos(0.5, best_effort_too=True, for_pods=8 * GIB))
    assert resources_of(make_container(), all_classes).unified["memory.high"] == str(4 * GIB)
    assert "memory.high" not in resources_of(guaranteed, all_classes).unified
    unthrottled = replace(settings, memory_qos=MemoryQos(best_effort_too=True, for_pods=8 * GIB))
    assert dict(resources_of(burstable, unthrottled).unified) == {"memory.min": "0", "memory.low": "0"}
    off = replace(settings, memory_qos=None)
    assert dict(resources_of(burstable, off).unified) == {"memory.high": "max"}, "what a container had with the gate"
    # as the reference kubelet, with 5923508224 bytes for pods
    node = replace(untiered, memory_qos=MemoryQos(0.9, for_pods=5_923_508_224))
    measured = resources_of(with_resources(requests={"memory": "64Mi"}), node).unified
    assert measured["memory.high"] == "5337866240"
    open_ended = dict(resources_of(with_resources(requests={"memory": "1Gi"}), untiered).unified)
    assert open_ended == {"memory.min": "0", "memory.low": "0", "memory.high": str(int(13.6 * GIB) // 4096 * 4096)}
    assert not resources_of(burstable, replace(settings, cgroup_v2=False)).unified


def test_sandboxes_have_the_sum_of_their_containers_and_the_overhead() -> None:
    app = with_resources(requests={"cpu": "250m"}, limits={"cpu": "500m", "memory": "64Mi"})
    other = with_resources("other", requests={"cpu": "250m"}, limits={"cpu": "500m", "memory": "64Mi"})
    pod = make_pod(app, other, overhead={"cpu": "100m", "memory": "16Mi"})
    together, overhead = sandbox_resources(pod, SETTINGS, SandboxContext())
    assert (together.cpu_shares, together.cpu_quota, together.memory_limit_in_bytes) == (512, 100_000, 128 << 20)
    assert (overhead.cpu_shares, overhead.cpu_quota, overhead.memory_limit_in_bytes) == (102, 10_000, 16 << 20)
    assert together.oom_score_adj == 0


def test_sandboxes_of_pods_with_resources_of_their_own() -> None:
    pod = make_pod(
        with_resources(requests={"cpu": "250m"}), resources={"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}
    )
    together, overhead = sandbox_resources(pod, SETTINGS, SandboxContext(exclusive_cpus=True))
    assert (together.cpu_shares, together.cpu_quota) == (1024, -1)
    assert overhead.ByteSize() == 0

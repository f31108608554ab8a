"""The names of the groups, as runtimes and systemd expect them, and how much each gets, by the rules at the head of `decide`."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.sizing import QOSClass
from pykubelet.base.model.version import Release
from pykubelet.config.gates import FeatureGates
from pykubelet.config.kubelet import KubeletConfiguration
from pykubelet.config.settings import Settings
from pykubelet.edges.host.cgroups.cgroup_values import UNLIMITED, CgroupLimits
from pykubelet.provide.cgroups import decide
from pykubelet.provide.cgroups.model import (
    CgroupDriver,
    Enforce,
    MemoryHigh,
    MemoryProtection,
    NodeResources,
    ResourceSettings,
    resource_settings,
)

GI, MI = 1 << 30, 1 << 20
SETTINGS = ResourceSettings()


def resources(requests: dict[str, Any] | None = None, limits: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"resources": {"requests": requests or {}, "limits": limits or {}}}


def pod(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **spec: Any) -> Pod:
    spec["containers"] = [{"name": f"c{n}", **c} for n, c in enumerate(containers)]
    spec["initContainers"] = [{"name": f"i{n}", **c} for n, c in enumerate(init)]
    return msgspec.convert({"metadata": {"uid": "u1"}, "spec": spec}, Pod)


def both(cpu: str, memory: str) -> dict[str, Any]:
    return resources({"cpu": cpu, "memory": memory}, {"cpu": cpu, "memory": memory})


# Pods


def test_guaranteed_has_shares_quota_and_memory() -> None:
    assert decide.pod_cgroup_limits(pod(both("500m", "64Mi"), both("1", "1Gi")), SETTINGS) == CgroupLimits(
        cpu_shares=1536, cpu_quota_us=150_000, cpu_period_us=100_000, memory_bytes=GI + 64 * MI
    )


def test_burstable_is_limited_only_where_every_container_is() -> None:
    free = decide.pod_cgroup_limits(pod(both("500m", "64Mi"), resources({"cpu": "250m"})), SETTINGS)
    assert free == CgroupLimits(cpu_shares=768)
    memory = pod(resources({"cpu": "1"}, {"memory": "1Gi"}), resources({}, {"memory": "1Gi", "cpu": "2"}))
    assert decide.pod_cgroup_limits(memory, SETTINGS) == CgroupLimits(cpu_shares=1024, memory_bytes=2 * GI)
    init = pod(both("1", "1Gi"), init=(resources({"cpu": "2"}),))
    assert decide.pod_cgroup_limits(init, SETTINGS) == CgroupLimits(cpu_shares=2048)


def test_best_effort_has_the_least_shares_alone() -> None:
    assert decide.pod_cgroup_limits(pod({}, {}), SETTINGS) == CgroupLimits(cpu_shares=2)


def test_init_containers_and_sidecars_count_as_they_run() -> None:
    sidecar = {**resources({"cpu": "100m"}), "restartPolicy": "Always"}
    found = pod(resources({"cpu": "300m"}), init=(sidecar, resources({"cpu": "1"})))
    assert decide.pod_cgroup_limits(found, SETTINGS).cpu_shares == 1126
    large = pod(resources({"cpu": "2"}), init=(sidecar, resources({"cpu": "1"})))
    assert decide.pod_cgroup_limits(large, SETTINGS).cpu_shares == 2150


def test_overhead_comes_on_top() -> None:
    found = decide.pod_cgroup_limits(pod(both("1", "1Gi"), overhead={"cpu": "250m", "memory": "100Mi"}), SETTINGS)
    assert found.cpu_shares == 1280
    assert found.cpu_quota_us == 125_000
    assert found.memory_bytes == GI + 100 * MI


def test_resources_of_the_whole_pod_take_the_place_of_sums() -> None:
    whole = pod(
        resources({"cpu": "100m"}), {}, **resources({"cpu": "1", "memory": "1Gi"}, {"cpu": "2", "memory": "2Gi"})
    )
    assert decide.pod_cgroup_limits(whole, SETTINGS) == CgroupLimits(
        cpu_shares=1024, cpu_quota_us=200_000, cpu_period_us=100_000, memory_bytes=2 * GI
    )


@pytest.mark.parametrize(("cpu", "quota"), [("1m", 1000), ("5m", 1000), ("20m", 2000), ("3", 300_000)])
def test_quota_has_a_least_value(cpu: str, quota: int) -> None:
    assert decide.pod_cgroup_limits(pod(both(cpu, "1Gi")), SETTINGS).cpu_quota_us == quota


def test_quota_can_be_turned_off() -> None:
    limits = decide.pod_cgroup_limits(pod(both("1", "1Gi")), ResourceSettings(cpu_cfs_quota=False))
    assert (limits.cpu_quota_us, limits.cpu_period_us) == (UNLIMITED, 100_000)
    exclusive = decide.pod_cgroup_limits(pod(both("1", "1Gi")), SETTINGS, exclusive_cpus=True)
    assert exclusive.cpu_quota_us == UNLIMITED
    custom = decide.pod_cgroup_limits(pod(both("1", "1Gi")), ResourceSettings(cpu_cfs_quota_period_us=20_000))
    assert (custom.cpu_quota_us, custom.cpu_period_us) == (20_000, 20_000)


@pytest.mark.parametrize(("limit", "pids"), [(None, None), (-1, None), (0, None), (50, 50)])
def test_pids(limit: int | None, pids: int | None) -> None:
    assert decide.pod_cgroup_limits(pod({}), ResourceSettings(pod_pids_limit=limit)).pids == pids


def test_every_huge_page_size_is_limited() -> None:
    asking = pod(resources({"hugepages-2Mi": "8Mi", "cpu": "1"}, {"hugepages-2Mi": "8Mi"}))
    sizes = (2 * MI, GI)
    assert decide.pod_cgroup_limits(asking, SETTINGS, sizes).huge_pages == {"2MB": 8 * MI, "1GB": 0}
    assert decide.pod_cgroup_limits(pod({}), SETTINGS, sizes).huge_pages == {"2MB": 0, "1GB": 0}


# QoS groups


def test_qos_groups_follow_their_pods() -> None:
    node = NodeResources({"memory": 8 * GI}, (2 * MI,))
    pods = (pod(resources({"cpu": "500m"})), pod(resources({"cpu": "1"})), pod(both("4", "1Gi")), pod({}))
    found = decide.qos_limits(decide.sums_of(map(decide.share_of, pods)), node, SETTINGS)
    assert found[QOSClass.BURSTABLE] == CgroupLimits(cpu_shares=1536, huge_pages={"2MB": 1 << 62})
    assert found[QOSClass.BEST_EFFORT] == CgroupLimits(cpu_shares=2, huge_pages={"2MB": 1 << 62})
    assert decide.qos_limits({}, node, SETTINGS)[QOSClass.BURSTABLE].cpu_shares == 2


TIERED = ResourceSettings(memory_protection=MemoryProtection.TIERED, protects_pods_softly=True)


def test_memory_protection_of_pods_and_of_all_groups_above_them() -> None:
    """The values of the reference kubelet for the same seven pods."""
    guaranteed = pod(both("200m", "48Mi")), pod(both("100m", "64Mi"))
    burstable = [pod(resources({"memory": amount})) for amount in ("120Mi", "64Mi", "64Mi", "96Mi")]
    found = [
        dict(decide.pod_cgroup_limits(example, TIERED).unified) for example in (guaranteed[0], burstable[0], pod({}))
    ]
    assert found == [{"memory.min": "50331648"}, {"memory.low": "125829120"}, {}]
    sums = decide.sums_of(decide.share_of(example) for example in (*guaranteed, *burstable, pod({})))
    limits = decide.qos_limits(sums, NodeResources({"memory": 8 * GI}), TIERED)
    assert dict(limits[QOSClass.GUARANTEED].unified) == {"memory.min": "478150656", "memory.low": "360710144"}
    assert dict(limits[QOSClass.BURSTABLE].unified) == {"memory.low": "360710144"}
    assert not limits[QOSClass.BEST_EFFORT].unified
    old = replace(TIERED, protects_pods_softly=False)
    assert dict(decide.qos_limits(sums, NodeResources({}), old)[QOSClass.GUARANTEED].unified) == {
        "memory.min": "478150656"
    }


@pytest.mark.parametrize("without", [MemoryProtection.NONE, MemoryProtection.OFF])
def test_memory_protection_ends_with_the_policy_and_with_the_gate(without: MemoryProtection) -> None:
    examples = (pod(both("1", "1Gi")), pod(resources({"memory": "1Gi"})))
    sums = decide.sums_of(map(decide.share_of, examples))
    node = NodeResources({"memory": 8 * GI})
    limits = decide.qos_limits(sums, node, replace(TIERED, memory_protection=without))
    assert dict(limits[QOSClass.GUARANTEED].unified) == {"memory.min": "0", "memory.low": "0"}
    assert dict(limits[QOSClass.BURSTABLE].unified) == {"memory.low": "0"}
    assert not decide.pod_cgroup_limits(pod(both("1", "1Gi")), ResourceSettings()).unified
    v1 = decide.qos_limits(sums, node, ResourceSettings())
    assert QOSClass.GUARANTEED not in v1 and not v1[QOSClass.BURSTABLE].unified


def test_pods_with_memory_of_their_own_are_throttled() -> None:
    throttled = ResourceSettings(memory_throttle=MemoryHigh(0.5, 8 * GI))

    def high(requests: str, limits: str = "") -> str | None:
        own = {"requests": {"memory": requests}, **({"limits": {"memory": limits}} if limits else {})}
        return decide.pod_cgroup_limits(pod({}, resources=own), throttled).unified.get("memory.high")

    assert high("1Gi", "3Gi") == str(2 * GI)
    assert high("2Gi") == str(5 * GI), "up to what the node has for pods"
    assert high("1Gi", "1Gi") is None, "nothing between request and limit"
    assert "memory.high" not in decide.pod_cgroup_limits(pod(resources({"memory": "1Gi"})), throttled).unified


@pytest.mark.parametrize(("release", "high"), [(Release.V1_37, True), (Release.V1_36, False)])
def test_pods_are_throttled_from_1_37_on(release: Release, high: bool) -> None:
    config = KubeletConfiguration(memoryThrottlingFactor=0.9)
    gates = FeatureGates({"MemoryQoS": True}, release)
    found = resource_settings(Settings(config, gates=gates), {"memory": GI}, CgroupDriver.CGROUPFS, cgroup_v2=True)
    assert found.memory_throttle == (MemoryHigh(0.9, GI) if high else None)
    assert found.protects_pods_softly is high


def test_reserved_memory_is_protected_too() -> None:
    found = decide.reserved_limits(
        {"cpu": 500, "memory": GI}, NodeResources({}, cpus="0-3"), TIERED, compressible=False
    )
    assert found == CgroupLimits(cpu_shares=512, memory_bytes=GI, cpus="0-3", unified={"memory.min": str(GI)})
    node = NodeResources({}, (2 * MI, GI))
    huge = decide.reserved_limits({"memory": GI}, node, SETTINGS, compressible=False).huge_pages
    assert huge == {"2MB": 0, "1GB": 0}
    compressible = decide.reserved_limits({"cpu": 500, "memory": GI}, NodeResources({}), TIERED, compressible=True)
    assert compressible == CgroupLimits(cpu_shares=512)


def test_qos_reserved_memory_keeps_memory_for_better_classes() -> None:
    node = NodeResources({"memory": 8 * GI})
    pods = (pod(both("1", "2Gi")), pod(resources({"memory": "2Gi"})))
    found = decide.qos_limits(
        decide.sums_of(map(decide.share_of, pods)), node, ResourceSettings(qos_reserved_memory=50)
    )
    assert found[QOSClass.BURSTABLE].memory_bytes == 7 * GI
    assert found[QOSClass.BEST_EFFORT].memory_bytes == 6 * GI
    kept = ResourceSettings(
        qos_reserved_memory=50, system_reserved={"memory": GI}, eviction_reserved={"memory": 100 * MI}
    )
    # what eviction keeps free is not taken off, as from the limit of all pods
    assert decide.qos_limits({}, node, kept)[QOSClass.BURSTABLE].memory_bytes == 7 * GI


# The node

CAPACITY = {"cpu": 4000, "memory": 8 * GI, "ephemeral-storage": 100 * GI, "hugepages-2Mi": GI, "pods": 110, "pid": 1000}
RESERVED = ResourceSettings(
    system_reserved={"cpu": 500, "memory": GI, "pid": 100},
    kube_reserved={"cpu": 500, "ephemeral-storage": 10 * GI},
    eviction_reserved={"memory": 100 * MI, "ephemeral-storage": 10 * GI},
)


def test_allocatable() -> None:
    assert decide.node_allocatable(CAPACITY, RESERVED) == {
        "cpu": 3000,
        "memory": 8 * GI - GI - 100 * MI - GI,
        "ephemeral-storage": 80 * GI,
        "hugepages-2Mi": GI,
        "pods": 110,
    }
    assert decide.node_allocatable({"cpu": 100}, RESERVED) == {"cpu": 0}


def test_node_limits_leave_the_eviction_part_in() -> None:
    found = decide.node_limits(NodeResources(CAPACITY, (2 * MI, GI)), RESERVED)
    assert found == CgroupLimits(
        cpu_shares=3072, memory_bytes=7 * GI, pids=900, huge_pages=dict.fromkeys(("2MB", "1GB"), 1 << 62)
    )
    assert decide.node_limits(NodeResources(CAPACITY, cpus="0-3"), RESERVED).cpus == "0-3"


def test_node_limits_not_enforced_are_the_machine() -> None:
    for settings in (ResourceSettings(enforce=frozenset({Enforce.NONE}), system_reserved={"cpu": 500}),):
        found = decide.node_limits(NodeResources(CAPACITY), settings)
        assert (found.cpu_shares, found.memory_bytes, found.pids) == (4096, 8 * GI, 1000)


def test_compressible_is_cpu_alone() -> None:
    amounts = {"cpu": 500, "memory": GI, "pid": 10}
    assert decide.group_limits(amounts, compressible=True) == CgroupLimits(cpu_shares=512)
    assert decide.group_limits(amounts) == CgroupLimits(cpu_shares=512, memory_bytes=GI, pids=10)


def test_while_a_pod_is_resized_its_group_holds_both_sizes() -> None:
    before = CgroupLimits(cpu_shares=100, cpu_quota_us=20_000, cpu_period_us=100_000, memory_bytes=64)
    after = CgroupLimits(cpu_shares=200, cpu_quota_us=10_000, cpu_period_us=100_000, memory_bytes=128)
    both = CgroupLimits(cpu_shares=200, cpu_quota_us=20_000, cpu_period_us=100_000, memory_bytes=128)
    assert decide.wider(before, after) == both
    free = replace(before, cpu_quota_us=UNLIMITED, memory_bytes=None)
    assert decide.wider(free, after) == replace(both, cpu_quota_us=UNLIMITED, memory_bytes=None)


UID = PodUID("5a6b-12cd")
FS, SD = CgroupDriver.CGROUPFS, CgroupDriver.SYSTEMD


@pytest.mark.parametrize(
    ("root", "qos", "path"),
    [
        ("/", QOSClass.GUARANTEED, "/kubepods/pod5a6b-12cd"),
        ("", QOSClass.BURSTABLE, "/kubepods/burstable/pod5a6b-12cd"),
        ("/a/b/", QOSClass.BEST_EFFORT, "/a/b/kubepods/besteffort/pod5a6b-12cd"),
    ],
)
def test_cgroupfs(root: str, qos: QOSClass, path: str) -> None:
    settings = ResourceSettings(cgroup_root=root)
    assert decide.driver_path(decide.pod_group(settings, qos, UID), FS) == path
    assert decide.cgroup_parent(settings, qos, UID) == path


def test_systemd() -> None:
    settings = ResourceSettings(driver=SD)
    group = decide.pod_group(settings, QOSClass.BURSTABLE, UID)
    leaf = "kubepods-burstable-pod5a6b_12cd.slice"
    assert decide.driver_path(group, SD) == f"/kubepods.slice/kubepods-burstable.slice/{leaf}"
    assert decide.cgroup_parent(settings, QOSClass.BURSTABLE, UID) == leaf
    assert decide.cgroup_parent(settings, QOSClass.GUARANTEED, UID) == "kubepods-pod5a6b_12cd.slice"
    rooted = ResourceSettings(driver=SD, cgroup_root="/my-root")
    assert decide.driver_path(decide.node_group(rooted), SD) == "/my_root.slice/my_root-kubepods.slice"
    assert decide.driver_path((), SD) == "/"


def test_without_qos_groups_the_root_is_the_parent() -> None:
    settings = ResourceSettings(cgroup_root="/mine", cgroups_per_qos=False)
    assert decide.cgroup_parent(settings, QOSClass.BURSTABLE, UID) == "/mine"
    assert decide.node_group(settings) == ("mine",)


@pytest.mark.parametrize("driver", [FS, SD])
@pytest.mark.parametrize("qos", list(QOSClass))
def test_uid_is_read_back_from_the_directory(driver: CgroupDriver, qos: QOSClass) -> None:
    settings = ResourceSettings(driver=driver, cgroup_root="/r-1")
    parent = decide.qos_group(settings, qos)
    entry = decide.driver_path(decide.pod_group(settings, qos, UID), driver).rpartition("/")[2]
    assert decide.read_pod_uid(entry, parent, driver) == UID
    for other in ("burstable", "crio-1.scope", "kubepods-burstable.slice", "pod", "system.slice"):
        assert decide.read_pod_uid(other, parent, driver) is None


def test_groups_named_in_the_configuration() -> None:
    assert decide.parse_group("/sys/kubelet", FS) == ("sys", "kubelet")
    assert decide.parse_group("/runtime.slice/runtime-my_kube.slice", SD) == ("runtime", "my-kube")
    assert decide.parse_group("system.slice", SD) == ("system",)
    assert decide.quoted(("a", "kubepods")) == '["a" "kubepods"]'

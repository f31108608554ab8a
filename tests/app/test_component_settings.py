"""The settings that components build from a configuration."""

from __future__ import annotations

import pytest

from pykubelet.act.runtime.render.context import render_settings
from pykubelet.app.wiring import node_facts
from pykubelet.app.wiring_cluster import registration
from pykubelet.base.kit.values import replace
from pykubelet.base.model.node import NodeView
from pykubelet.config.combine import File, FlagInput, combine
from pykubelet.config.settings import Flags
from pykubelet.edges.host.cgroups.cgroup_values import CgroupVersion
from pykubelet.edges.host.proc.machine import read_machine
from pykubelet.provide.cgroups.model import CgroupDriver, MemoryProtection, resource_settings
from pykubelet.provide.images.model import VerificationPolicy, image_settings

HEADER = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


@pytest.mark.parametrize("gates", ["{KubeletEnsureSecretPulledImages: false}", "{AllBeta: false}"])
def test_without_the_gate_no_image_is_verified(gates: str) -> None:
    file = File("/k.yaml", f"{HEADER}featureGates: {gates}\n".encode())
    settings = image_settings(combine(file, (), FlagInput(), None))
    assert not settings.ensure_secret_pulled
    assert settings.verification is VerificationPolicy.NEVER_VERIFY


@pytest.mark.parametrize(
    ("percent", "capacity", "kept"),
    [("1%", 12573614080, 125736137), ("10%", 100_000_000_000, 10_000_000_149), ("12.5%", 80_000_000, 10_000_000)],
)
def test_percentages_are_of_single_precision_as_in_the_reference(percent: str, capacity: int, kept: int) -> None:
    """1 % of a file system of 12573614080 bytes, as a node of the Go kubelet reports it: allocatable 12447877943."""
    file = File("/k.yaml", f'{HEADER}evictionHard: {{nodefs.available: "{percent}"}}\n'.encode())
    settings = combine(file, (), FlagInput(), None)
    assert settings.eviction_reserved({"ephemeral-storage": capacity}) == {"ephemeral-storage": kept}


@pytest.mark.parametrize("isolated", [True, False])
def test_local_storage_counts_only_while_it_is_isolated(isolated: bool) -> None:
    text = f"{HEADER}localStorageCapacityIsolation: {str(isolated).lower()}\n"
    settings = combine(File("/k.yaml", text.encode()), (), FlagInput(), None)
    facts = node_facts(settings, read_machine(), CgroupDriver.CGROUPFS, CgroupVersion.V2)
    assert ("ephemeral-storage" in facts.capacity) is isolated
    assert ("ephemeral-storage" in facts.allocatable) is isolated


def test_memory_qos_counts_from_capacity_without_reservations_and_is_for_cgroup_v2() -> None:
    text = f"""{HEADER}featureGates: {{MemoryQoS: true}}
memoryReservationPolicy: TieredReservation
kubeReserved: {{memory: 200Mi}}
systemReserved: {{memory: 100Mi}}
evictionHard: {{memory.available: 100Mi}}
"""
    settings = combine(File("/k.yaml", text.encode()), (), FlagInput(), None)
    capacity = {"memory": 6_238_081_024}
    node = NodeView("node", "node", capacity=capacity, allocatable={"memory": 5_818_650_624})
    qos = render_settings(settings, node, cgroup_v2=True, swap_controller=True, machine=read_machine()).memory_qos
    assert qos is not None and qos.tiered and qos.for_pods == 5_923_508_224
    driver = CgroupDriver.CGROUPFS
    found = [resource_settings(settings, capacity, driver, cgroup_v2=v2).memory_protection for v2 in (True, False)]
    assert found == [MemoryProtection.TIERED, None]


@pytest.mark.parametrize(("release", "reported"), [("1.36", None), ("1.37", True)])
def test_the_node_reports_from_1_37_on_whether_it_is_in_a_user_namespace(release: str, reported: bool | None) -> None:
    settings = combine(File("/k.yaml", HEADER.encode()), (), FlagInput(flags=Flags(emulated_version=release)), None)
    for inside in (True, False):
        info = registration(settings, replace(read_machine(), in_user_namespace=inside), {}).info
        assert info.runningInUserNamespace is (reported and inside)

"""What containers use, from the files of both versions of cgroups and both cgroup drivers."""

from __future__ import annotations

from pathlib import Path

import pytest
from cri_docker.stats.kernel_files import KernelFiles, Used, interface

from pykubelet.base.kit.clock import ManualClock
from pykubelet_cri_docker.stats.tracked import ContainerPlaces

C1, S1 = "c1" * 32, "51" * 32
IN_POD = "kubepods/pod1"


@pytest.fixture(params=[(1, False), (1, True), (2, False), (2, True)], ids=["v1", "v1-systemd", "v2", "v2-systemd"])
def kernel(request: pytest.FixtureRequest, tmp_path: Path) -> KernelFiles:
    return KernelFiles(tmp_path, *request.param)


def test_a_container_is_found_by_its_first_process(kernel: KernelFiles) -> None:
    clock = ManualClock()
    kernel.put_process(7, kernel.group(C1))
    kernel.put_group(kernel.group(C1), Used())
    use = kernel.files(clock).read({C1: ContainerPlaces(7, cgroup_parent=IN_POD)}, ())[C1]
    group = use.group
    assert (group.cpu.total_ns, group.memory.usage, group.memory.working_set) == (5_000_000, 1_000_000, 700_000)
    assert (group.memory.limit, group.memory.rss, group.processes) == (None, 400_000, 3)
    assert (use.read_at, group.at) == (clock.monotonic(), clock.wall())
    assert use.network is None


def test_a_sandbox_has_the_figures_of_its_pod_and_its_network(kernel: KernelFiles) -> None:
    own = kernel.group(S1)
    lines = interface("lo", 9, 9), interface("net1", 1, 2), interface("eth0", 300, 400)
    kernel.put_process(8, own, *lines)
    kernel.put_group(own, Used())
    kernel.put_group(own.rpartition("/")[0], Used(cpu_ns=9_000_000))
    use = kernel.files(ManualClock()).read({S1: ContainerPlaces(8, cgroup_parent=IN_POD)}, {S1})[S1]
    assert use.is_whole_pod and use.group.cpu.total_ns == 9_000_000
    assert use.network is not None
    assert [each.name for each in use.network.interfaces] == ["eth0", "net1"]
    eth0 = use.network.interfaces[0]
    assert (eth0.rx_bytes, eth0.rx_errors, eth0.tx_bytes, eth0.tx_errors) == (300, 1, 400, 1)


def test_a_sandbox_without_a_cgroup_of_its_pod_has_its_own_figures(kernel: KernelFiles) -> None:
    own = kernel.group(S1, in_pod=False)
    kernel.put_process(8, own)
    kernel.put_group(own, Used())
    kernel.put_group(own.rpartition("/")[0], Used(cpu_ns=9_000_000))
    use = kernel.files(ManualClock()).read({S1: ContainerPlaces(8, on_host_network=True)}, {S1})[S1]
    assert not use.is_whole_pod and use.group.cpu.total_ns == 5_000_000
    assert use.network is None, "the node's network is no pod's"


def test_a_process_may_have_made_groups_below_its_own(kernel: KernelFiles) -> None:
    kernel.put_process(7, f"{kernel.group(C1)}/init.scope/sub")
    kernel.put_group(kernel.group(C1), Used())
    assert kernel.files(ManualClock()).read({C1: ContainerPlaces(7)}, ()).keys() == {C1}


def test_what_has_ended_is_left_out(kernel: KernelFiles) -> None:
    """Also if its process ID is another's now, or its cgroup goes before its process."""
    kernel.put_process(7, kernel.group("0e" * 32), interface("eth0", 1, 1))
    kernel.put_process(9, kernel.group(S1))
    places = {C1: ContainerPlaces(7), "gone": ContainerPlaces(6), S1: ContainerPlaces(9)}
    assert kernel.files(ManualClock()).read(places, {C1}) == {}

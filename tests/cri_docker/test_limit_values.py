"""Which limits of the CRI are files of a cgroup, and which cgroup is a container's."""

from __future__ import annotations

import pytest

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits, CgroupVersion
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_cri_docker.limit_values import MAX_FILES, MAX_VALUE, cgroup_limits, merged, possible

V1, V2 = CgroupVersion.V1, CgroupVersion.V2


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "memory",
        "memory/high",
        "../memory.high",
        "cgroup.procs",
        "cgroup.kill",
        "memory.high\n",
        "a.b\0",
        "a." * 99,
    ],
)
def test_a_name_that_is_no_file_of_a_controller_is_refused(name: str) -> None:
    with pytest.raises(RpcError, match=r"^.*linux\.resources\.unified: .* is no file of a cgroup controller") as caught:
        cgroup_limits(pb.LinuxContainerResources(unified={name: "1"}))
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("value", ["", "\n", "1\0", "1\n\n2", "é", "1" * (MAX_VALUE + 1)])
def test_a_value_that_cannot_be_written_is_refused(value: str) -> None:
    with pytest.raises(RpcError, match=r"unified\[memory\.high\]: must be lines"):
        cgroup_limits(pb.LinuxContainerResources(unified={"memory.high": value}))


def test_the_number_of_files_has_a_bound() -> None:
    with pytest.raises(RpcError, match="more than 64 files"):
        cgroup_limits(pb.LinuxContainerResources(unified={f"a.b{n}": "1" for n in range(MAX_FILES + 1)}))
    many = [pb.HugepageLimit(page_size=f"{n + 1}KB") for n in range(MAX_FILES + 1)]
    with pytest.raises(RpcError, match="more than 64 sizes"):
        cgroup_limits(pb.LinuxContainerResources(hugepage_limits=many))


@pytest.mark.parametrize("size", ["", "2", "2Mi", "2MB/..", "../2MB", "02MB"])
def test_a_page_size_is_spelled_as_the_kernel_does(size: str) -> None:
    with pytest.raises(RpcError, match="is no size of huge pages"):
        cgroup_limits(pb.LinuxContainerResources(hugepage_limits=[pb.HugepageLimit(page_size=size)]))


def test_what_the_machine_lacks_is_refused_but_huge_pages() -> None:
    wanted = CgroupLimits(huge_pages={"2MB": 4 << 20}, unified={"memory.high": "1"})
    assert possible(wanted, V2, ["memory", "hugetlb"]) == wanted
    assert possible(wanted, V2, ["memory"]) == CgroupLimits(unified={"memory.high": "1"})
    with pytest.raises(RpcError, match=r"no cgroup controller 'memory', to which memory\.high belongs"):
        possible(wanted, V2, ["cpu"])
    with pytest.raises(RpcError, match="cgroup version 1"):
        possible(wanted, V1, ["memory"])


def test_an_update_has_only_what_changes() -> None:
    before = pb.LinuxContainerResources(unified={"memory.high": "1", "memory.low": "2"}, cpu_shares=5)
    before.hugepage_limits.add(page_size="2MB", limit=7)
    update = pb.LinuxContainerResources(unified={"memory.low": "3"}, cpu_shares=9)
    update.hugepage_limits.add(page_size="1GB", limit=8)
    found = merged(before, update)
    assert dict(found.unified) == {"memory.high": "1", "memory.low": "3"}
    assert {limit.page_size: limit.limit for limit in found.hugepage_limits} == {"2MB": 7, "1GB": 8}
    assert found.cpu_shares == 0, "Docker has it"

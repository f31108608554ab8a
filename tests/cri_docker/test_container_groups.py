"""The cgroups of containers."""

from __future__ import annotations

import pytest

from pykubelet_cri_docker.container_groups import group_of

V1, V2 = "5:memory:/c2\n4:hugetlb,pids:/kubepods/c1\n0::/c3\n", "0::/kubepods/pod1/c1\n"


@pytest.mark.parametrize(
    ("table", "controllers", "group"),
    [
        (V2, [""], "/kubepods/pod1/c1"),
        (V2, ["cpuacct", ""], "/kubepods/pod1/c1"),
        ("0::/kubepods.slice/docker-c1.scope\n", [""], "/kubepods.slice/docker-c1.scope"),
        ("0::/kubepods/pod1/c1/init\n", [""], "/kubepods/pod1/c1"),
        ("0::/a.slice/docker-c1.scope/a/b\n", [""], "/a.slice/docker-c1.scope"),
        ("0::/pods/libpod-c1\n", [""], "/pods/libpod-c1"),
        ("0::/pods.slice/libpod-c1.scope/container\n", [""], "/pods.slice/libpod-c1.scope"),
        ("0::/kubepods/pod1/c2\n", [""], ""),
        ("0::/../c1\n", [""], ""),
        ("0::/\n", [""], ""),
        ("", [""], ""),
        (V1, ["hugetlb"], "/kubepods/c1"),
        (V1, ["hugetlb", ""], "/kubepods/c1"),
        (V1, ["memory"], ""),
        (V1, [""], ""),
        ("5:memory:/c1\n0::/c1\n", ["hugetlb"], ""),
        ("0::/docker/xc1\nnonsense\n", [""], ""),
    ],
)
def test_only_a_cgroup_with_the_id_of_the_container_is_its_own(table: str, controllers: list[str], group: str) -> None:
    assert group_of(table, "c1", *controllers) == group

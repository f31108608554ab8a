"""`/stats/summary`: which parts of a measurement are reported, and under which names."""

from __future__ import annotations

from typing import Any

import pytest
from serve.metrics.test_golden import everything_used

from pykubelet.base.kit.values import replace
from pykubelet.base.model.usage import (
    CpuUse,
    FileSystemUse,
    GroupUse,
    InterfaceUse,
    MemoryUse,
    NetworkUse,
    NodeUse,
    PsiData,
    PsiStats,
    Usage,
    VolumeUse,
)
from pykubelet.serve.metrics.summary import render_summary

AT = 1_700_000_000.0
STALL = PsiStats(PsiData(5, 1.5, 0.5, 0.25), PsiData(2, 0.5, 0.0, 0.0))
NONE = {"total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0}


def used(group: GroupUse, **more: Any) -> Usage:
    return Usage(1.0, NodeUse(group, memory_capacity=10_000, booted_at=1.0, **more))


def of_node(usage: Usage, *, brief: bool = False) -> dict[str, Any]:
    document: dict[str, Any] = render_summary(usage, "n", AT, only_cpu_and_memory=brief)["node"]
    return document


def group(memory: MemoryUse | None = None, **more: Any) -> GroupUse:
    return GroupUse(AT, CpuUse(7), memory or MemoryUse(usage=900, working_set=400), **more)


def test_swap_of_the_node() -> None:
    swapping = group(MemoryUse(swap=300, swap_limit=1000))
    assert of_node(used(swapping))["swap"] == {
        "time": "2023-11-14T22:13:20Z",
        "swapAvailableBytes": 700,
        "swapUsageBytes": 300,
    }
    assert "swap" in of_node(used(swapping), brief=True)
    assert "swap" not in of_node(used(group()))


@pytest.mark.parametrize("brief", [False, True])
def test_memory_of_huge_pages_is_not_available(brief: bool) -> None:
    memory = of_node(used(group(), huge_pages=3_000), brief=brief)["memory"]
    assert (memory["availableBytes"], memory["workingSetBytes"], memory["usageBytes"]) == (6_600, 400, 900)
    assert of_node(used(group(), huge_pages=9_900))["memory"]["availableBytes"] == 0


def test_pressure_stall_information() -> None:
    """Totals are the kernel's microseconds, as kubelets give them."""
    node = of_node(used(group(pressure={"cpu": STALL, "memory": STALL, "io": STALL})))
    reported = {
        "full": {"total": 2, "avg10": 0.5, "avg60": 0.0, "avg300": 0.0},
        "some": {"total": 5, "avg10": 1.5, "avg60": 0.5, "avg300": 0.25},
    }
    assert [node[name]["psi"] for name in ("cpu", "memory", "io")] == [reported] * 3


def test_without_pressure_in_the_kernel_the_fields_are_zero() -> None:
    node = of_node(used(group()))
    assert node["cpu"]["psi"] == node["memory"]["psi"] == {"full": NONE, "some": NONE}
    assert "io" not in node


def test_the_nodes_file_systems() -> None:
    own, images, layers = (FileSystemUse(AT, 100, 50, used) for used in (1, 2, 3))
    node = of_node(used(group(), fs=own, image_fs=images, container_fs=layers))
    assert node["fs"]["usedBytes"] == 1
    assert [node["runtime"][name]["usedBytes"] for name in ("imageFs", "containerFs")] == [2, 3]
    assert node["memory"]["availableBytes"] == 9_600


def test_the_default_interface_is_eth0_or_none() -> None:
    """The upstream suite takes no other name for it."""
    slow, fast = InterfaceUse("ens4", rx_bytes=1), InterfaceUse("eth0", rx_bytes=2)
    both = of_node(used(group(), network=NetworkUse(AT, (slow, fast))))["network"]
    assert (both["name"], both["rxBytes"], [interface["name"] for interface in both["interfaces"]]) == (
        "eth0",
        2,
        ["ens4", "eth0"],
    )
    other = of_node(used(group(), network=NetworkUse(AT, (slow,))))["network"]
    assert other["name"] == "" and "rxBytes" not in other and other["interfaces"][0]["rxBytes"] == 1


def test_volumes_and_what_a_pod_keeps_on_the_nodes_disk() -> None:
    usage = everything_used()
    (uid, pod), *_ = usage.pods.items()
    own = FileSystemUse(AT, 1000, 500, 400, 50, 40, 10)
    volumes = (VolumeUse("scratch", own), VolumeUse("tmp", own, is_local=False, is_abnormal=True))
    hosts = FileSystemUse(AT + 200_000_000, 1000, 500, 4096, 50, 40, 1)
    usage = replace(usage, pods={uid: replace(pod, volumes=volumes, own_files=hosts)})
    reported = render_summary(usage, "n", AT, only_cpu_and_memory=False)["pods"][0]
    assert [(volume["name"], volume["usedBytes"]) for volume in reported["volume"]] == [("scratch", 400), ("tmp", 400)]
    assert [volume.get("volumeHealthStats") for volume in reported["volume"]] == [None, {"abnormal": True}]
    # its volume on the node's disk, its container's layer and logs, its /etc/hosts
    assert reported["ephemeral-storage"]["usedBytes"] == 400 + 10 + 10 + 4096
    assert reported["ephemeral-storage"]["inodesUsed"] == 10 + 7 + 7 + 1
    assert reported["ephemeral-storage"]["time"] == "2030-03-17T17:46:40Z", "that of the newest part"
    brief = render_summary(usage, "n", AT, only_cpu_and_memory=True)["pods"][0]
    assert brief.keys() == {"podRef", "startTime", "containers", "cpu", "memory", "swap"}


def test_system_containers_begin_when_their_groups_were_made() -> None:
    node = of_node(used(group(), system={"kubelet": group(), "pods": group(made_at=AT - 100)}))
    assert [(container["name"], container["startTime"]) for container in node["systemContainers"]] == [
        ("kubelet", "2023-11-14T22:13:20Z"),
        ("pods", "2023-11-14T22:11:40Z"),
    ]

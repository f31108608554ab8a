"""The pod and container of each cgroup."""

from __future__ import annotations

import os

import pytest

from pykubelet.base.model.ids import ContainerID, PodRef, PodUID, SandboxID
from pykubelet.base.model.observed import ContainerView, NetworkMode, Observed, ObservedState, PodView, SandboxView
from pykubelet.base.model.usage import CpuUse, GroupDetail, GroupUse, MemoryUse
from pykubelet.edges.host.proc.network_stats import read_network_use
from pykubelet.observe.stats.tree import (
    UsageSources,
    container_of_group,
    pod_groups,
    pod_of_group,
    qos_groups,
    read_cpu_totals,
    read_pods,
)

UID = "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"
ID = "ab" * 32


@pytest.mark.parametrize(
    ("name", "uid"),
    [
        (f"pod{UID}", UID),
        (f"kubepods-burstable-pod{UID.replace('-', '_')}.slice", UID),
        (f"kubepods-pod{'c' * 32}.slice", "c" * 32),
        ("podcast", None),
        ("burstable", None),
    ],
)
def test_the_pod_of_a_group(name: str, uid: str | None) -> None:
    assert pod_of_group(name) == uid


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (ID, ID),
        (f"cri-containerd-{ID}.scope", ID),
        (f"crio-{ID}.scope", ID),
        (f"crio-conmon-{ID}", ""),
        (f"crio-conmon-{ID}.scope", ""),
        ("init.scope", ""),
    ],
)
def test_the_container_of_a_group(name: str, found: str) -> None:
    assert container_of_group(name) == found


class Tree:
    """Groups by path. `pids`: their processes."""

    def __init__(self, *paths: str, pids: dict[str, list[int]] | None = None) -> None:
        self._paths = paths
        self._pids = pids or {}

    def read(self, path: str, at: float, *, brief: bool = False) -> GroupUse | None:
        return GroupUse(at, CpuUse(), MemoryUse(), path=path) if path in self._paths else None

    def cpu_total(self, path: str) -> int | None:
        return 7 if path in self._paths else None

    def detail(self, path: str) -> GroupDetail:
        return GroupDetail()

    def children(self, path: str) -> list[str]:
        inner = path.rstrip("/") + "/"
        return sorted({p.removeprefix(inner).split("/")[0] for p in self._paths if p.startswith(inner)})

    def processes(self, path: str) -> list[int]:
        return self._pids.get(path, [])


@pytest.mark.parametrize("sandbox_group", [True, False])
@pytest.mark.parametrize(("mode", "has_network"), [(NetworkMode.POD, True), (NetworkMode.NODE, False)])
def test_a_sandbox_without_a_process_has_the_network_of_its_containers(
    sandbox_group: bool, mode: NetworkMode, has_network: bool
) -> None:
    """As CRI-O makes it. The process is this one, whose interfaces are known."""
    sandbox, pod = "cd" * 32, f"/kubepods/pod{UID}"
    container = f"{pod}/crio-{ID}"
    groups = [pod, container, f"{pod}/crio-conmon-{ID}"] + [f"{pod}/crio-{sandbox}"] * sandbox_group
    tree = Tree(*groups, pids={container: [2**22 + 1, os.getpid()], f"{pod}/crio-conmon-{ID}": [1]})
    view = PodView(
        PodRef("shop", "web", PodUID(UID)),
        (SandboxView(SandboxID(sandbox), 0, ready=True, created_at=1, network=mode),),
        (ContainerView(ContainerID(ID), "app", SandboxID(sandbox), ObservedState.RUNNING, 0, 1),),
    )
    found = read_pods(UsageSources(tree, "/kubepods", 0, 0.0), Observed({PodUID(UID): view}), 1.0)[PodUID(UID)]
    assert [use.path for use in found.containers] == [container]
    assert (found.network is not None) == has_network
    if found.network is not None:
        own = read_network_use(1.0)
        assert own is not None and {i.name for i in found.network.interfaces} == {i.name for i in own.interfaces}


def test_pods_are_found_in_all_classes_of_service() -> None:
    other, third = UID.replace("0b", "1b"), UID.replace("0b", "2b")
    tree = Tree(f"/kubepods/pod{UID}/x", f"/kubepods/burstable/pod{other}/y", f"/kubepods/besteffort/pod{third}", "/a")
    assert dict(pod_groups(tree, "/kubepods")) == {
        UID: f"/kubepods/pod{UID}",
        other: f"/kubepods/burstable/pod{other}",
        third: f"/kubepods/besteffort/pod{third}",
    }
    slices = Tree(f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/x")
    assert [uid for uid, _ in pod_groups(slices, "/kubepods.slice")] == [UID]


def test_the_cpu_time_of_all_cgroups_that_are_reported() -> None:
    tree = Tree(
        "/", f"/kubepods/pod{UID}/{ID}", f"/kubepods/pod{UID}", f"/kubepods/pod{UID}/crio-conmon-{ID}", "/system"
    )
    sources = UsageSources(tree, "/kubepods", 0, 0.0, {"misc": "/system", "gone": "/gone"})
    assert read_cpu_totals(sources) == dict.fromkeys(
        ("/", "/system", f"/kubepods/pod{UID}", f"/kubepods/pod{UID}/{ID}"), 7
    )


def test_the_groups_of_burstable_and_best_effort_pods() -> None:
    tree = Tree("/kubepods/burstable/x", "/kubepods/besteffort/y", f"/kubepods/pod{UID}/x", "/a")
    assert sorted(qos_groups(tree, "/kubepods")) == ["/kubepods/besteffort", "/kubepods/burstable"]
    slices = Tree("/kubepods.slice/kubepods-burstable.slice/x")
    assert list(qos_groups(slices, "/kubepods.slice")) == ["/kubepods.slice/kubepods-burstable.slice"]

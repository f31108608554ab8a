"""The machine as placement sees it, read from sysfs trees."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.sysfs import SysfsTree, put

from pykubelet.base.model.machine import Cpu, NumaNode
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc.topology import read_topology

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def read(tree: SysfsTree, root: Path) -> tuple[tuple[Cpu, ...], tuple[NumaNode, ...]]:
    machine = read_topology(str(tree.write(root)))
    return machine.cpus, machine.nodes


def test_threads_cores_sockets_and_nodes(tmp_path: Path) -> None:
    cpus, nodes = read(SysfsTree(sockets=2, cores_per_node=2, huge_pages={2048: 5, 1048576: 1}), tmp_path)
    assert [(c.id, c.core, c.socket, c.numa_node) for c in cpus] == [
        (0, 0, 0, 0), (1, 1, 0, 0), (2, 2, 1, 1), (3, 3, 1, 1), (4, 0, 0, 0), (5, 1, 0, 0), (6, 2, 1, 1), (7, 3, 1, 1),
    ]  # fmt: skip
    assert nodes == (
        NumaNode(0, 4 << 30, {2 << 20: 5, 1 << 30: 1}, {0: 10, 1: 20}),
        NumaNode(1, 4 << 30, {2 << 20: 5, 1 << 30: 1}, {0: 20, 1: 10}),
    )


@pytest.mark.parametrize(("sockets", "per_socket"), [(1, 1), (2, 1), (1, 3), (2, 2), (1, 5), (2, 3), (1, 7), (2, 4)])
def test_one_to_eight_numa_nodes(tmp_path: Path, sockets: int, per_socket: int) -> None:
    cpus, nodes = read(SysfsTree(sockets=sockets, nodes_per_socket=per_socket, cores_per_node=3), tmp_path)
    count = sockets * per_socket
    assert [node.id for node in nodes] == list(range(count))
    assert all(sum(1 for cpu in cpus if cpu.numa_node == node.id) == 6 for node in nodes)
    assert len({cpu.core for cpu in cpus}) == count * 3
    assert {cpu.socket for cpu in cpus} == set(range(sockets))
    assert all(len(node.distances) == count for node in nodes)


def test_only_online_cpus_count(tmp_path: Path) -> None:
    cpus, _ = read(SysfsTree(offline=(0, 3)), tmp_path)
    assert [(cpu.id, cpu.core) for cpu in cpus] == [(1, 1), (2, 2)]


def test_without_smt_each_cpu_is_a_core(tmp_path: Path) -> None:
    cpus, _ = read(SysfsTree(threads=1, cores_per_node=4), tmp_path)
    assert [(cpu.id, cpu.core) for cpu in cpus] == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_a_kernel_without_the_list_of_online_cpus_has_all_online(tmp_path: Path) -> None:
    SysfsTree().write(tmp_path)
    (tmp_path / CPU / "online").unlink()
    assert len(read_topology(str(tmp_path)).cpus) == 4


@pytest.mark.parametrize(
    ("shared_by", "caches"),
    [
        (0, [0, 0, 0, 0, 1, 1, 1, 1]),  # none: the socket
        (2, [0, 0, 1, 1, 2, 2, 3, 3]),
        (4, [0, 0, 0, 0, 1, 1, 1, 1]),  # all of a node: the socket
        (8, [0, 0, 0, 0, 0, 0, 0, 0]),  # more than a node
    ],
)
def test_the_last_level_cache(tmp_path: Path, shared_by: int, caches: list[int]) -> None:
    cpus, _ = read(SysfsTree(sockets=2, cores_per_node=4, threads=1, shared_by=shared_by), tmp_path)
    assert [cpu.uncore_cache for cpu in cpus] == caches


def test_a_missing_cache_directory_leaves_the_socket(tmp_path: Path) -> None:
    SysfsTree(cores_per_node=4, threads=1, shared_by=2).write(tmp_path)
    shutil.rmtree(tmp_path / CPU / "cpu3/cache")
    (tmp_path / CPU / "cpu2/cache/index3/id").unlink()
    assert [cpu.uncore_cache for cpu in read_topology(str(tmp_path)).cpus] == [0, 0, 0, 0]


def test_without_numa_each_socket_is_a_node(tmp_path: Path) -> None:
    cpus, nodes = read(SysfsTree(sockets=2, cores_per_node=1, threads=1, numa=False), tmp_path)
    assert [(cpu.id, cpu.numa_node) for cpu in cpus] == [(0, 0), (1, 1)]
    assert nodes == (NumaNode(0, 0), NumaNode(1, 0))


def test_gaps_between_node_ids_and_a_node_without_cpus(tmp_path: Path) -> None:
    SysfsTree(sockets=2, cores_per_node=1, threads=1).write(tmp_path)
    (tmp_path / NODE / "node1").rename(tmp_path / NODE / "node4")
    put(tmp_path / NODE / "node9/distance", "17 28 10")
    for node in (0, 4):
        put(tmp_path / NODE / f"node{node}/distance", "10 20 30")
    machine = read_topology(str(tmp_path))
    assert [cpu.numa_node for cpu in machine.cpus] == [0, 4]
    assert machine.nodes[2] == NumaNode(9, 0, {}, {0: 17, 4: 28, 9: 10})


def test_missing_files_of_a_node_are_skipped(tmp_path: Path) -> None:
    SysfsTree().write(tmp_path)
    for name in ("meminfo", "distance"):
        (tmp_path / NODE / "node0" / name).unlink()
    assert read_topology(str(tmp_path)).nodes == (NumaNode(0, 0),)


def test_a_cpu_without_topology_files_does_not_count(tmp_path: Path) -> None:
    SysfsTree().write(tmp_path)
    shutil.rmtree(tmp_path / CPU / "cpu3/topology")
    assert [cpu.id for cpu in read_topology(str(tmp_path)).cpus] == [0, 1, 2]


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        (f"{CPU}/online", "0-x", '"x" is not the number of a CPU'),
        (f"{CPU}/cpu1/topology/core_id", "one", '"one" is not a number'),
        (f"{CPU}/cpu1/topology/physical_package_id", "", '"" is not a number'),
        (f"{CPU}/cpu1/cache/index3/level", "L3", '"L3" is not a number'),
        (f"{CPU}/cpu1/cache/index3/shared_cpu_map", "f,xyz", '"f,xyz" is not a mask of CPUs'),
        (f"{NODE}/node0/meminfo", "no", '"no" is not memory information with MemTotal'),
        (f"{NODE}/node0/distance", "10 20", '"10 20" is not a list of 1 distances'),
        (f"{NODE}/node0/distance", "near", '"near" is not a list of 1 distances'),
        (f"{NODE}/node0/hugepages/hugepages-2048kB/nr_hugepages", "few", '"few" is not a number'),
    ],
)
def test_unexpected_content_is_an_error_that_names_the_file(
    tmp_path: Path, path: str, content: str, message: str
) -> None:
    SysfsTree(shared_by=1, huge_pages={2048: 1}).write(tmp_path)
    put(tmp_path / path, content)
    with pytest.raises(HostError) as caught:
        read_topology(str(tmp_path))
    assert str(caught.value) == f"read {tmp_path / path}: {message}"


def test_a_tree_without_cpus_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=f"{tmp_path / CPU}: no online CPU"):
        read_topology(str(tmp_path))
    SysfsTree(offline=range(4)).write(tmp_path)
    with pytest.raises(HostError, match=f"{tmp_path / CPU}: no online CPU"):
        read_topology(str(tmp_path))


def test_a_tree_whose_nodes_have_no_cpus_is_an_error(tmp_path: Path) -> None:
    SysfsTree(cores_per_node=1).write(tmp_path)
    for cpu in (0, 1):
        (tmp_path / NODE / f"node0/cpu{cpu}").rmdir()
    with pytest.raises(HostError, match=f"{tmp_path / NODE}: no NUMA node has an online CPU"):
        read_topology(str(tmp_path))


@pytest.mark.parametrize("path", [f"{CPU}/cpu0/cache", NODE, f"{NODE}/node0"])
def test_a_file_in_place_of_a_directory_is_an_error_that_names_it(tmp_path: Path, path: str) -> None:
    SysfsTree().write(tmp_path)
    shutil.rmtree(tmp_path / path)
    put(tmp_path / path, "")
    with pytest.raises(HostError, match=f"readdir {tmp_path / path}: not a directory"):
        read_topology(str(tmp_path))

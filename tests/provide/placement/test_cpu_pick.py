"""Which CPUs are chosen: the documented cases, choices of the kubelet 1.36 on random machines, and what always holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.machines import Shape

from pykubelet.base.kit.cpuset import format_cpuset, parse_cpuset
from pykubelet.base.model.machine import Cpu, MachineTopology
from pykubelet.provide.placement.cpu_options import CpuOptions
from pykubelet.provide.placement.cpu_pick import NotEnough, pick_cpus
from pykubelet.provide.placement.cpu_topology import cpus_in, mask_of, topology_of

PACKED = CpuOptions()
SPREAD = CpuOptions(distribute_across_cores=True)
BY_CACHE = CpuOptions(prefer_uncore_cache=True)
ACROSS_NODES = CpuOptions(distribute_across_numa=True)
ACROSS_NODES_CORES = CpuOptions(distribute_across_numa=True, full_pcpus_only=True)

SINGLE = Shape()
DUAL = Shape(sockets=2, cores_per_node=3, interleaved=True)
DUAL_NO_SMT = Shape(sockets=2, threads=1)
FOUR_NODES = Shape(sockets=2, nodes_per_socket=2, cores_per_node=10)
EIGHT_NODES = Shape(sockets=2, nodes_per_socket=4, cores_per_node=16)
CACHES = Shape(cores_per_node=16, threads=1, caches=4)
CACHES_SMT = Shape(cores_per_node=8, caches=2)
CACHES_DUAL = Shape(sockets=2, cores_per_node=8, threads=1, caches=2, sockets_per_node=2)
CACHES_NODES = Shape(nodes_per_socket=2, cores_per_node=8, threads=1, caches=2)

#: Machine, options, free CPUs, how many are wanted; the chosen ones, or why none are.
CASES: list[tuple[Shape, CpuOptions, str, int, str]] = [
    (SINGLE, PACKED, "0,2,4,6", 5, "not enough cpus available to satisfy request: requested=5, available=4"),
    (SINGLE, PACKED, "0-7", 0, ""),
    (SINGLE, PACKED, "0-7", 1, "0"),
    (SINGLE, PACKED, "1,3,5-7", 1, "6"),
    (SINGLE, PACKED, "0-7", 2, "0,4"),
    (SINGLE, PACKED, "0-7", 8, "0-7"),
    (SINGLE, PACKED, "0-3,6", 2, "2,6"),
    (DUAL, PACKED, "0-11", 6, "0,2,4,6,8,10"),
    (FOUR_NODES, PACKED, "0-79", 40, "0-19,40-59"),
    (FOUR_NODES, PACKED, "0-79", 20, "0-9,40-49"),
    (FOUR_NODES, PACKED, "10-39,50-79", 20, "10-19,50-59"),
    (FOUR_NODES, PACKED, "0-79", 60, "0-29,40-69"),
    (FOUR_NODES, PACKED, "1-39,41-79", 60, "10-39,50-79"),
    (DUAL, PACKED, "1-5,7-11", 1, "2"),
    (DUAL, PACKED, "0-11", 8, "0-2,4,6-8,10"),
    (FOUR_NODES, PACKED, "0-79", 64, "0-31,40-71"),
    (CACHES, BY_CACHE, "1-15", 10, "1-2,4-11"),
    (CACHES_DUAL, BY_CACHE, "0-15", 4, "0-3"),
    (CACHES_DUAL, BY_CACHE, "2-15", 6, "2-7"),
    (CACHES_DUAL, BY_CACHE, "8-15", 4, "8-11"),
    (CACHES_NODES, BY_CACHE, "3-8,12", 2, "4-5"),
    (CACHES_SMT, BY_CACHE, "2-7,10-15", 6, "4-6,12-14"),
    (CACHES_SMT, BY_CACHE, "1-7,9-15", 10, "1,4-7,9,12-15"),
    (SINGLE, SPREAD, "0-7", 3, "0-2"),
    (DUAL, SPREAD, "0-11", 2, "0,2"),
    (DUAL, SPREAD, "0-11", 3, "0,2,4"),
    (DUAL, SPREAD, "0-11", 6, "0,2,4,6,8,10"),
    (DUAL, SPREAD, "0-11", 8, "0-4,6,8,10"),
    (DUAL_NO_SMT, SPREAD, "0-7", 2, "0-1"),
    (FOUR_NODES, SPREAD, "0-79", 8, "0-7"),
    (DUAL, ACROSS_NODES, "0-11", 8, "0-3,6-9"),
    (FOUR_NODES, ACROSS_NODES, "0-79", 64, "0-7,10-17,20-27,30-37,40-47,50-57,60-67,70-77"),
    (FOUR_NODES, ACROSS_NODES, "0-79", 48, "0-7,10-17,20-27,40-47,50-57,60-67"),
    (FOUR_NODES, ACROSS_NODES, "1-29,32-39,41-69,72-79", 48, "1-8,10-17,20-27,41-48,50-57,60-67"),
    (FOUR_NODES, ACROSS_NODES, "2-29,31-39,42-69,71-79", 48, "10-17,20-27,31-38,50-57,60-67,71-78"),
    (FOUR_NODES, ACROSS_NODES, "0-2,10-12,20-22,30-32,40-41,50-51,60-61,70-71", 16, "0-1,10-11,20-21,30-31,40-41,50-51,60-61,70-71"),
    (DUAL, ACROSS_NODES, "1-5,7-11", 1, "1"),
    (DUAL, ACROSS_NODES_CORES, "1-5,7-11", 1, "2"),
    (FOUR_NODES, ACROSS_NODES, "0-79", 26, "0-6,10-16,40-45,50-55"),
    (FOUR_NODES, ACROSS_NODES_CORES, "0-79", 26, "0-6,10-15,40-46,50-55"),
    # the half core that is left on either node gives no whole one
    (DUAL, ACROSS_NODES_CORES, "0-4,6,8-9", 8, "0-4,6,8-9"),
    (FOUR_NODES, ACROSS_NODES, "0-79", 62, "0-7,10-17,20-27,30-37,40-47,50-57,60-66,70-76"),
    (FOUR_NODES, ACROSS_NODES_CORES, "0-79", 62, "0-7,10-17,20-27,30-36,40-47,50-57,60-67,70-76"),
    (FOUR_NODES, ACROSS_NODES, "0-8,10-18,20-48,50-58,60-79", 62, "0-7,10-17,20-27,30-37,40-46,50-56,60-67,70-77"),
    (FOUR_NODES, ACROSS_NODES_CORES, "0-8,10-18,20-48,50-58,60-79", 62, "0-7,10-16,20-27,30-37,40-47,50-56,60-67,70-77"),
    (FOUR_NODES, ACROSS_NODES, "0-3,10-13,20-23,30-36,40-43,50-53,60-63,70-76", 34, "0-3,10-13,20-23,30-34,40-43,50-53,60-63,70-74"),
    (EIGHT_NODES, ACROSS_NODES, "0,30-31,43-47,62-63,75-79,94,96,101-111,126-128,158-159,171-175,190-191,203-207,222-223,229-239,"
     "254-255", 28, "43-47,75-79,96,101-105,171-174,203-206,229-232"),
]  # fmt: skip


def picked(shape: Shape, options: CpuOptions, free: str, count: int) -> str:
    result = pick_cpus(topology_of(shape.machine), mask_of(parse_cpuset(free)), count, options)
    return result.message if isinstance(result, NotEnough) else format_cpuset(cpus_in(result))


@pytest.mark.parametrize(("shape", "options", "free", "count", "chosen"), CASES)
def test_documented_cases(shape: Shape, options: CpuOptions, free: str, count: int, chosen: str) -> None:
    assert picked(shape, options, free, count) == chosen


SHAPES = (
    Shape(cores_per_node=8, caches=2),
    Shape(sockets=2, caches=1),
    Shape(sockets=2, nodes_per_socket=2, caches=2),
    Shape(nodes_per_socket=3, threads=1, caches=2),
    Shape(sockets=2, cores_per_node=6, caches=3),
    Shape(sockets=4, cores_per_node=3, sockets_per_node=2),
    Shape(sockets=2, threads=4, caches=2, interleaved=True),
    Shape(nodes_per_socket=4, cores_per_node=2, caches=1),
)
#: Choices of the kubelet 1.36: number of the shape, options, free CPUs, how many are wanted, and what it chose.
KUBELET = """
0 ACROSS_NODES 0-8,10-12,14-15 10 0,2-4,6,8,10-12,14
0 ACROSS_NODES 0,2,4,7,10,12,14 3 0,2,10
0 ACROSS_NODES 0-5,7-8,11-15 10 0,3-5,7-8,11-13,15
0 ACROSS_NODES 0,4-5,7,13,15 5 0,5,7,13,15
0 ACROSS_NODES 0,3-6,8,10-11,13-15 1 10
0 ACROSS_NODES_CORES 2-5,7,9-11 2 2,10
0 ACROSS_NODES_CORES 0-1,4-6,10-13,15 8 0-1,4-5,10-13
0 ACROSS_NODES_CORES 0-3,7,9,11 6 0-3,9,11
0 ACROSS_NODES_CORES 0,4,6,8-10,12,14-15 6 0,4,6,8,12,14
0 ACROSS_NODES_CORES 0,2-15 8 0,2-4,8,10-12
0 BY_CACHE 1-8,10-15 9 4-8,12-15
0 BY_CACHE 6,8-11,13-15 3 6,13-14
0 BY_CACHE 0-4,6-10,12-15 14 0-4,6-10,12-15
0 PACKED 1-2,4-6,10-13 4 2,4,10,12
0 PACKED 0,3-4,6-11,13-15 1 9
0 PACKED 0-7,9,11-15 8 1,3-5,9,11-13
0 SPREAD 0-3,5,7,9-11,14 9 0-3,5,7,9-11
0 SPREAD 1-4,10-12 2 1-2
1 ACROSS_NODES 3,5-7,11-15 6 5-7,13-15
1 ACROSS_NODES 0-3,6-8,10-11,15 5 0-2,8,10
1 ACROSS_NODES 1-2,5-7,9,12,14 4 5-6,12,14
1 ACROSS_NODES_CORES 0-2,4-8,11-15 2 4,12
1 ACROSS_NODES_CORES 0-1,3-6,8-14 6 0-1,3,8-9,11
1 ACROSS_NODES_CORES 1-4,6-15 2 1,9
1 ACROSS_NODES_CORES 0-2,5-7,9,11-12,14-15 4 6-7,14-15
1 ACROSS_NODES_CORES 6,8-14 6 6,8-11,14
1 BY_CACHE 0-9,11-13,15 6 0-1,3,8-9,11
1 BY_CACHE 0-4,6-11,13-15 7 0-3,8-10
1 BY_CACHE 3-8,14 5 3-4,6,8,14
1 BY_CACHE 1-3,5-15 6 1-3,9-11
1 PACKED 1-13 3 4,6,12
1 PACKED 0-3,6,8,10-13,15 4 0,2,8,10
1 SPREAD 0-3,5-15 6 5-7,12-14
1 SPREAD 0-1,3,6,8-11,13-15 5 0,6,13-15
1 SPREAD 1-11,14-15 5 4-7,14
1 SPREAD 0-5,7-10,12,15 5 4-5,7,12,15
1 SPREAD 1,3,5,8,11,14 4 1,3,5,14
1 SPREAD 0-1,3-4,6-10,12,14-15 6 0-1,3,8-10
1 SPREAD 0,2-7,10-15 6 0,2-4,10-11
2 ACROSS_NODES 0,3-6,8-9,11-31 25 0,3-6,8-9,11-22,24-25,27-30
2 ACROSS_NODES_CORES 0,5,8,11,15-18,21,25,30-31 2 0,16
2 ACROSS_NODES_CORES 0,2,6-18,20,22-26,28-30 6 8-10,24-26
2 ACROSS_NODES_CORES 11-13,16-17,19,25,27 6 11-13,16-17,27
2 ACROSS_NODES_CORES 0-1,5,8-11,13-18,29,31 4 0-1,16-17
2 ACROSS_NODES_CORES 0-3,5-6,8,10-11,13-16,19-23,26-28,30 4 0,3,16,19
2 BY_CACHE 0-2,4,8-16,18-25,27,29-31 19 0,2,4,8-11,13-16,18,20,24-25,27,29-31
2 BY_CACHE 1-2,8-9,11-14,18,21,23-25,27,29 15 1-2,8-9,11-14,18,21,23-25,27,29
2 BY_CACHE 1-2,4,6-8,10-14,16-18,20-30 3 1,16-17
2 BY_CACHE 0-6,8-16,18,21-27,29-31 19 0,2,8-16,18,24-27,29-31
2 BY_CACHE 0,2-8,10,13-14,16,19-23,25-27 1 13
2 BY_CACHE 0-6,8-11,13-16,19,22,24-25,27,29 13 0,6,8-11,13,16,22,24-25,27,29
2 PACKED 0,2,4-9,12-14,18-20,22,24-25,29-31 7 0,2,4,6,18,20,22
2 SPREAD 0-3,5-6,8-9,12,14,16,18-20,22-23,26-27 12 0-3,5-6,8-9,12,14,26-27
2 SPREAD 0-1,3-4,6-14,16-23,25-31 8 0-1,3-4,6-7,16-17
2 SPREAD 2,5,11,13-17,21,27-28,30 9 2,5,11,13-17,21
2 SPREAD 0-1,3-7,9-10,12,14-16,18,21-22,25-27,29-31 2 0-1
2 SPREAD 0-1,3-4,8,10-13,22,26-27,29,31 10 0-1,3-4,8,10-13,22
2 SPREAD 0-3,5-11,13-22,24-31 22 0-3,5-11,16-22,24-27
2 SPREAD 2-8,11-13,15,18-19,21-23,26,28-29,31 1 8
2 SPREAD 0-1,3-4,6-12,14-17,20-24,27-31 2 0-1
2 SPREAD 5,7-8,14,17-18,24-25,29,31 2 5,7
3 ACROSS_NODES 0-4,6-11 6 0-2,8-10
3 ACROSS_NODES 2,4,8-9,11 1 8
3 ACROSS_NODES 2,4-7,11 6 2,4-7,11
3 ACROSS_NODES 0,2-4,6-11 10 0,2-4,6-11
3 ACROSS_NODES_CORES 0-8 4 0-3
3 ACROSS_NODES_CORES 2-3,6-8,10-11 2 8,10
3 ACROSS_NODES_CORES 1-3,5-8,10 7 1-3,5-6,8,10
3 BY_CACHE 1,5-6,8-9,11 5 1,5,8-9,11
3 BY_CACHE 0,4,9-11 1 0
3 BY_CACHE 0-2,4-11 1 2
3 BY_CACHE 1-4,7,9,11 6 1-4,7,9
3 BY_CACHE 2-3,5,10-11 5 2-3,5,10-11
3 BY_CACHE 0-1,3-4,7-11 9 0-1,3-4,7-11
3 PACKED 0-2,5-8,10-11 3 0-2
3 PACKED 0-3,5-7,10-11 3 5,10-11
3 PACKED 2-11 7 2-8
3 PACKED 0-6,8-11 6 0-5
3 PACKED 0,4,6,8-10 4 0,4,6,8
3 PACKED 0-1,4-5,7-11 8 0-1,4-5,8-11
3 SPREAD 1,3,6,9-11 2 1,3
4 ACROSS_NODES 1,3,10,12,17,19,21-22 1 12
4 ACROSS_NODES 0-9,12,14-23 8 0,2-4,12,14-16
4 ACROSS_NODES 0-3,5-7,9-14,16-23 10 6-7,9-11,18-19,21-23
4 BY_CACHE 1-20,23 14 2-8,14-20
4 BY_CACHE 0-2,5,10,12,17-19,21 5 0-1,5,12,17
4 BY_CACHE 0-5,7-13,16-23 20 0-2,4-5,7-13,16-23
4 PACKED 6-7,10-12,17-18,22 8 6-7,10-12,17-18,22
4 PACKED 0,5,7-8,11-12,14,17,21-22 10 0,5,7-8,11-12,14,17,21-22
4 PACKED 3,9,18-19 1 3
4 PACKED 0,2-9,11-15,17-20,22-23 11 0,2-3,5-6,12-15,17-18
4 PACKED 0-2,4-23 3 0,12,15
4 SPREAD 1,3-4,6,8-15,17-23 7 1,3-4,12-15
4 SPREAD 9-12,14,18-19 4 9-10,12,14
4 SPREAD 0-6,9,11-15,17,21 12 0-6,9,11-13,21
4 SPREAD 0-3,6-20,22 4 0-3
5 ACROSS_NODES 0-1,3-4,6,9-10,12-13,15-19,21 8 0-1,3-4,12-13,15-16
5 ACROSS_NODES 0-11,13-19,21-23 1 0
5 ACROSS_NODES 0-2,4-5,7-11,13-23 15 0-2,4,7,9-11,13-14,16,18,21-23
5 ACROSS_NODES_CORES 1-2,6,11,20-21,23 4 6,11,21,23
5 ACROSS_NODES_CORES 1-3,5-7,9-13,15-17,19,21-22 12 1,3,5,7,9-10,13,15,17,19,21-22
5 ACROSS_NODES_CORES 0,2-4,7-9,11,13-14,16-20,22-23 4 7,11,19,23
5 ACROSS_NODES_CORES 0-1,3-13,15-17,19-23 16 0,3-5,7,9-12,15-17,19,21-23
5 ACROSS_NODES_CORES 0,2-3,6-14,16-17,20,22 6 0,2-3,12-14
5 ACROSS_NODES_CORES 0,2,6,9-10,13,16,18-20 6 6,9-10,18-20
5 BY_CACHE 3,6-7,9-13,15,19,21 1 12
5 BY_CACHE 0,3,5,7-14,16-21 17 0,3,5,7-14,16-21
5 BY_CACHE 2,4,7,9,20,22 2 2,4
5 BY_CACHE 0-16,18,21-23 13 0-2,6,9-14,21-23
5 BY_CACHE 0,2-4,6,8-9,13-14,18-19 11 0,2-4,6,8-9,13-14,18-19
5 BY_CACHE 1-10,12,14,16-19,21-22 3 3-4,16
5 PACKED 2,5,7,9,13,17-18,20,22-23 5 2,5,13,17-18
5 PACKED 0,7-9,11-13,15-16,19 7 0,7,12-13,15-16,19
5 PACKED 1-3,5,11,13,15-17,19,23 4 1,11,13,23
5 SPREAD 1-4,6-15,17-18,20,22-23 17 1-4,6-15,17-18,20
5 SPREAD 0,3-4,9-10,14,17-18,22 5 0,9-10,18,22
5 SPREAD 1,4-5,11-12,15,19-21 1 19
5 SPREAD 0-4,7-14,16-18,22-23 4 7-9,18
5 SPREAD 0-10,13-21,23 15 3-10,15-21
6 ACROSS_NODES 0,4,7,10,13-14,21,23,27-28,31 3 13,21,27
6 ACROSS_NODES_CORES 0-1,3,6-9,11,13-14,16,18,20-21,24-28,31 4 0,8,16,24
6 ACROSS_NODES_CORES 0-8,10-14,16-22,25-26,28-31 12 2,4,6,10,12,14,18,20,22,26,28,30
6 ACROSS_NODES_CORES 0-7,10-14,16-18,20-31 4 2,10,18,26
6 BY_CACHE 0-2,5-7,9-14,16-19,21-31 22 0-2,5-6,9-14,16-18,21-22,24-26,28-30
6 BY_CACHE 0,6-7,16-19,21,25,27-28 9 0,6-7,16-18,21,25,28
6 BY_CACHE 2,6,22-24,27,30-31 6 2,6,23-24,27,31
6 BY_CACHE 0-28,30-31 14 1,3,5,7,9,11,13,15,17,19,23,25,27,31
6 PACKED 0-1,7,10,12,15,17,22-23,25,28,31 6 1,7,15,17,23,31
6 PACKED 0,2-3,6,8,10-13,15-20,22-24,26-27,29-31 1 17
6 PACKED 0-12,14-24,26,28-31 1 1
6 SPREAD 8,10-11,16-18,21,27,29 5 8,10-11,16,18
6 SPREAD 2,4,7,12,14,19,24,26-28,31 11 2,4,7,12,14,19,24,26-28,31
7 ACROSS_NODES 1-2,5,10,14-15 2 2,10
7 ACROSS_NODES 0,2-3,5,7-9,12-15 3 0,8-9
7 ACROSS_NODES 5 1 5
7 ACROSS_NODES 0-4,7-9,11,13,15 4 0-1,8-9
7 ACROSS_NODES 1-2,4-5,7-12,14-15 10 1-2,4,7-12,15
7 ACROSS_NODES 2-3,5-7,9,15 3 6-7,15
7 ACROSS_NODES 1,3-5,8-14 5 1,4-5,9,12
7 ACROSS_NODES 0,2,7,10-11,13 3 2,10-11
7 ACROSS_NODES_CORES 0-2,5-6,8-12 2 0,8
7 BY_CACHE 0,2-15 2 0,8
7 PACKED 0-1,3-9,11-15 11 0-1,3-6,8-9,11-13
7 PACKED 2-4,6-8,10-15 11 2-4,6-8,10-12,14-15
7 PACKED 0,2-11,13-15 8 2-3,6-7,10-11,14-15
7 PACKED 1,3-5,7-10,12-15 7 1,4-5,8-9,12-13
7 PACKED 1-8,10-12 2 4,12
7 PACKED 1-5,7-10,12-15 2 1,9
7 PACKED 0-1,3-5,7-9,11-14 8 0-1,4-5,8-9,12-13
7 SPREAD 0-14 7 0-4,8-9
7 SPREAD 0,2-3,11-13 3 0,2-3
7 SPREAD 0-3,5-7,9-10,12,14-15 9 0-3,5-7,14-15
7 SPREAD 2-15 7 2-6,10-11
7 SPREAD 0,2-6,8-14 1 0
7 SPREAD 0,2,4-6,8-15 8 0,2,4-6,8,12-13
7 SPREAD 0-1,4-9,11-15 10 0-1,4-9,12-13
7 SPREAD 1,5,8-10,13-14 1 1
7 SPREAD 0-2,4-6,9-12 5 0-2,4-5
7 SPREAD 1,3,6-7,9-10,14 1 1
7 SPREAD 1-3,5,8-15 5 1-3,10-11
""".strip().splitlines()


@pytest.mark.parametrize("line", KUBELET)
def test_choices_of_the_kubelet(line: str) -> None:
    number, options, free, count, chosen = line.split(" ", 4)
    assert picked(SHAPES[int(number)], globals()[options], free, int(count)) == chosen


def test_a_reference_case_of_four_nodes_takes_the_most_balanced_ones() -> None:
    """Where four or more nodes share, the kubelet may take another last node than the one it found to be best."""
    shape = Shape(sockets=4, nodes_per_socket=2, cores_per_node=2, threads=1)
    assert picked(shape, ACROSS_NODES, "0-10,12-15", 8) == "0-5,8-9"


@pytest.mark.parametrize("free", ["0-5", "2-5", "0,2-5"])
def test_unequal_cores_give_free_cpus_only(free: str) -> None:
    """Two cores with two threads and four with one: the average is one, so that half a core could pass for a whole one."""
    cores = {0: 0, 4: 0, 1: 1, 5: 1, 2: 2, 3: 3, 6: 6, 7: 7}
    machine = MachineTopology(tuple(Cpu(cpu, core, 0, 0, 0) for cpu, core in sorted(cores.items())), ())
    cpus = mask_of(parse_cpuset(free))
    for count in range(1, cpus.bit_count() + 1):
        result = pick_cpus(topology_of(machine), cpus, count, PACKED)
        assert isinstance(result, int)
        assert (result & ~cpus, result.bit_count()) == (0, count)


@pytest.mark.parametrize(
    ("by_topology", "free", "count", "chosen"),
    [
        (False, "0-7", 4, "0-3"),
        (True, "0-7", 4, "0,2,4,6"),
        (True, "0-7", 6, "0-4,6"),
        (True, "0-3,5,7", 3, "0,5,7"),
        (True, "8-15", 5, "8-10,12,14"),
    ],
)
def test_cores_are_spread_over_by_their_topology_since_1_38(
    by_topology: bool, free: str, count: int, chosen: str
) -> None:
    """On a machine on which the threads of a core have neighboring ids."""
    machine = MachineTopology(tuple(Cpu(cpu, cpu // 2 * 2, cpu // 8, cpu // 8, cpu // 8) for cpu in range(16)), ())
    options = CpuOptions(distribute_across_cores=True, spread_by_topology=by_topology)
    result = pick_cpus(topology_of(machine), mask_of(parse_cpuset(free)), count, options)
    assert isinstance(result, int) and format_cpuset(cpus_in(result)) == chosen


@pytest.mark.parametrize(
    ("least", "count", "chosen"),
    [
        (0, 8, "0-3,16-19"),
        (2, 8, "0-1,4-5,16-17,20-21"),
        (4, 8, "0,4,8,12,16,20,24,28"),
        (4, 3, "0-1,16"),
        (4, 1, "0"),
    ],
)
def test_cpus_are_distributed_over_at_least_so_many_nodes(least: int, count: int, chosen: str) -> None:
    """If there are so many CPUs."""
    machine = Shape(sockets=2, nodes_per_socket=2).machine
    result = pick_cpus(topology_of(machine), mask_of(range(32)), count, ACROSS_NODES, least)
    assert isinstance(result, int) and format_cpuset(cpus_in(result)) == chosen


def test_groups_that_cannot_be_given_are_packed() -> None:
    """One free thread of each core: no node has a whole core to give."""
    shape = Shape(sockets=2, cores_per_node=4)
    assert picked(shape, ACROSS_NODES_CORES, "0-7", 6) == "0-5"
    assert picked(shape, ACROSS_NODES_CORES, "0,4", 2) == "0,4"
    assert picked(shape, ACROSS_NODES_CORES, "0-1", 4).startswith("not enough cpus available")


def test_unknown_cpus_are_not_chosen() -> None:
    assert picked(SINGLE, PACKED, "6-9", 2) == "6-7"
    assert picked(SINGLE, PACKED, "8-9", 1) == "not enough cpus available to satisfy request: requested=1, available=2"


shapes = st.builds(
    Shape,
    sockets=st.sampled_from([1, 2, 4]),
    nodes_per_socket=st.integers(1, 2),
    cores_per_node=st.integers(1, 6),
    threads=st.sampled_from([1, 2, 4]),
    caches=st.integers(0, 3),
    interleaved=st.just(False),
)
all_options = st.sampled_from([PACKED, SPREAD, BY_CACHE, ACROSS_NODES, ACROSS_NODES_CORES])


@given(shapes, all_options, st.data())
def test_exactly_as_many_free_cpus_as_wanted(shape: Shape, options: CpuOptions, data: st.DataObject) -> None:
    topology = topology_of(shape.machine)
    free = data.draw(st.integers(0, topology.all)) & topology.all
    count = data.draw(st.integers(0, topology.all.bit_count()))
    result = pick_cpus(topology, free, count, options)
    if isinstance(result, NotEnough):
        assert count > free.bit_count()
    else:
        assert (result & ~free, result.bit_count()) == (0, count)


@given(shapes, st.data())
def test_whole_cores_stay_whole(shape: Shape, data: st.DataObject) -> None:
    """From whole free cores, a number that is a multiple of a core's threads is whole cores again."""
    topology = topology_of(shape.machine)
    cores = data.draw(st.sets(st.sampled_from(sorted(topology.cores)), min_size=1))
    free = mask_of(cpu for core in cores for cpu in cpus_in(topology.cores[core]))
    count = data.draw(st.integers(1, len(cores))) * topology.threads_per_core
    for options in (PACKED, BY_CACHE, ACROSS_NODES_CORES):
        result = pick_cpus(topology, free, count, options)
        assert isinstance(result, int)
        assert topology.siblings(result) == result

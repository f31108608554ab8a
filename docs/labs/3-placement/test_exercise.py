import os
from collections.abc import Iterable
from pathlib import Path

from pykubelet.extension.testing import load, make_machine, make_request

lab = load(Path(__file__).with_name(os.environ.get("LAB", "exercise.py")))


def place(cpus: int, cores: int = 4, threads: int = 2, numa_nodes: int = 1, used: Iterable[int] = ()) -> set[int]:
    return set(lab.ask("place", make_request(cpus), make_machine(cores, threads, numa_nodes, used)))


def test_one_thread_of_each_core() -> None:
    # CPUs 0 to 3 are the first threads of the cores, 4 to 7 the second ones
    assert place(4) == {0, 1, 2, 3}


def test_a_core_that_another_container_uses_is_avoided() -> None:
    # of cores 0 and 1 one thread is used
    assert place(2, used=(0, 5)) == {2, 3}


def test_second_threads_if_there_are_not_enough_cores() -> None:
    found = place(6)
    assert {0, 1, 2, 3} < found and len(found) == 6


def test_one_numa_node_if_its_cores_suffice() -> None:
    # cores 0 to 3 are on node 0, 4 to 7 on node 1; of node 0, three cores are unused
    assert place(4, cores=8, numa_nodes=2, used=(0, 8)) == {4, 5, 6, 7}


def test_the_node_with_the_fewest_free_cpus_is_filled_first() -> None:
    found = place(2, cores=8, numa_nodes=2, used=(4, 12))
    assert found <= {5, 6, 7}, "node 0 is whole, and stays so"


def test_second_threads_of_one_node_before_two_nodes() -> None:
    found = place(6, cores=8, numa_nodes=2)
    assert found <= {0, 1, 2, 3, 8, 9, 10, 11} or found <= {4, 5, 6, 7, 12, 13, 14, 15}


def test_two_nodes_if_there_is_no_other_way() -> None:
    assert len(place(10, cores=8, numa_nodes=2)) == 10


def test_what_the_built_in_policy_knows_better_is_left_to_it() -> None:
    machine = make_machine(8, 2, 2)
    assert lab.ask("place", make_request(2, numa_nodes=[1]), machine) is None
    assert lab.ask("place", make_request(2, whole_cores=True), machine) is None


def test_machines_without_threads() -> None:
    assert place(3, threads=1, used=(1,)) == {0, 2, 3}

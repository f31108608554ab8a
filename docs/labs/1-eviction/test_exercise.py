import os
from pathlib import Path

from pykubelet.extension import EvictionCandidate
from pykubelet.extension.testing import load, make_candidate, make_container, make_pod

MI = 1 << 20
lab = load(Path(__file__).with_name(os.environ.get("LAB", "exercise.py")))


def candidate(name: str, uses: int | None, requests: int = 0, priority: int = 0) -> EvictionCandidate:
    pod = make_pod(name, make_container(memory=requests * MI), priority=priority)
    usage = make_candidate(memory=None if uses is None else uses * MI).usage
    return EvictionCandidate(pod, None if uses is None else usage)


def order(*candidates: EvictionCandidate, signal: str = "memory.available") -> list[str]:
    return [found.pod.name for found in lab.ask("rank_for_eviction", candidates, signal)]


def test_the_highest_ratio_of_use_to_request_goes_first() -> None:
    assert order(candidate("large", 10_500, 10_000), candidate("small", 100, 10)) == ["small", "large"]


def test_a_pod_below_its_request_goes_last() -> None:
    assert order(candidate("modest", 500, 1000), candidate("greedy", 20, 10), candidate("even", 10, 10)) == [
        "greedy",
        "even",
        "modest",
    ]


def test_without_a_request_it_counts_as_1_mib() -> None:
    assert order(candidate("asked", 30, 10), candidate("silent", 5)) == ["silent", "asked"]


def test_a_lower_priority_goes_before_a_higher_one() -> None:
    assert order(candidate("important", 900, 1, priority=10), candidate("batch", 10, 10, priority=-5)) == [
        "batch",
        "important",
    ]


def test_what_was_not_measured_goes_last_in_its_priority() -> None:
    users = candidate("unknown", None, 10), candidate("known", 5, 10), candidate("vip", 99, 1, priority=1)
    assert order(*users) == ["known", "unknown", "vip"]


def test_other_signals_are_left_alone() -> None:
    users = [candidate("a", 1, 10), candidate("b", 90, 10)]
    assert lab.ask("rank_for_eviction", users, "nodefs.available") is None

import os
from collections.abc import Sequence
from pathlib import Path

from pykubelet.extension import Exit, RestartAfter, RestartHistory, RestartNever
from pykubelet.extension.testing import load, make_container, make_pod

LAB = Path(__file__).with_name(os.environ.get("LAB", "exercise.py"))
lab = load(LAB, {"healthy_s": 60, "longest_s": 30})


def ended(code: int = 1, ran_s: float = 2.0, reason: str = "Error") -> Exit:
    return Exit(code, reason, 0, 1000.0, 1000.0 + ran_s)


def restart(exits: Sequence[Exit], uid: str = "a") -> object:
    history = RestartHistory(make_pod("web", uid=uid), len(exits) - 1, tuple(exits), 10.0)
    return lab.ask("restart", make_container(), history)


def delay_s(exits: Sequence[Exit], uid: str = "a") -> float:
    answer = restart(exits, uid)
    assert isinstance(answer, RestartAfter)
    return answer.delay_s


def test_a_wrong_configuration_is_given_up_at_the_third_time() -> None:
    assert restart([ended(78)]) is None
    assert restart([ended(78), ended(78)]) is None
    answer = restart([ended(78), ended(78), ended(78)])
    assert isinstance(answer, RestartNever) and answer.message


def test_only_exits_in_a_row_count() -> None:
    assert restart([ended(78), ended(78), ended(1), ended(78)]) is None


def test_a_container_that_had_worked_starts_again_at_once() -> None:
    assert delay_s([ended(ran_s=3600), ended(), ended(), ended()]) == 1.0


def test_short_runs_are_followed_by_growing_delays() -> None:
    for count, most in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0)):
        assert most / 2 <= delay_s([ended()] * count) <= most


def test_a_long_run_before_begins_the_count_anew() -> None:
    assert delay_s([ended(), ended(ran_s=600), ended(), ended(), ended()]) <= 1.0


def test_there_is_a_longest_delay() -> None:
    assert 15.0 <= delay_s([ended()] * 10) <= 30.0


def test_replicas_do_not_start_at_the_same_moment() -> None:
    delays = [delay_s([ended()] * 5, uid=f"replica-{number}") for number in range(50)]
    assert len(set(delays)) > 40
    assert max(delays) - min(delays) > 4.0
    assert delays == [delay_s([ended()] * 5, uid=f"replica-{number}") for number in range(50)]


def test_a_container_without_memory_is_left_to_the_agent() -> None:
    assert restart([ended(137, reason="OOMKilled")]) is None

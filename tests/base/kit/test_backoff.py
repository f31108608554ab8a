"""Back-off: doubles up to a cap, counts from the failure, is forgotten after twice the cap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.backoff import Backoff, BackoffPolicy

CRASH = BackoffPolicy(initial_s=10, cap_s=300)


def test_the_first_failure_waits_for_nothing() -> None:
    assert CRASH.free_at(None, event_at=50) == 50


def test_delays_double_up_to_the_cap() -> None:
    entry, now, delays = None, 0.0, []
    for _ in range(8):
        entry = CRASH.raised(entry, event_at=now, now=now)
        delays.append(entry.delay_s)
        now += entry.delay_s
    assert delays == [10, 20, 40, 80, 160, 300, 300, 300]


def test_the_delay_counts_from_the_failure_not_from_when_it_was_noticed() -> None:
    entry = CRASH.raised(None, event_at=100, now=103)
    assert entry == Backoff(10, updated_at=103)
    assert CRASH.free_at(entry, event_at=200) == 210


@pytest.mark.parametrize(("ran_s", "delay_s"), [(599.0, 80), (600.0, 80), (600.1, 10), (10_000.0, 10)])
def test_a_failure_later_than_twice_the_cap_begins_anew(ran_s: float, delay_s: float) -> None:
    entry = Backoff(40, updated_at=1000)
    ended = 1000 + ran_s
    assert CRASH.raised(entry, ended, ended).delay_s == delay_s
    assert CRASH.free_at(entry, ended) == (ended if delay_s == 10 else ended + 40)


def test_a_low_cap_is_not_forgotten_before_its_time() -> None:
    """maxContainerRestartPeriod 5s: a container that lives 11 s each time waits each time."""
    crash = BackoffPolicy(initial_s=5, cap_s=5, reset_s=600)
    entry = crash.raised(None, event_at=11, now=11)
    for run in range(1, 5):
        ended = entry.updated_at + 5 + 11
        assert crash.free_at(entry, ended) == ended + 5, run
        entry = crash.raised(entry, ended, ended)
    assert crash.free_at(entry, entry.updated_at + 600.1) == entry.updated_at + 600.1


def test_a_cap_below_the_initial_delay_lowers_it() -> None:
    assert BackoffPolicy(10, 1).raised(None, 0, 0).delay_s == 1


@given(st.lists(st.floats(0, 2000), min_size=1, max_size=40))
def test_no_delay_ever_leaves_its_bounds(runs: list[float]) -> None:
    entry, now = None, 0.0
    for run in runs:
        now += run
        entry = CRASH.raised(entry, now, now)
        assert 10 <= entry.delay_s <= 300
        assert CRASH.free_at(entry, now) <= now + 300


def test_pauses_between_tries_double_up_to_the_cap() -> None:
    assert [CRASH.delay_s(failures) for failures in range(1, 9)] == [10, 20, 40, 80, 160, 300, 300, 300]
    assert CRASH.delay_s(0) == 10
    assert BackoffPolicy(10, 1).delay_s(1) == 1


@given(st.integers(-1, 10**18), st.floats(0.001, 10), st.floats(0.001, 10**6))
def test_no_number_of_failures_is_too_large(failures: int, initial_s: float, cap_s: float) -> None:
    delay_s = BackoffPolicy(initial_s, cap_s).delay_s(failures)
    assert min(initial_s, cap_s) <= delay_s <= cap_s
    assert failures < 64 or delay_s == cap_s


def test_the_pause_follows_the_last_one_by_the_factor() -> None:
    policy, pauses = BackoffPolicy(initial_s=0.5, cap_s=2.0, factor=1.5), [0.0]
    for _ in range(5):
        pauses.append(policy.next_s(pauses[-1]))
    assert pauses == [0.0, 0.5, 0.75, 1.125, 1.6875, 2.0]
    assert [policy.delay_s(failures) for failures in range(1, 6)] == pauses[1:]

"""Rates: bursts, waits, tokens given back, and that no schedule of calls gets more than the rate allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.bucket import TokenBucket


def take_all(bucket: TokenBucket, now: float, at_most: int = 1000) -> int:
    """How many tokens are there."""
    return next((count for count in range(at_most) if not bucket.take(now)), at_most)


def test_a_burst_is_free_and_then_tokens_come_at_the_rate() -> None:
    bucket = TokenBucket(rate=2.0, burst=3)
    assert take_all(bucket, 100.0) == 3
    assert bucket.wait_s(100.0) == 0.5
    assert bucket.wait_s(100.25) == 0.25
    assert bucket.wait_s(100.5) == 0.0
    assert take_all(bucket, 100.5) == 1
    assert take_all(bucket, 101.75) == 2


def test_no_more_than_the_burst_is_saved_up() -> None:
    bucket = TokenBucket(rate=2.0, burst=3)
    assert take_all(bucket, 0.0) == 3
    assert take_all(bucket, 1e6) == 3
    assert bucket.wait_s(1e6) == 0.5


def test_each_of_a_queue_waits_for_those_ahead() -> None:
    bucket = TokenBucket(rate=10.0, burst=2)
    assert [bucket.wait_s(5.0, ahead) for ahead in range(4)] == pytest.approx([0.0, 0.0, 0.1, 0.2])


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_no_rate_is_no_limit(rate: float) -> None:
    bucket = TokenBucket(rate, burst=1)
    assert take_all(bucket, 0.0) == 1000
    bucket.give_back()
    assert bucket.wait_s(0.0, ahead=1000) == 0.0


@pytest.mark.parametrize("burst", [0, -5])
def test_the_burst_is_at_least_one(burst: int) -> None:
    assert take_all(TokenBucket(rate=1.0, burst=burst), 0.0) == 1


def test_a_charge_takes_what_is_saved_and_then_what_comes() -> None:
    bucket = TokenBucket(rate=2.0, burst=3)
    bucket.charge(1.0, now=100.0)
    assert take_all(bucket, 100.0) == 1
    bucket.charge(10.0, now=100.0)
    assert bucket.wait_s(100.0) == 10.5
    assert take_all(bucket, 110.5) == 1


def test_what_is_given_back_costs_nothing_and_brings_nothing() -> None:
    bucket = TokenBucket(rate=0.1, burst=1)
    for _ in range(100):
        assert bucket.take(1.0)
        bucket.give_back()
    bucket.give_back()
    assert take_all(bucket, 1.0) == 1


@given(
    rate=st.sampled_from([0.003, 0.5, 3.0, 100.0]),
    burst=st.integers(1, 5),
    start=st.sampled_from([0.0, 0.1, 1e6]),
    pauses=st.lists(st.floats(0.0, 10.0), max_size=60),
)
def test_no_more_than_burst_and_rate_and_waits_that_are_true(
    rate: float, burst: int, start: float, pauses: list[float]
) -> None:
    bucket, now = TokenBucket(rate, burst), start
    for taken, pause_s in enumerate(pauses, 1):
        now += pause_s
        wait_s = bucket.wait_s(now)
        assert 0.0 <= wait_s <= 1.0 / rate + 1e-6
        if wait_s:
            assert not bucket.take(now)
            now += wait_s
        assert bucket.take(now), "after the wait a token is there"
        assert taken <= burst + rate * (now - start) + 1e-3

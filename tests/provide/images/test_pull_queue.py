from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.bucket import TokenBucket
from pykubelet.provide.images.pull_queue import PullQueue


def line(limit: int | None = None, rate: float = 0.0, burst: int = 1) -> PullQueue:
    return PullQueue(limit, TokenBucket(rate, burst))


def join(to: PullQueue, *tickets: int) -> None:
    for ticket in tickets:
        to.join(ticket, ticket)


def test_without_limits_all_go_at_once() -> None:
    free = line()
    join(free, 1, 2, 3)
    assert free.admit(0.0) == ([1, 2, 3], None)


def test_a_cap_admits_in_order_of_arrival_as_others_leave() -> None:
    capped = line(limit=2)
    join(capped, 1, 2, 3, 4)
    assert capped.admit(0.0) == ([1, 2], None)
    assert [capped.position(t) for t in (1, 2, 3, 4)] == [0, 0, 1, 2]
    capped.leave(2)
    assert capped.admit(1.0) == ([3], None)
    assert capped.position(4) == 1


def test_who_asked_first_overtakes_who_came_to_the_line_first() -> None:
    single = line(limit=1)
    join(single, 1, 3)
    single.admit(0.0)
    join(single, 2)
    assert [single.position(t) for t in (2, 3)] == [1, 2]
    single.leave(1)
    assert single.admit(0.0) == ([2], None)


def test_one_who_gives_up_frees_its_place_in_the_queue() -> None:
    single = line(limit=1)
    join(single, 1, 2, 3)
    single.admit(0.0)
    single.leave(2)
    single.leave(1)
    assert single.admit(0.0) == ([3], None)


def test_the_rate_makes_pulls_wait_for_a_known_time() -> None:
    slow = line(rate=2.0, burst=2)
    join(slow, 1, 2, 3, 4)
    assert slow.admit(0.0) == ([1, 2], 0.5)
    assert slow.admit(0.25) == ([], 0.25)
    assert slow.admit(0.5) == ([3], 0.5)
    assert slow.admit(1.0) == ([4], None)


def test_saved_tokens_are_limited_by_the_burst() -> None:
    slow = line(rate=1.0, burst=2)
    join(slow, 1, 2, 3)
    assert slow.admit(1000.0)[0] == [1, 2]


@given(
    limit=st.one_of(st.none(), st.integers(1, 3)),
    rate=st.sampled_from([0.0, 0.5, 3.0]),
    burst=st.integers(0, 4),
    steps=st.lists(st.sampled_from(["join", "leave", "tick"]), max_size=60),
)
def test_order_cap_and_rate_always_hold(limit: int | None, rate: float, burst: int, steps: list[str]) -> None:
    under_test = PullQueue(limit, TokenBucket(rate, burst))
    now, made = 0.0, 0
    running: list[int] = []
    admitted: list[int] = []
    for step in steps:
        if step == "join":
            made += 1
            under_test.join(made, made)
        elif step == "leave" and running:
            under_test.leave(running.pop(0))
        else:
            now += 0.3
        got, wait_s = under_test.admit(now)
        running += got
        admitted += got
        assert wait_s is None or wait_s > 0
        assert limit is None or len(running) <= limit
        if rate:
            assert len(admitted) <= max(1, burst) + rate * now + 1e-6
        if limit is None and not rate:
            assert len(admitted) == made
    assert admitted == sorted(admitted)


def test_no_pull_waits_for_ever() -> None:
    slow = line(limit=1, rate=0.1)
    join(slow, *range(5))
    now, served = 0.0, []
    for _ in range(100):
        got, wait_s = slow.admit(now)
        served += got
        for ticket in got:
            slow.leave(ticket)
        now += wait_s or 0.0
    assert served == [0, 1, 2, 3, 4]
    assert now == pytest.approx(40.0)

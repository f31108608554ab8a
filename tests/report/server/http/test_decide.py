"""Who of the strangers comes in, and who has to go."""

from __future__ import annotations

from collections import Counter

from pykubelet.report.server.http.decide import Pace, choose_leaver, choose_next


def test_a_crowd_from_one_address_is_behind_whoever_comes_from_another() -> None:
    assert choose_next(["crowd", "crowd", "other", "crowd", "crowd"], {"crowd": 3}) == 2
    assert choose_next(["a", "b", "a"], {"a": 9, "b": 8}) == 1


def test_a_crowd_from_everywhere_is_behind_whoever_comes_from_where_somebody_was_let_in() -> None:
    assert choose_next(["a", "known", "b", "c"], {}, {"known"}) == 1
    assert choose_next(["a", "known", "b", "c"], {"known": 7}, {"known"}) == 1
    assert choose_next(["a", "known", "b", "c"], {"known": 8}, {"known"}) == 3, (
        "but strangers from there may be a crowd, too"
    )


def test_among_equals_the_last_one_comes_first() -> None:
    assert choose_next(["a", "a", "a"], {"a": 5}) == 2
    assert choose_next(["a", "b", "c"], {}) == 2
    assert choose_next(["a", "b", "b"], {"a": 1, "b": 1}) == 2


def test_the_oldest_of_the_largest_crowd_goes() -> None:
    order = ["alone", "crowd", "other", "crowd", "other", "crowd"]
    assert choose_leaver(order, Counter(order)) == 1
    assert choose_leaver(["a", "b"], {"a": 1, "b": 1}) == 0


def test_some_begin_together_and_then_one_after_the_other() -> None:
    pace = Pace(at_once=2, rate=4.0, left=2, at=100.0)
    assert pace.wait_s(100.0) == 0
    pace = pace.entered(100.0).entered(100.0)
    assert pace.wait_s(100.0) == 0.25
    assert pace.wait_s(100.125) == 0.125
    pace = pace.entered(100.25)
    assert pace.wait_s(100.25) == 0.25
    assert pace.wait_s(200.0) == 0
    late = pace.entered(200.0).entered(200.0)
    assert late.wait_s(200.0) == 0.25, "nothing is saved up"


def test_who_is_let_in_costs_nothing() -> None:
    pace = Pace(at_once=1, rate=0.1, left=1, at=0.0)
    for _ in range(100):
        pace = pace.entered(1.0).given_back(1.0)
    assert pace.wait_s(1.0) == 0
    assert pace.given_back(1.0).entered(1.0).wait_s(1.0) > 0, "nor does he bring anything"

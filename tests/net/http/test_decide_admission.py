"""Who of the strangers comes in, and who has to go."""

from __future__ import annotations

from collections import Counter

from pykubelet.net.http.decide_admission import choose_leaver, choose_next


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

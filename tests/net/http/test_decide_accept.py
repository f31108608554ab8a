"""Which unauthenticated clients are admitted, and which are disconnected."""

from __future__ import annotations

from collections import Counter

from pykubelet.net.http.decide_accept import choose_evicted, choose_next


def test_a_crowd_from_one_address_is_behind_whoever_comes_from_another() -> None:
    assert choose_next(["crowd", "crowd", "other", "crowd", "crowd"], {"crowd": 3}) == 2
    assert choose_next(["a", "b", "a"], {"a": 9, "b": 8}) == 1


def test_many_addresses_wait_behind_an_address_with_an_authenticated_client() -> None:
    assert choose_next(["a", "known", "b", "c"], {}, {"known"}) == 1
    assert choose_next(["a", "known", "b", "c"], {"known": 7}, {"known"}) == 1
    assert choose_next(["a", "known", "b", "c"], {"known": 8}, {"known"}) == 3, (
        "but unauthenticated clients from there may be a crowd, too"
    )


def test_among_equals_the_last_one_comes_first() -> None:
    assert choose_next(["a", "a", "a"], {"a": 5}) == 2
    assert choose_next(["a", "b", "c"], {}) == 2
    assert choose_next(["a", "b", "b"], {"a": 1, "b": 1}) == 2


def test_the_oldest_of_the_largest_crowd_goes() -> None:
    order = ["alone", "crowd", "other", "crowd", "other", "crowd"]
    assert choose_evicted(order, Counter(order)) == 1
    assert choose_evicted(["a", "b"], {"a": 1, "b": 1}) == 0

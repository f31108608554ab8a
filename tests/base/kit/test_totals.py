"""Sums by key as a value: each version stays what it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.cost import count_instructions

from pykubelet.base.kit.totals import Totals

KEYS = "abc"
AMOUNTS = st.dictionaries(st.sampled_from(KEYS), st.integers(-2, 2))


def contents(totals: Totals[str]) -> dict[str, int]:
    return {key: totals[key] for key in KEYS if totals[key]}


@given(st.lists(st.tuples(st.integers(0), st.booleans(), AMOUNTS)), st.lists(st.integers(0)))
def test_each_version_keeps_its_amounts(steps: list[tuple[int, bool, dict[str, int]]], reads: list[int]) -> None:
    versions, expected = [Totals[str]()], [dict.fromkeys(KEYS, 0)]
    for start, is_more, amounts in steps:
        base = start % len(versions)
        versions.append(versions[base].plus(amounts) if is_more else versions[base].minus(amounts))
        sign = 1 if is_more else -1
        expected.append({key: expected[base][key] + sign * amounts.get(key, 0) for key in KEYS})
    for read in (*reads, *range(len(versions))):
        at = read % len(versions)
        assert list(versions[at].of_each(KEYS)) == list(expected[at].values())
        assert contents(versions[at]) == {key: amount for key, amount in expected[at].items() if amount}


def test_thousands_of_versions_may_lie_between_two() -> None:
    first = last = Totals[int]()
    for number in range(5000):
        last = last.plus({number: 1})
    assert (first[7], last[7], first[7]) == (0, 1, 0)


def test_a_sum_costs_as_much_as_what_is_added() -> None:
    def add_to(count: int) -> int:
        totals = Totals[int]().plus(dict.fromkeys(range(count), 1))
        return count_instructions(lambda: totals.plus({0: 1}).minus({1: 1}))

    assert add_to(10) == add_to(1000)

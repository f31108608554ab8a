"""Mappings that know in what they differ from the ones that they were made from."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.values import changed_keys
from pykubelet.base.kit.versions import VERSIONS, Derived, VersionedMap, edited, follow_up

#: Edits of one version: keys to set (True) or to remove, in this order. A version may be made from any one before.
EDITS = st.lists(
    st.tuples(st.integers(0, 9), st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=5)), max_size=10
)


@given(EDITS)
def test_the_changes_are_those_that_a_comparison_of_all_values_finds(
    edits: list[tuple[int, list[tuple[str, bool]]]],
) -> None:
    versions = [VersionedMap({"a": object(), "b": object()})]
    for origin, changes in edits:
        made = edited(versions[origin % len(versions)])
        for key, is_set in changes:
            if is_set:
                made[key] = object()
            else:
                made.discard(key)
        versions.append(made)
    for before in versions:
        for now in versions:
            assert changed_keys(before, now) == changed_keys(dict(before), dict(now))


class _Even:
    """Of a number; only even ones have it."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, number: int) -> int | None:
        self.asked += 1
        return None if number % 2 else number // 2


@given(EDITS)
def test_what_is_derived_is_the_same_as_derived_anew(edits: list[tuple[int, list[tuple[str, bool]]]]) -> None:
    versions, derived = [VersionedMap({"a": 1, "b": 2})], Derived[str, int, int](_Even())
    for number, (origin, changes) in enumerate(edits):
        made = edited(versions[origin % len(versions)])
        for key, is_set in changes:
            if is_set:
                made[key] = number
            else:
                made.discard(key)
        versions.append(made if origin % 3 else follow_up(versions[-1], dict(reversed(made.items()))))
        assert derived(versions[-1]) == {key: value // 2 for key, value in versions[-1].items() if not value % 2}


def test_only_what_has_changed_is_derived_again() -> None:
    for others in (50, 100, 200):
        before, even = VersionedMap((str(number), 2) for number in range(others)), _Even()
        derived = Derived[str, int, int](even)
        derived(before)
        now = edited(before)
        now["new"], now["7"] = 4, 3
        even.asked = 0
        assert len(derived(now)) == others
        assert derived(now) is derived(now)
        assert even.asked == 2


def test_a_mapping_that_was_made_as_a_whole_keeps_the_order_of_its_keys() -> None:
    before = VersionedMap({"a": 1, "b": 2})
    same = follow_up(before, {"b": 2, "c": 3})
    assert (list(same), changed_keys(before, same), same.changed_since(before)) == (
        ["b", "c"],
        ["c", "a"],
        {"a": None, "c": None},
    )
    other = follow_up(before, {"b": 2, "a": 1})
    assert (list(other), changed_keys(before, other), other.changed_since(before)) == (["b", "a"], [], None)


def test_a_value_that_is_set_back_has_not_changed() -> None:
    first, value = VersionedMap({"a": object()}), object()
    before = edited(first)
    before["b"] = value
    now = edited(before)
    now["b"], now["c"] = object(), object()
    again = edited(now)
    again["b"] = value
    del again["c"]
    assert changed_keys(before, again) == []
    assert changed_keys(first, again) == ["b"]


def test_a_reader_that_is_far_behind_finds_all_changes() -> None:
    first = now = VersionedMap({"kept": object()})
    for number in range(2 * VERSIONS):
        now = edited(now)
        now[str(number)] = object()
    assert len(changed_keys(first, now)) == 2 * VERSIONS
    assert len(now._history.edits) == VERSIONS


class _Key(str):
    """A key that counts how often any of its kind is looked up."""

    __slots__ = ()
    lookups = 0

    def __hash__(self) -> int:
        _Key.lookups += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)


def test_a_change_costs_the_same_among_few_and_among_many() -> None:
    costs = set()
    for others in (50, 100, 200):
        before = VersionedMap((_Key(number), object()) for number in range(others))
        now = edited(before)
        now[_Key("new")] = object()
        began = _Key.lookups
        assert changed_keys(before, now) == ["new"]
        costs.add(_Key.lookups - began)
    assert len(costs) == 1 and max(costs) < 10


def test_what_would_not_be_recorded_is_refused() -> None:
    pods: Mapping[str, object] = {"a": object()}
    made = edited(pods)
    for name in ("clear", "pop", "popitem", "setdefault", "update"):
        with pytest.raises(TypeError, match="put_all"):
            getattr(made, name)()
    with pytest.raises(KeyError):
        del made["b"]
    assert made == pods

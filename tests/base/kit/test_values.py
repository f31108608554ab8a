"""Values: immutable, equal by content, copied with changes, and silent about what is secret; mappings know in what they differ."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.values import (
    PART,
    VERSIONS,
    Derived,
    RedactedValue,
    Value,
    VersionedMap,
    changed_keys,
    edited,
    field,
    follow_up,
    missing_keys,
    remember_last,
    replace,
    sharing_parts,
    with_changes,
)


class Exit(Value):
    code: int
    reason: str = ""
    labels: dict[str, str] = field(default_factory=dict)


class Login(RedactedValue):
    hidden: ClassVar = ("password",)
    user: str
    password: str


def test_a_value_cannot_be_changed_and_is_copied_with_changes() -> None:
    exit_ = Exit(137)
    with pytest.raises(AttributeError):
        exit_.code = 0  # type: ignore[misc]
    assert replace(exit_, reason="Error") == Exit(137, "Error")
    assert exit_ == Exit(137)


def test_a_name_that_is_no_field_is_refused() -> None:
    with pytest.raises(TypeError):
        replace(Exit(0), reson="typo")  # type: ignore[call-arg]


def test_defaults_that_are_made_anew_are_not_shared() -> None:
    assert Exit(0).labels is not Exit(0).labels


def test_values_of_different_kinds_differ_and_equal_ones_are_one_key() -> None:
    class Place(Value):
        name: str

    class Person(Value):
        name: str

    of_two_kinds: list[Value] = [Place("a"), Person("a")]
    assert of_two_kinds[0] != of_two_kinds[1]
    assert len({Place("a"), Place("a"), Place("b")}) == 2


def test_a_secret_stays_out_of_the_repr_wherever_it_is_held() -> None:
    class Session(Value):
        login: Login

    assert repr(Session(Login("ann", "s3cret"))) == "Session(login=Login(user='ann'))"
    assert Login("ann", "s3cret") != Login("ann", "other")


class Part(Value):
    names: tuple[str, ...] = ()
    version: int = 0


class Whole(Value):
    spec: Part
    about: Part
    sizes: dict[str, int] = field(default_factory=dict)


def test_equal_parts_of_two_versions_are_the_same_objects() -> None:
    before, now = (Whole(Part(("a", "b")), Part(("c", str(1000)), n), {"x": n}) for n in (1, 2))
    shared = sharing_parts(before, now)
    assert shared == now
    assert shared.spec is before.spec
    assert shared.about is not before.about
    assert shared.about.names is before.about.names
    assert shared.sizes is now.sizes
    assert sharing_parts(before, Whole(Part(), Part())) == Whole(Part(), Part())


class Seen(Value, weakref=True):
    name: str


class Result:
    pass


def test_what_is_remembered_of_an_object_goes_with_it() -> None:
    made: list[weakref.ref[Result]] = []

    @remember_last
    def look_at(seen: Seen) -> Result:
        result = Result()
        made.append(weakref.ref(result))
        return result

    first, second = Seen("a"), Seen("a")
    assert look_at(first) is look_at(first)
    assert look_at(second) is not look_at(first)
    assert look_at(second) is look_at(second)
    assert len(made) == 4, "only the last one is remembered"
    del first
    assert look_at(second) is made[-1](), "another object went"
    del second
    assert [result() for result in made] == [None] * 4


def test_the_same_snapshot_and_its_copy_have_no_changes() -> None:
    pods = {"a": object(), "b": object()}
    assert changed_keys(pods, pods) == []
    assert changed_keys(pods, dict(pods)) == []


def test_what_came_went_or_is_another_object_has_changed() -> None:
    kept, old = object(), [1]
    before = {"kept": kept, "gone": object(), "replaced": old}
    now = {"kept": kept, "replaced": [1], "new": object()}
    assert changed_keys(before, now) == ["replaced", "new", "gone"]
    assert changed_keys({}, now) == list(now)
    assert sorted(changed_keys(before, {})) == sorted(before)


def test_what_went_is_reported_also_where_as_much_came() -> None:
    kept = object()
    assert changed_keys({"gone": object(), "kept": kept}, {"kept": kept, "new": object()}) == ["new", "gone"]


def test_missing_keys_keep_their_order() -> None:
    assert missing_keys(["c", "a", "b"], {"a": 1}) == ["c", "b"]
    assert missing_keys({"a": 1}, {"a": 2}) == []


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
        versions.append(made if origin % 3 else follow_up(versions[-1], dict(reversed([*made.items()]))))
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


def test_a_change_copies_the_same_among_few_and_among_many() -> None:
    """Copied is a part, and the list of parts. No reference to another entry is counted."""
    for others in (100, 1000, 5000):
        before = VersionedMap((f"pod-{number}", [number]) for number in range(others))
        counts = {key: sys.getrefcount(value) for key, value in before.items()}
        now = edited(before)
        now["pod-40"], now["new"] = [40], [0]
        del now["pod-70"]
        touched = [key for key, value in before.items() if sys.getrefcount(value) != counts[key]]
        assert len(touched) <= 3 * PART
        assert (len(before), len(now), before["pod-40"], now["pod-40"]) == (others, others, [40], [40])
        assert "pod-70" in before and "new" not in before and list(now)[-1] == "new"


def test_a_mapping_whose_pods_come_and_go_stays_small() -> None:
    now = VersionedMap((str(number), number) for number in range(50))
    for number in range(50, 5000):
        now = edited(now)
        now[str(number)] = number
        del now[str(number - 50)]
        assert len(now._parts) < 50 and len(now._places) < 500
    assert list(now.values()) == list(range(4950, 5000))


def test_what_has_gone_and_comes_back_is_the_last() -> None:
    first = VersionedMap({str(number): number for number in range(3 * PART)})
    without = edited(first)
    del without["1"]
    again = edited(without)
    again["1"] = 1
    assert [*again][-1] == "1" and [*first][1] == "1" and "1" not in without
    assert again == first and dict(again) == dict(first) and again["1"] == 1
    with pytest.raises(KeyError):
        without["1"]
    assert (without.get("1", 7), without.get("x"), len(without)) == (7, None, 3 * PART - 1)


def test_changes_by_value_give_the_same_mapping_if_there_are_none() -> None:
    before: Mapping[str, int] = {"a": 1, "b": 2}
    assert with_changes(before, {"a": 1, "c": None}) is before
    now = with_changes(before, {"a": 3, "b": None, "c": 4})
    assert (now, before) == ({"a": 3, "c": 4}, {"a": 1, "b": 2})


def test_what_would_not_be_recorded_is_refused() -> None:
    pods: Mapping[str, object] = {"a": object()}
    made = edited(pods)
    for name in ("clear", "pop", "popitem", "setdefault", "update"):
        assert not hasattr(made, name)
    with pytest.raises(KeyError):
        del made["b"]
    assert made == pods

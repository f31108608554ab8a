"""Values: immutable, equal by content, copied with changes, and silent about what is secret."""

from __future__ import annotations

import weakref
from typing import ClassVar

import pytest

from pykubelet.base.kit.values import (
    RedactedValue,
    Value,
    changed_keys,
    field,
    missing_keys,
    remember_last,
    replace,
    sharing_parts,
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

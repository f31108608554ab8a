"""What is new between two snapshots."""

from __future__ import annotations

from pykubelet.base.kit.changes import changed_keys, missing_keys


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

"""What is new between two snapshots."""

from __future__ import annotations

from pykubelet.base.kit.changes import changed_keys


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

"""The history: bounded in number, bytes and age, and kept as text."""

from __future__ import annotations

import msgspec
import pytest

from pykubelet_local_api.store.database import StoredKey
from pykubelet_local_api.store.history import MAX_AGE_S, ChangeHistory, ChangeType, StoredChange

KEY = StoredKey("leases", "kube-node-lease", "n1")


def renewed(version: int, before: bytes | None = None) -> StoredChange:
    text = msgspec.json.encode({"metadata": {"name": "n1", "resourceVersion": str(version)}})
    return StoredChange(version, ChangeType.MODIFIED, KEY, text, before)


def test_a_day_of_nothing_but_renewals_leaves_those_of_an_hour() -> None:
    history = ChangeHistory(0)
    for number in range(8640):
        history.add(renewed(number + 1), number * 10.0)
    kept = history.after("leases", history.oldest)
    assert 0.9 * MAX_AGE_S / 10 <= len(kept) <= MAX_AGE_S / 10 + 1
    assert kept[-1].version == 8640
    assert kept[0].version == history.oldest + 1


def test_the_text_before_a_change_is_kept_once() -> None:
    history, text = ChangeHistory(0), None
    for number in range(3):
        history.add(renewed(number + 1, text), 0.0)
        text = history.text_of(KEY)
    first, second, third = history.after("leases", 0)
    assert second.data_before is first.data
    assert third.data_before is second.data
    assert third.before == first.object | {"metadata": {"name": "n1", "resourceVersion": "2"}}
    assert first.before is None


def test_what_was_deleted_or_forgotten_has_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    history = ChangeHistory(0)
    history.add(renewed(1), 0.0)
    history.add(StoredChange(2, ChangeType.DELETED, KEY, b"{}", None), 0.0)
    assert history.text_of(KEY) is None
    monkeypatch.setattr("pykubelet_local_api.store.history.MAX_CHANGES", 10)
    for number in range(30):
        history.add(StoredChange(3 + number, ChangeType.ADDED, StoredKey("a", "b", str(number)), b"{}", None), 0.0)
    assert history.text_of(StoredKey("a", "b", "0")) is None
    assert history.text_of(StoredKey("a", "b", "29")) == b"{}"
    assert len(history._newest) == len(history.after("a", history.oldest))

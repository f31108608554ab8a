"""The double of the API server applies patches as the API server does."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.testing.kubeapi.fake_patch import PatchError, strategic

READY = {"type": "Ready", "status": "True"}
FOREIGN = {"type": "example.com/gate", "status": "True"}
SCHEDULED = {"type": "PodScheduled", "status": "True"}


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"conditions": [{"status": "True"}]}, "type"),
        ({"$patch": "twist"}, "directive"),
        ({"$setElementOrder/conditions": "Ready"}, "order"),
    ],
)
def test_malformed_patches_are_refused(patch: dict[str, Any], words: str) -> None:
    with pytest.raises(PatchError, match=words):
        strategic({"conditions": [READY]}, patch)


def test_whole_objects_can_be_replaced_and_deleted() -> None:
    assert strategic({"x": {"a": 1}}, {"x": {"$patch": "replace", "b": 2}}) == {"x": {"b": 2}}
    assert strategic({"x": {"a": 1}}, {"x": {"$patch": "delete"}}) == {"x": {}}


def test_elements_that_an_order_does_not_name_stay_in_their_places() -> None:
    patch = {"$setElementOrder/conditions": [{"type": "PodScheduled"}, {"type": "Ready"}]}
    found = strategic({"conditions": [READY, FOREIGN, SCHEDULED]}, patch)
    assert found == {"conditions": [SCHEDULED, FOREIGN, READY]}

"""The checks of `support/csi_rules.py` can fail."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from support.csi_rules import CsiRules

STAGE = ("NodeStageVolume", {"volume_id": "v", "staging_target_path": "/s"})
PUBLISH = ("NodePublishVolume", {"volume_id": "v", "staging_target_path": "/s", "target_path": "/p"})
UNPUBLISH = ("NodeUnpublishVolume", {"volume_id": "v", "target_path": "/p"})
UNSTAGE = ("NodeUnstageVolume", {"volume_id": "v", "staging_target_path": "/s"})
EXPAND = ("NodeExpandVolume", {"volume_id": "v", "volume_path": "/p"})
OWN = {"volume_context": {"csi.storage.k8s.io/ephemeral": "true"}}
INLINE = ("NodePublishVolume", {"volume_id": "v", "target_path": "/p", **OWN})
Call = tuple[str, dict[str, Any]]


def changed(call: Call, **fields: Any) -> Call:
    return call[0], {**call[1], **fields}


def read(*calls: Call | tuple[str, dict[str, Any], str]) -> CsiRules:
    """The third field of a call is how it ends: a code, `done`, or empty for a call without an end."""
    rules, numbers, lines = CsiRules(), count(), []
    for name, request, *how in calls:
        call_id, end = str(next(numbers)), how[0] if how else "done"
        lines.append({"call": name, "is": "begun", "id": call_id, "request": request})
        if end:
            lines.append({"call": name, "is": "done" if end == "done" else "failed", "id": call_id, "code": end})
    rules.read(lines)
    return rules


def test_a_life_with_repeated_calls_is_allowed_and_leaves_nothing() -> None:
    rules = read(
        (*STAGE, ""), STAGE, STAGE, (*PUBLISH, "ABORTED"), PUBLISH, EXPAND, EXPAND, (*UNPUBLISH, ""), UNPUBLISH,
        UNPUBLISH, (*UNSTAGE, "INTERNAL"), UNSTAGE, UNSTAGE, INLINE, INLINE, UNPUBLISH,
    )  # fmt: skip
    assert (rules.broken, rules.left()) == ([], [])


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([PUBLISH], "not staged"),
        ([(*STAGE, ""), PUBLISH], "not staged"),
        ([(*STAGE, "INTERNAL"), PUBLISH], "not staged"),
        ([STAGE, (*UNSTAGE, ""), PUBLISH], "not staged"),
        ([STAGE, changed(PUBLISH, staging_target_path="/other")], "not staged"),
        ([STAGE, PUBLISH, UNSTAGE], "still be published at /p"),
        ([STAGE, (*PUBLISH, ""), UNSTAGE], "still be published at /p"),
        ([STAGE, (*PUBLISH, "DEADLINE_EXCEEDED"), UNSTAGE], "still be published at /p"),
        ([STAGE, PUBLISH, (*UNPUBLISH, "INTERNAL"), UNSTAGE], "still be published at /p"),
        ([(*STAGE, ""), changed(STAGE, publish_context={"a": "b"})], "another publish_context"),
        ([STAGE, PUBLISH, changed(PUBLISH, readonly=True)], "another readonly"),
        ([STAGE, EXPAND], "neither staged nor published"),
        ([STAGE, (*PUBLISH, ""), EXPAND], "neither staged nor published"),
    ],
)
def test_a_call_that_is_not_allowed_is_found(calls: list[Call], reason: str) -> None:
    (line,) = read(*calls).broken
    assert reason in line


def test_what_is_not_undone_is_left() -> None:
    assert read((*STAGE, "")).left() == ["v staged at /s"]
    assert read(STAGE, PUBLISH, (*UNPUBLISH, "")).left() == ["v staged at /s", "v published at /p"]
    assert read((*INLINE, "UNAVAILABLE")).left() == ["v published at /p"]
    assert read((*INLINE, "INVALID_ARGUMENT")).left() == []

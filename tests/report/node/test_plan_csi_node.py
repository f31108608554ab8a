"""What the Node shows about CSI drivers: hostile annotations, and drivers that report what no object may have."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Node
from pykubelet.base.model.plugins import CsiNodeInfo, csi_node_problem
from pykubelet.report.node.plan_csi_node import MAX_ANNOTATIONS, NODE_IDS, plan_node, plan_removal

INFO = CsiNodeInfo("id-1", 0, {"t/zone": "a"})


def node(ids: str, **labels: str) -> Node:
    return from_object(Node, {"metadata": {"name": "n", "annotations": {NODE_IDS: ids}, "labels": labels}})


def ids_in(patch: dict[str, Any]) -> Any:
    return json.loads(patch["metadata"]["annotations"][NODE_IDS])


DEEP = sys.getrecursionlimit() * 100


@pytest.mark.parametrize(
    "ids",
    [
        "",
        "[]",
        "3",
        '{"other": {}}',
        '{"other": ' + "[" * 500 + "]" * 500 + "}",
        "[" * DEEP,
        '{"a":' * DEEP,
        "{" + " " * MAX_ANNOTATIONS + "}",
    ],
)
def test_a_damaged_annotation_is_written_again(ids: str) -> None:
    assert ids_in(plan_node(node(ids), "d", INFO).patch) == {"d": "id-1"}
    assert plan_removal(node(ids), {"d"}).patch == {}


def test_ids_of_other_drivers_stay() -> None:
    change = plan_node(node('{"other":"x","d":"y"}'), "d", INFO)
    assert ids_in(change.patch) == {"other": "x", "d": "id-1"}
    assert change.patch["metadata"]["labels"] == {"t/zone": "a"}
    assert plan_removal(node('{"d":"y"}'), {"d"}).patch == {"metadata": {"annotations": {NODE_IDS: None}}}


@pytest.mark.parametrize(
    ("name", "info", "problem"),
    [
        ("d", CsiNodeInfo("x" * 192, 0, {"t/zone": ""}), ""),
        ("D.example.com", CsiNodeInfo("x"), ""),
        ("d", CsiNodeInfo(""), "driverNodeID must not be empty"),
        ("d", CsiNodeInfo("é" * 97), "driverNodeID must be 192 bytes or less"),
        ("d" * 64, CsiNodeInfo("x"), "invalid driver name: must be 63 bytes or less"),
        ("a_b", CsiNodeInfo("x"), "invalid driver name: must be 63 bytes or less; a lowercase RFC 1123 subdomain"),
        ("d", CsiNodeInfo("x", 0, {"a b": "c"}), "invalid topology key 'a b': name part must consist of"),
        ("d", CsiNodeInfo("x", 0, {"zone": "a b"}), "invalid value 'a b' of topology key zone: a valid label must be"),
        ("d", CsiNodeInfo("x", 0, {"zone": "a" * 64}), f"invalid value {'a' * 64!r} of topology key zone: must be no"),
    ],
)
def test_what_a_driver_may_report(name: str, info: CsiNodeInfo, problem: str) -> None:
    found = csi_node_problem(name, info)
    assert found.startswith(problem) and bool(found) is bool(problem), found
    change = plan_node(node(json.dumps({name: "old", "other": "x"})), name, info)
    assert change.problem == found
    if problem:
        assert ids_in(change.patch) == {"other": "x"} and "labels" not in change.patch["metadata"]

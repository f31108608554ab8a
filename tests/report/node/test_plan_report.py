"""Whether a patch of the Node is due, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.base.api.core import Node, NodeCondition, NodeStatus, ObjectMeta
from pykubelet.base.kit.values import replace
from pykubelet.report.node.model import NodeRegistration
from pykubelet.report.node.plan_report import LastReport, NodePatch, is_newer, next_report_at, plan_patch
from pykubelet.report.node.render_status import render_annotations

ABOUT = NodeRegistration("n", "host", {"kubernetes.io/os": "linux", "topology.kubernetes.io/zone": "z1"})
NOW = 1000.0
READY = NodeStatus(conditions=(NodeCondition(type="Ready", status="True", lastHeartbeatTime="2026-01-01T00:00:00Z"),))
LATER = NodeStatus(conditions=(NodeCondition(type="Ready", status="True", lastHeartbeatTime="2026-01-01T00:05:00Z"),))
UNREADY = NodeStatus(conditions=(NodeCondition(type="Ready", status="False"),))
REPORTED = LastReport("u1", READY, READY, NOW + 300)


def node(status: NodeStatus = READY, labels: dict[str, str] | None = None, uid: str = "u1", version: str = "7") -> Node:
    own = labels if labels is not None else dict(ABOUT.labels)
    meta = ObjectMeta(name="n", uid=uid, resourceVersion=version, labels=own, annotations=render_annotations(ABOUT, {}))
    return Node(metadata=meta, status=status)


def plan(there: Node, status: NodeStatus = LATER, last: LastReport = REPORTED, **about: Any) -> NodePatch | None:
    return plan_patch(replace(ABOUT, **about), there, status, {}, last, NOW)


@pytest.mark.parametrize(
    ("there", "status", "last", "due"),
    [
        pytest.param(node(), LATER, REPORTED, None, id="only heartbeats differ"),
        pytest.param(node(), LATER, replace(REPORTED, due_at=NOW), True, id="the report period is over"),
        pytest.param(node(), UNREADY, REPORTED, False, id="a condition changed"),
        pytest.param(node(UNREADY), LATER, REPORTED, False, id="another client changed the status"),
        pytest.param(node(UNREADY), READY, LastReport("u1", READY, UNREADY), None, id="the API server drops a part"),
        pytest.param(node(), LATER, LastReport(), False, id="the first patch of this run"),
        pytest.param(node(uid="u2"), LATER, REPORTED, False, id="the Node was made anew"),
        pytest.param(node(labels={"kubernetes.io/os": "plan9"}), LATER, REPORTED, True, id="a label of ours is wrong"),
        pytest.param(
            node(labels={"kubernetes.io/os": "linux"}),
            LATER,
            REPORTED,
            None,
            id="a given label counts in the first patch",
        ),
    ],
)
def test_a_patch_is_due(there: Node, status: NodeStatus, last: LastReport, due: bool | None) -> None:
    """`due`: whether the patch is a regular one; None: there is none."""
    found = plan(there, status, last)
    assert (found.is_regular if found is not None else None) is due


def test_the_node_of_another_client_keeps_its_labels() -> None:
    there = node(labels={"kubernetes.io/os": "plan9"})
    ours, theirs = plan(there, last=LastReport()), plan(there, last=LastReport(), register=False)
    assert ours is not None
    assert theirs is not None
    assert set(ours.body["metadata"]["labels"]) == {"kubernetes.io/os", "topology.kubernetes.io/zone"}
    assert set(theirs.body["metadata"]["labels"]) == {"kubernetes.io/os"}


def test_reports_after_a_change_are_spread_over_the_period() -> None:
    assert next_report_at(NOW, 300.0, 0.9, spread=False) == NOW + 300
    assert [next_report_at(NOW, 300.0, fraction, spread=True) for fraction in (0.0, 0.5)] == [NOW + 150, NOW + 300]


@pytest.mark.parametrize(
    ("found", "known", "newer"),
    [("8", "7", True), ("7", "7", False), ("10", "9", True), ("b", "c", True)],
)
def test_copies_are_ordered_by_resource_version(found: str, known: str, newer: bool) -> None:
    assert is_newer(node(version=found), node(version=known)) is newer
    assert is_newer(node(version=found, uid="u2"), node(version=known)), "another Node"


def test_endless_digits_are_no_resource_version() -> None:
    endless = node(version="9" * 5_000_000)
    assert is_newer(endless, node(version="1")) and is_newer(node(version="1"), endless), "what comes later counts"

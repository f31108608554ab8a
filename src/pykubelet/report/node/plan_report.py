"""Plans the next patch of the Node: whether one is due, and its content. Pure; `now` is monotonic seconds.

Rules:
- The status is compared with the API server's copy. So a status that another client has changed is restored, and an
  unchanged one is not sent again until `nodeStatusReportFrequency` has passed.
- A Node that this agent has not patched yet gets one patch, even if nothing has changed.
- If an older API server drops fields of the status, the status is not sent again because of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pykubelet.base.api.core import Node, NodeStatus
from pykubelet.base.api.versions import compare_versions
from pykubelet.base.kit.values import Value, replace
from pykubelet.report.node.model import NodeRegistration
from pykubelet.report.node.plan_registration import label_patch, without_stale
from pykubelet.report.node.render_status import render_annotations, same_but_heartbeats, status_patch


class LastReport(Value):
    """The last status that this agent sent. `uid`: of its Node; empty: none was sent to the current Node.

    `sent`, `answer`: the status of the last patch, and the status in the answer; an older API server drops unknown fields.
    `due_at`: when an unchanged status is sent again.
    """

    uid: str = ""
    sent: NodeStatus | None = None
    answer: NodeStatus | None = None
    due_at: float = float("inf")

    def would_repeat(self, status: NodeStatus, there: NodeStatus) -> bool:
        """True if sending `status` again would not change `there`, the API server's status."""
        if self.sent is None or self.answer is None:
            return False
        return same_but_heartbeats(status, self.sent) and same_but_heartbeats(there, self.answer)

    def of_lost_node(self) -> LastReport:
        """The report after the Node was deleted: the next Node gets a patch of its own."""
        return replace(self, uid="")


class NodePatch(Value):
    """A strategic merge patch of the Node's status. `is_regular`: only the report period makes it due."""

    body: dict[str, Any]
    status: NodeStatus
    is_regular: bool


def plan_patch(
    about: NodeRegistration, node: Node, rendered: NodeStatus, capacity: Mapping[str, int], last: LastReport, now: float
) -> NodePatch | None:
    """The patch that is due now; None: none is. `rendered`: the status of this node. `capacity`: the machine's resources."""
    is_first = node.metadata.uid != last.uid
    is_ours = is_first and about.register  # if another client registers the Node, only the kubelet's own fields are set
    status = without_stale(about, rendered, capacity) if is_ours else rendered
    labels = label_patch(about, node, first=is_ours)
    annotations = render_annotations(about, node.metadata.annotations)
    is_changed = not same_but_heartbeats(status, node.status) and not last.would_repeat(status, node.status)
    has_metadata = bool(labels) or annotations != node.metadata.annotations
    if not (is_first or is_changed or has_metadata or now >= last.due_at):
        return None
    return NodePatch(status_patch(node, status, annotations, labels), status, not (is_first or is_changed))


def next_report_at(now: float, period_s: float, fraction: float, *, spread: bool) -> float:
    """When an unchanged status is sent again. `spread`: at a random time, so that the nodes of a cluster do not all report at
    once. `fraction`: a random number in [0, 1)."""
    return now + period_s * (1.0 + (fraction - 0.5 if spread else 0.0))


def is_newer(found: Node, known: Node) -> bool:
    """Whether `found` is newer: by resource version if both are numbers, as in Kubernetes; else any other object is newer."""
    order = compare_versions(found.metadata.resourceVersion, known.metadata.resourceVersion)
    if found.metadata.uid == known.metadata.uid and order is not None:
        return order > 0
    return found is not known

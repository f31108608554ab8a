"""The Node as it is first made, and what must be put right in one that is already there. Pure.

Rules, for a Node that exists, of an agent that registers it: labels that every node has, and the zone, region and instance
type that were given, are made ours; extended resources without a plugin become 0, and sizes of huge pages that the kernel
no longer has go. Other given labels and all taints count at creation only. Operating system and architecture are put right
whenever they are not ours.
Source: the Kubernetes documentation "Nodes", section "Self-registration of Nodes".
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from pykubelet.base.api.core import Node, NodeSpec, NodeStatus, ObjectMeta
from pykubelet.base.kit.values import replace
from pykubelet.report.node.model import UNINITIALIZED, Registration
from pykubelet.report.node.render_status import is_extended, render_annotations

RECONCILED_LABELS = (
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
)

ALWAYS_OURS = ("kubernetes.io/os", "kubernetes.io/arch")


def first_node(about: Registration, status: NodeStatus) -> Node:
    """What is sent to make the Node."""
    taints = about.taints
    if about.external_cloud and UNINITIALIZED not in taints:
        taints = (*taints, UNINITIALIZED)
    return Node(
        apiVersion="v1",
        kind="Node",
        metadata=ObjectMeta(name=about.name, labels=dict(about.labels), annotations=render_annotations(about, {})),
        spec=NodeSpec(providerID=about.provider_id, taints=taints),
        status=status,
    )


def label_patch(about: Registration, node: Node, *, first: bool) -> dict[str, Any]:
    """What to change in the labels of a Node that exists; an empty value removes a label.

    `first`: this agent registers the node, and has not told anything about that Node yet.
    """
    known = node.metadata.labels
    patch: dict[str, Any] = {}
    for label in RECONCILED_LABELS if first else ALWAYS_OURS:
        wanted = about.labels.get(label)
        if wanted is not None and known.get(label, "") != wanted:
            patch[label] = wanted or None
    return patch


def without_stale(about: Registration, status: NodeStatus, own: Container[str]) -> NodeStatus:
    """The status with zeros for extended resources that nobody stands behind any more, and without sizes of huge pages that the
    kernel no longer has. `own`: the resources of this machine."""
    amounts = [
        {
            name: "0" if about.reset_extended and is_extended(name) else amount
            for name, amount in each.items()
            if name in own or not name.startswith("hugepages-")
        }
        for each in (status.capacity, status.allocatable)
    ]
    return replace(status, capacity=amounts[0], allocatable=amounts[1])

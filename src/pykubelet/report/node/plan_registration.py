"""Makes the Node to register, and the corrections of an existing Node. Pure.

Rules for an existing Node, if this agent registers it: the default labels of every node, and the given zone, region and
instance type, are set. Extended resources without a plugin become 0, and huge page sizes that the kernel no longer has are
removed. Other given labels and all taints are only set at creation. The labels of operating system and architecture are
set whenever they differ.
Source: the Kubernetes documentation "Nodes", section "Self-registration of Nodes".
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from pykubelet.base.api.core import Node, NodeSpec, NodeStatus, ObjectMeta
from pykubelet.base.kit.values import replace
from pykubelet.report.node.model import UNINITIALIZED, NodeRegistration
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


def first_node(about: NodeRegistration, status: NodeStatus) -> Node:
    """The Node to create."""
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


def label_patch(about: NodeRegistration, node: Node, *, first: bool) -> dict[str, Any]:
    """The label changes of an existing Node; None removes a label.

    `first`: this agent registers the node, and has not patched that Node yet.
    """
    known = node.metadata.labels
    patch: dict[str, Any] = {}
    for label in RECONCILED_LABELS if first else ALWAYS_OURS:
        wanted = about.labels.get(label)
        if wanted is not None and known.get(label, "") != wanted:
            patch[label] = wanted or None
    return patch


def without_stale(about: NodeRegistration, status: NodeStatus, own: Container[str]) -> NodeStatus:
    """The status with 0 for extended resources without a plugin (`reset_extended`), and without huge page sizes that the kernel
    no longer has. `own`: the resources of this machine."""
    amounts = [
        {
            name: "0" if about.reset_extended and is_extended(name) and name not in own else amount
            for name, amount in quantities.items()
            if name in own or not name.startswith("hugepages-")
        }
        for quantities in (status.capacity, status.allocatable)
    ]
    return replace(status, capacity=amounts[0], allocatable=amounts[1])

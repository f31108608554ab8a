"""Plans what the CSINode and the Node show about the node's CSI drivers. Pure.

Rules:
 1. A registered driver has an entry in the CSINode, and its id of this node in an annotation of the Node.
 2. The entry of a driver that has not registered since the agent started stays: after a restart it registers within
    seconds, and without the entry, pods that need it would be placed on other nodes.
 3. A driver that was registered and is gone loses both. Its topology labels stay, because volumes refer to them.
 4. The id and the topology keys of an entry cannot be changed: the entry is removed and added.
 5. A driver whose topology contradicts a label of the Node, or that reports what the API server refuses, gets neither; its
    other labels are not set either. The other drivers do not suffer.
Source: the Kubernetes documentation "CSINode"; the Kubernetes CSI documentation, "Topology".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from pykubelet.base.api.core import Node
from pykubelet.base.api.storage import CSIDriver, CSINodeDriver, VolumeNodeResources
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.plugins import CsiNodeInfo, Plugins, PluginType, csi_node_problem

NODE_IDS = "csi.volume.kubernetes.io/nodeid"
#: Bytes of all annotations of an object that the API server accepts.
MAX_ANNOTATIONS = 256 << 10
Drivers = Mapping[str, CsiNodeInfo]


class NodeChange(Value):
    """`patch`: of the Node, empty if nothing has to change. `problem`: why the driver is left out."""

    patch: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def csi_drivers(plugins: Plugins) -> Drivers:
    """What the registered drivers report about this node, by name."""
    return {plugin.name: plugin.csi for plugin in plugins.of(PluginType.CSI) if plugin.csi is not None}


def refresh_period_s(driver: CSIDriver) -> float:
    """Seconds after which a driver is asked again about this node; 0: never."""
    return float(max(0, driver.spec.nodeAllocatableUpdatePeriodSeconds or 0))


def plan_removal(node: Node, gone: Collection[str]) -> NodeChange:
    """The change of the annotation when the drivers `gone` have no place in it."""
    present = _node_ids(node)
    return _change(node, {name: id for name, id in present.items() if name not in gone}, node.metadata.labels)


def plan_node(node: Node, name: str, info: CsiNodeInfo) -> NodeChange:
    """The change of annotation and labels for one driver."""
    problem = csi_node_problem(name, info) or _collision(info.topology, node.metadata.labels)
    if problem:
        return replace(plan_removal(node, {name}), problem=problem)
    return _change(node, {**_node_ids(node), name: info.node_id}, {**node.metadata.labels, **info.topology})


def _change(node: Node, wanted: Mapping[str, str], labels: Mapping[str, str]) -> NodeChange:
    metadata: dict[str, Any] = {}
    if wanted != _node_ids(node):
        text = json.dumps(wanted, sort_keys=True, separators=(",", ":")) if wanted else None
        metadata["annotations"] = {NODE_IDS: text}
    if labels != node.metadata.labels:
        metadata["labels"] = {key: value for key, value in labels.items() if node.metadata.labels.get(key) != value}
    return NodeChange({"metadata": metadata} if metadata else {})


def plan_entries(
    present: tuple[CSINodeDriver, ...], drivers: Drivers, gone: Collection[str]
) -> tuple[CSINodeDriver, ...]:
    """The entries of the CSINode. An entry that changes goes to the end."""
    entries = {driver.name: driver for driver in present if driver.name not in gone or driver.name in drivers}
    for name, info in sorted(drivers.items()):
        entry = CSINodeDriver(
            name=name,
            nodeID=info.node_id,
            topologyKeys=tuple(sorted(info.topology)),
            allocatable=VolumeNodeResources(count=info.max_volumes) if info.max_volumes else None,
        )
        if entries.get(name) != entry:
            entries.pop(name, None)
            entries[name] = entry
    return tuple(entries.values())


def plan_kept(present: tuple[CSINodeDriver, ...], wanted: tuple[CSINodeDriver, ...]) -> tuple[CSINodeDriver, ...]:
    """The entries without those whose id or topology keys change: the API server has them removed before they are added again."""
    fixed = {driver.name: (driver.nodeID, driver.topologyKeys) for driver in wanted}
    return tuple(
        driver for driver in present if fixed.get(driver.name, ()) in ((), (driver.nodeID, driver.topologyKeys))
    )


def _node_ids(node: Node) -> dict[str, str]:
    """The ids in the annotation; none if it is damaged. Every value is a text."""
    text = node.metadata.annotations.get(NODE_IDS, "{}")
    if len(text) > MAX_ANNOTATIONS:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {name: id for name, id in found.items() if isinstance(id, str)} if isinstance(found, dict) else {}


def _collision(topology: Mapping[str, str], labels: Mapping[str, str]) -> str:
    for key, value in sorted(topology.items()):
        known = labels.get(key, value)
        if known != value:
            reported, existing = (f"{json.dumps(key)}:{json.dumps(text)}" for text in (value, known))
            return f"detected topology value collision: driver reported {reported} but existing label is {existing}"
    return ""

"""Plans what the CSINode and the Node show about the node's CSI drivers. Pure.

Rules:
 1. A registered driver has an entry in the CSINode, and its id of this node in an annotation of the Node.
 2. The entry of a driver that has not registered since the agent started stays: after a restart it registers within
    seconds, and without the entry, pods that need it would be placed on other nodes.
 3. A driver that was registered and is gone loses both. Its topology labels stay, because volumes refer to them.
 4. A driver whose topology contradicts a label of the Node gets neither; its other labels are not set either.
Source: the Kubernetes documentation "CSINode"; the Kubernetes CSI documentation, "Topology".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from pykubelet.base.api.core import Node
from pykubelet.base.api.storage import CSIDriver, CSINodeDriver, VolumeNodeResources
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.plugins import CsiNodeInfo, Plugins, PluginType

NODE_IDS = "csi.volume.kubernetes.io/nodeid"
Drivers = Mapping[str, CsiNodeInfo]


class NodeChange(Value):
    """`patch`: of the Node, empty if nothing has to change. `collisions`: by driver, why it is left out."""

    patch: dict[str, Any] = field(default_factory=dict)
    collisions: Mapping[str, str] = field(default_factory=dict)


def csi_drivers(plugins: Plugins) -> Drivers:
    """What the registered drivers report about this node, by name."""
    return {plugin.name: plugin.csi for plugin in plugins.of(PluginType.CSI) if plugin.csi is not None}


def refresh_period_s(driver: CSIDriver) -> float:
    """Seconds after which a driver is asked again about this node; 0: never."""
    return float(max(0, driver.spec.nodeAllocatableUpdatePeriodSeconds or 0))


def plan_node(node: Node, drivers: Drivers, gone: Collection[str]) -> NodeChange:
    """The change of annotation and labels. `gone`: drivers that were registered."""
    present = _node_ids(node)
    wanted = {name: id for name, id in present.items() if name not in gone or name in drivers}
    labels = dict(node.metadata.labels)
    collisions: dict[str, str] = {}
    for name, info in sorted(drivers.items()):
        problem = _collision(info.topology, labels)
        if problem:
            collisions[name] = problem
            wanted.pop(name, None)
        else:
            wanted[name] = info.node_id
            labels |= info.topology
    metadata: dict[str, Any] = {}
    if wanted != present:
        text = json.dumps(wanted, sort_keys=True, separators=(",", ":")) if wanted else None
        metadata["annotations"] = {NODE_IDS: text}
    if labels != node.metadata.labels:
        metadata["labels"] = {key: value for key, value in labels.items() if node.metadata.labels.get(key) != value}
    return NodeChange({"metadata": metadata} if metadata else {}, collisions)


def plan_entries(
    present: tuple[CSINodeDriver, ...], drivers: Drivers, gone: Collection[str]
) -> tuple[CSINodeDriver, ...]:
    """The entries of the CSINode. An entry that changes goes to the end."""
    entries = {one.name: one for one in present if one.name not in gone or one.name in drivers}
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


def _node_ids(node: Node) -> dict[str, str]:
    """The ids in the annotation; none if it is damaged."""
    try:
        found = json.loads(node.metadata.annotations.get(NODE_IDS, "{}"))
    except (ValueError, RecursionError):
        return {}
    return {str(name): str(id) for name, id in found.items()} if isinstance(found, dict) else {}


def _collision(topology: Mapping[str, str], labels: Mapping[str, str]) -> str:
    for key, value in sorted(topology.items()):
        known = labels.get(key, value)
        if known != value:
            reported, existing = (f"{json.dumps(key)}:{json.dumps(one)}" for one in (value, known))
            return f"detected topology value collision: driver reported {reported} but existing label is {existing}"
    return ""

"""Tables: the columns that `kubectl get` prints, by kind; `-o wide` also prints those of priority 1. Pure.

Cells are what an API server puts into them. Source: the Kubernetes documentation "Kubernetes API Concepts" (Receiving resources
as Tables).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pykubelet.base.kit.values import Value
from pykubelet_local_api.kinds.cells import CELLS, condition_rows
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json


class Column(Value):
    """A column. `priority`: 0: always shown; 1: only by `-o wide`. `description`: for `kubectl get` without a terminal."""

    name: str
    type: str = "string"
    format: str = ""
    priority: int = 0
    description: str = ""

    def definition(self) -> Json:
        """Its entry in `columnDefinitions`."""
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


def _columns(*specs: str) -> tuple[Column, ...]:
    """Columns by short texts: `Name`, `Value:integer`, `Node*` (only by `-o wide`)."""
    found = []
    for spec in specs:
        name, _, kind = spec.rstrip("*").partition(":")
        is_name = name == "Name" or kind == "name"
        found.append(
            Column(name, "string" if is_name else kind or "string", "name" if is_name else "", int(spec.endswith("*")))
        )
    return tuple(found)


_PLAIN = _columns("Name", "Created At:date")
_WITH_AGE = _columns("Name", "Age")
_EVENTS = _columns(
    *(
        "Last Seen",
        "Type",
        "Reason",
        "Object",
        "Subobject*",
        "Source*",
        "Message",
        "First Seen*",
        "Count*",
        "Name:name*",
    )
)
_BINDINGS = _columns("Name", "Role", "Age", "Users*", "Groups*", "ServiceAccounts*")

#: By the resource; kinds that are not here have their name and the time of their creation.
COLUMNS: dict[str, tuple[Column, ...]] = {
    "namespaces": _columns("Name", "Status", "Age"),
    "nodes": _columns(
        *("Name", "Status", "Roles", "Age", "Version", "Internal-IP*", "External-IP*", "OS-Image*", "Kernel-Version*"),
        "Container-Runtime*",
    ),
    "pods": _columns(
        "Name", "Ready", "Status", "Restarts", "Age", "IP*", "Node*", "Nominated Node*", "Readiness Gates*"
    ),
    "configmaps": _columns("Name", "Data", "Age"),
    "secrets": _columns("Name", "Type", "Data", "Age"),
    "serviceaccounts": _WITH_AGE,
    "events": _EVENTS,
    "events.events.k8s.io": _EVENTS,
    "persistentvolumes": _columns(
        *("Name", "Capacity", "Access Modes", "Reclaim Policy", "Status", "Claim", "StorageClass"),
        *("VolumeAttributesClass", "Reason", "Age", "VolumeMode*"),
    ),
    "persistentvolumeclaims": _columns(
        *("Name", "Status", "Volume", "Capacity", "Access Modes", "StorageClass", "VolumeAttributesClass", "Age"),
        "VolumeMode*",
    ),
    "services": _columns("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "Selector*"),
    "endpoints": _columns("Name", "Endpoints", "Age"),
    "leases.coordination.k8s.io": _columns("Name", "Holder", "Age"),
    "endpointslices.discovery.k8s.io": _columns("Name", "AddressType", "Ports", "Endpoints", "Age"),
    "storageclasses.storage.k8s.io": _columns(
        "Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion", "Age"
    ),
    "csidrivers.storage.k8s.io": _columns(
        *("Name", "AttachRequired:boolean", "PodInfoOnMount:boolean", "StorageCapacity:boolean", "TokenRequests"),
        *("RequiresRepublish:boolean", "Modes", "Age"),
    ),
    "csinodes.storage.k8s.io": _columns("Name", "Drivers:integer", "Age"),
    "volumeattachments.storage.k8s.io": _columns("Name", "Attacher:name", "PV", "Node", "Attached:boolean", "Age"),
    "runtimeclasses.node.k8s.io": _columns("Name", "Handler", "Age"),
    "priorityclasses.scheduling.k8s.io": _columns(
        "Name", "Value:integer", "Global-Default:boolean", "Age", "PreemptionPolicy"
    ),
    "resourceclaims.resource.k8s.io": _columns("Name", "State", "Age"),
    "resourceclaimtemplates.resource.k8s.io": _WITH_AGE,
    "resourceslices.resource.k8s.io": _columns("Name", "Node", "Driver", "Pool", "Age"),
    "deviceclasses.resource.k8s.io": _WITH_AGE,
    "rolebindings.rbac.authorization.k8s.io": _BINDINGS,
    "clusterrolebindings.rbac.authorization.k8s.io": _BINDINGS,
    "certificatesigningrequests.certificates.k8s.io": _columns(
        "Name", "Age", "SignerName", "Requestor", "RequestedDuration", "Condition"
    ),
}


def table(kind: ResourceKind, items: Sequence[Json], now: float, include: str, list_metadata: Json) -> Json:
    """The Table (meta.k8s.io/v1) of objects. `include`: what each row has of its object: `Metadata`, `Object` or `None`."""
    columns = COLUMNS.get(kind.resource, _PLAIN)
    cells = CELLS.get(kind.resource, _plain_cells)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_metadata,
        "columnDefinitions": [column.definition() for column in columns],
        "rows": [_row(kind, item, cells, now, include) for item in items],
    }


def _row(kind: ResourceKind, item: Json, cells: Callable[[Json, float], list[Any]], now: float, include: str) -> Json:
    row: Json = {"cells": cells(item, now)}
    if kind.resource == "pods" and (conditions := condition_rows(item)):
        row["conditions"] = conditions
    match include:
        case "Object":
            row["object"] = item
        case "None":
            row["object"] = None
        case _:
            row["object"] = {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": item["metadata"],
            }
    return row


def _plain_cells(item: Json, _now: float) -> list[Any]:
    return [item["metadata"].get("name", ""), item["metadata"].get("creationTimestamp")]

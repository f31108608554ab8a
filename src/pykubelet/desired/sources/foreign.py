"""Explains why a document of another kind has no effect on a node without an API server, and what to do instead. Pure."""

from __future__ import annotations

#: Characters of a kind or name that are shown of a document.
MAX_NAME = 100
_TEMPLATE = "nothing here makes pods from a {}: put its pod template into a document of kind Pod, with a name"
_TEMPLATES = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob", "ReplicationController")
_NETWORK = "nothing here gives pods a virtual address: use hostPort of the containers, or hostNetwork of the pod"
_ACCESS = "there is no API here that pods could use: leave it out, and serviceAccountName of the pods too"
_NO_NEED = "it needs no object here: leave it out"
_INSTEAD = {
    **{kind: _TEMPLATE.format(kind) for kind in _TEMPLATES},
    **dict.fromkeys(("Service", "Endpoints", "EndpointSlice", "Ingress", "Gateway", "HTTPRoute"), _NETWORK),
    **dict.fromkeys(("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"), _ACCESS),
    "Namespace": f"a namespace exists as soon as a pod or another object names it, and {_NO_NEED}",
    "PriorityClass": "set spec.priority of the pods, and leave it out",
    "StorageClass": "nothing here makes volumes on demand: leave it out, and put a PersistentVolume for each claim",
    "NetworkPolicy": "nothing here applies it: filter on the machine",
    "PodTemplate": _TEMPLATE.format("PodTemplate"),
}


def foreign_kind(kind: str, known: tuple[str, ...]) -> str:
    """The reason for a document with `kind`, which is none of the `known` ones."""
    takes = f"a node without an API server takes {', '.join(known[:-1])} and {known[-1]}"
    instead = _INSTEAD.get(kind, "")
    return f'"{kind[:MAX_NAME]}" is ignored: {instead or takes}'

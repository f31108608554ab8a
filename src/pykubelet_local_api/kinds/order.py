"""The order in which objects of different kinds are applied, so that what others refer to comes first. Pure."""

from __future__ import annotations

from pykubelet_local_api.kinds.kind import ResourceKind

#: Resources in this order; others follow. Namespaces come before what is in them, accounts and volumes before pods.
_ORDER = (
    "namespaces",
    "priorityclasses.scheduling.k8s.io",
    "runtimeclasses.node.k8s.io",
    "storageclasses.storage.k8s.io",
    "csidrivers.storage.k8s.io",
    "deviceclasses.resource.k8s.io",
    "clusterroles.rbac.authorization.k8s.io",
    "serviceaccounts",
    "roles.rbac.authorization.k8s.io",
    "clusterrolebindings.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
    "configmaps",
    "secrets",
    "persistentvolumes",
    "persistentvolumeclaims",
    "resourceclaimtemplates.resource.k8s.io",
    "resourceclaims.resource.k8s.io",
    "services",
    "endpoints",
    "endpointslices.discovery.k8s.io",
    "pods",
)
_RANKS = {resource: rank for rank, resource in enumerate(_ORDER)}


def apply_rank(kind: ResourceKind) -> int:
    """The place of a kind in the order: lower ones first."""
    return _RANKS.get(kind.resource, len(_ORDER))

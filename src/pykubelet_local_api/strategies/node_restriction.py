"""What an agent may change with its node credential: its own Node, Lease and CSINode, mirror pods, statuses of its pods. Pure.

Source: the Kubernetes documentation "Admission Control" (NodeRestriction) and "Using Node Authorization".
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.base.model.labels import CONFIG_MIRROR
from pykubelet_local_api.errors import forbidden
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.common import node_of, shown_name
from pykubelet_local_api.strategies.pod_admission import uses_config_maps, uses_secrets
from pykubelet_local_api.strategies.strategy import Context

LEASES_NAMESPACE = "kube-node-lease"
#: Labels under kubernetes.io and k8s.io that an agent may set on its Node.
_NODE_LABELS = frozenset(
    {
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
    }
)
_NODE_LABEL_DOMAINS = ("kubelet.kubernetes.io", "node.kubernetes.io")


def restrict_pod(kind: ResourceKind, pod: Json, context: Context) -> None:
    """A node creates mirror pods of its own only. Raises `StatusError` (403)."""
    node = node_of(context)
    if not node:
        return
    name, meta, spec = shown_name(pod), pod["metadata"], pod["spec"]
    if CONFIG_MIRROR not in (meta.get("annotations") or {}):
        why = f'pod does not have "{CONFIG_MIRROR}" annotation, node "{node}" can only create mirror pods'
        raise forbidden(kind, name, why)
    if spec.get("nodeName") != node:
        raise forbidden(kind, name, f'node "{node}" can only create pods with spec.nodeName set to itself')
    owners = meta.get("ownerReferences") or []
    own = f'node "{node}" can only create pods with an owner reference set to itself'
    if len(owners) > 1:
        raise forbidden(kind, name, f'node "{node}" can only create pods with a single owner reference set to itself')
    if not owners:
        raise forbidden(kind, name, own)
    owner = owners[0]
    if (owner.get("apiVersion"), owner.get("kind"), owner.get("name")) != ("v1", "Node", node):
        raise forbidden(kind, name, own)
    if not owner.get("controller"):
        raise forbidden(
            kind, name, f'node "{node}" can only create pods with a controller owner reference set to itself'
        )
    if owner.get("blockOwnerDeletion"):
        raise forbidden(kind, name, f'node "{node}" must not set blockOwnerDeletion on an owner reference')
    found = context.view.get("nodes", "", node)
    uid = str(found["metadata"].get("uid")) if found else ""
    if owner.get("uid") != uid:
        raise forbidden(kind, name, f"node {node} UID mismatch: expected {owner.get('uid')} got {uid}")
    _restrict_references(kind, name, node, spec)


def _restrict_references(kind: ResourceKind, name: str, node: str, spec: Json) -> None:
    what = ""
    if spec.get("serviceAccountName"):
        what = "a service account"
    elif uses_secrets(spec):
        what = "secrets"
    elif uses_config_maps(spec):
        what = "configmaps"
    elif any("persistentVolumeClaim" in volume for volume in spec.get("volumes") or ()):
        what = "persistentvolumeclaims"
    elif spec.get("resourceClaims"):
        what = "resourceclaims"
    if what:
        raise forbidden(kind, name, f'node "{node}" can not create pods that reference {what}')


def restrict_pod_status(kind: ResourceKind, new: Json, old: Json, context: Context) -> None:
    """A node changes the statuses of its own pods only, and neither labels nor claims. Raises `StatusError` (403)."""
    node = node_of(context)
    if not node:
        return
    name = shown_name(old)
    if old["spec"].get("nodeName") != node:
        why = f'node "{node}" can only update pod status for pods with spec.nodeName set to itself'
        raise forbidden(kind, name, why)
    if (new["metadata"].get("labels") or {}) != (old["metadata"].get("labels") or {}):
        raise forbidden(kind, name, f'node "{node}" cannot update labels through pod status')
    claims = [(item.get("status") or {}).get("resourceClaimStatuses") or [] for item in (new, old)]
    if claims[0] != claims[1]:
        raise forbidden(kind, name, f'node "{node}" cannot update resource claim statues')


def admit_pod_deletion(kind: ResourceKind, old: Json, context: Context) -> None:
    """A node deletes and evicts only its own pods. Raises `StatusError` (403)."""
    node = node_of(context)
    if node and old["spec"].get("nodeName") != node:
        why = f'node "{node}" can only delete pods with spec.nodeName set to itself'
        raise forbidden(kind, shown_name(old), why)


def restrict_node(kind: ResourceKind, new: Json, old: Json | None, context: Context) -> None:
    """A node changes its own Node only, and only labels that are a node's to set. Raises `StatusError` (403)."""
    node, name = node_of(context), shown_name(new)
    if not node:
        return
    if name != node:
        raise forbidden(kind, name, f'node "{node}" is not allowed to modify node "{name}"')
    after, before = new["metadata"].get("labels") or {}, (old["metadata"].get("labels") or {}) if old else {}
    changed = {key for key in after.keys() | before.keys() if after.get(key) != before.get(key)}
    if not_allowed := sorted(_forbidden_labels(changed)):
        verb = "modify" if old else "set"
        raise forbidden(kind, name, f"is not allowed to {verb} labels: {', '.join(not_allowed)}")
    if old is None:
        if new["metadata"].get("ownerReferences"):
            raise forbidden(kind, name, f'node "{node}" is not allowed to set ownerReferences')
        return
    spec, was = new.get("spec") or {}, old.get("spec") or {}
    if spec.get("configSource") and spec["configSource"] != was.get("configSource"):
        raise forbidden(
            kind, name, f'node "{node}" is not allowed to update configSource to a new non-nil configSource'
        )
    if (spec.get("taints") or []) != (was.get("taints") or []):
        raise forbidden(kind, name, f'node "{node}" is not allowed to modify taints')
    if (new["metadata"].get("ownerReferences") or []) != (old["metadata"].get("ownerReferences") or []):
        raise forbidden(kind, name, f'node "{node}" is not allowed to modify ownerReferences')


def _forbidden_labels(keys: Iterable[str]) -> Iterable[str]:
    for key in keys:
        domain = key.partition("/")[0] if "/" in key else ""
        if domain == "node-restriction.kubernetes.io" or domain.endswith(".node-restriction.kubernetes.io"):
            yield key
        elif _is_in(domain, "kubernetes.io") or _is_in(domain, "k8s.io"):
            is_nodes_own = any(_is_in(domain, own) for own in _NODE_LABEL_DOMAINS)
            if not is_nodes_own and key not in _NODE_LABELS:
                yield key


def _is_in(domain: str, parent: str) -> bool:
    return domain == parent or domain.endswith(f".{parent}")


def restrict_lease(kind: ResourceKind, lease: Json, context: Context) -> None:
    """A node writes its own Lease. Raises `StatusError` (403)."""
    node, name = node_of(context), shown_name(lease)
    if not node:
        return
    if lease["metadata"].get("namespace") != LEASES_NAMESPACE:
        why = f'can only access leases in the "{LEASES_NAMESPACE}" system namespace'
        raise forbidden(kind, name, why)
    if name != node:
        raise forbidden(kind, name, "can only access node lease with the same name as the requesting node")


def restrict_csi_node(kind: ResourceKind, found: Json, context: Context) -> None:
    """A node writes its own CSINode. Raises `StatusError` (403)."""
    node = node_of(context)
    if node and shown_name(found) != node:
        why = "can only access CSINode with the same name as the requesting node"
        raise forbidden(kind, shown_name(found), why)


def restrict_slice(kind: ResourceKind, found: Json, context: Context, verb: str = "create") -> None:
    """A node writes ResourceSlices of its own. Raises `StatusError` (403)."""
    node = node_of(context)
    if node and (found.get("spec") or {}).get("nodeName") != node:
        why = f"can only {verb} ResourceSlice with the same NodeName as the requesting node"
        raise forbidden(kind, shown_name(found), why)


def restrict_claim_status(kind: ResourceKind, new: Json, old: Json, context: Context) -> None:
    """A node does not change the size that a volume has, nor what a claim was given, except for the growth of its own. Raises 403."""
    node = node_of(context)
    if not node:
        return
    kept = ("accessModes", "phase")
    after, before = new.get("status") or {}, old.get("status") or {}
    if any(after.get(field) != before.get(field) for field in kept):
        why = f'node "{node}" is not allowed to update fields other than status.quantity and status.conditions'
        raise forbidden(kind, shown_name(old), why)

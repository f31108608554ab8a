"""What a node may do: its own Node, Lease and CSINode, its pods, and what these refer to. Pure.

Source: "Using Node Authorization"; texts are the API server's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pykubelet_local_api.access.bootstrap import NODE_RULES
from pykubelet_local_api.access.rbac import AccessAttributes, Permission
from pykubelet_local_api.objects import Json, name_of, namespace_of
from pykubelet_local_api.view import RequestUser, View

NODES = "system:nodes"
_PREFIX = "system:node:"
_MIRROR = "kubernetes.io/config.mirror"
_LEASES = "kube-node-lease"
_READ = ("get", "list", "watch")
_OWN_VERBS = ("get", "create", "update", "patch", "delete")
_YES, _NO = Permission(True), Permission(False)
Reference = tuple[str, str]
#: What each pod refers to, by namespace and name, with the object that this was read from.
_references: dict[tuple[str, str], tuple[Json, frozenset[Reference]]] = {}
_OF_THE_CLUSTER = ("persistentvolumes", "resourceslices", "volumeattachments")
#: References of pods that are gone are forgotten when there are so many more than pods.
_SLACK = 1000
#: The field of a volume's source with the name of a Secret.
_SECRET_SOURCES = (
    ("azureFile", "secretName"), ("cephfs", "secretRef"), ("cinder", "secretRef"), ("flexVolume", "secretRef"), ("rbd", "secretRef"),
    ("secret", "secretName"), ("scaleIO", "secretRef"), ("iscsi", "secretRef"), ("storageos", "secretRef"), ("csi", "nodePublishSecretRef"),
)  # fmt: skip
#: The same for PersistentVolumes: those that a node reads.
_VOLUME_SECRETS = (
    ("cephfs", "secretRef"), ("cinder", "secretRef"), ("flexVolume", "secretRef"), ("rbd", "secretRef"), ("scaleIO", "secretRef"),
    ("iscsi", "secretRef"), ("storageos", "secretRef"), ("csi", "nodePublishSecretRef"), ("csi", "nodeStageSecretRef"),
    ("csi", "nodeExpandSecretRef"),
)  # fmt: skip


def node_of(user: RequestUser) -> str:
    """The node that a user is; empty if it is none."""
    return user.name[len(_PREFIX) :] if user.name.startswith(_PREFIX) and NODES in user.groups else ""


def authorize_node(wanted: AccessAttributes, view: View) -> Permission:
    """The decision for a client that may be a node; "no" without a reason for all others."""
    user = wanted.user
    if not user.name.startswith(_PREFIX) or NODES not in user.groups:
        return _NO
    node = user.name[len(_PREFIX) :]
    if not node:
        return Permission(False, f'unknown node for user "{user.name}"')
    special = None if wanted.path else _SPECIAL.get((wanted.group, wanted.resource))
    if special is not None:
        return special(node, wanted, view)
    return _YES if any(rule.allows(wanted) for rule in NODE_RULES) else _NO


def _related(node: str, wanted: AccessAttributes, view: View) -> Permission:
    if not wanted.name:
        return Permission(False, "No Object name found")
    if is_related(node, wanted.resource, wanted.namespace, wanted.name, view):
        return _YES
    return Permission(False, f"no relationship found between node '{node}' and this object")


def _readable(node: str, wanted: AccessAttributes, view: View) -> Permission:
    if wanted.verb not in _READ:
        return Permission(False, "can only read resources of this type")
    if wanted.subresource:
        return Permission(False, "cannot read subresource")
    if not wanted.namespace:
        return Permission(False, "can only read namespaced object of this type")
    return _related(node, wanted, view)


def _gettable(node: str, wanted: AccessAttributes, view: View) -> Permission:
    if wanted.verb != "get":
        return Permission(False, "can only get individual resources of this type")
    if wanted.subresource:
        return Permission(False, "cannot get subresource")
    return _related(node, wanted, view)


def _claim(node: str, wanted: AccessAttributes, view: View) -> Permission:
    if wanted.subresource != "status":
        return _gettable(node, wanted, view)
    if wanted.verb not in ("update", "patch"):
        return Permission(False, "can only get/update/patch this type")
    return _related(node, wanted, view)


def _account(node: str, wanted: AccessAttributes, view: View) -> Permission:
    if wanted.verb == "get" and not wanted.subresource:
        return _readable(node, wanted, view)
    if wanted.verb != "create" or not wanted.name:
        return Permission(False, "can only create tokens for individual service accounts")
    if wanted.subresource != "token":
        return Permission(False, "can only create token subresource of serviceaccount")
    return _related(node, wanted, view)


def _lease(node: str, wanted: AccessAttributes, _: View) -> Permission:
    if wanted.verb not in _OWN_VERBS:
        return Permission(False, "can only get, create, update, patch, or delete a node lease")
    if wanted.namespace != _LEASES:
        return Permission(False, f'can only access leases in the "{_LEASES}" system namespace')
    if wanted.verb != "create" and wanted.name != node:
        return Permission(False, "can only access node lease with the same name as the requesting node")
    return _YES


def _csi_node(node: str, wanted: AccessAttributes, _: View) -> Permission:
    if wanted.verb not in _OWN_VERBS:
        return Permission(False, "can only get, create, update, patch, or delete a CSINode")
    if wanted.subresource:
        return Permission(False, "cannot authorize CSINode subresources")
    if wanted.verb != "create" and wanted.name != node:
        return Permission(False, "can only access CSINode with the same name as the requesting node")
    return _YES


def _slice(node: str, wanted: AccessAttributes, view: View) -> Permission:
    if wanted.subresource:
        return Permission(False, "cannot authorize ResourceSlice subresources")
    if wanted.verb == "create":
        return _YES
    if wanted.verb in ("get", "update", "patch", "delete"):
        return _related(node, wanted, view)
    if wanted.verb in ("watch", "list", "deletecollection"):
        if ("spec.nodeName", node) in wanted.fields:
            return _YES
        return Permission(False, "can only list/watch/deletecollection resourceslices with nodeName field selector")
    verbs = "get, watch, list, create, update, patch, delete, deletecollection"
    return Permission(False, f"only the following verbs are allowed for a ResourceSlice: {verbs}")


def _own_node(node: str, wanted: AccessAttributes, _: View) -> Permission:
    if wanted.subresource == "status":
        return _YES if wanted.verb in ("update", "patch") else _NO
    if wanted.subresource:
        return _NO
    if wanted.verb in ("create", "update", "patch"):
        return _YES
    if wanted.verb not in _READ:
        return _NO
    if wanted.name == node:
        return _YES
    if not wanted.name:
        return Permission(False, f"node '{node}' cannot read all nodes, only its own Node object")
    return Permission(False, f"node '{node}' cannot read '{wanted.name}', only its own Node object")


def _pod(node: str, wanted: AccessAttributes, view: View) -> Permission:
    verb = wanted.verb
    if not wanted.subresource:
        if verb == "get":
            return _gettable(node, wanted, view)
        if verb in ("list", "watch"):
            if ("spec.nodeName", node) in wanted.fields:
                return _YES
            if wanted.name:
                return _related(node, wanted, view)
            return Permission(False, "can only list/watch pods with spec.nodeName field selector")
        return _YES if verb in ("create", "delete") else _NO
    if wanted.subresource == "status":
        return _YES if verb in ("update", "patch") else _NO
    return _YES if wanted.subresource == "eviction" and verb == "create" else _NO


_SPECIAL: dict[tuple[str, str], Callable[[str, AccessAttributes, View], Permission]] = {
    ("", "secrets"): _readable,
    ("", "configmaps"): _readable,
    ("", "persistentvolumeclaims"): _claim,
    ("", "persistentvolumes"): _gettable,
    ("resource.k8s.io", "resourceclaims"): _gettable,
    ("storage.k8s.io", "volumeattachments"): _gettable,
    ("", "serviceaccounts"): _account,
    ("coordination.k8s.io", "leases"): _lease,
    ("storage.k8s.io", "csinodes"): _csi_node,
    ("resource.k8s.io", "resourceslices"): _slice,
    ("", "nodes"): _own_node,
    ("", "pods"): _pod,
}


def is_related(node: str, resource: str, namespace: str, name: str, view: View) -> bool:
    """Whether an object is a pod of the node, or its pods refer to it. `resource`: without the group."""
    if resource == "pods":
        return _node_of_pod(view.get("pods", namespace, name)) == node
    if namespace and resource in _OF_THE_CLUSTER:
        return False
    if resource == "volumeattachments":
        return _spec(view.get("volumeattachments.storage.k8s.io", "", name)).get("nodeName") == node
    if resource == "resourceslices":
        return _spec(view.get("resourceslices.resource.k8s.io", "", name)).get("nodeName") == node
    if resource == "persistentvolumes":
        return _has_claim(node, view.get("persistentvolumes", "", name), view)
    wanted = (resource, name)
    for pod in view.list("pods", namespace):
        if _node_of_pod(pod) == node and wanted in _references_of(pod):
            _forget(view)
            return True
    if resource != "secrets":
        return False
    return any(
        (namespace, name) in _secrets_of(volume) and _has_claim(node, volume, view)
        for volume in view.list("persistentvolumes")
    )


def _has_claim(node: str, volume: Json | None, view: View) -> bool:
    claim = _spec(volume).get("claimRef") or {}
    namespace, name = claim.get("namespace") or "", claim.get("name") or ""
    return bool(name) and is_related(node, "persistentvolumeclaims", namespace, name, view)


def _spec(found: Json | None) -> Json:
    return (found or {}).get("spec") or {}


def _node_of_pod(pod: Json | None) -> str:
    return str(_spec(pod).get("nodeName") or "")


def _references_of(pod: Json) -> frozenset[Reference]:
    """What a pod refers to. Read once for each version of a pod."""
    key = (namespace_of(pod), name_of(pod))
    known = _references.get(key)
    if known is not None and known[0] is pod:
        return known[1]
    found = frozenset(references(pod))
    _references[key] = (pod, found)
    return found


def _forget(view: View) -> None:
    if len(_references) <= _SLACK:
        return
    present = {(namespace_of(pod), name_of(pod)) for pod in view.list("pods")}
    if len(_references) > len(present) + _SLACK:
        for key in [key for key in _references if key not in present]:
            del _references[key]


def references(pod: Json) -> Iterator[Reference]:
    """Resource and name of everything that a pod refers to. A mirror pod, which a node makes itself, refers to nothing."""
    if _MIRROR in (pod["metadata"].get("annotations") or {}):
        return
    spec = _spec(pod)
    yield "serviceaccounts", spec.get("serviceAccountName") or ""
    for secret in spec.get("imagePullSecrets") or ():
        yield "secrets", secret.get("name") or ""
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec.get(kind) or ():
            yield from _container_references(container)
    for volume in spec.get("volumes") or ():
        yield from _volume_references(pod, volume)
    status = pod.get("status") or {}
    made = {found.get("name"): found.get("resourceClaimName") for found in status.get("resourceClaimStatuses") or ()}
    for claim in spec.get("resourceClaims") or ():
        yield "resourceclaims", claim.get("resourceClaimName") or made.get(claim.get("name")) or ""
    extended = (status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
    if extended:
        yield "resourceclaims", extended


def _container_references(container: Json) -> Iterator[Reference]:
    for source in container.get("envFrom") or ():
        yield "secrets", (source.get("secretRef") or {}).get("name") or ""
        yield "configmaps", (source.get("configMapRef") or {}).get("name") or ""
    for variable in container.get("env") or ():
        source = variable.get("valueFrom") or {}
        yield "secrets", (source.get("secretKeyRef") or {}).get("name") or ""
        yield "configmaps", (source.get("configMapKeyRef") or {}).get("name") or ""


def _volume_references(pod: Json, volume: Json) -> Iterator[Reference]:
    for kind, key in _SECRET_SOURCES:
        found = (volume.get(kind) or {}).get(key)
        yield "secrets", (found.get("name") if isinstance(found, dict) else found) or ""
    yield "configmaps", (volume.get("configMap") or {}).get("name") or ""
    for source in (volume.get("projected") or {}).get("sources") or ():
        yield "secrets", (source.get("secret") or {}).get("name") or ""
        yield "configmaps", (source.get("configMap") or {}).get("name") or ""
    yield "persistentvolumeclaims", (volume.get("persistentVolumeClaim") or {}).get("claimName") or ""
    if volume.get("ephemeral"):
        yield "persistentvolumeclaims", f"{name_of(pod)}-{volume.get('name')}"


def _secrets_of(volume: Json) -> Iterator[tuple[str, str]]:
    """Namespace and name of the Secrets with which a node mounts a PersistentVolume."""
    spec = _spec(volume)
    claimed_in = (spec.get("claimRef") or {}).get("namespace") or ""
    for kind, key in _VOLUME_SECRETS:
        found = (spec.get(kind) or {}).get(key) or {}
        if found.get("name"):
            yield found.get("namespace") or claimed_in, found["name"]
    azure = spec.get("azureFile") or {}
    if azure.get("secretName"):
        yield azure.get("secretNamespace") or claimed_in, azure["secretName"]

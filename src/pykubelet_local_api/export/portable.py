"""What of the objects another cluster takes: without status, identities, and what belongs to this node or is made by itself. Pure.

Source: the API conventions, "Metadata"; the documentation of each kind, about fields that the control plane sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pykubelet_local_api.directory.manifests import ORIGIN
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.order import apply_rank
from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.objects import Json, copied, is_deleting, name_of, namespace_of
from pykubelet_local_api.view import View

#: Kinds whose objects describe this node, or are made again by other objects and programs.
_LEFT_OUT = frozenset({
    "certificatesigningrequests.certificates.k8s.io", "csinodes.storage.k8s.io", "csistoragecapacities.storage.k8s.io",
    "endpointslices.discovery.k8s.io", "events", "leases.coordination.k8s.io", "nodes", "resourceslices.resource.k8s.io",
    "volumeattachments.storage.k8s.io",
})  # fmt: skip
#: Namespaces that every cluster has, and what their control planes put into namespaces.
_SYSTEM_NAMESPACES = frozenset({"default", "kube-node-lease", "kube-public", "kube-system"})
_SYSTEM_OBJECTS = frozenset({
    ("configmaps", "kube-root-ca.crt"), ("configmaps", "pykubelet-directory"), ("endpoints", "kubernetes"), ("services", "kubernetes"),
})  # fmt: skip
_SYSTEM_PREFIX = "system:"
_BOOTSTRAPPING = "kubernetes.io/bootstrapping"
_MIRROR = "kubernetes.io/config.mirror"
_PROVISIONED = "pv.kubernetes.io/provisioned-by"
_TOKEN_VOLUME = "kube-api-access-"
_METADATA = ("annotations", "finalizers", "labels", "name", "namespace")
#: Annotations and finalizers that controllers set.
_CONTROLLERS_ANNOTATIONS = frozenset({
    ORIGIN,
    "pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller", _PROVISIONED,
    "volume.beta.kubernetes.io/storage-provisioner", "volume.kubernetes.io/selected-node", "volume.kubernetes.io/storage-provisioner",
})  # fmt: skip
_CONTROLLERS_FINALIZERS = frozenset({
    "external-provisioner.volume.kubernetes.io/finalizer", "kubernetes", "kubernetes.io/pv-protection", "kubernetes.io/pvc-protection",
    "resource.kubernetes.io/delete-protection",
})  # fmt: skip
_NAME_LABEL = "kubernetes.io/metadata.name"
#: Taints that admission tolerates for five minutes in every pod.
_DEFAULT_TOLERATIONS = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
_DEFAULT_TOLERATION_S = 300
_ENDED = frozenset({"Failed", "Succeeded"})


def exported(view: View, namespace: str = "") -> tuple[list[Json], list[str]]:
    """The objects in the order in which they can be applied, and remarks on what is left out.

    `namespace`: only its objects, and the namespace itself; "" for all.
    """
    found: list[Json] = []
    remarks: list[str] = []
    volumes = {name_of(each) for each in view.list("persistentvolumes") if not namespace and _is_exported_volume(each)}
    for kind in sorted(STORED.values(), key=apply_rank):
        for each in view.list(kind.storage):
            if namespace and namespace != (name_of(each) if kind.resource == "namespaces" else namespace_of(each)):
                continue
            if kind.resource == "endpoints" and _has_selector(view, each):
                continue
            remark = _reason_to_leave(kind, each)
            if remark is None:
                found.append(_portable(kind, each, volumes))
            elif remark:
                place = f"{namespace_of(each)}/" if namespace_of(each) else ""
                remarks.append(f"{kind.resource} {place}{name_of(each)} is left out: {remark}")
    return found, remarks


def _reason_to_leave(kind: ResourceKind, found: Json) -> str | None:
    """Why an object is left out; "" without need to state it; None: it is exported."""
    meta, name = found["metadata"], name_of(found)
    annotations = meta.get("annotations") or {}
    is_system = (
        kind.resource in _LEFT_OUT
        or (kind.resource, name) in _SYSTEM_OBJECTS
        or (kind.resource == "namespaces" and name in _SYSTEM_NAMESPACES)
        or name.startswith((_SYSTEM_PREFIX, "system-"))
        or _BOOTSTRAPPING in (meta.get("labels") or {})
        or (kind.resource == "serviceaccounts" and name == "default" and not found.get("imagePullSecrets"))
    )
    if is_system or is_deleting(found):
        return ""
    if _MIRROR in annotations:
        return "it is a static pod, whose manifest is a file"
    if meta.get("ownerReferences"):
        owner = meta["ownerReferences"][0]
        return f"{owner.get('kind')} {owner.get('name')} owns it, and makes it again"
    if kind.resource == "pods" and (found.get("status") or {}).get("phase") in _ENDED:
        return "it has ended"
    if kind.resource == "secrets" and found.get("type") == "kubernetes.io/service-account-token":
        return "it is a token of this API"
    if kind.resource == "persistentvolumes" and not _is_exported_volume(found):
        return "it was provisioned for a claim, which gets another one; its data must be copied"
    return None


def _has_selector(view: View, endpoints: Json) -> bool:
    """Whether the Service of these Endpoints selects pods, so that its Endpoints are made by itself."""
    service = view.get("services", namespace_of(endpoints), name_of(endpoints))
    return service is not None and bool((service.get("spec") or {}).get("selector"))


def _is_exported_volume(volume: Json) -> bool:
    return _PROVISIONED not in (volume["metadata"].get("annotations") or {})


def _portable(kind: ResourceKind, found: Json, volumes: Iterable[str]) -> Json:
    copy = copied(found)
    old = copy.pop("metadata")
    copy.pop("status", None)
    for name in ("apiVersion", "kind"):
        copy.pop(name, None)
    meta = {name: old[name] for name in _METADATA if old.get(name)}
    _drop(meta, "annotations", _CONTROLLERS_ANNOTATIONS)
    _drop(meta, "labels", {_NAME_LABEL})
    kept = [name for name in meta.pop("finalizers", ()) if name not in _CONTROLLERS_FINALIZERS]
    meta |= {"finalizers": kept} if kept else {}
    made: Json = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, **copy}
    change = _CHANGES.get(kind.resource)
    if change is not None:
        change(made)
    if kind.resource == "persistentvolumeclaims" and made["spec"].get("volumeName") not in volumes:
        made["spec"].pop("volumeName", None)
    return made


def _drop(meta: Json, field: str, names: Iterable[str]) -> None:
    left = {name: value for name, value in (meta.pop(field, None) or {}).items() if name not in names}
    if left:
        meta[field] = left


def _change_namespace(made: Json) -> None:
    made.pop("spec", None)


def _change_service(made: Json) -> None:
    spec = made["spec"]
    if spec.get("clusterIP") != "None":
        for field in ("clusterIP", "clusterIPs"):
            spec.pop(field, None)
    for field in ("healthCheckNodePort", "ipFamilies", "ipFamilyPolicy"):
        spec.pop(field, None)


def _change_account(made: Json) -> None:
    made.pop("secrets", None)


def _change_volume(made: Json) -> None:
    reference = made["spec"].get("claimRef")
    for field in ("uid", "resourceVersion"):
        if reference:
            reference.pop(field, None)


def _change_claim(made: Json) -> None:
    reference = made["spec"].get("dataSourceRef")
    if reference is not None and reference == made["spec"].get("dataSource"):
        made["spec"].pop("dataSourceRef")


def _change_pod(made: Json) -> None:
    spec = made["spec"]
    for field in ("ephemeralContainers", "nodeName", "overhead", "preemptionPolicy", "priority", "serviceAccount"):
        spec.pop(field, None)
    kept = [each for each in spec.pop("tolerations", ()) if not _is_default_toleration(each)]
    spec |= {"tolerations": kept} if kept else {}
    tokens = {volume["name"] for volume in spec.get("volumes") or () if volume["name"].startswith(_TOKEN_VOLUME)}
    _without(spec, "volumes", tokens)
    for container in _containers(spec):
        _without(container, "volumeMounts", tokens)


def _containers(spec: Json) -> Iterator[Json]:
    for field in ("initContainers", "containers"):
        yield from spec.get(field) or ()


def _without(holder: Json, field: str, names: Iterable[str]) -> None:
    left = [each for each in holder.pop(field, None) or () if each["name"] not in names]
    if left:
        holder[field] = left


def _is_default_toleration(toleration: Json) -> bool:
    is_taint = toleration.get("key") in _DEFAULT_TOLERATIONS and toleration.get("effect") == "NoExecute"
    return is_taint and toleration.get("tolerationSeconds") == _DEFAULT_TOLERATION_S


_CHANGES: dict[str, Callable[[Json], None]] = {
    "namespaces": _change_namespace,
    "persistentvolumeclaims": _change_claim,
    "persistentvolumes": _change_volume,
    "pods": _change_pod,
    "serviceaccounts": _change_account,
    "services": _change_service,
}

"""Which fields a way of writing resets, so that no manager gets them by it. Pure.

Source: the behavior of a kube-apiserver 1.36, which `metadata.managedFields` shows.
"""

from __future__ import annotations

from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.patch.fields import Fields, only, without

_Paths = tuple[tuple[str, ...], ...]

_STATUS: _Paths = (("f:status",),)
_SPEC: _Paths = (("f:spec",),)
_METADATA: _Paths = (("f:metadata",), ("f:spec",))

#: Fields that are reset, by the resource of the storage and the subresource.
_RESET: dict[tuple[str, str], _Paths] = {
    ("namespaces", ""): _STATUS,
    ("namespaces", "status"): _SPEC,
    ("namespaces", "finalize"): _STATUS,
    ("nodes", ""): _STATUS,
    ("nodes", "status"): _SPEC,
    ("pods", ""): _STATUS,
    ("pods", "status"): (*_SPEC, ("f:metadata", "f:deletionTimestamp"), ("f:metadata", "f:ownerReferences")),
    ("persistentvolumes", ""): _STATUS,
    ("persistentvolumes", "status"): _SPEC,
    ("persistentvolumeclaims", ""): _STATUS,
    ("persistentvolumeclaims", "status"): _SPEC,
    ("services", ""): _STATUS,
    ("services", "status"): _SPEC,
    ("volumeattachments.storage.k8s.io", ""): _STATUS,
    ("volumeattachments.storage.k8s.io", "status"): _METADATA,
    ("resourceclaims.resource.k8s.io", ""): _STATUS,
    ("resourceclaims.resource.k8s.io", "status"): _METADATA,
    ("certificatesigningrequests.certificates.k8s.io", ""): (*_SPEC, *_STATUS),
    ("certificatesigningrequests.certificates.k8s.io", "status"): (*_SPEC, ("f:status", "f:conditions")),
    ("certificatesigningrequests.certificates.k8s.io", "approval"): (*_SPEC, ("f:status", "f:certificate")),
}
#: The only fields that a subresource writes, where it writes a few.
_ONLY: dict[tuple[str, str], _Paths] = {
    ("pods", "ephemeralcontainers"): (("f:spec", "f:ephemeralContainers"),),
    ("pods", "resize"): tuple(
        ("f:spec", containers, "*", field)
        for containers in ("f:containers", "f:initContainers")
        for field in ("f:resources", "f:resizePolicy")
    ),
}


def owned_fields(kind: ResourceKind, subresource: str, fields: Fields) -> Fields:
    """The fields that a write may have."""
    key = (kind.resource, subresource)
    if key in _ONLY:
        return only(fields, _ONLY[key])
    return without(fields, _RESET.get(key, ()))

"""All kinds that are served. A kind is one entry here; what it defaults and validates is in `strategies`.

Source: the Kubernetes API reference; short names and categories are those that `kubectl api-resources` shows.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet_local_api.kinds.kind import ALL_VERBS, ResourceKind

_CREATE = ("create",)
_ALL = ("all",)
#: Subresources of pods that the agent answers.
POD_STREAMS = ("attach", "exec", "log", "portforward", "proxy")

KINDS: tuple[ResourceKind, ...] = (
    ResourceKind(
        "", "v1", "Namespace", "namespaces", False, ("ns",), subresources=("finalize", "status"), returns_deleted=True,
        verbs=tuple(verb for verb in ALL_VERBS if verb != "deletecollection"),
    ),
    ResourceKind("", "v1", "Node", "nodes", False, ("no",), subresources=("proxy", "status")),
    ResourceKind(
        "", "v1", "Pod", "pods", True, ("po",), _ALL,
        (*POD_STREAMS, "binding", "ephemeralcontainers", "eviction", "resize", "status"), returns_deleted=True,
    ),
    ResourceKind("", "v1", "Binding", "bindings", verbs=_CREATE, is_review=True),
    ResourceKind("", "v1", "ConfigMap", "configmaps", True, ("cm",)),
    ResourceKind("", "v1", "Secret", "secrets"),
    ResourceKind("", "v1", "ServiceAccount", "serviceaccounts", True, ("sa",), subresources=("token",), returns_deleted=True),
    ResourceKind("", "v1", "Event", "events", True, ("ev",)),
    ResourceKind("", "v1", "PersistentVolume", "persistentvolumes", False, ("pv",), subresources=("status",), returns_deleted=True),
    ResourceKind(
        "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", True, ("pvc",), subresources=("status",), returns_deleted=True
    ),
    ResourceKind("", "v1", "Service", "services", True, ("svc",), _ALL, ("proxy", "status"), returns_deleted=True),
    ResourceKind("", "v1", "Endpoints", "endpoints", True, ("ep",)),
    ResourceKind("events.k8s.io", "v1", "Event", "events", True, ("ev",), stored_as="events"),
    ResourceKind("coordination.k8s.io", "v1", "Lease", "leases"),
    ResourceKind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
    ResourceKind("storage.k8s.io", "v1", "StorageClass", "storageclasses", False, ("sc",), returns_deleted=True),
    ResourceKind("storage.k8s.io", "v1", "CSIDriver", "csidrivers", False, returns_deleted=True),
    ResourceKind("storage.k8s.io", "v1", "CSINode", "csinodes", False, returns_deleted=True),
    ResourceKind("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", False, subresources=("status",), returns_deleted=True),
    ResourceKind("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities"),
    ResourceKind("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", False),
    ResourceKind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", False, ("pc",)),
    ResourceKind("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", subresources=("status",), returns_deleted=True),
    ResourceKind("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates", returns_deleted=True),
    ResourceKind("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", False, returns_deleted=True),
    ResourceKind("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", False, returns_deleted=True),
    ResourceKind("rbac.authorization.k8s.io", "v1", "Role", "roles"),
    ResourceKind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
    ResourceKind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", False),
    ResourceKind("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", False),
    ResourceKind(
        "certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests",
        False, ("csr",), subresources=("approval", "status"),
    ),
    ResourceKind("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", False, verbs=_CREATE, is_review=True),
    ResourceKind("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", False, verbs=_CREATE, is_review=True),
    ResourceKind("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", False, verbs=_CREATE, is_review=True),
    ResourceKind("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", False, verbs=_CREATE, is_review=True),
    ResourceKind("authorization.k8s.io", "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", False, verbs=_CREATE, is_review=True),
    ResourceKind("authorization.k8s.io", "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews", verbs=_CREATE, is_review=True),
)  # fmt: skip

#: Kinds by group, version and plural, as paths name them.
KindsByPath = Mapping[tuple[str, str, str], ResourceKind]
BY_PATH: KindsByPath = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}
#: By `apiVersion` and `kind`, as objects name them.
BY_TYPE = {(kind.api_version, kind.name): kind for kind in KINDS}
#: Kinds with objects, by the resource under which they are stored.
STORED = {kind.resource: kind for kind in KINDS if not kind.is_review and not kind.stored_as}

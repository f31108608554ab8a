"""All kinds that are served. A kind is one entry here; what it defaults and validates is in `strategies`.

Source: the Kubernetes API reference; short names and categories are those that `kubectl api-resources` shows.
"""

from __future__ import annotations

from pykubelet_local_api.kinds.kind import Kind

_CREATE = ("create",)
_CORE, _API = "io.k8s.api.core.v1.", "io.k8s.api."
_ALL = ("all",)
#: Subresources of pods that the agent answers.
POD_STREAMS = ("attach", "exec", "log", "portforward", "proxy")

KINDS: tuple[Kind, ...] = (
    Kind("", "v1", "Namespace", "namespaces", _CORE + "Namespace", False, ("ns",), subresources=("finalize", "status")),
    Kind("", "v1", "Node", "nodes", _CORE + "Node", False, ("no",), subresources=("proxy", "status")),
    Kind(
        "", "v1", "Pod", "pods", _CORE + "Pod", True, ("po",), _ALL,
        (*POD_STREAMS, "binding", "ephemeralcontainers", "eviction", "resize", "status"),
    ),
    Kind("", "v1", "Binding", "bindings", _CORE + "Binding", verbs=_CREATE, is_review=True),
    Kind("", "v1", "ConfigMap", "configmaps", _CORE + "ConfigMap", True, ("cm",)),
    Kind("", "v1", "Secret", "secrets", _CORE + "Secret"),
    Kind("", "v1", "ServiceAccount", "serviceaccounts", _CORE + "ServiceAccount", True, ("sa",), subresources=("token",)),
    Kind("", "v1", "Event", "events", _CORE + "Event", True, ("ev",)),
    Kind("", "v1", "PersistentVolume", "persistentvolumes", _CORE + "PersistentVolume", False, ("pv",), subresources=("status",)),
    Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", _CORE + "PersistentVolumeClaim", True, ("pvc",), subresources=("status",)),
    Kind("", "v1", "Service", "services", _CORE + "Service", True, ("svc",), _ALL, ("proxy", "status")),
    Kind("", "v1", "Endpoints", "endpoints", _CORE + "Endpoints", True, ("ep",)),
    Kind("events.k8s.io", "v1", "Event", "events", _API + "events.v1.Event", True, ("ev",), stored_as="events"),
    Kind("coordination.k8s.io", "v1", "Lease", "leases", _API + "coordination.v1.Lease"),
    Kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", _API + "discovery.v1.EndpointSlice"),
    Kind("storage.k8s.io", "v1", "StorageClass", "storageclasses", _API + "storage.v1.StorageClass", False, ("sc",)),
    Kind("storage.k8s.io", "v1", "CSIDriver", "csidrivers", _API + "storage.v1.CSIDriver", False),
    Kind("storage.k8s.io", "v1", "CSINode", "csinodes", _API + "storage.v1.CSINode", False),
    Kind("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", _API + "storage.v1.VolumeAttachment", False, subresources=("status",)),
    Kind("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", _API + "storage.v1.CSIStorageCapacity"),
    Kind("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", _API + "node.v1.RuntimeClass", False),
    Kind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", _API + "scheduling.v1.PriorityClass", False, ("pc",)),
    Kind("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", _API + "resource.v1.ResourceClaim", subresources=("status",)),
    Kind("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates", _API + "resource.v1.ResourceClaimTemplate"),
    Kind("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", _API + "resource.v1.ResourceSlice", False),
    Kind("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", _API + "resource.v1.DeviceClass", False),
    Kind("rbac.authorization.k8s.io", "v1", "Role", "roles", _API + "rbac.v1.Role"),
    Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", _API + "rbac.v1.RoleBinding"),
    Kind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", _API + "rbac.v1.ClusterRole", False),
    Kind("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", _API + "rbac.v1.ClusterRoleBinding", False),
    Kind(
        "certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests",
        _API + "certificates.v1.CertificateSigningRequest", False, ("csr",), subresources=("approval", "status"),
    ),
    Kind("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", _API + "authentication.v1.TokenReview", False, verbs=_CREATE, is_review=True),
    Kind("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", _API + "authentication.v1.SelfSubjectReview", False, verbs=_CREATE, is_review=True),
    Kind("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", _API + "authorization.v1.SubjectAccessReview", False, verbs=_CREATE, is_review=True),
    Kind("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", _API + "authorization.v1.SelfSubjectAccessReview", False, verbs=_CREATE, is_review=True),
    Kind("authorization.k8s.io", "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", _API + "authorization.v1.SelfSubjectRulesReview", False, verbs=_CREATE, is_review=True),
    Kind("authorization.k8s.io", "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews", _API + "authorization.v1.LocalSubjectAccessReview", verbs=_CREATE, is_review=True),
)  # fmt: skip

#: By group, version and plural, as paths name them.
BY_PATH = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}
#: By `apiVersion` and `kind`, as objects name them.
BY_TYPE = {(kind.api_version, kind.name): kind for kind in KINDS}
#: Kinds with objects, by the resource under which they are stored.
STORED = {kind.resource: kind for kind in KINDS if not kind.is_review and not kind.stored_as}

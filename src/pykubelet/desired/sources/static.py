"""Makes a static pod of this node from a pod of a manifest, and finds what it may not have, or has without effect. Pure.

The UID is the reference kubelet's, so that either agent keeps the static pods of the other running: 32 hex digits of FNV-1a (128 bits)
over the pod as it is in memory with its defaults (`base/manifests/internal_dump.py`), then `host:<node>` and `file:<path>`, or `url:<url>`.
Comments, key order, spacing and restarts do not change it; a new field of the Kubernetes API does. A UID in the manifest is used
instead. Pods that are too large for a dump have the hash of their manifest.

A static pod must run without an API server, so it may not refer to API objects (feature gate PreventStaticPodAPIReferences). On a node
that has no API server, manifests take its place for ConfigMaps, Secrets, claims, persistent volumes and CSIDrivers. Nothing on a node
applies the rules of the API server's admission about classes.
Source: the Kubernetes documentation "Pod Overhead" and "Pod Priority and Preemption".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from pykubelet.base.api import core
from pykubelet.base.api.codec import without_nulls
from pykubelet.base.api.core import Container, EphemeralContainer, Pod, PodSpec, Volume, VolumeProjection
from pykubelet.base.api.quantity import QuantityError
from pykubelet.base.kit.fnv import fnv1a_128
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.manifests.internal_dump import TooLong, dump_pod
from pykubelet.base.model import labels

_OWN_ANNOTATIONS = (labels.CONFIG_MIRROR, labels.CONFIG_SOURCE, labels.CONFIG_HASH, labels.CONFIG_SEEN)
_NEVER_EVICTED = "is not enforced: static pods are not evicted"
_FIXED_UID = (
    "with a fixed uid, an edit restarts only containers whose image changes; without one, it starts the pod anew"
)
NO_EXECUTE = core.Toleration(operator="Exists", effect="NoExecute")


class Origin(Value):
    """Where a manifest was read. `source`: `file` or `http`. `place`: the path or URL. `shown`: `place` without credentials."""

    source: str
    place: str
    shown: str

    @property
    def is_file(self) -> bool:
        """Whether the manifest is a file of the node, not a URL."""
        return self.source == labels.SOURCE_FILE


def file_origin(path: str) -> Origin:
    """The origin of a manifest file."""
    return Origin(labels.SOURCE_FILE, path, path)


def manifest_uid(pod: core.Pod, manifest: dict[str, object], origin: Origin, node_name: str) -> str:
    """The UID of a static pod. `pod` has its defaults; `manifest`: the plain object that was read."""
    where = f"host:{node_name}file:{origin.place}" if origin.is_file else f"url:{origin.place}"
    place = where.encode("utf-8", "surrogateescape")
    given = without_nulls(manifest)
    try:
        dump = dump_pod(pod, given)
    except (TooLong, QuantityError):  # a quantity that is none is refused by the validation
        canonical = json.dumps(given, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        digest = hashlib.blake2b(canonical.encode("utf-8", "surrogatepass"), digest_size=16)
        digest.update(place)
        return digest.hexdigest()
    return f"{fnv1a_128(dump.encode('utf-8', 'surrogatepass') + place):032x}"


def foreign_fields(pod: core.Pod) -> list[tuple[str, str]]:
    """The fields of a manifest's pod that only the agent or the API server sets, as path and reason. `make_static` drops them.

    A manifest that was copied from a pod of a cluster (`kubectl get pod -o yaml`) has them. Its pod would pass for a mirror pod, which
    is not shown, or for one that is being deleted.
    """
    meta = pod.metadata
    found = [
        (f"metadata.annotations[{key}]", "only the agent sets it, ignored")
        for key in _OWN_ANNOTATIONS
        if key in meta.annotations
    ]
    if meta.deletionTimestamp:
        found.append(("metadata.deletionTimestamp", "only the API server sets it, ignored"))
    if meta.deletionGracePeriodSeconds is not None:
        found.append(("metadata.deletionGracePeriodSeconds", "only the API server sets it, ignored"))
    return found


def static_remarks(pod: core.Pod, has_uid: bool) -> Iterator[tuple[str, str]]:
    """What is different from a pod of the API, as path and reason. `has_uid`: the manifest has a UID.

    Only eviction enforces some limits, and static pods are critical, so that they are not evicted.
    """
    if has_uid:
        yield "metadata.uid", _FIXED_UID
    for i, volume in enumerate(pod.spec.volumes):
        data = volume.emptyDir
        if data is not None and data.sizeLimit is not None and not data.medium:
            yield f"spec.volumes[{i}].emptyDir.sizeLimit", _NEVER_EVICTED
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(getattr(pod.spec, kind)):
            if container.resources is not None and "ephemeral-storage" in container.resources.limits:
                yield f"spec.{kind}[{i}].resources.limits[ephemeral-storage]", _NEVER_EVICTED


def make_static(pod: core.Pod, manifest: dict[str, object], origin: Origin, node_name: str) -> core.Pod:
    """The pod with the fields of a static pod of this node: name, namespace, UID, node, annotations, toleration, phase.

    The source adds the annotation with the first-seen time (`with_seen`).
    """
    meta = pod.metadata
    uid = meta.uid or manifest_uid(pod, manifest, origin, node_name)
    kept = {key: value for key, value in meta.annotations.items() if key not in _OWN_ANNOTATIONS}
    meta = replace(
        meta,
        name=f"{meta.name}-{node_name.lower()}",
        namespace=meta.namespace or "default",
        uid=uid,
        annotations={**kept, labels.CONFIG_HASH: uid, labels.CONFIG_SOURCE: origin.source},
        deletionTimestamp="",
        deletionGracePeriodSeconds=None,
    )
    spec = replace(pod.spec, nodeName=node_name)
    if origin.is_file:
        spec = replace(spec, tolerations=_with_toleration(spec.tolerations))
    return replace(pod, metadata=meta, spec=spec, status=core.PodStatus(phase="Pending"))


def _with_toleration(tolerations: tuple[core.Toleration, ...]) -> tuple[core.Toleration, ...]:
    """Add a toleration of all NoExecute taints without time limit; it replaces a similar one."""
    kept = tuple(NO_EXECUTE if _alike(toleration) else toleration for toleration in tolerations)
    return kept if NO_EXECUTE in kept else (*kept, NO_EXECUTE)


def _alike(toleration: core.Toleration) -> bool:
    return replace(toleration, tolerationSeconds=None) == NO_EXECUTE


def with_seen(pod: core.Pod, seen: str) -> core.Pod:
    """The pod with the time (RFC3339Nano) when it was first seen."""
    annotations = {**pod.metadata.annotations, labels.CONFIG_SEEN: seen}
    return replace(pod, metadata=replace(pod.metadata, annotations=annotations))


_WITH_SECRET_REF = ("cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos")
#: The classes that every cluster has, with their priorities.
_SYSTEM_CLASSES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
_NO_CLASS = "an API server refuses pods that have it without a runtimeClassName"
_NO_PRIORITY = (
    "a node without an API server has no PriorityClass: the pod has the priority 0, unless spec.priority is set"
)
_CLASS_ALONE = "the node does not know the priority of a class: the pod counts with 0 here unless spec.priority is set to that of the class"
_PRIORITY_ALONE = "an API server refuses the mirror pod, unless this is the priority of its default class: set spec.priorityClassName too"
_OTHER_PRIORITY = "an API server refuses the mirror pod, because this is not the priority of the class"
_NO_TOKENS = "; a node without an API server issues no tokens: leave spec.serviceAccountName out"
_BY_MANIFEST = "; only a node without an API server takes them from manifests"


def api_reference(pod: Pod, is_standalone: bool = False) -> str:
    """The plural name of the first kind of API object that the pod refers to, as the reference kubelet names it; empty for none.

    `is_standalone`: without an API server, objects that manifests may define do not count.
    """
    spec = pod.spec
    if spec.serviceAccountName:
        return "serviceaccounts" + (_NO_TOKENS if is_standalone else "")
    if not is_standalone and _needs_secrets(spec):
        return "secrets"
    if not is_standalone and _needs_config_maps(spec):
        return "configmaps"
    if spec.resourceClaims:
        return "resourceclaims"
    return next((found for v in spec.volumes if (found := _volume_reference(v, is_standalone))), "")


def never_allowed(pod: Pod) -> str:
    """What a static pod may not use even if it may refer to API objects, in the reference kubelet's words; empty for nothing."""
    for volume in pod.spec.volumes:
        if volume.projected is not None and any(s.clusterTrustBundle is not None for s in volume.projected.sources):
            return "ClusterTrustBundle projected volume sources"
    return "ResourceClaims" if pod.spec.resourceClaims else ""


def _containers(spec: PodSpec) -> tuple[Container | EphemeralContainer, ...]:
    return (*spec.containers, *spec.initContainers, *spec.ephemeralContainers)


def _needs_secrets(spec: PodSpec) -> bool:
    if any(secret.name for secret in spec.imagePullSecrets):
        return True
    for container in _containers(spec):
        if any(source.secretRef is not None for source in container.envFrom):
            return True
        if any(env.valueFrom is not None and env.valueFrom.secretKeyRef is not None for env in container.env):
            return True
    return any(_volume_secret(volume) for volume in spec.volumes)


def _volume_secret(volume: Volume) -> bool:
    if volume.secret is not None or volume.azureFile is not None:
        return True
    if volume.csi is not None and volume.csi.nodePublishSecretRef is not None:
        return True
    if volume.projected is not None and any(source.secret is not None for source in volume.projected.sources):
        return True
    sources = (getattr(volume, kind) for kind in _WITH_SECRET_REF)
    return any(source is not None and source.secretRef is not None and source.secretRef.name for source in sources)


def _needs_config_maps(spec: PodSpec) -> bool:
    for container in _containers(spec):
        if any(source.configMapRef is not None for source in container.envFrom):
            return True
        if any(env.valueFrom is not None and env.valueFrom.configMapKeyRef is not None for env in container.env):
            return True
    for volume in spec.volumes:
        if volume.configMap is not None:
            return True
        if volume.projected is not None and any(source.configMap is not None for source in volume.projected.sources):
            return True
    return False


def _volume_reference(volume: Volume, is_standalone: bool) -> str:
    if volume.csi is not None:
        return "" if is_standalone else f"csidrivers (via CSI volumes){_BY_MANIFEST}"
    if volume.glusterfs is not None:
        return "endpoints (via glusterFS volumes)"
    if volume.persistentVolumeClaim is not None:
        return "" if is_standalone else f"persistentvolumeclaims{_BY_MANIFEST}"
    if volume.ephemeral is not None:
        return "persistentvolumeclaims (via ephemeral volumes)"
    sources = volume.projected.sources if volume.projected is not None else ()
    return next((found for source in sources if (found := _projection_reference(source))), "")


def _projection_reference(source: VolumeProjection) -> str:
    if source.serviceAccountToken is not None:
        return "serviceaccounts (via projected volumes)"
    if source.clusterTrustBundle is not None:
        return "clustertrustbundles"
    if source.podCertificate is not None:
        return "podcertificates"
    return ""


def class_remarks(pod: Pod, is_standalone: bool) -> Iterator[tuple[str, str]]:
    """Paths and reasons. `is_standalone`: the node has no API server. A RuntimeClass is looked up when the sandbox is created."""
    spec = pod.spec
    if spec.overhead and not spec.runtimeClassName:
        yield "spec.overhead", _NO_CLASS
    if is_standalone and spec.priorityClassName not in ("", *_SYSTEM_CLASSES) and spec.priority is None:
        yield "spec.priorityClassName", _NO_PRIORITY
    if not is_standalone and (remark := _priority_remark(spec)):
        yield "spec.priority", remark


def _priority_remark(spec: PodSpec) -> str:
    """What is wrong with the priority of a static pod that has a mirror pod; "" for nothing."""
    if spec.priority is None:
        return _CLASS_ALONE if spec.priorityClassName else ""
    if not spec.priorityClassName:
        return _PRIORITY_ALONE if spec.priority else ""
    known = _SYSTEM_CLASSES.get(spec.priorityClassName, spec.priority)
    return _OTHER_PRIORITY if known != spec.priority else ""

"""Finds references of a static pod to API objects, and classes that it names without effect. Pure.

A static pod must run without an API server, so it may have none (feature gate PreventStaticPodAPIReferences). On a node that has no API
server, manifests take its place for claims, persistent volumes and CSIDrivers. Nothing on a node applies the rules of the API server's
admission about classes.
Source: the Kubernetes documentation "Pod Overhead" and "Pod Priority and Preemption".
"""

from __future__ import annotations

from collections.abc import Iterator

from pykubelet.base.api.core import Container, EphemeralContainer, Pod, PodSpec, Volume, VolumeProjection

_WITH_SECRET_REF = ("cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos")
#: The classes that every cluster has.
_SYSTEM_CLASSES = ("system-node-critical", "system-cluster-critical")
_NO_CLASS = "an API server refuses pods that have it without a runtimeClassName"
_NO_PRIORITY = (
    "a node without an API server has no PriorityClass: the pod has the priority 0, unless spec.priority is set"
)
_BY_MANIFEST = "; only a node without an API server takes them from manifests"


def api_reference(pod: Pod, is_standalone: bool = False) -> str:
    """The plural name of the first kind of API object that the pod refers to, as the reference kubelet names it; empty for none.

    `is_standalone`: without an API server, objects that manifests may define do not count.
    """
    spec = pod.spec
    if spec.serviceAccountName:
        return "serviceaccounts"
    if _needs_secrets(spec):
        return "secrets"
    if _needs_config_maps(spec):
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

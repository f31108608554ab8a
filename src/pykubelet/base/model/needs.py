"""Finds the API objects that a pod refers to. Pure.

Owns: the keys under which `Content` holds the answers. Rules: only volumes that a container uses count, and each volume kind
determines the keys of its volumes; a reference without a name is ignored; a pod without a service account needs no token.
Source: the Kubernetes documentation "Secrets", "ConfigMaps", "Projected Volumes", "Runtime Class", "Images".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.api.core import (
    ClusterTrustBundleProjection,
    Container,
    EnvFromSource,
    EnvVarSource,
    EphemeralContainer,
    LabelSelector,
    Pod,
    PodCertificateProjection,
    PodExtendedResourceClaimStatus,
    ServiceAccountTokenProjection,
    Volume,
)
from pykubelet.base.kit.values import Value, remember_last
from pykubelet.base.model.containers import every_container
from pykubelet.base.model.content import CertificateKey, Content, ContentKey, ContentKind, ObjectKey, TokenKey
from pykubelet.base.model.ids import PodUID

#: The API server's default of `serviceAccountToken.expirationSeconds`.
TOKEN_LIFE_S = 3600
#: So many certificates are requested for one pod: each takes CPU time for its key, and has a chain of up to 100 KiB.
MAX_CERTIFICATES = 32
_SIGNER = "signer="


class Needs(Value):
    """All keys that one pod refers to."""

    objects: frozenset[ObjectKey] = frozenset()
    tokens: frozenset[TokenKey] = frozenset()
    certificates: frozenset[CertificateKey] = frozenset()

    @property
    def all_keys(self) -> frozenset[ContentKey]:
        """All of them."""
        return self.objects | self.tokens | self.certificates


VolumeKeys = Callable[[Pod, Volume, Content], Iterable[ContentKey]]


def pod_needs(pod: Pod, content: Content, volume_keys: VolumeKeys) -> Needs:
    """The keys that the pod's volumes, environments, image pulls and RuntimeClass refer to.

    `volume_keys`: returns the keys of one volume. `content`: what is known; some objects lead to further ones.
    """
    keys: set[ContentKey] = set()
    for volume in used_volumes(pod):
        keys.update(volume_keys(pod, volume, content))
    for container in every_container(pod):
        keys.update(environment_keys(pod, container))
    keys.update(pull_secret_keys(pod))
    runtime_class = runtime_class_key(pod)
    if runtime_class is not None:
        keys.add(runtime_class)
    return Needs(
        frozenset(key for key in keys if isinstance(key, ObjectKey)),
        frozenset(key for key in keys if isinstance(key, TokenKey)),
        frozenset(key for key in keys if isinstance(key, CertificateKey)),
    )


@remember_last
def start_keys(pod: Pod) -> frozenset[ObjectKey]:
    """The API objects that may allow a sandbox or container to start after a failure, once they change."""
    keys = {key for container in every_container(pod) for key in environment_keys(pod, container)}
    runtime_class = runtime_class_key(pod)
    return frozenset(keys if runtime_class is None else keys | {runtime_class})


# Volumes


class VolumeUses(Value):
    """What the containers of a pod use volumes for. `used`: all volumes that any of them uses, by name, in the spec's order.

    `mounted`, `devices`, `with_subpath`: the names of those that are mounted, used as devices, and mounted with a sub-path.
    """

    used: Mapping[str, Volume]
    mounted: frozenset[str]
    devices: frozenset[str]
    with_subpath: frozenset[str]


def used_volumes(pod: Pod) -> Collection[Volume]:
    """The volumes that any container mounts, uses as a device, or takes environment files from; in the spec's order."""
    return volume_uses(pod).used.values()


@remember_last
def volume_uses(pod: Pod) -> VolumeUses:
    """The uses of all volumes, in one pass over the spec."""
    mounted: set[str] = set()
    devices: set[str] = set()
    with_subpath: set[str] = set()
    others: set[str] = set()
    for container in every_container(pod):
        for mount in container.volumeMounts:
            mounted.add(mount.name)
            if mount.subPath or mount.subPathExpr:
                with_subpath.add(mount.name)
        devices.update(device.name for device in container.volumeDevices)
        for variable in container.env:
            if variable.valueFrom is not None and variable.valueFrom.fileKeyRef is not None:
                others.add(variable.valueFrom.fileKeyRef.volumeName)
    every = mounted | devices | others
    used = {volume.name: volume for volume in pod.spec.volumes if volume.name in every}
    return VolumeUses(used, frozenset(mounted), frozenset(devices), frozenset(with_subpath))


def config_map_key(pod: Pod, name: str) -> ObjectKey:
    """The key of a ConfigMap in the pod's namespace."""
    return ObjectKey(ContentKind.CONFIG_MAP, pod.metadata.namespace, name)


def secret_key(pod: Pod, name: str) -> ObjectKey:
    """The key of a Secret in the pod's namespace."""
    return ObjectKey(ContentKind.SECRET, pod.metadata.namespace, name)


def claim_key(pod: Pod, name: str) -> ObjectKey:
    """The key of a PersistentVolumeClaim in the pod's namespace."""
    return ObjectKey(ContentKind.VOLUME_CLAIM, pod.metadata.namespace, name)


def token_key(pod: Pod, source: ServiceAccountTokenProjection) -> TokenKey:
    """The token that a source of a projected volume asks for, bound to the pod."""
    metadata = pod.metadata
    life_s = TOKEN_LIFE_S if source.expirationSeconds is None else source.expirationSeconds
    return TokenKey(
        PodUID(metadata.uid),
        metadata.namespace,
        metadata.name,
        pod.spec.serviceAccountName,
        source.audience,
        life_s,
    )


@remember_last
def certificate_keys(pod: Pod) -> Mapping[str, Mapping[int, CertificateKey]]:
    """The certificates that are requested for the pod, by volume and index of the source: those of its first `MAX_CERTIFICATES`."""
    found: dict[str, dict[int, CertificateKey]] = {}
    for key in islice(_certificate_keys(pod), MAX_CERTIFICATES):
        found.setdefault(key.volume, {})[key.source] = key
    return found


def _certificate_keys(pod: Pod) -> Iterator[CertificateKey]:
    metadata = pod.metadata
    for volume in pod.spec.volumes:
        for index, source in enumerate(volume.projected.sources if volume.projected is not None else ()):
            if source.podCertificate is not None:
                signer = source.podCertificate.signerName
                yield CertificateKey(
                    PodUID(metadata.uid), metadata.namespace, metadata.name, volume.name, index, signer
                )


def certificate_source(pod: Pod, key: CertificateKey) -> PodCertificateProjection | None:
    """The source behind a key of the pod; None if the pod has no such source."""
    projected = next((v.projected for v in pod.spec.volumes if v.name == key.volume), None)
    sources = projected.sources if projected is not None else ()
    return sources[key.source].podCertificate if key.source < len(sources) else None


def bundle_key(source: ClusterTrustBundleProjection) -> ObjectKey | None:
    """The key of the bundle that `source` names, or of all that its signer and selector choose; None if it gives neither."""
    if source.name:
        return ObjectKey(ContentKind.TRUST_BUNDLE, "", source.name)
    if source.signerName:
        return ObjectKey(ContentKind.TRUST_BUNDLE, "", signer_name(source.signerName, source.labelSelector))
    return None


def signer_name(signer: str, selector: LabelSelector | None) -> str:
    """The `name` of a key for the bundles of a signer. No selector matches none of them; an empty one matches all."""
    text = "" if selector is None else encode(selector).decode()
    return f"{_SIGNER}{signer};{text}"


def read_signer_name(name: str) -> tuple[str, LabelSelector | None] | None:
    """The signer and selector that a key's `name` holds; None if it is the name of one bundle."""
    if not name.startswith(_SIGNER):
        return None
    signer, _, text = name.removeprefix(_SIGNER).partition(";")
    try:
        return signer, decode(LabelSelector, text) if text else None
    except DecodeError:
        return None


# Environments, pulls, sandboxes


def environment_keys(pod: Pod, container: Container | EphemeralContainer) -> Iterator[ObjectKey]:
    """The ConfigMaps and Secrets of one container's environment."""
    for source in container.envFrom:
        yield from _source_keys(pod, source)
    for variable in container.env:
        if variable.valueFrom is not None and not variable.value:
            yield from _value_keys(pod, variable.valueFrom)


def _source_keys(pod: Pod, source: EnvFromSource) -> Iterator[ObjectKey]:
    if source.configMapRef is not None and source.configMapRef.name:
        yield config_map_key(pod, source.configMapRef.name)
    if source.secretRef is not None and source.secretRef.name:
        yield secret_key(pod, source.secretRef.name)


def _value_keys(pod: Pod, source: EnvVarSource) -> Iterator[ObjectKey]:
    if source.configMapKeyRef is not None and source.configMapKeyRef.name:
        yield config_map_key(pod, source.configMapKeyRef.name)
    if source.secretKeyRef is not None and source.secretKeyRef.name:
        yield secret_key(pod, source.secretKeyRef.name)


def pull_secret_keys(pod: Pod) -> list[ObjectKey]:
    """The keys of the pod's imagePullSecrets, in order. Entries without a name are allowed and ignored."""
    return [secret_key(pod, reference.name) for reference in pod.spec.imagePullSecrets if reference.name]


def runtime_class_key(pod: Pod) -> ObjectKey | None:
    """The key of the pod's RuntimeClass, None if it names none."""
    name = pod.spec.runtimeClassName
    return ObjectKey(ContentKind.RUNTIME_CLASS, "", name) if name else None


# Resource claims


def has_claims(pod: Pod, *, extended: bool) -> bool:
    """Whether the pod refers to any ResourceClaim. `extended`: whether claims behind extended resources count."""
    return bool(pod.spec.resourceClaims) or (extended and extended_claim(pod) is not None)


def extended_claim(pod: Pod) -> PodExtendedResourceClaimStatus | None:
    """The claim behind the pod's extended resources; None if it has none."""
    status = pod.status.extendedResourceClaimStatus
    return status if status is not None and status.resourceClaimName else None

"""Volume files with content from the API server: ConfigMaps, Secrets, tokens, trust bundles and certificates. Pure.

Owns: which part of an object becomes which file, and the error texts for missing parts, which are those of the reference
kubelet. Reads `Content`. A key without an answer gives no files; `Reader.awaited` lists it.
Source: the Kubernetes documentation "ConfigMaps", "Secrets", "Projected Volumes".
"""

from __future__ import annotations

from collections.abc import Sequence

from pykubelet.base.api.core import (
    ClusterTrustBundleProjection,
    ConfigMap,
    KeyToPath,
    Pod,
    PodCertificateProjection,
    Secret,
    ServiceAccountTokenProjection,
)
from pykubelet.base.kit.values import remember_last
from pykubelet.base.model.certificates import PodCertificate
from pykubelet.base.model.containers import every_container
from pykubelet.base.model.content import (
    Absent,
    CertificateKey,
    Content,
    ContentKey,
    ObjectKey,
    Pending,
    Present,
    Token,
    TrustBundle,
)
from pykubelet.base.model.needs import MAX_CERTIFICATES, bundle_key, config_map_key, secret_key, token_key
from pykubelet.provide.volumes.kind import PendingError, VolumesError
from pykubelet.provide.volumes.payloads.payload import ObjectData, ObjectFiles, PayloadFile, PayloadSource

DEFAULT_MODE = 0o644
OWNERS_ONLY = 0o600
TOO_MANY_CERTIFICATES = f"the pod has more than {MAX_CERTIFICATES} podCertificate sources: the others are not requested"


@remember_last
def user_of_files(pod: Pod) -> int | None:
    """The user ID that all containers run as. None when a container states no user ID, or two containers differ."""
    of_pod = pod.spec.securityContext.runAsUser if pod.spec.securityContext is not None else None
    users = set()
    for container in every_container(pod):
        own = container.securityContext.runAsUser if container.securityContext is not None else None
        users.add(of_pod if own is None else own)
    return next(iter(users)) if len(users) == 1 else None


class Reader:
    """Makes the files of one volume of one pod. `awaited`: the keys without an answer. `default_mode` None: 0644.

    `default_user`: the owner of files without one of their own (KEP-5936).
    """

    def __init__(self, pod: Pod, content: Content, default_mode: int | None, default_user: int | None = None) -> None:
        self._pod = pod
        self._content = content
        self._mode = DEFAULT_MODE if default_mode is None else default_mode
        self._user = default_user
        self.awaited: list[ContentKey] = []

    def config_map(self, name: str, items: Sequence[KeyToPath], optional: bool | None) -> list[PayloadSource]:
        """One file for each key of the ConfigMap; no files while there is no answer.

        VolumesError when the ConfigMap or a listed key is missing and `optional` is not set.
        """
        found = self._find(config_map_key(self._pod, name), bool(optional))
        if found is None:
            return []
        parts = (found.data, found.binaryData) if isinstance(found, ConfigMap) else ()
        what = "" if optional else f"configmap references non-existent config key{self._object_name('ConfigMap', name)}"
        return self._chosen(parts, items, what)

    def secret(self, name: str, items: Sequence[KeyToPath], optional: bool | None) -> list[PayloadSource]:
        """One file for each key of the Secret, with the same rules as `config_map`."""
        found = self._find(secret_key(self._pod, name), bool(optional))
        if found is None:
            return []
        parts = (found.data,) if isinstance(found, Secret) else ()
        what = "" if optional else f"references non-existent secret key{self._object_name('Secret', name)}"
        return self._chosen(parts, items, what)

    def token(self, source: ServiceAccountTokenProjection) -> list[PayloadFile]:
        """The file with the service account token; no file until the token is there."""
        found = self._find(token_key(self._pod, source), False)
        return [self._private(source.path, found.token, source.user)] if isinstance(found, Token) else []

    def trust_bundle(self, source: ClusterTrustBundleProjection) -> list[PayloadFile]:
        """The file with the trust anchors. VolumesError when the bundle is missing and not optional."""
        key = bundle_key(source)
        if key is None:
            raise VolumesError("ClusterTrustBundle projection requires either name or signerName to be set")
        found = self._find(key, bool(source.optional))
        if found is None:
            return []
        return [self._private(source.path, found.pem if isinstance(found, TrustBundle) else b"", source.user)]

    def certificate(self, key: CertificateKey | None, source: PodCertificateProjection) -> list[PayloadFile]:
        """The files with the private key and the certificate chain; none until both are there. PendingError while a signer has to act.

        `key`: None for a certificate that is not requested. VolumesError for that, and if the request was refused.
        """
        if not self._content.available:
            raise VolumesError("unimplemented")
        if key is None:
            raise VolumesError(TOO_MANY_CERTIFICATES)
        found = self._find(key, False)
        if not isinstance(found, PodCertificate):
            return []
        contents = (
            (source.credentialBundlePath, found.key + found.chain),
            (source.keyPath, found.key),
            (source.certificateChainPath, found.chain),
        )
        return [self._private(path, content, source.user) for path, content in contents if path]

    def _private(self, path: str, data: bytes | str, own_user: int | None) -> PayloadFile:
        """A file that only the pod's user and group can read; it has the default mode if the pod has neither.

        `own_user`: the owner of this file in the pod's spec.
        """
        user = user_of_files(self._pod)
        group = self._pod.spec.securityContext.fsGroup if self._pod.spec.securityContext is not None else None
        owner = next((stated for stated in (own_user, self._user) if stated is not None), user)
        return PayloadFile(path, data, self._mode if user is None and group is None else OWNERS_ONLY, owner)

    def _find(self, key: ContentKey, optional: bool) -> object | None:
        """The object, or `Absent` if it is missing and optional. None while there is no answer; the key is then awaited."""
        found = self._content.find(key)
        if found is None:
            if not self._content.may_answer(key):
                raise VolumesError("kube client is not configured")
            if isinstance(key, ObjectKey) and not key.name:
                raise VolumesError("resource name may not be empty")
            self.awaited.append(key)
            return None
        if isinstance(found, Present):
            return found.value
        if isinstance(found, Absent) and optional:
            return found
        if isinstance(found, Pending):
            raise PendingError(found.message, (found.wait,))
        raise VolumesError(found.message, until=self._until)

    @property
    def _until(self) -> str:
        return "a manifest has it" if self._content.has_manifests else ""

    def _object_name(self, kind: str, name: str) -> str:
        """The object's name where the text need not be that of the reference kubelet, which refuses such pods."""
        return f" of the {kind} {self._pod.metadata.namespace}/{name}" if self._content.has_manifests else ""

    def _chosen(self, parts: tuple[ObjectData, ...], items: Sequence[KeyToPath], complaint: str) -> list[PayloadSource]:
        """The files of the items, or of all keys. `complaint`: what is wrong if a key is missing; empty if that may be."""
        for item in items if complaint else ():
            if not any(item.key in data for data in parts):
                raise VolumesError(f"{complaint}: {item.key}", until=self._until)
        return [ObjectFiles(parts, tuple(items), self._mode, self._user)]

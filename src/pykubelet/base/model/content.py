"""The known API objects that pods refer to. `Content` is written by provide/objects alone."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from pykubelet.base.api.core import ConfigMap, RuntimeClass, Secret, Service
from pykubelet.base.api.storage import CSIDriver, PersistentVolume, PersistentVolumeClaim, VolumeAttachment
from pykubelet.base.kit.values import RedactedValue, Value, changed_keys, field
from pykubelet.base.model.certificates import CertificateStage, PodCertificate
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.waits import Owner, Wait


class ContentKind(StrEnum):
    CONFIG_MAP = "ConfigMap"
    SECRET = "Secret"
    RUNTIME_CLASS = "RuntimeClass"
    TRUST_BUNDLE = "ClusterTrustBundle"
    CSI_DRIVER = "CSIDriver"
    VOLUME_CLAIM = "PersistentVolumeClaim"
    VOLUME = "PersistentVolume"
    ATTACHMENT = "VolumeAttachment"


#: Kinds that manifests may define on a node without an API server.
BY_MANIFEST = frozenset(
    {
        ContentKind.CONFIG_MAP,
        ContentKind.SECRET,
        ContentKind.RUNTIME_CLASS,
        ContentKind.CSI_DRIVER,
        ContentKind.VOLUME_CLAIM,
        ContentKind.VOLUME,
    }
)


class ObjectKey(Value, order=True):
    """An object that a pod refers to. `namespace` is empty for cluster-wide kinds.

    For trust bundles `name` is the bundle's name, or `signer=<signerName>;<label selector>` for a set of them.
    """

    kind: ContentKind
    namespace: str
    name: str


class ManifestObject(RedactedValue):
    """An object of a manifest that pods refer to, on a node without an API server. `origin`: where it was read, as shown to users.

    `document`: as in `ManifestProblem`. `size`: bytes of the keys and values of a ConfigMap or Secret.
    """

    hidden: ClassVar = ("value",)
    key: ObjectKey
    value: PersistentVolume | PersistentVolumeClaim | CSIDriver | RuntimeClass | ConfigMap | Secret
    origin: str
    document: str = ""
    size: int = 0


class TrustBundle(Value):
    """The PEM text of one ClusterTrustBundle, or of all that a signer and selector choose."""

    pem: str


class TokenKey(Value):
    """A service account token bound to one pod. An empty `audience` means the API server's own."""

    pod: PodUID
    namespace: str
    pod_name: str
    service_account: str
    audience: str
    expiration_s: int


class Token(RedactedValue):
    """A service account token. `expires_at`: wall seconds."""

    hidden: ClassVar = ("token",)
    token: str
    expires_at: float


class CertificateKey(Value):
    """The certificate for one podCertificate source of a projected volume. `source`: its index in the volume's sources."""

    pod: PodUID
    namespace: str
    pod_name: str
    volume: str
    source: int
    signer_name: str


class Present(Value):
    value: (
        ConfigMap
        | Secret
        | RuntimeClass
        | TrustBundle
        | Token
        | PodCertificate
        | CSIDriver
        | PersistentVolumeClaim
        | PersistentVolume
        | VolumeAttachment
    )


class Absent(Value):
    """There is no such object, or no manifest from which it could be made. `message`: why, in the API server's words if it gave some."""

    message: str


class Unreadable(Value):
    """It is not known whether the object exists. `message`: why the last try failed. `since`: wall seconds."""

    message: str
    since: float


class Pending(Value):
    """Another party has to act before there is an answer. `message`: the error of a volume that needs it. `wait`: what users see."""

    message: str
    wait: Wait


Found = Present | Absent | Unreadable | Pending
ContentKey = ObjectKey | TokenKey | CertificateKey


class CertificateRecord(Value):
    """Where one certificate stands. `found`: None while it was requested only a moment ago.

    `stage`: that at the time when this was made; `stage_at` has the stage of a certificate that was issued.
    """

    stage: CertificateStage = CertificateStage.NOT_YET_ISSUED
    found: Found | None = None


class Content(Value):
    """The answers of the API server by key. A key that is missing here was not answered yet.

    `available`: whether the node has an API server at all. `services`: None until they were listed once. `has_manifests`: whether
    manifests take the API server's place for the kinds in `BY_MANIFEST`. `made_from`: the objects of these manifests.
    """

    available: bool = False
    objects: Mapping[ObjectKey, Found] = field(default_factory=dict)
    tokens: Mapping[TokenKey, Found] = field(default_factory=dict)
    services: tuple[Service, ...] | None = None
    has_manifests: bool = False
    made_from: tuple[ManifestObject, ...] = ()
    certificates: Mapping[CertificateKey, CertificateRecord] = field(default_factory=dict)

    def may_answer(self, key: ContentKey) -> bool:
        """Whether there is anything that may answer the key."""
        return self.available or (self.has_manifests and isinstance(key, ObjectKey) and key.kind in BY_MANIFEST)

    def lacks(self, key: ObjectKey) -> bool:
        """Whether there is no answer yet, but something that may give one."""
        return key not in self.objects and self.may_answer(key)

    def find(self, key: ContentKey) -> Found | None:
        """The answer; None while there is none."""
        if isinstance(key, CertificateKey):
            record = self.certificates.get(key)
            return record.found if record is not None else None
        return self.objects.get(key) if isinstance(key, ObjectKey) else self.tokens.get(key)


def answers_of(content: Content) -> Mapping[ObjectKey, Found]:
    """The answers about API objects: one who waits for a single answer waits for an entry of this (`Cell.entry`)."""
    return content.objects


_SPOKEN = {
    ContentKind.CONFIG_MAP: "configMap",
    ContentKind.SECRET: "secret",
    ContentKind.RUNTIME_CLASS: "RuntimeClass",
    ContentKind.TRUST_BUNDLE: "ClusterTrustBundle",
    ContentKind.CSI_DRIVER: "CSIDriver",
    ContentKind.VOLUME_CLAIM: "PersistentVolumeClaim",
    ContentKind.VOLUME: "PersistentVolume",
    ContentKind.ATTACHMENT: "VolumeAttachment",
}


def wait_label(key: ContentKey) -> tuple[str, str]:
    """The name and the subject of a wait for this key, as users read them: `configMap`, `namespace/name`."""
    if isinstance(key, TokenKey):
        return "service account token", f"{key.namespace}/{key.service_account}"
    if isinstance(key, CertificateKey):
        return "pod certificate", f"of signer {key.signer_name}"
    return _SPOKEN[key.kind], f"{key.namespace}/{key.name}" if key.namespace else key.name


def wait_for_key(key: ContentKey, since: float, detail: str = "") -> Wait:
    """The wait for an answer about `key`. `since`: wall seconds."""
    what, subject = wait_label(key)
    return Wait(what, Owner.OBJECT_CACHE, since, subject, detail=detail)


#: Kinds whose objects decide which other objects a pod refers to.
LEADING = frozenset({ContentKind.CSI_DRIVER, ContentKind.VOLUME_CLAIM, ContentKind.VOLUME})


def changed_content(before: Content, now: Content) -> set[ContentKey]:
    """The keys with changed answers."""
    certificates = changed_keys(before.certificates, now.certificates)
    return {*changed_keys(before.objects, now.objects), *changed_keys(before.tokens, now.tokens), *certificates}

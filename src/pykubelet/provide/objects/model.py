"""The private values of this package: its settings, and the events that the keepers post to the loop."""

from __future__ import annotations

from enum import StrEnum

from pykubelet.base.api.core import ConfigMap, RuntimeClass, Secret, Service
from pykubelet.base.api.storage import CSIDriver, PersistentVolume, PersistentVolumeClaim, VolumeAttachment
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.values import Value
from pykubelet.base.model.content import CertificateRecord, ContentKey, ContentKind, Found, ObjectKey
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.roster import Roster
from pykubelet.edges.kubeapi.listwatch import WatchPeriods


class Strategy(StrEnum):
    """`configMapAndSecretChangeDetectionStrategy`."""

    WATCH = "Watch"
    CACHE = "Cache"
    GET = "Get"


class ContentSettings(Value):
    """The settings of this package, in seconds. `reread`: between two reads of an object that is not watched; with Cache at
    least the Node's annotation `node.alpha.kubernetes.io/ttl`. `answer_timeout`: a key without an answer for this long is published
    as unreadable. `linger`: how long an object is still watched after the last pod that refers to it. `refresh_retry`: the
    first delay before a token is replaced again, doubling. `watch`: the periods of watches. `node`: the name of the node.
    `trust_bundles`: the gate ClusterTrustBundleProjection. `pod_certificates`: the gate PodCertificateRequest."""

    strategy: Strategy = Strategy.WATCH
    reread_s: float = 60.0
    answer_timeout_s: float = 2.0
    linger_s: float = 60.0
    refresh_retry_s: float = 1.0
    watch: WatchPeriods = WatchPeriods()
    node: str = ""
    trust_bundles: bool = False
    pod_certificates: bool = False


class ContentInputs(Value):
    """The cells that the loop reads."""

    roster: Cell[Roster]
    node: Cell[ApiNode]


class Answered(Value):
    """The answer for a key. None: there is no answer any more, because the key is being requested again.

    For a `CertificateKey` it is a record.
    """

    key: ContentKey
    found: Found | CertificateRecord | None


class ServicesListed(Value):
    """All Services, as last listed or watched."""

    services: tuple[Service, ...]


class ReferenceExpired(Value):
    """No pod has referred to the key for `linger_s`."""

    key: ContentKey


Event = Answered | ServicesListed | ReferenceExpired

ApiObject = ConfigMap | Secret | RuntimeClass | CSIDriver | PersistentVolumeClaim | PersistentVolume | VolumeAttachment


class Access(StrEnum):
    """How objects of a kind are kept up to date: by `Strategy`, by a watch, or, as nodes may do no more, by reading them.

    ATTACHED: as READ, for as long as the Node lists the volume as attached; before, there is no object to read.
    """

    STRATEGY = "strategy"
    WATCH = "watch"
    READ = "read"
    ATTACHED = "attached"


class Resource(Value):
    """The API path of a kind of objects, and the name of the kind in the error text for a missing object."""

    prefix: str
    plural: str
    kind: type[ApiObject]
    noun: str
    access: Access = Access.STRATEGY


RESOURCES = {
    ContentKind.CONFIG_MAP: Resource("/api/v1", "configmaps", ConfigMap, "configmap"),
    ContentKind.SECRET: Resource("/api/v1", "secrets", Secret, "secret"),
    ContentKind.RUNTIME_CLASS: Resource(
        "/apis/node.k8s.io/v1", "runtimeclasses", RuntimeClass, "runtimeclass.node.k8s.io", Access.WATCH
    ),
    ContentKind.CSI_DRIVER: Resource(
        "/apis/storage.k8s.io/v1", "csidrivers", CSIDriver, "csidriver.storage.k8s.io", Access.WATCH
    ),
    ContentKind.VOLUME_CLAIM: Resource(
        "/api/v1", "persistentvolumeclaims", PersistentVolumeClaim, "persistentvolumeclaims", Access.READ
    ),
    ContentKind.VOLUME: Resource("/api/v1", "persistentvolumes", PersistentVolume, "persistentvolumes", Access.READ),
    ContentKind.ATTACHMENT: Resource(
        "/apis/storage.k8s.io/v1",
        "volumeattachments",
        VolumeAttachment,
        "volumeattachments.storage.k8s.io",
        Access.ATTACHED,
    ),
}


def collection_path(key: ObjectKey) -> str:
    """The API path at which objects of the key's kind and namespace are listed and watched."""
    resource = RESOURCES[key.kind]
    namespace = f"/namespaces/{key.namespace}" if key.namespace else ""
    return f"{resource.prefix}{namespace}/{resource.plural}"

"""The room's private values: how it asks, and the answers its keepers post to its loop."""

from __future__ import annotations

from enum import StrEnum

from pykubelet.base.api.core import ConfigMap, RuntimeClass, Secret, Service
from pykubelet.base.kit.values import Value
from pykubelet.base.model.content import ContentKey, ContentKind, Found, ObjectKey


class Strategy(StrEnum):
    """`configMapAndSecretChangeDetectionStrategy`."""

    WATCH = "Watch"
    CACHE = "Cache"
    GET = "Get"


class ContentSettings(Value):
    """Seconds. `reread`: between two reads of one object where it is not watched; with Cache at least as long as the Node's
    annotation `node.alpha.kubernetes.io/ttl` says. `patience`: after so long without an
    answer pods are told that there is none. `linger`: how long an object nobody refers to any more is still watched.
    `refresh_retry`: before the next try to replace a token, doubling."""

    strategy: Strategy = Strategy.WATCH
    reread_s: float = 60.0
    patience_s: float = 2.0
    linger_s: float = 60.0
    refresh_retry_s: float = 1.0


class Answered(Value):
    """What is known about a key; None: nothing any more, it is being asked again."""

    key: ContentKey
    found: Found | None


class ServicesListed(Value):
    services: tuple[Service, ...]


class Lapsed(Value):
    """Nobody has referred to the key for a while."""

    key: ContentKey


Event = Answered | ServicesListed | Lapsed

ApiObject = ConfigMap | Secret | RuntimeClass


class Resource(Value):
    """Where objects of a kind are, and the name by which the reference says that one is missing."""

    prefix: str
    plural: str
    kind: type[ConfigMap] | type[Secret] | type[RuntimeClass]
    spoken: str


RESOURCES = {
    ContentKind.CONFIG_MAP: Resource("/api/v1", "configmaps", ConfigMap, "configmap"),
    ContentKind.SECRET: Resource("/api/v1", "secrets", Secret, "secret"),
    ContentKind.RUNTIME_CLASS: Resource(
        "/apis/node.k8s.io/v1", "runtimeclasses", RuntimeClass, "runtimeclass.node.k8s.io"
    ),
}


def collection_path(key: ObjectKey) -> str:
    """Where objects of the key's kind and namespace are listed and watched."""
    resource = RESOURCES[key.kind]
    namespace = f"/namespaces/{key.namespace}" if key.namespace else ""
    return f"{resource.prefix}{namespace}/{resource.plural}"

"""What pods refer to at the API server, as far as it is known. `Content` is written by edges/content alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from pykubelet.base.api.core import ConfigMap, RuntimeClass, Secret, Service
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.waits import Wait

OWNER = "edges/content"


class ContentKind(StrEnum):
    CONFIG_MAP = "ConfigMap"
    SECRET = "Secret"
    RUNTIME_CLASS = "RuntimeClass"
    TRUST_BUNDLE = "ClusterTrustBundle"


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """An object a pod names. `namespace` is empty for cluster-wide kinds.

    For trust bundles `name` is the bundle's name, or `signer=<signerName>;<label selector>` for a set of them.
    """

    kind: ContentKind
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class TrustBundle:
    """The PEM text of one bundle or of all that a signer and selector choose."""

    pem: str


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A service account token bound to one pod. An empty `audience` means the API server's own."""

    pod: PodUID
    namespace: str
    pod_name: str
    service_account: str
    audience: str
    expiration_s: int


@dataclass(frozen=True, slots=True)
class Token:
    """`expires_at`: wall seconds."""

    token: str = field(repr=False)
    expires_at: float


@dataclass(frozen=True, slots=True)
class Present:
    value: ConfigMap | Secret | RuntimeClass | TrustBundle | Token


@dataclass(frozen=True, slots=True)
class Absent:
    """The API server says that there is no such object; its words."""

    message: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """It is not known whether the object is there; why the last try failed. `since`: wall seconds."""

    message: str
    since: float


Found = Present | Absent | Unreadable
ContentKey = ObjectKey | TokenKey
K = TypeVar("K", ObjectKey, TokenKey)


@dataclass(frozen=True, slots=True)
class Content:
    """`available`: there is an API server to ask at all. A key that is missing here was not answered yet.

    `services`: None until they were listed once.
    """

    available: bool = False
    objects: Mapping[ObjectKey, Found] = field(default_factory=dict)
    tokens: Mapping[TokenKey, Found] = field(default_factory=dict)
    services: tuple[Service, ...] | None = None

    def find(self, key: ContentKey) -> Found | None:
        """The answer; None while there is none."""
        return self.objects.get(key) if isinstance(key, ObjectKey) else self.tokens.get(key)


_SPOKEN = {
    ContentKind.CONFIG_MAP: "configMap",
    ContentKind.SECRET: "secret",
    ContentKind.RUNTIME_CLASS: "RuntimeClass",
    ContentKind.TRUST_BUNDLE: "ClusterTrustBundle",
}


def spoken_key(key: ContentKey) -> tuple[str, str]:
    """What a wait for this key is called, and which one it is: `configMap`, `namespace/name`."""
    if isinstance(key, TokenKey):
        return "service account token", f"{key.namespace}/{key.service_account}"
    return _SPOKEN[key.kind], f"{key.namespace}/{key.name}" if key.namespace else key.name


def wait_for_key(key: ContentKey, since: float, detail: str = "") -> Wait:
    """The wait for an answer about `key`. `since`: wall seconds."""
    what, subject = spoken_key(key)
    return Wait(what, OWNER, since, subject, detail=detail)


def changed_keys(old: Content, new: Content) -> set[ContentKey]:
    """The keys whose answers differ."""
    changed: set[ContentKey] = set()
    if old.objects is not new.objects:
        changed.update(_changed(old.objects, new.objects))
    if old.tokens is not new.tokens:
        changed.update(_changed(old.tokens, new.tokens))
    return changed


def _changed(old: Mapping[K, Found], new: Mapping[K, Found]) -> Iterator[K]:
    yield from (key for key in old if key not in new)
    yield from (key for key, found in new.items() if old.get(key) is not found)

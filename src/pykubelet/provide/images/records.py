"""Records of which credentials an image was pulled with: values and file format. Pure; `record_store.py` stores them.

Owns: `PulledRecord`, the rule for which records are of one image, and the JSON of the kinds `ImagePullIntent` and
`ImagePulledRecord`. Records that another kubelet wrote into the same root directory can be read.

CRI lets PullImage answer with an image ID or with a digest, and ImageStatus always has the ID. This agent writes its records
under the ID. Another kubelet may have written them under a digest, so that the records of one image are found by both.

Source: the Kubernetes documentation "Kubelet Configuration (v1beta1)" and KEP-2535 (ensure secret pulled images).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce

import msgspec

from pykubelet.base.api.times import format_time, parse_time
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.provide.images.keyring import ServiceAccountSource

API_VERSION = "kubelet.config.k8s.io/v1beta1"
_VERSIONS = (API_VERSION, "kubelet.config.k8s.io/v1alpha1")
INTENT_KIND = "ImagePullIntent"
PULLED_KIND = "ImagePulledRecord"


class RecordError(ValueError):
    """A record file cannot be used; the message gives the reason."""


class SecretGrant(Value):
    """A Secret that the image was pulled with; `credential_hash` is `Auth.digest` of its credential."""

    uid: str
    namespace: str
    name: str
    credential_hash: str = ""


class ImageAccess(Value):
    """Which pods may use an image. `node_wide`: every pod here. All empty: no pod, until the image is pulled again."""

    node_wide: bool = False
    secrets: tuple[SecretGrant, ...] = ()
    accounts: tuple[ServiceAccountSource, ...] = ()

    def merged(self, other: ImageAccess) -> ImageAccess:
        """The union of both. A secret with new content replaces its old entry. Node-wide access includes all other access."""
        if self.node_wide or other.node_wide:
            return ImageAccess(node_wide=True)
        places = {(s.uid, s.namespace, s.name): s for s in (*self.secrets, *other.secrets)}
        secrets = tuple(sorted(places.values(), key=lambda s: (s.uid, s.namespace, s.name)))
        accounts = tuple(sorted({*self.accounts, *other.accounts}, key=lambda a: (a.uid, a.namespace, a.name)))
        return ImageAccess(False, secrets, accounts)


class PulledRecord(Value):
    """The access to an image, by image name as in pods, without tag. `updated_at`: wall seconds, whole seconds on disk."""

    image_ref: str
    updated_at: float
    access: Mapping[str, ImageAccess] = field(default_factory=dict)

    def with_access(self, name: str, access: ImageAccess, now: float) -> PulledRecord:
        """The record with this access added; the same object when nothing is new."""
        known = self.access.get(name)
        merged = access if known is None else known.merged(access)
        if merged == known:
            return self
        return replace(self, updated_at=now, access={**self.access, name: merged})

    def joined(self, other: PulledRecord) -> PulledRecord:
        """This record with the access of a newer one added."""
        access = dict(self.access)
        for name, newer in other.access.items():
            access[name] = access[name].merged(newer) if name in access else newer
        return replace(self, updated_at=other.updated_at, access=access)


class ImageIdentity(Value):
    """An image of the runtime: its ID, and its names: tags and digests (`<repository>@sha256:<digest>`)."""

    id: str
    names: tuple[str, ...] = ()

    @property
    def references(self) -> tuple[str, ...]:
        """What PullImage may have answered for this image: its ID or one of its digests, with and without repository."""
        digests = [name for name in self.names if "@" in name]
        hashed = self.id.removeprefix("sha256:")
        bare = (name.partition("@")[2] for name in digests)
        return tuple(dict.fromkeys((self.id, hashed, f"sha256:{hashed}", *digests, *bare)))

    @property
    def contents(self) -> frozenset[str]:
        """The content hashes of `references`."""
        return frozenset(map(content_of, self.references))


def identity_of(image: pb.Image) -> ImageIdentity:
    """The identity of an image that the runtime has reported."""
    return ImageIdentity(image.id, (*image.repo_tags, *image.repo_digests))


def content_of(image_ref: str) -> str:
    """The part of an image ID or digest that states the content: neither repository nor the prefix `sha256:`."""
    return image_ref.rpartition("@")[2].removeprefix("sha256:")


class RecordIndex:
    """Pull records by their image reference; finds all records of an image."""

    def __init__(self, records: Iterable[PulledRecord] = ()) -> None:
        self._by_content: dict[str, dict[str, PulledRecord]] = {}
        for record in records:
            self.put(record)

    def __len__(self) -> int:
        return sum(map(len, self._by_content.values()))

    def __iter__(self) -> Iterator[PulledRecord]:
        for records in self._by_content.values():
            yield from records.values()

    def put(self, record: PulledRecord) -> None:
        """Add a record, in the place of one with the same reference."""
        self._by_content.setdefault(content_of(record.image_ref), {})[record.image_ref] = record

    def remove(self, record: PulledRecord) -> None:
        """Remove the record with the reference of this one."""
        content = content_of(record.image_ref)
        del self._by_content[content][record.image_ref]
        if not self._by_content[content]:
            del self._by_content[content]

    def find(self, image: ImageIdentity) -> PulledRecord | None:
        """What all records of the image allow, under its ID; None: it was not pulled here."""
        found = [record for key in sorted(image.contents) for record in self._by_content.get(key, {}).values()]
        if not found:
            return None
        joined = reduce(PulledRecord.joined, sorted(found, key=lambda record: record.updated_at))
        return joined if joined.image_ref == image.id else replace(joined, image_ref=image.id)


def file_name(key: str) -> str:
    """The name of the file for an image (intents) or an image reference (pulled records)."""
    return f"sha256-{hashlib.sha256(key.encode()).hexdigest()}"


class _Secret(msgspec.Struct, frozen=True, omit_defaults=True):
    uid: str = ""
    namespace: str = ""
    name: str = ""
    credentialHash: str = ""


class _Account(msgspec.Struct, frozen=True, omit_defaults=True):
    uid: str = ""
    namespace: str = ""
    name: str = ""


class _Credentials(msgspec.Struct, frozen=True, omit_defaults=True):
    kubernetesSecrets: tuple[_Secret, ...] | None = None
    kubernetesServiceAccounts: tuple[_Account, ...] | None = None
    nodePodsAccessible: bool = False


class _Pulled(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: str = ""
    apiVersion: str = ""
    lastUpdatedTime: str | None = None
    imageRef: str = ""
    credentialMapping: dict[str, _Credentials] | None = None


class _Intent(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: str = ""
    apiVersion: str = ""
    image: str = ""


def render_intent(image: str) -> bytes:
    """The content of the intent file of an image."""
    return msgspec.json.encode(_Intent(INTENT_KIND, API_VERSION, image))


def parse_intent(data: bytes) -> str:
    """The image of an intent file. Raises RecordError."""
    try:
        intent = msgspec.json.decode(data, type=_Intent)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(str(error)) from error
    _check_kind(intent.kind, intent.apiVersion, INTENT_KIND)
    if not intent.image:
        raise RecordError("no image in it")
    return intent.image


def render_pulled(record: PulledRecord) -> bytes:
    """The content of the file of a record."""
    mapping = {
        repository: _Credentials(
            tuple(_Secret(s.uid, s.namespace, s.name, s.credential_hash) for s in access.secrets) or None,
            tuple(_Account(a.uid, a.namespace, a.name) for a in access.accounts) or None,
            access.node_wide,
        )
        for repository, access in record.access.items()
    }
    when = format_time(record.updated_at)
    return msgspec.json.encode(_Pulled(PULLED_KIND, API_VERSION, when, record.image_ref, mapping or None))


def parse_pulled(data: bytes) -> PulledRecord:
    """The record in a file. Raises RecordError."""
    try:
        read = msgspec.json.decode(data, type=_Pulled)
        updated_at = parse_time(read.lastUpdatedTime) if read.lastUpdatedTime else 0.0
    except (msgspec.DecodeError, ValueError) as error:
        raise RecordError(str(error)) from error
    _check_kind(read.kind, read.apiVersion, PULLED_KIND)
    if not read.imageRef:
        raise RecordError("no image reference in it")
    access = {
        repository: ImageAccess(
            credentials.nodePodsAccessible,
            tuple(
                SecretGrant(s.uid, s.namespace, s.name, s.credentialHash) for s in credentials.kubernetesSecrets or ()
            ),
            tuple(
                ServiceAccountSource(a.uid, a.namespace, a.name) for a in credentials.kubernetesServiceAccounts or ()
            ),
        )
        for repository, credentials in (read.credentialMapping or {}).items()
    }
    return PulledRecord(read.imageRef, updated_at, access)


def _check_kind(kind: str, version: str, wanted: str) -> None:
    if kind != wanted or version not in _VERSIONS:
        raise RecordError(f"it is a {version} {kind}, not a {API_VERSION} {wanted}")

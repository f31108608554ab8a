"""What the files of the folder contain: objects to apply, and what is wrong with the rest. Pure.

A file has one or several documents in YAML or JSON; a `List` stands for its items. Objects without a namespace belong to `default`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pykubelet.base.api.document import Document, DocumentError, duplicate_error
from pykubelet.base.api.documents import read_documents
from pykubelet.base.api.labels import dns_label_errors
from pykubelet.base.kit.values import Value
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.order import apply_rank
from pykubelet_local_api.kinds.table import BY_TYPE
from pykubelet_local_api.objects import Json

#: The annotation with the name of the file from which an object was applied. Each object so has a field of the folder's manager.
ORIGIN = "pykubelet.io/applied-from"
#: The most objects of all files together.
MAX_OBJECTS = 5_000
_SHOWN = 200


class ObjectID(Value):
    """Which object it is. `resource`: that of its storage; `namespace`: "" for objects of the cluster."""

    resource: str
    namespace: str
    name: str

    def __str__(self) -> str:
        place = f"{self.namespace}/" if self.namespace else ""
        return f"{self.resource} {place}{self.name}"


class FolderObject(Value):
    """One object to apply. `origin`: its file and document, for messages."""

    origin: str
    kind: ResourceKind
    id: ObjectID
    object: Json


class FolderContent(Value):
    """The objects of all files in the order in which they are applied. `problems`: what cannot be read.

    `is_whole`: every file could be read, so that an object that is not here has left the folder.
    """

    manifests: tuple[FolderObject, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every document was understood."""
        return not self.problems


class _Wrong(Exception):
    """A document is not an object that can be applied. The text is the reason."""


def read_manifests(files: Mapping[str, bytes]) -> FolderContent:
    """Read all files. `files`: the content by name."""
    found: dict[ObjectID, FolderObject] = {}
    problems: list[str] = []
    for name, data in sorted(files.items()):
        for number, document in enumerate(read_documents(data), 1):
            origin = f"{name} (document {number})"
            try:
                for manifest in _manifests(origin, document):
                    _add(found, manifest)
            except _Wrong as wrong:
                problems.append(f"{origin}: {wrong}")
    ordered = sorted(found.values(), key=lambda manifest: apply_rank(manifest.kind))
    return FolderContent(tuple(ordered), tuple(problems))


def _add(found: dict[ObjectID, FolderObject], manifest: FolderObject) -> None:
    first = found.get(manifest.id)
    if first is not None:
        raise _Wrong(f"{manifest.id} is also in {first.origin}, which counts: give it once")
    if len(found) >= MAX_OBJECTS:
        raise _Wrong(f"more than {MAX_OBJECTS} objects: remove some")
    found[manifest.id] = manifest


def _manifests(origin: str, document: Document | DocumentError) -> Iterator[FolderObject]:
    if isinstance(document, DocumentError):
        raise _Wrong(str(document))
    for place in document.duplicates:
        raise _Wrong(str(duplicate_error(place)))
    value = document.value
    if not isinstance(value, dict):
        raise _Wrong("not an object: it must have apiVersion, kind and metadata")
    if value.get("kind") == "List" and value.get("apiVersion") == "v1":
        items = value.get("items")
        if not isinstance(items, list):
            raise _Wrong("items: must be a list")
        for number, item in enumerate(items):
            yield _manifest(f"{origin}, items[{number}]", item)
        return
    yield _manifest(origin, value)


def _manifest(origin: str, value: Any) -> FolderObject:
    if not isinstance(value, dict):
        raise _Wrong("not an object: it must have apiVersion, kind and metadata")
    api_version, name_of_kind = value.get("apiVersion"), value.get("kind")
    if not isinstance(api_version, str) or not isinstance(name_of_kind, str):
        raise _Wrong("apiVersion and kind: must be given")
    kind = BY_TYPE.get((api_version, name_of_kind))
    if kind is None or kind.is_review:
        shown = f'"{name_of_kind[:_SHOWN]}" in version "{api_version[:_SHOWN]}"'
        raise _Wrong(f"no matches for kind {shown}: this API does not have it")
    meta = value.get("metadata")
    if not isinstance(meta, dict):
        raise _Wrong("metadata: must be a map")
    name, namespace = meta.get("name"), meta.get("namespace") or ""
    if not isinstance(name, str) or not name:
        raise _Wrong("metadata.name: must be given (generateName is not possible here)")
    if "/" in name or "%" in name or not name.isprintable() or len(name) > 253:
        raise _Wrong("metadata.name: not the name of an object")
    if not isinstance(namespace, str) or (namespace and dns_label_errors(namespace)):
        raise _Wrong("metadata.namespace: not the name of a namespace")
    annotations = meta.get("annotations") or {}
    if not isinstance(annotations, dict):
        raise _Wrong("metadata.annotations: must be a map")
    place = (namespace or "default") if kind.is_namespaced else ""
    marked = {**meta, "annotations": {**annotations, ORIGIN: origin.partition(" (document ")[0]}}
    marked |= {"namespace": place} if place else {}
    named: Json = {**value, "metadata": marked}
    return FolderObject(origin, kind, ObjectID(kind.storage, place, name), named)

"""Decodes a manifest into pods and objects of volumes, or into a list of its problems. Pure.

A manifest is one YAML or JSON document with a v1 Pod (from a URL also a PodList), with a name and without references to API objects.
Defaults and create-validation are those of the API server. Unknown and duplicate fields and further documents are remarks, as in the
reference kubelet, which ignores them. On a node without an API server all documents count, and each may also be one of the objects that
pods refer to (`objects.py`), or a List. What is wrong with one of them, or with one item of a List, does not affect the others.

Errors that only repeat others are left out: the API server reports the same mistake again where a default has copied it, and where
something refers to it. Its author looks for the field in the manifest, which may not have it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from pykubelet.base.api import codec, core
from pykubelet.base.api.codec import unusable_text
from pykubelet.base.api.core import Pod
from pykubelet.base.api.document import Document, DocumentError
from pykubelet.base.api.documents import read_document, read_documents
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.manifests.defaults import default_pod
from pykubelet.base.manifests.validation import validate_pod
from pykubelet.base.manifests.validation.errors import ErrorKind, Errors, FieldError, show
from pykubelet.base.manifests.warnings import UnknownMember, huge_numbers, pod_warnings, unknown_fields, without_unknown
from pykubelet.base.model.content import ManifestObject
from pykubelet.base.model.ids import is_pod_uid
from pykubelet.base.model.remarks import Remark, cut, document_remarks, unknown_field
from pykubelet.base.model.roster import ManifestProblem
from pykubelet.config.settings import Settings
from pykubelet.desired.sources.foreign import MAX_NAME, foreign_kind
from pykubelet.desired.sources.objects import KINDS, ObjectKind, decode_object
from pykubelet.desired.sources.static import (
    Origin,
    api_reference,
    class_remarks,
    foreign_fields,
    make_static,
    never_allowed,
    static_remarks,
)

#: The kinds of objects besides pods, with their API versions.
_OBJECTS = {name: kind.version for name, kind in KINDS.items()}
_STANDALONE = {**_OBJECTS, "List": "v1"}
MAX_BYTES = 10 << 20
#: Problems reported for one manifest, and remarks for each pod of it. Further ones usually follow from the first.
MAX_PROBLEMS = 20
#: Remarks about all items of one list or all documents of one manifest, and problems of all of them.
MAX_REMARKS = 100
#: Objects besides pods of one manifest. Fewer of each kind count (`roster/objects.py`).
MAX_OBJECTS = 4000
#: Documents of one manifest.
MAX_DOCUMENTS = 1000

UID_RULE = "must be 1 to 64 letters, digits and dashes, and not begin with a dash; leave it out to get one"

Problems = tuple[ManifestProblem, ...]
_Item = core.Pod | ManifestObject | ManifestProblem | Remark
Decoded = tuple[_Item, ...]


def _none_refused(_: str, __: bytes) -> str:
    return ""


class ManifestRules(Value):
    """What manifests are decoded for: the node's name, and whether it has no API server (`is_standalone`).

    `may_refer`: static pods may refer to API objects (the gate PreventStaticPodAPIReferences is off). `comparisons`: the gate
    TaintTolerationComparisonOperators. `refused`: why a manifest, by its place without credentials and its content, must not
    be decoded now; empty if it may.
    """

    node_name: str
    is_standalone: bool = False
    may_refer: bool = False
    comparisons: bool = False
    refused: Callable[[str, bytes], str] = _none_refused


def manifest_rules(
    settings: Settings, node_name: str, refused: Callable[[str, bytes], str] = _none_refused
) -> ManifestRules:
    """The rules from the configuration."""
    return ManifestRules(
        node_name,
        settings.standalone,
        may_refer=not settings.enabled("PreventStaticPodAPIReferences"),
        comparisons=settings.enabled("TaintTolerationComparisonOperators"),
        refused=refused,
    )


def problem(origin: Origin, field_path: str, reason: str) -> ManifestProblem:
    """A problem of a manifest, with texts that are cut."""
    return ManifestProblem(origin.shown, cut(field_path), cut(reason))


def too_large(origin: Origin) -> ManifestProblem:
    """The problem of a manifest above `MAX_BYTES`."""
    return problem(origin, "", f"manifest is larger than {MAX_BYTES >> 20} MiB")


def decode_manifest(data: bytes, origin: Origin, rules: ManifestRules) -> Decoded:
    """The complete and valid pods and objects of a manifest, or its problems; and remarks about it.

    In a cluster, never both: a file has one pod. A URL may also return a PodList; one invalid item of it refuses all of it, as in
    the reference kubelet.
    """
    if len(data) > MAX_BYTES:
        return (too_large(origin),)
    if rules.is_standalone:
        return _decode_all(data, origin, rules)
    try:
        document = read_document(data)
    except DocumentError as error:
        return (problem(origin, error.path, error.reason),)
    return _decode_read(document, origin, rules)


def _decode_all(data: bytes, origin: Origin, rules: ManifestRules) -> Decoded:
    """The results of all documents of a manifest. If there are several, problems and remarks name theirs."""
    found = _Found(origin)
    only: Decoded = ()
    number = 0
    for number, document in enumerate(islice(read_documents(data), MAX_DOCUMENTS + 1), 1):
        name = f"document {number}"
        if number > MAX_DOCUMENTS:
            only = (problem(origin, "", f"more than {MAX_DOCUMENTS} documents, ignored"),)
        elif isinstance(document, DocumentError):
            only = (problem(origin, document.path, document.reason),)
        else:
            name += _subject(document.value)
            only = _decode_read(document, origin, rules)
        found.add(item if isinstance(item, core.Pod) else replace(item, document=name) for item in only)
    if not number:
        return (problem(origin, "", "manifest is empty"),)
    return tuple(found.items) if number > 1 else only


def _subject(value: object) -> str:
    """The kind and name of a document, as far as it has them."""
    kind = value.get("kind") if isinstance(value, dict) else None
    metadata = value.get("metadata") if isinstance(value, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(kind, str):
        return ""
    return f", {kind[:MAX_NAME]} {name[:MAX_NAME]}" if isinstance(name, str) else f", {kind[:MAX_NAME]}"


class _Found:
    """What documents and items are decoded to, in their order: all pods, and as much of the rest as is kept of one manifest."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._left = Counter({ManifestObject: MAX_OBJECTS, ManifestProblem: MAX_REMARKS, Remark: MAX_REMARKS})
        self.items: list[_Item] = []

    def add(self, items: Iterable[_Item]) -> None:
        """Keep the items, unless there are too many of their type."""
        for item in items:
            if isinstance(item, ManifestObject) and not self._left[ManifestObject]:
                words = f"more than {MAX_OBJECTS} objects in one manifest, ignored"
                item = replace(problem(self._origin, "", words), document=item.document)
            if not isinstance(item, core.Pod):
                if not self._left[type(item)]:
                    continue
                self._left[type(item)] -= 1
            self.items.append(item)


def _decode_read(document: Document, origin: Origin, rules: ManifestRules) -> Decoded:
    if unusable := unusable_text(document.value):
        return (problem(origin, *unusable),)
    found = _decode_document(document.value, origin, rules)
    if not document.duplicates and not document.more:
        return found
    pods = [item.metadata.uid for item in found if isinstance(item, core.Pod)]
    uid = pods[0] if len(pods) == 1 else ""
    return (*found, *(replace(remark, uid=uid) for remark in document_remarks(origin.shown, document)))


def _decode_document(document: object, origin: Origin, rules: ManifestRules) -> Decoded:
    if document is None:
        return (problem(origin, "", "manifest is empty"),)
    if not isinstance(document, dict):
        return (problem(origin, "", f"expected an object, got {_type_name(document)}"),)
    kinds = {"Pod": "v1"}
    if not origin.is_file:
        kinds["PodList"] = "v1"
    if rules.is_standalone:
        kinds |= _STANDALONE
        if foreign := _foreign(document, kinds, origin):
            return (foreign,)
    if wrong := _wrong_type(document, kinds, origin):
        return (wrong,)
    match document.get("kind"):
        case "PodList":
            return _decode_list(document, origin, rules)
        case "List":
            return _decode_items(document, origin, rules)
    return _decode_item(document, origin, rules, "")


def _foreign(document: dict[str, object], kinds: Mapping[str, str], origin: Origin) -> ManifestProblem | None:
    """The problem of a document of a kind that only an API server takes."""
    kind = document.get("kind")
    if not isinstance(kind, str) or kind in kinds:
        return None
    return problem(origin, "kind", foreign_kind(kind, ("Pod", *_OBJECTS, "List")))


def _type_name(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return "nothing" if value is None else names.get(type(value), type(value).__name__)


def _wrong_type(document: dict[str, object], kinds: Mapping[str, str], origin: Origin) -> ManifestProblem | None:
    """The problem if `document` is none of `kinds`, which have the API version of each."""
    kind, version = document.get("kind"), document.get("apiVersion")
    if not isinstance(kind, str) or kind not in kinds:
        allowed = " or ".join(f'"{allowed_kind}"' for allowed_kind in kinds)
        is_object = isinstance(kind, str) and kind in _OBJECTS and "List" not in kinds
        known = "; the API server has such objects: create it there" if is_object else ""
        return problem(origin, "kind", f"expected {allowed}, got {_quoted(kind)}{known}")
    if version != kinds[kind]:
        return problem(origin, "apiVersion", f'expected "{kinds[kind]}", got {_quoted(version)}')
    return None


def _quoted(value: object) -> str:
    return "nothing" if value is None else f'"{value}"'


def _decode_list(document: dict[str, object], origin: Origin, rules: ManifestRules) -> Decoded:
    items = document.get("items")
    if items is None:
        return (problem(origin, "items", "expected a list, got nothing"),)
    if not isinstance(items, list):
        return (problem(origin, "items", f"expected a list, got {_type_name(items)}"),)
    remarks = _list_remarks(document, origin)
    found: list[core.Pod | ManifestObject] = []
    for i, item in enumerate(items):
        path = f"items[{i}]"
        if not isinstance(item, dict):
            return (problem(origin, path, f"expected an object, got {_type_name(item)}"),)
        given = {"kind": "Pod", "apiVersion": "v1", **item}
        if wrong := _wrong_type(given, {"Pod": "v1"}, origin):
            return (problem(origin, f"{path}.{wrong.field_path}", wrong.reason),)
        decoded = _decode_item(given, origin, rules, path + ".")
        about = [remark for remark in decoded if isinstance(remark, Remark)]
        for result in decoded:
            if isinstance(result, ManifestProblem):
                return (result, *about)
            if not isinstance(result, Remark):
                found.append(result)
        remarks += about
    return (*found, *remarks[:MAX_REMARKS])


def _list_remarks(document: dict[str, object], origin: Origin) -> list[Remark]:
    head = {name: item for name, item in document.items() if name != "items"}
    return _remarks(unknown_fields(core.PodList, head), origin)


def _decode_items(document: dict[str, object], origin: Origin, rules: ManifestRules) -> Decoded:
    """The results of all items of a List on a node without an API server, each for itself."""
    items = document.get("items")
    if not isinstance(items, list):
        return (problem(origin, "items", f"expected a list, got {_type_name(items)}"),)
    found = _Found(origin)
    found.add(_list_remarks(document, origin))
    for i, item in enumerate(items):
        path = f"items[{i}]"
        if not isinstance(item, dict):
            found.add((problem(origin, path, f"expected an object, got {_type_name(item)}"),))
            continue
        kinds = {"Pod": "v1", **_OBJECTS}
        if wrong := _foreign(item, kinds, origin) or _wrong_type(item, kinds, origin):
            found.add((replace(wrong, field_path=f"{path}.{wrong.field_path}"),))
            continue
        found.add(_decode_item(item, origin, rules, path + "."))
    return tuple(found.items)


def _decode_item(manifest: dict[str, object], origin: Origin, rules: ManifestRules, prefix: str) -> Decoded:
    """One pod or object, or its problems, and the remarks about it."""
    kind = KINDS.get(str(manifest.get("kind")))
    unknown: list[UnknownMember] = []
    uid = ""
    try:
        struct = core.Pod if kind is None else kind.type
        if unknown := unknown_fields(struct, manifest):
            manifest = without_unknown(struct, manifest)
        found: Decoded
        if kind is None:
            found = _decode_pod(manifest, origin, rules, prefix)
            uid = next((item.metadata.uid for item in found if isinstance(item, core.Pod)), "")
        else:
            found = _decode_object(manifest, kind, origin, prefix)
    except codec.DecodeError as error:
        found = (problem(origin, prefix + error.path, error.reason),)
    except RecursionError:
        found = (problem(origin, prefix.rstrip("."), "nested too deeply"),)
    return (*found, *_remarks(unknown, origin, prefix, uid))


def _remarks(unknown: Sequence[UnknownMember], origin: Origin, prefix: str = "", uid: str = "") -> list[Remark]:
    return [
        unknown_field(origin.shown, prefix + member.path, member.near, member.known, uid)
        for member in unknown[:MAX_PROBLEMS]
    ]


def _decode_object(manifest: dict[str, object], kind: ObjectKind, origin: Origin, prefix: str) -> Decoded:
    found = decode_object(manifest, kind, origin.shown)
    if isinstance(found, ManifestObject):
        return (found,)
    return tuple(problem(origin, prefix + error.path, error.body) for error in found[:MAX_PROBLEMS])


def _decode_pod(manifest: dict[str, object], origin: Origin, rules: ManifestRules, prefix: str) -> Decoded:
    if huge := huge_numbers(manifest):
        return tuple(problem(origin, prefix + path, "number out of range") for path in huge[:MAX_PROBLEMS])
    pod = codec.from_object(core.Pod, manifest)
    if not pod.metadata.name:
        return (problem(origin, prefix + "metadata.name", "invalid pod: name is needed for the pod"),)
    if pod.metadata.uid and not is_pod_uid(pod.metadata.uid):
        return (problem(origin, prefix + "metadata.uid", UID_RULE),)
    ignored, has_uid = foreign_fields(pod), bool(pod.metadata.uid)
    pod = make_static(default_pod(pod), manifest, origin, rules.node_name)
    if errors := validate_pod(pod, comparisons=rules.comparisons):
        errors = without_echoes(errors, pod, manifest)
        return tuple(problem(origin, prefix + error.path, error.body) for error in errors[:MAX_PROBLEMS])
    if rules.may_refer:
        if resource := never_allowed(pod):
            return (problem(origin, prefix + "spec", f"static pods may not use {resource}"),)
    elif resource := api_reference(pod, rules.is_standalone):
        return (problem(origin, prefix + "spec", f"static pods may not reference {resource}"),)
    odd = (
        *ignored,
        *class_remarks(pod, rules.is_standalone),
        *pod_warnings(pod),
        *static_remarks(pod, has_uid),
    )
    remarks = (
        Remark(origin.shown, cut(prefix + path), cut(reason), pod.metadata.uid)
        for path, reason in islice(odd, MAX_PROBLEMS)
    )
    return (pod, *remarks)


def is_usable(result: Decoded) -> bool:
    """Whether `decode_manifest` returned pods or objects, or none and no problem (an empty list)."""
    problems = any(isinstance(item, ManifestProblem) for item in result)
    return not problems or any(isinstance(item, core.Pod | ManifestObject) for item in result)


_REQUESTS = ".resources.requests["
_STEP = re.compile(r"([^.\[\]]+)|\[([0-9]+)\]")


def without_echoes(errors: Errors, pod: Pod, manifest: Mapping[str, object]) -> Errors:
    """The errors without those that follow from another one. `pod`: with its defaults; `manifest`: as its author wrote it."""
    paths = {error.path for error in errors}
    volumes = {show(volume.name) for volume in pod.spec.volumes}
    return [e for e in errors if not (_is_copied(e, paths, manifest) or _refers_to_wrong(e, volumes))]


def _is_copied(error: FieldError, paths: set[str], manifest: Mapping[str, object]) -> bool:
    """Whether the error is about a request that is the default, and the limit has it as well."""
    before, found, name = error.path.partition(_REQUESTS)
    if not found or f"{before}.resources.limits[{name}" not in paths:
        return False
    requests = _at(manifest, f"{before}.resources.requests")
    return not isinstance(requests, dict) or name.removesuffix("]") not in requests


def _refers_to_wrong(error: FieldError, volumes: set[str]) -> bool:
    """Whether the error is that a volume is not found, and the volume is there and wrong itself."""
    return (
        error.kind is ErrorKind.NOT_FOUND and error.path.endswith((".name", ".volumeName")) and error.value in volumes
    )


def _at(value: object, path: str) -> object:
    """The value at a path such as `spec.containers[0].resources`; None if there is none."""
    for match in _STEP.finditer(path):
        if match[1] is not None:
            value = value.get(match[1]) if isinstance(value, Mapping) else None
        else:
            value = value[int(match[2])] if isinstance(value, list) and int(match[2]) < len(value) else None
    return value

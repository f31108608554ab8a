"""Decodes a manifest into pods and objects of volumes, or into a list of its problems. Pure.

A manifest is one YAML or JSON document with a v1 Pod (from a URL also a PodList), without unknown fields, with a name and
without references to API objects. Defaults and create-validation are those of the API server. On a node without an API server it may
also be a PersistentVolume, a PersistentVolumeClaim, a CSIDriver, or a List of all of these, and pods may refer to claims.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api import codec, core
from pykubelet.base.api.defaults import default_pod
from pykubelet.base.api.documents import DocumentError, load_document
from pykubelet.base.api.strict import huge_numbers, unknown_fields
from pykubelet.base.api.validation import validate_pod
from pykubelet.base.kit.values import Value
from pykubelet.base.model.content import ManifestObject
from pykubelet.base.model.ids import is_pod_uid
from pykubelet.base.model.roster import ManifestProblem
from pykubelet.config.settings import Settings
from pykubelet.desired.sources.references import api_reference, never_allowed
from pykubelet.desired.sources.static import Origin, make_static
from pykubelet.desired.sources.storage import KINDS, decode_object

#: The kinds of objects besides pods, with their API versions.
_OBJECTS = {name: kind.version for name, kind in KINDS.items()}
MAX_BYTES = 10 << 20
#: Problems reported for one manifest. Further ones usually follow from the first.
MAX_PROBLEMS = 20
#: Characters of a problem's path and of its reason, because both may quote the manifest.
MAX_WORDS = 1024

UID_RULE = "must be 1 to 64 letters, digits and dashes, and not begin with a dash; leave it out to get one"

Items = tuple[core.Pod | ManifestObject, ...]
Problems = tuple[ManifestProblem, ...]


class ManifestRules(Value):
    """What manifests are decoded for: the node's name, and whether it has no API server (`is_standalone`).

    `may_refer`: static pods may refer to API objects (the gate PreventStaticPodAPIReferences is off). `comparisons`: the gate
    TaintTolerationComparisonOperators.
    """

    node_name: str
    is_standalone: bool = False
    may_refer: bool = False
    comparisons: bool = False


def manifest_rules(settings: Settings, node_name: str) -> ManifestRules:
    """The rules from the configuration."""
    return ManifestRules(
        node_name,
        settings.standalone,
        may_refer=not settings.enabled("PreventStaticPodAPIReferences"),
        comparisons=settings.enabled("TaintTolerationComparisonOperators"),
    )


def problem(origin: Origin, field_path: str, reason: str) -> ManifestProblem:
    """A problem of a manifest, with texts cut to `MAX_WORDS` characters."""
    return ManifestProblem(origin.shown, _cut(field_path), _cut(reason))


def _cut(words: str) -> str:
    return words if len(words) <= MAX_WORDS else words[:MAX_WORDS] + "..."


def too_large(origin: Origin) -> ManifestProblem:
    """The problem of a manifest above `MAX_BYTES`."""
    return problem(origin, "", f"manifest is larger than {MAX_BYTES >> 20} MiB")


def decode_manifest(data: bytes, origin: Origin, rules: ManifestRules) -> Items | Problems:
    """The complete and valid pods and objects of a manifest, or its problems; never both.

    A file has one object. A URL may also return a PodList; one invalid item of a list refuses all of it, as in the reference
    kubelet.
    """
    if len(data) > MAX_BYTES:
        return (too_large(origin),)
    try:
        document = load_document(data)
    except DocumentError as error:
        return (problem(origin, error.path, error.reason),)
    if document is None:
        return (problem(origin, "", "manifest is empty"),)
    if not isinstance(document, dict):
        return (problem(origin, "", f"expected an object, got {_type_name(document)}"),)
    kinds = {"Pod": "v1"}
    if not origin.is_file:
        kinds["PodList"] = "v1"
    if rules.is_standalone:
        kinds |= {"List": "v1", **_OBJECTS}
    if wrong := _wrong_type(document, kinds, origin):
        return (wrong,)
    match document.get("kind"):
        case "PodList":
            return _decode_list(document, {"Pod": "v1"}, origin, rules)
        case "List":
            return _decode_list(document, {"Pod": "v1", **_OBJECTS}, origin, rules)
    return _decode_item(document, origin, rules, "")


def _type_name(value: object) -> str:
    names = {list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def _wrong_type(document: dict[str, object], kinds: Mapping[str, str], origin: Origin) -> ManifestProblem | None:
    """The problem if `document` is none of `kinds`, which have the API version of each."""
    kind, version = document.get("kind"), document.get("apiVersion")
    if not isinstance(kind, str) or kind not in kinds:
        allowed = " or ".join(f'"{one}"' for one in kinds)
        is_object = isinstance(kind, str) and kind in _OBJECTS and "List" not in kinds
        known = "; the API server has such objects: create it there" if is_object else ""
        return problem(origin, "kind", f"expected {allowed}, got {_quoted(kind)}{known}")
    if version != kinds[kind]:
        return problem(origin, "apiVersion", f'expected "{kinds[kind]}", got {_quoted(version)}')
    return None


def _quoted(value: object) -> str:
    return "nothing" if value is None else f'"{value}"'


def _decode_list(
    document: dict[str, object], kinds: Mapping[str, str], origin: Origin, rules: ManifestRules
) -> Items | Problems:
    items = document.get("items")
    if items is None:
        return (problem(origin, "items", "expected a list, got nothing"),)
    if not isinstance(items, list):
        return (problem(origin, "items", f"expected a list, got {_type_name(items)}"),)
    unknown = sorted(set(document) - set(core.PodList.__struct_encode_fields__))
    if unknown:
        return tuple(problem(origin, field, "unknown field") for field in unknown[:MAX_PROBLEMS])
    found: list[core.Pod | ManifestObject] = []
    for i, item in enumerate(items):
        path = f"items[{i}]"
        if not isinstance(item, dict):
            return (problem(origin, path, f"expected an object, got {_type_name(item)}"),)
        given = {"kind": "Pod", "apiVersion": "v1", **item} if len(kinds) == 1 else item
        if wrong := _wrong_type(given, kinds, origin):
            return (problem(origin, f"{path}.{wrong.field_path}", wrong.reason),)
        for result in _decode_item(given, origin, rules, path + "."):
            if isinstance(result, ManifestProblem):
                return (result,)
            found.append(result)
    return tuple(found)


def _decode_item(manifest: dict[str, object], origin: Origin, rules: ManifestRules, prefix: str) -> Items | Problems:
    kind = KINDS.get(str(manifest.get("kind")))
    try:
        if kind is None:
            return _decode_pod(manifest, origin, rules, prefix)
        found = decode_object(manifest, kind, origin.shown)
    except codec.DecodeError as error:
        return (problem(origin, prefix + error.path, error.reason),)
    except RecursionError:
        return (problem(origin, prefix.rstrip("."), "nested too deeply"),)
    if isinstance(found, ManifestObject):
        return (found,)
    return tuple(problem(origin, prefix + error.path, error.body) for error in found[:MAX_PROBLEMS])


def _decode_pod(manifest: dict[str, object], origin: Origin, rules: ManifestRules, prefix: str) -> Items | Problems:
    unknown = unknown_fields(core.Pod, manifest)
    if unknown:
        return tuple(problem(origin, prefix + path, "unknown field") for path in unknown[:MAX_PROBLEMS])
    if huge := huge_numbers(manifest):
        return tuple(problem(origin, prefix + path, "number out of range") for path in huge[:MAX_PROBLEMS])
    pod = codec.from_object(core.Pod, manifest)
    if not pod.metadata.name:
        return (problem(origin, prefix + "metadata.name", "invalid pod: name is needed for the pod"),)
    if pod.metadata.uid and not is_pod_uid(pod.metadata.uid):
        return (problem(origin, prefix + "metadata.uid", UID_RULE),)
    pod = make_static(default_pod(pod), manifest, origin, rules.node_name)
    if errors := validate_pod(pod, comparisons=rules.comparisons):
        return tuple(problem(origin, prefix + error.path, error.body) for error in errors[:MAX_PROBLEMS])
    if rules.may_refer:
        if thing := never_allowed(pod):
            return (problem(origin, prefix + "spec", f"static pods may not use {thing}"),)
    elif resource := api_reference(pod, rules.is_standalone):
        return (problem(origin, prefix + "spec", f"static pods may not reference {resource}"),)
    return (pod,)


def is_usable(result: Items | Problems) -> bool:
    """Whether `decode_manifest` returned pods and objects (an empty list counts)."""
    return not any(isinstance(item, ManifestProblem) for item in result)

"""Pods, and what they refer to, that are as large as an API server admits in one field each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from hostile.specs.fields import Cls, Field, Kind, fields_of, is_struct, type_of
from hostile.specs.structs import IMAGE, MINIMAL, NAME, Json

from pykubelet.base.api import core, storage
from pykubelet.base.api.codec import decode
from pykubelet.base.api.core import Pod
from pykubelet.base.manifests.defaults import default_pod

#: The largest object that an API server takes is 1.5 MiB. This leaves a part for what it adds itself.
WHOLE = 1_450_000
#: A text with whatever means something in any language that is parsed: references, globs, paths, quotes, separators.
HARD = "$(a.b)/../*[^c-$$(\"'`\\{}<>:,;=@%#&|~ -_"
#: An API server takes 256 KiB of annotations.
ANNOTATIONS = 250_000
#: Fields that have another value than a long text, because an API server sets them, or takes no other.
FIXED: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata.name": "b" * 253,
    "metadata.generateName": "b" * 253,
    "metadata.namespace": "default",
    "metadata.uid": "",
    "metadata.resourceVersion": "",
    "metadata.creationTimestamp": "",
    "metadata.deletionTimestamp": "",
    "spec.nodeName": "node",
    # an API server sends the shortest form of a quantity
    "spec.volumes[].emptyDir.sizeLimit": "1Mi",
    # no longer ones are admitted
    "spec.containers[].name": "b" * 63,
    "spec.initContainers[].name": "b" * 63,
    "spec.ephemeralContainers[].name": "b" * 63,
    "spec.resourceClaims[].resourceClaimName": "b" * 253,
}
CORE, STORAGE, NODE = "/api/v1", "/apis/storage.k8s.io/v1", "/apis/node.k8s.io/v1"
IN_DEFAULT = f"{CORE}/namespaces/default"
#: The collection of each kind that pods refer to.
COLLECTIONS: dict[Cls, str] = {
    core.ConfigMap: f"{IN_DEFAULT}/configmaps",
    core.Secret: f"{IN_DEFAULT}/secrets",
    core.Service: f"{IN_DEFAULT}/services",
    core.RuntimeClass: f"{NODE}/runtimeclasses",
    storage.PersistentVolume: f"{CORE}/persistentvolumes",
    storage.PersistentVolumeClaim: f"{IN_DEFAULT}/persistentvolumeclaims",
    storage.CSIDriver: f"{STORAGE}/csidrivers",
}
#: What a pod has so that it refers to the object of this kind.
REFERS: dict[Cls, Json] = {
    core.ConfigMap: {"volumes": [{"name": "c", "configMap": {"name": "settings"}}]},
    core.Secret: {
        "volumes": [{"name": "c", "secret": {"secretName": "keys"}}],
        "imagePullSecrets": [{"name": "keys"}],
    },
    core.Service: {},
    core.RuntimeClass: {"runtimeClassName": "sealed"},
    storage.PersistentVolume: {"volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "claim"}}]},
    storage.PersistentVolumeClaim: {"volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "claim"}}]},
    storage.CSIDriver: {"volumes": [{"name": "c", "csi": {"driver": "driver.test"}}]},
}
#: Of structs that have one of several sources: the one in `MINIMAL`. The others are measured in its place.
USUAL_SOURCE = {
    "EnvVar": "value",
    "EnvFromSource": "configMapRef",
    "VolumeProjection": "configMap",
    "PersistentVolumeSpec": "hostPath",
}
NO_SOURCES = {("PersistentVolumeSpec", "claimRef"), ("PersistentVolumeSpec", "nodeAffinity")}


@dataclass(frozen=True)
class Case:
    """A pod, and the objects beside the usual ones, with the paths of their collections. `is_static`: it comes from a manifest.

    `is_text`: what is large is one text.
    """

    name: str
    pod: Json
    objects: tuple[tuple[str, Json], ...] = ()
    is_static: bool = False
    is_text: bool = False


def base_pod(**spec: Any) -> Json:
    container = {"name": "app", "image": IMAGE, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    return {
        "metadata": {"name": NAME, "namespace": "default"},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "serviceAccountName": "default",
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 2,
            **spec,
        },
    }


def usual_objects() -> Iterator[tuple[str, Json]]:
    """What pods refer to, one small object of each kind."""
    for cls, path in COLLECTIONS.items():
        yield path, element(cls)


def element(cls: Any) -> Any:
    """An entry of a list, or a value, of this type."""
    return msgspec.json.decode(element_text(cls).replace("%d", "000000"))


def element_text(cls: Any) -> str:
    """Its JSON; `%d` is its number."""
    if not is_struct(cls):
        return "1%d" if cls is int else '"s%d"'
    return msgspec.json.encode(MINIMAL[cls.__name__]).decode()


# One large field


def pod_fields() -> list[Field]:
    """All fields of a pod that users may set: the status is the agent's."""
    return [field for field in fields_of(Pod) if not field.path.startswith("status.")]


def object_fields(cls: Cls) -> list[Field]:
    """The same of a kind that pods refer to. What all kinds have is in `pod_fields`."""
    return [
        field for field in fields_of(cls) if not field.path.startswith(("status.", "metadata.", "apiVersion", "kind"))
    ]


def pod_case(field: Field, size: int = WHOLE) -> Case:
    """The pod in which one field is as large as it may be."""
    size = min(size, ANNOTATIONS) if field.path.startswith("metadata.annotations") else size
    made = _sized(size, field, lambda count: pod_with(field, count, base_pod()))
    return Case(f"pod {field.path}", made, is_text=field.kind is Kind.TEXT)


def object_case(cls: Cls, field: Field, size: int = WHOLE) -> Case:
    """A pod that refers to an object in which one field is as large as it may be."""
    large = _sized(size, field, lambda count: object_of(cls, [field], count))
    return Case(
        f"{cls.__name__} {field.path}",
        pod_referring(cls),
        ((COLLECTIONS[cls], large),),
        is_text=field.kind is Kind.TEXT,
    )


def object_of(cls: Cls, fields: list[Field], count: int) -> Json:
    """An object in which these fields have so many entries or characters."""
    item = element(cls)
    for field in fields:
        item = merged(item, grown(cls, field.parts, field, count))
    found: Json = without_nones(item)
    return found


def pod_referring(cls: Cls) -> Json:
    """A pod that refers to the object of this kind."""
    pod: Json = merged(base_pod(), {"spec": REFERS[cls]})
    pod["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}, *REFERS[cls].get("volumes", ())]
    pod["spec"]["containers"][0]["volumeMounts"] = [
        {"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in pod["spec"]["volumes"]
    ]
    return pod


def _sized(size: int, field: Field, made: Callable[[int], Json]) -> Json:
    """What is made with so many entries (characters of a text) that it takes about `size` bytes where it is stored."""
    if field.path in FIXED or field.kind is Kind.TEXT:
        return made(size)
    least, more = 10, 110
    small, larger = (stored_size(made(count)) for count in (least, more))
    return made(max(1, (size - small) * (more - least) // (larger - small)))


def stored_size(item: Json) -> int:
    """The bytes of the object as an API server stores it, with its defaults."""
    if "containers" in item.get("spec", {}):
        return len(msgspec.json.encode(stored_pod(item)))
    return len(msgspec.json.encode(item))


def stored_pod(item: Json) -> Pod:
    return default_pod(decode(Pod, msgspec.json.encode(item)))


def pod_with(field: Field, count: int, base: Json) -> Json:
    """The pod with so many entries or characters in one field."""
    more = grown(Pod, field.parts, field, count)
    if field.path.startswith("spec.volumes[]."):
        source = more["spec"]["volumes"][0].keys()
        kept = {name: value for name, value in base["spec"]["volumes"][0].items() if name in source}
        base["spec"]["volumes"] = [kept]
        more["spec"]["volumes"][0]["name"] = "v"
    elif field.path.startswith("spec.containers[]."):
        for name in {"name", "image"} - {field.path.rpartition(".")[2]}:
            more["spec"]["containers"][0].pop(name, None)
    item: Json = without_nones(merged(base, more))
    return item


def grown(cls: Cls, parts: list[str], field: Field, count: int) -> Json:
    """A struct in which the field at `parts` has so many entries or characters."""
    name, _, is_list = parts[0].partition("[")
    if not parts[1:]:
        return {name: filling(field, count)}
    type_ = type_of(cls, name)
    value = merged(element(type_), grown(type_, parts[1:], field, count))
    usual = USUAL_SOURCE.get(cls.__name__, "")
    others = {usual: None} if usual and name != usual and (cls.__name__, name) not in NO_SOURCES else {}
    return {name: [value] if is_list else value, **others}


def filling(field: Field, count: int) -> Any:
    if field.path in FIXED:
        return FIXED[field.path]
    match field.kind:
        case Kind.TEXT:
            return (HARD * (count // len(HARD) + 1))[:count]
        case Kind.MAP:
            value = {str: "v", bytes: "MQ=="}.get(field.item, "1")
            return raw("{%s}", f'"example.com/k%d":"{value}"', count)
        case Kind.LIST:
            return raw("[%s]", element_text(field.item), count)


def raw(whole: str, entry: str, count: int, first: int = 0) -> msgspec.Raw:
    """The JSON of many entries, quickly: `%s` in `whole` is replaced by all, `%d` in each by its number."""
    entries = ",".join([entry.replace("%d", f"{number:06}") for number in range(first, first + count)])
    return msgspec.Raw(whole.replace("%s", entries).encode())


def without_nones(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nones(item) for key, item in value.items() if item is not None}
    return [without_nones(item) for item in value] if isinstance(value, list) else value


def merged(base: Any, more: Any) -> Any:
    """The two in one; of lists, the first entries are merged. None in `more` stays."""
    if isinstance(base, dict) and isinstance(more, dict):
        return {key: merged(base.get(key), more.get(key, base.get(key))) for key in {**base, **more}}
    if isinstance(base, list) and isinstance(more, list) and len(more) == 1 and isinstance(more[0], dict):
        return [merged(base[0], more[0]) if base else more[0], *base[1:]]
    return more

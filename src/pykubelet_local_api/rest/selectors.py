"""Label and field selectors of requests. Pure; the cost is linear in the text.

Source: Kubernetes documentation, "Labels and Selectors" and "Field Selectors".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pykubelet.base.api.selectors import read_field_selector
from pykubelet.base.manifests.validation.errors import show
from pykubelet_local_api.errors import bad_request
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json
from pykubelet_local_api.rest.label_selectors import read_label_selector

#: Whether a selector takes an object.
Wants = Callable[[Json], bool]
#: The most bytes of a selector.
MAX_BYTES = 64 << 10
#: The most requirements of a selector. Each object is compared with all.
MAX_REQUIREMENTS = 1000

_OF_ALL = ("metadata.name", "metadata.namespace")
#: Fields that may be selected beside the name and namespace, by resource.
_FIELDS: dict[str, tuple[str, ...]] = {
    "pods": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "services": ("spec.clusterIP", "spec.type"),
    "events": (
        *(
            f"involvedObject.{name}"
            for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
        ),
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    "events.events.k8s.io": (
        *(
            f"regarding.{name}"
            for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
        ),
        "reason",
        "reportingController",
        "type",
    ),
    "certificatesigningrequests.certificates.k8s.io": ("spec.signerName",),
    "resourceslices.resource.k8s.io": ("spec.driver", "spec.nodeName"),
}


def everything(_: Json) -> bool:
    """A selector that takes all objects."""
    return True


def read_selectors(kind: ResourceKind, labels: str, fields: str) -> Wants:
    """The selector of a request. Raises StatusError 400."""
    if len(labels) > MAX_BYTES or len(fields) > MAX_BYTES:
        raise bad_request(f"a selector has more than {MAX_BYTES} bytes")
    try:
        requirements = read_label_selector(labels) if labels else []
        wanted = read_field_selector(fields) if fields else []
    except ValueError as error:
        raise bad_request(str(error)) from error
    if len(requirements) + len(wanted) > MAX_REQUIREMENTS:
        raise bad_request(f"a selector has more than {MAX_REQUIREMENTS} requirements")
    _check_fields(kind, [path for path, _, _ in wanted])
    if not requirements and not wanted:
        return everything

    def wants(found: Json) -> bool:
        if any((_value(found, path) == value) is not is_equal for path, is_equal, value in wanted):
            return False
        given = found["metadata"].get("labels") or {}
        return all(requirement.fits(given) for requirement in requirements)

    return wants


def _check_fields(kind: ResourceKind, paths: Sequence[str]) -> None:
    own = _FIELDS.get(kind.resource, kind.selected_fields)
    if not own:
        for path in paths:
            if path not in _OF_ALL:
                known = ", ".join(show(name) for name in _OF_ALL)
                raise bad_request(f"{show(path)} is not a known field selector: only {known}")
        return
    of_all = _OF_ALL if kind.is_namespaced else _OF_ALL[:1]
    for path in paths:
        if path not in own and path not in of_all:
            raise bad_request(f"field label not supported: {path}")


def _value(found: Json, path: str) -> str:
    value: Any = found
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    match path, value:
        case "status.podIPs", list():
            return ",".join(str(entry.get("ip", "")) for entry in value)
        case "source", dict():
            return str(value.get("component") or found.get("reportingComponent") or "")
        case (("spec.unschedulable" | "spec.hostNetwork"), _):
            return "true" if value else "false"
    return str(value) if value is not None else ""

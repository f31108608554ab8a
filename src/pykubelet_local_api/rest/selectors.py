"""Label and field selectors of requests. Pure; the cost is linear in the text.

Source: Kubernetes documentation, "Labels and Selectors" and "Field Selectors".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from pykubelet.base.api.core import LabelSelector, LabelSelectorRequirement
from pykubelet.base.api.labels import label_value_errors, matches_selector, qualified_name_errors
from pykubelet.base.api.selectors import read_field_selector
from pykubelet_local_api.errors import StatusError, bad_request
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json

#: Whether a selector takes an object.
Wants = Callable[[Json], bool]
#: The most bytes of a selector.
MAX_BYTES = 64 << 10
_TOKEN = re.compile(r"\s*([^\s=!,()<>]+|==|=|!=|!|,|\(|\)|<|>)")
_OPERATORS = {"=": "In", "==": "In", "!=": "NotIn", "in": "In", "notin": "NotIn"}

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
    selector = _label_selector(labels) if labels.strip() else None
    wanted = tuple(read_field_selector(fields)) if fields else ()
    allowed = (
        "metadata.name",
        *(("metadata.namespace",) if kind.is_namespaced else ()),
        *_FIELDS.get(kind.resource, ()),
    )
    for path, _, _ in wanted:
        if path not in allowed:
            raise bad_request(
                f'Unable to find "{kind.api_version}, Resource={kind.plural}" that match label selector "{labels}", '
                f'field selector "{fields}": field label not supported: {path}'
            )
    if selector is None and not wanted:
        return everything

    def wants(found: Json) -> bool:
        if any((_value(found, path) == value) is not is_equal for path, is_equal, value in wanted):
            return False
        return selector is None or matches_selector(selector, found["metadata"].get("labels") or {})

    return wants


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


def _label_selector(text: str) -> LabelSelector:
    try:
        return LabelSelector(matchExpressions=tuple(_requirements(_tokens(text))))
    except ValueError as error:
        raise _unparsable(text, str(error)) from error


def _unparsable(text: str, why: str) -> StatusError:
    return bad_request(f"unable to parse requirement: {why} (label selector {text!r})")


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"found {text[at]!r}, expected: a key, an operator or a value")
        found.append(match[1])
        at = match.end()
    return found


def _requirements(tokens: list[str]) -> Iterator[LabelSelectorRequirement]:
    at = 0
    while at < len(tokens):
        requirement, at = _requirement(tokens, at)
        yield requirement
        if at < len(tokens):
            if tokens[at] != ",":
                raise ValueError(f"found '{tokens[at]}', expected: ',' or end of the text")
            at += 1
            if at == len(tokens):
                raise ValueError("found '', expected: a key after ','")


def _requirement(tokens: list[str], at: int) -> tuple[LabelSelectorRequirement, int]:
    is_absent = tokens[at] == "!"
    at += is_absent
    key = _checked(tokens[at] if at < len(tokens) else "", qualified_name_errors, "key")
    at += 1
    operator = tokens[at] if at < len(tokens) else ","
    if is_absent:
        return LabelSelectorRequirement(key=key, operator="DoesNotExist"), at
    if operator == ",":
        return LabelSelectorRequirement(key=key, operator="Exists"), at
    at += 1
    if operator in ("in", "notin"):
        values, at = _values(tokens, at)
    elif operator in _OPERATORS:
        values, at = _single_value(tokens, at)
    else:
        raise ValueError(f"found '{operator}', expected: in, notin, =, ==, !=")
    return LabelSelectorRequirement(key=key, operator=_OPERATORS[operator], values=values), at


def _values(tokens: list[str], at: int) -> tuple[tuple[str, ...], int]:
    """The values in parentheses. An empty one between commas is the empty text."""
    if at >= len(tokens) or tokens[at] != "(":
        raise ValueError(f"found '{tokens[at] if at < len(tokens) else ''}', expected: '('")
    values: list[str] = []
    value = ""
    for place in range(at + 1, len(tokens)):
        match tokens[place]:
            case ")":
                return (*values, value), place + 1
            case ",":
                values.append(value)
                value = ""
            case token:
                value = _checked(token, label_value_errors, "value")
    raise ValueError("found '', expected: ',' or ')'")


def _single_value(tokens: list[str], at: int) -> tuple[tuple[str, ...], int]:
    if at >= len(tokens) or tokens[at] == ",":
        return ("",), at
    return (_checked(tokens[at], label_value_errors, "value"),), at + 1


def _checked(text: str, errors: Callable[[str], list[str]], what: str) -> str:
    found = errors(text)
    if found:
        raise ValueError(f"invalid label {what} {text!r}: {'; '.join(found)}")
    return text

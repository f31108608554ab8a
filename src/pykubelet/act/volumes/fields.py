"""Values of pod fields and container resources as the downward API writes them into files. Pure.

Source: the Kubernetes documentation "Downward API": metadata fields and container resources are available in volumes;
status and spec fields are not.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from pykubelet.base.api.core import Pod, Quantity, ResourceFieldSelector
from pykubelet.base.api.quantity import QuantityError, parse

_SUBSCRIPT = re.compile(r"(metadata\.(?:labels|annotations))\['(.*)'\]", re.DOTALL)
_ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
MILLI = 1000


class FieldError(ValueError):
    """The pod has no such field for the downward API."""


def quote(text: str) -> str:
    """`text` in double quotes, escaped as the reference's language quotes strings (the all-labels file is the API)."""
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character == " " or unicodedata.category(character) not in _UNPRINTABLE:
        return character
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        return "\\ufffd"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def format_map(values: Mapping[str, str]) -> str:
    """One `key="escaped value"` a line, sorted by key, without a newline at the end."""
    return "\n".join(f"{key}={quote(values[key])}" for key in sorted(values))


def field_value(pod: Pod, path: str) -> str:
    """The value of a `fieldRef` in a volume; a label or annotation that is not there is empty. FieldError otherwise."""
    metadata = pod.metadata
    match path:
        case "metadata.name":
            return metadata.name
        case "metadata.namespace":
            return metadata.namespace
        case "metadata.uid":
            return metadata.uid
        case "metadata.labels":
            return format_map(metadata.labels)
        case "metadata.annotations":
            return format_map(metadata.annotations)
    subscript = _SUBSCRIPT.fullmatch(path)
    if subscript is None:
        raise FieldError(f"unsupported fieldPath: {path}")
    if subscript[1] == "metadata.annotations":
        return metadata.annotations.get(subscript[2], "")
    return metadata.labels.get(subscript[2], "")


def needs_node(pod: Pod, selector: ResourceFieldSelector) -> bool:
    """True when the value falls back to what the node can allocate."""
    which, _, resource = selector.resource.partition(".")
    return which == "limits" and _amount(_listed(pod, selector.containerName, which), resource) == 0


def resource_value(pod: Pod, selector: ResourceFieldSelector, allocatable: Mapping[str, int]) -> str:
    """The value of a `resourceFieldRef`, rounded up to whole divisors.

    `allocatable`: the node's, `cpu` in milli and the others in bytes; it stands in for limits that are not set.
    """
    which, _, resource = selector.resource.partition(".")
    known = resource in ("cpu", "memory", "ephemeral-storage") or resource.startswith("hugepages-")
    if which not in ("limits", "requests") or not known:
        raise FieldError(f"unsupported container resource : {selector.resource}")
    amount = _amount(_listed(pod, selector.containerName, which), resource)
    if amount == 0 and which == "limits" and not resource.startswith("hugepages-"):
        amount = _pod_limit(pod, resource) or allocatable.get(resource, 0)
    return str(-(-amount // _divisor(selector, resource)))


def _divisor(selector: ResourceFieldSelector, resource: str) -> int:
    divisor = _amount({resource: "0" if selector.divisor is None else selector.divisor}, resource)
    if divisor == 0:
        return MILLI if resource == "cpu" else 1
    return divisor


def _pod_limit(pod: Pod, resource: str) -> int:
    resources = pod.spec.resources
    return _amount(resources.limits, resource) if resources is not None else 0


def _listed(pod: Pod, name: str, which: str) -> Mapping[str, Quantity]:
    for container in (*pod.spec.containers, *pod.spec.initContainers):
        if container.name == name:
            resources = container.resources
            if resources is None:
                return {}
            return resources.limits if which == "limits" else resources.requests
    raise FieldError(f"container {name} not found")


def _amount(listed: Mapping[str, Quantity], resource: str) -> int:
    """Milli for cpu, whole units for the others; 0 when not listed."""
    if resource not in listed:
        return 0
    try:
        amount = parse(listed[resource])
    except QuantityError as error:
        raise FieldError(str(error)) from error
    return amount.milli_value() if resource == "cpu" else amount.value()

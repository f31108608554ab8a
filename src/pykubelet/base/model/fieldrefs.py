"""Resolves `fieldRef` and `resourceFieldRef` of the downward API. Pure.

Environment variables and files of volumes share this. Each caller adds the fields that only it offers, and has its own
error message for fields that it does not offer. Source: the Kubernetes documentation "Downward API"; KEP-2837 (limits of
the whole pod).
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import Container, EphemeralContainer, Pod, Quantity, ResourceFieldSelector
from pykubelet.base.api.fieldpaths import split_subscript
from pykubelet.base.api.labels import qualified_name_errors
from pykubelet.base.api.quantity import HUGE_PAGES, POD_LEVEL, QuantityError, in_units, parse
from pykubelet.base.model.containers import find_container, is_regular

_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_ENTRIES = ("metadata.labels", "metadata.annotations")


class FieldRefError(ValueError):
    """The reference cannot be resolved; the message gives the reason."""


def metadata_text(pod: Pod, path: str) -> str | None:
    """The pod's name, namespace, UID, or one label or annotation (empty if it is missing); None for all other fields.

    Raises FieldRefError for a key that no label or annotation can have.
    """
    metadata = pod.metadata
    match path:
        case "metadata.name":
            return metadata.name
        case "metadata.namespace":
            return metadata.namespace
        case "metadata.uid":
            return metadata.uid
    entry = split_subscript(path)
    if entry is None or entry[0] not in _ENTRIES:
        return None
    is_annotation = entry[0] == "metadata.annotations"
    problems = qualified_name_errors(entry[1].lower() if is_annotation else entry[1])
    if problems:
        raise FieldRefError(f"invalid key subscript in {path}: {';'.join(problems)}")
    return (metadata.annotations if is_annotation else metadata.labels).get(entry[1], "")


def needs_allocatable(pod: Pod, selector: ResourceFieldSelector) -> bool:
    """Whether the value falls back to the node's allocatable resources."""
    which, _, resource = selector.resource.partition(".")
    return which == "limits" and _amount(_listed(_find(pod, selector.containerName), which), resource) == 0


def file_resource_text(pod: Pod, selector: ResourceFieldSelector, allocatable: Mapping[str, int]) -> str:
    """The value of a volume's `resourceFieldRef` in whole divisors, rounded up.

    `allocatable`: the node's resources, cpu in milli and the others in bytes. They replace a limit that the container does
    not set, even if the pod as a whole has a limit.
    """
    return _resource_text(_find(pod, selector.containerName), selector, allocatable)


def variable_resource_text(
    pod: Pod, own: Container | EphemeralContainer, selector: ResourceFieldSelector, allocatable: Mapping[str, int]
) -> str:
    """The value of a variable's `resourceFieldRef`. `own`: the container of the variable, used if the selector names none.

    A limit that is not set is replaced by that of the whole pod, or else by the node's `allocatable`. For an init container
    that the selector names, nothing replaces it.
    """
    if not selector.containerName:
        return _resource_text(own, selector, _with_limits_of_pod(pod, allocatable))
    container = _find(pod, selector.containerName)
    stand_ins = _with_limits_of_pod(pod, allocatable) if is_regular(pod, container.name) else {}
    return _resource_text(container, selector, stand_ins)


def _resource_text(
    container: Container | EphemeralContainer, selector: ResourceFieldSelector, stand_ins: Mapping[str, int]
) -> str:
    which, _, resource = selector.resource.partition(".")
    is_huge = resource.startswith(HUGE_PAGES)
    if which not in ("limits", "requests") or not (resource in _RESOURCES or is_huge):
        raise FieldRefError(f"unsupported container resource : {selector.resource}")
    amount = _amount(_listed(container, which), resource)
    if amount == 0 and which == "limits" and not is_huge:
        amount = stand_ins.get(resource, 0)
    divisor = _amount({resource: selector.divisor} if selector.divisor is not None else {}, resource)
    return str(-(-amount // (divisor or (1000 if resource == "cpu" else 1))))


def _find(pod: Pod, name: str) -> Container:
    container = find_container(pod, name)
    if isinstance(container, Container):
        return container
    raise FieldRefError(f"container {name} not found")


def _listed(container: Container | EphemeralContainer, which: str) -> Mapping[str, Quantity]:
    resources = container.resources
    if resources is None:
        return {}
    return resources.limits if which == "limits" else resources.requests


def _amount(listed: Mapping[str, Quantity], resource: str) -> int:
    """The amount of `resource`: milli for cpu, whole units for the others; 0 if it is not listed."""
    if resource not in listed:
        return 0
    try:
        return in_units({resource: parse(listed[resource])})[resource]
    except QuantityError as error:
        raise FieldRefError(str(error)) from error


def _with_limits_of_pod(pod: Pod, allocatable: Mapping[str, int]) -> dict[str, int]:
    """`allocatable`, with the limits of the whole pod in its place where there are some (never for ephemeral storage)."""
    limits = pod.spec.resources.limits if pod.spec.resources is not None else {}
    return {name: (name in POD_LEVEL and _amount(limits, name)) or amount for name, amount in allocatable.items()}

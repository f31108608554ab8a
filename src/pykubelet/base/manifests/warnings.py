"""Finds fields of a manifest that have another effect than their author probably wants, or none. Pure.

Most are what the API server warns of; a node reads manifests without it. Structs ignore unknown fields: one that a user wrote is
usually misspelled. Source: KEP-1693, and the API reference of Pod.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from pykubelet.base.api.core import Container, Pod, PodSpec, Quantity, ResourceRequirements
from pykubelet.base.api.quantity import QuantityError, parse
from pykubelet.base.kit.text import nearest
from pykubelet.base.manifests.validation.errors import show

# Fields that a struct does not have

# The API has these fields; the structs leave them out.
_DROPPED = frozenset({"managedFields"})


@cache
def _fields_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The struct type inside each field, by JSON name; None for a field below which nothing can be unknown."""
    hints = get_type_hints(kind)
    names = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
    return {name: _inner(hints[attribute]) for name, attribute in names}


def _inner(hint: Any) -> type[msgspec.Struct] | None:
    """The struct type inside an optional, a tuple or a map; None if there is none."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    origin = get_origin(hint)
    if origin in (tuple, dict, Union, types.UnionType):
        return next((found for part in get_args(hint) if (found := _inner(part)) is not None), None)
    return None


class UnknownMember(NamedTuple):
    """A member that a struct does not have. `path`: such as `spec.containers[0].imagez`; `kind`: the struct; `name`: of the member."""

    path: str
    kind: type[msgspec.Struct]
    name: str

    @property
    def near(self) -> str | None:
        """The field of the struct that was probably meant."""
        return nearest(self.name, self.known)

    @property
    def known(self) -> Collection[str]:
        """The fields of the struct."""
        return _fields_of(self.kind).keys()


def unknown_fields(kind: type[msgspec.Struct], value: object, path: str = "") -> list[UnknownMember]:
    """The members of `value` that `kind` does not have, in document order."""
    if not isinstance(value, dict):
        return []
    fields = _fields_of(kind)
    found: list[UnknownMember] = []
    for name, item in value.items():
        at = f"{path}.{name}" if path else str(name)
        if name not in fields:
            if name not in _DROPPED:
                found.append(UnknownMember(at, kind, name))
            continue
        inner = fields[name]
        if inner is None:
            continue
        if isinstance(item, list):
            for i, element in enumerate(item):
                found += unknown_fields(inner, element, f"{at}[{i}]")
        else:
            found += unknown_fields(inner, item, at)
    return found


def without_unknown(kind: type[msgspec.Struct], value: Any) -> Any:
    """A copy of `value` without the members that `kind` does not have."""
    if isinstance(value, list):
        return [without_unknown(kind, item) for item in value]
    if not isinstance(value, dict):
        return value
    fields = _fields_of(kind)
    return {
        name: item if (inner := fields[name]) is None else without_unknown(inner, item)
        for name, item in value.items()
        if name in fields
    }


def huge_numbers(value: object) -> list[str]:
    """The paths of whole numbers of more than 64 bits. No API field can hold them, and the JSON encoder cannot write them."""
    return [steps.removeprefix(".") for steps in _huge_below(value)]


def _huge_below(value: object) -> list[str]:
    """The paths of the huge numbers. They are built while the recursion returns, so that other values cost nothing."""
    if isinstance(value, int):
        return [] if -(1 << 63) <= value < 1 << 63 else [""]
    if isinstance(value, dict):
        return [f".{name}{steps}" for name, item in value.items() for steps in _huge_below(item)]
    if isinstance(value, list):
        return [f"[{i}]{steps}" for i, item in enumerate(value) for steps in _huge_below(item)]
    return []


# Fields of a valid pod

#: Resources that are counted in bytes.
_BYTES = ("memory", "ephemeral-storage")
_SECCOMP = "securityContext.seccompProfile"
_SECCOMP_POD = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP_CONTAINER = "container.seccomp.security.alpha.kubernetes.io/"
_WITHOUT_EFFECT = {
    "scheduler.alpha.kubernetes.io/critical-pod": "priorityClassName",
    "security.alpha.kubernetes.io/sysctls": "securityContext.sysctls",
    "security.alpha.kubernetes.io/unsafe-sysctls": "securityContext.sysctls",
}


class PodWarning(NamedTuple):
    """`path`: of the field, such as `spec.containers[0].env[1]`. `reason`: what becomes of it."""

    path: str
    reason: str


def pod_warnings(pod: Pod) -> Iterator[PodWarning]:
    """The warnings about a pod, in the order of its fields."""
    spec = pod.spec
    yield from _annotations(pod)
    if (grace := spec.terminationGracePeriodSeconds) is not None and grace < 0:
        yield PodWarning("spec.terminationGracePeriodSeconds", "a negative time counts as 1")
    for at, container in _containers(spec):
        yield from _resources(container.resources, f"{at}.resources")
        yield from _env(container, f"{at}.env")
        for i, port in enumerate(container.ports):
            if port.hostIP and not port.hostPort:
                yield PodWarning(f"{at}.ports[{i}].hostIP", "has no effect without hostPort")
    yield from _port_names(spec)
    yield from _resources(spec.resources, "spec.resources")
    yield from _fractions(spec.overhead, "spec.overhead")
    for i, volume in enumerate(spec.volumes):
        if volume.emptyDir is not None and volume.emptyDir.sizeLimit is not None:
            yield from _fraction(volume.emptyDir.sizeLimit, f"spec.volumes[{i}].emptyDir.sizeLimit")


def _containers(spec: PodSpec) -> Iterator[tuple[str, Container]]:
    for i, container in enumerate(spec.initContainers):
        yield f"spec.initContainers[{i}]", container
    for i, container in enumerate(spec.containers):
        yield f"spec.containers[{i}]", container


def _annotations(pod: Pod) -> Iterator[PodWarning]:
    """Annotations that once had an effect. A container's annotation counts if its container has no field instead."""
    spec, context = pod.spec, pod.spec.securityContext
    open_names = {
        c.name for _, c in _containers(spec) if c.securityContext is None or c.securityContext.seccompProfile is None
    }
    old = {**_WITHOUT_EFFECT, **{f"{_SECCOMP_CONTAINER}{name}": _SECCOMP for name in open_names}}
    if context is None or context.seccompProfile is None:
        old[_SECCOMP_POD] = _SECCOMP
    for key in sorted(pod.metadata.annotations):
        if field := old.get(key):
            yield PodWarning(f"metadata.annotations[{key}]", f"has no effect: use the field {field}")


def _resources(resources: ResourceRequirements | None, path: str) -> Iterator[PodWarning]:
    if resources is None:
        return
    yield from _fractions(resources.limits, f"{path}.limits")
    for name, amount in resources.requests.items():
        if amount != resources.limits.get(name):  # an equal request is mostly the default
            yield from _fractions({name: amount}, f"{path}.requests")


def _fractions(amounts: Mapping[str, Quantity], path: str) -> Iterator[PodWarning]:
    for name in _BYTES:
        if name in amounts:
            yield from _fraction(amounts[name], f"{path}[{name}]")


def _fraction(amount: Quantity, path: str) -> Iterator[PodWarning]:
    try:
        found = parse(amount)
    except QuantityError:
        return
    if found.milli_value() % 1000:
        meant = f"; did you mean {str(amount)[:-1]}M or {str(amount)[:-1]}Mi?" if str(amount).endswith("m") else ""
        yield PodWarning(path, f'"{amount}" is not a whole number of bytes: it counts as {found.value()}{meant}')


def _env(container: Container, path: str) -> Iterator[PodWarning]:
    """Variables that replace an earlier one of the same name without using it."""
    names: set[str] = set()
    for i, variable in enumerate(container.env):
        used = f"$({variable.name})"
        is_extended = variable.valueFrom is None and used in variable.value and variable.value != used
        if variable.name in names and not is_extended:
            yield PodWarning(f"{path}[{i}]", f"replaces an earlier value of {show(variable.name)}")
        names.add(variable.name)


def _port_names(spec: PodSpec) -> Iterator[PodWarning]:
    """Names of ports that several containers have. Within one container they are an error."""
    first: dict[str, str] = {}
    for at, container in _containers(spec):
        for i, port in enumerate(container.ports):
            if port.name and (other := first.setdefault(port.name, f"{at}.ports[{i}]")) != f"{at}.ports[{i}]":
                yield PodWarning(f"{at}.ports[{i}].name", f"{other} has the same name, which counts for a Service")

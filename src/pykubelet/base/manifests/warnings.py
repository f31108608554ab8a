"""Finds fields of a valid pod that have another effect than their author probably wants, or none. Pure.

Most are what the API server warns of; a node reads manifests without it. Source: KEP-1693, and the API reference of Pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pykubelet.base.api.core import Container, Pod, PodSpec, Quantity, ResourceRequirements
from pykubelet.base.api.quantity import QuantityError, parse
from pykubelet.base.manifests.validation.errors import show

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

"""Sums of container resources, as the scheduler and the node count them, and the sizes of huge pages in their names. Pure.

For each resource, a pod needs the larger of two amounts: the sum over its containers and all restartable init containers,
and the highest need during its start (one init container together with the restartable ones before it).
Source: KEP-753 (sidecar containers), component-helpers' `AggregateContainerRequests`; the Kubernetes
documentation "Manage HugePages", the kernel's cgroup documents (hugetlb).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pykubelet.base.api.core import Container, PodSpec, Quantity
from pykubelet.base.api.labels import qualified_name_errors
from pykubelet.base.api.quantity import MILLI_IN_NANO, NANO, Amount, Format, QuantityError, parse, parse_text

HUGE_PAGES = "hugepages-"
_BINARY_UNITS = ((1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))
_KERNEL_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


def page_size(resource: str) -> int | None:
    """The page size in bytes of a resource like `hugepages-2Mi`; None for other resources and unreadable sizes."""
    if not resource.startswith(HUGE_PAGES):
        return None
    try:
        size = parse_text(resource.removeprefix(HUGE_PAGES)).value()
    except QuantityError:
        return None
    return size if size > 0 else None


def page_resource(size: int) -> str:
    """The resource name for pages of `size` bytes: `hugepages-2Mi`."""
    for unit, name in _BINARY_UNITS:
        if size % unit == 0:
            return f"{HUGE_PAGES}{size // unit}{name}"
    return f"{HUGE_PAGES}{size}"


def page_size_name(size: int) -> str:
    """`size` bytes as the kernel's control files spell them: `2MB`, `1GB`."""
    unit = 0
    while size and size % 1024 == 0 and unit < len(_KERNEL_UNITS) - 1:
        size //= 1024
        unit += 1
    return f"{size}{_KERNEL_UNITS[unit]}"


_QUOTA_PREFIX = "requests."
POD_LEVEL = frozenset({"cpu", "memory"})
_ZERO = Amount(0)
_DECIMAL = frozenset({"cpu", "pods", "pid"})


def is_native(name: str) -> bool:
    """Whether Kubernetes itself defines the resource: its name has no domain, or that of kubernetes.io."""
    return "/" not in name or "kubernetes.io/" in name


def is_extended(name: str) -> bool:
    """Whether it is an extended resource: its name has a domain of its own."""
    if is_native(name) or name.startswith(_QUOTA_PREFIX):
        return False
    return not qualified_name_errors(_QUOTA_PREFIX + name)


def is_pod_level(resource: str) -> bool:
    """Whether `spec.resources` of a pod may list the resource (KEP-2837)."""
    return resource in POD_LEVEL or resource.startswith(HUGE_PAGES)


def in_units(amounts: Mapping[str, Amount]) -> dict[str, int]:
    """The amounts in the node's units: `cpu` in milli, the others in whole bytes or pieces, rounded up."""
    return {name: amount.milli_value() if name == "cpu" else amount.value() for name, amount in amounts.items()}


def format_units(resource: str, amount: int) -> str:
    """Format an amount in the units of `in_units` as a quantity: bytes with binary suffixes, others with decimal ones."""
    nano = amount * (MILLI_IN_NANO if resource == "cpu" else NANO)
    return str(Amount(nano, Format.DECIMAL_SI if resource in _DECIMAL else Format.BINARY_SI))


def _requests(container: Container) -> Mapping[str, Quantity]:
    return container.resources.requests if container.resources else {}


def _limits(container: Container) -> Mapping[str, Quantity]:
    return container.resources.limits if container.resources else {}


def _add(into: dict[str, Amount], more: Mapping[str, Amount]) -> None:
    for name, amount in more.items():
        into[name] = into[name] + amount if name in into else amount


def _sum(spec: PodSpec, listed: Callable[[Container], Mapping[str, Quantity]]) -> dict[str, Amount]:
    total: dict[str, Amount] = {}
    for container in spec.containers:
        _add(total, {name: parse(quantity) for name, quantity in listed(container).items()})
    sidecars: dict[str, Amount] = {}
    start_up: dict[str, Amount] = {}
    for container in spec.initContainers:
        own = {name: parse(quantity) for name, quantity in listed(container).items()}
        if container.restartPolicy == "Always":
            _add(total, own)
            _add(sidecars, own)
            continue
        for name, amount in own.items():  # what only the sidecars need is in the total
            moment = amount + sidecars.get(name, _ZERO)
            start_up[name] = max(start_up.get(name, _ZERO), moment, key=lambda item: item.nano)
    for name, amount in start_up.items():
        total[name] = max(total.get(name, _ZERO), amount, key=lambda item: item.nano)
    return total


def sum_container_requests(spec: PodSpec) -> dict[str, Amount]:
    """The requests of a pod's containers together, by resource. Raises QuantityError for an unreadable amount."""
    return _sum(spec, _requests)


def sum_container_limits(spec: PodSpec) -> dict[str, Amount]:
    """The limits of a pod's containers together, by resource; containers without a limit are left out."""
    return _sum(spec, _limits)

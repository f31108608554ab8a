"""Huge page sizes in the names of resources (`hugepages-2Mi`) and of the kernel's control files (`2MB`). Pure.

Source: the Kubernetes documentation "Manage HugePages", the kernel's cgroup documents (hugetlb).
"""

from __future__ import annotations

from pykubelet.base.api.quantity import QuantityError, parse_text

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

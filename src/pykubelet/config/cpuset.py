"""CPU lists (`0-3,7`) as the kernel and the reference write them. Pure."""

from __future__ import annotations

from pykubelet.base.kit.digits import parse_decimal

MAX_CPU = 2**20  # far above any machine; a typing error must not eat the memory


def parse_cpuset(text: str) -> frozenset[int]:
    """CPU ids of a list; the empty text is the empty set. Raises ValueError that says what is wrong."""
    cpus: set[int] = set()
    if not text:
        return frozenset()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low = parse_decimal(first)
        high = parse_decimal(last) if dash else low
        if low is None or high is None:
            raise ValueError(f'"{part}" is not a CPU number or a range like 0-3')
        if low > high:
            raise ValueError(f"invalid range {part} ({low} > {high})")
        if high > MAX_CPU:
            raise ValueError(f"CPU {high} is too large")
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def format_cpuset(cpus: frozenset[int]) -> str:
    """The shortest list: sorted, runs as ranges."""
    parts: list[str] = []
    start = previous = -2
    for cpu in [*sorted(cpus), -1]:
        if cpu == previous + 1:
            previous = cpu
            continue
        if start >= 0:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = cpu
    return ",".join(parts)

"""Parses and formats CPU lists (`0-3,7`), as the kernel and the reference write them. Pure."""

from __future__ import annotations

from pykubelet.base.kit.text import parse_decimal

MAX_CPU = 2**20  # far above any machine; without a limit, a typing error could use up the memory


def parse_cpuset(text: str) -> frozenset[int]:
    """Parse a list into CPU ids. Empty text gives the empty set. Raises ValueError with the problem."""
    cpus: set[int] = set()
    if not text:
        return frozenset()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low = _number(first)
        high = _number(last) if dash else low
        if low > high:
            raise ValueError(f'invalid range "{part}" ({low} > {high})')
        if high > MAX_CPU:
            raise ValueError(f"CPU {high} is too large")
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def _number(text: str) -> int:
    number = parse_decimal(text)
    if number is None:
        raise ValueError(f'"{text}" is not the number of a CPU')
    return number


def format_cpuset(cpus: frozenset[int]) -> str:
    """Format CPU ids as the shortest list: sorted, consecutive ids as ranges."""
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

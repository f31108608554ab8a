"""Formats amounts for people."""

from __future__ import annotations

BYTE_UNITS = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))


def render_amount(amount: float | None, unit: str, sign: str = "") -> str:
    """Format an amount of a signal: 23.3Gi for bytes, 12.5% for basis points, else the number. `sign` "+": also for positive ones."""
    if amount is None:
        return "?"
    if unit == "basis points":
        return f"{amount / 100:{sign}.1f}%"
    sizes = BYTE_UNITS if unit == "bytes" else ()
    size, suffix = next(((size, suffix) for size, suffix in sizes if abs(amount) >= size), (1, ""))
    return f"{amount / size:{sign}.{1 if suffix else 0}f}{suffix}"


def render_bytes(size: int) -> str:
    """Format a size with one decimal at most: 32Gi, 62.8Gi."""
    number, _, unit = render_amount(size, "bytes").partition(".0")
    return number + unit

"""Parses boolean text as the reference does."""

from __future__ import annotations

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def parse_bool(text: str) -> bool:
    """Parse a Go boolean. Raises ValueError with the problem."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f'"{text}" is not a boolean: must be true or false')

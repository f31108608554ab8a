"""The hash FNV-1a with 32 bits. Source: draft-eastlake-fnv."""

from __future__ import annotations

_OFFSET = 0x811C9DC5
_PRIME = 0x01000193


def fnv1a_32(data: bytes) -> int:
    """The hash of `data`, from 0 to 2^32-1."""
    value = _OFFSET
    for byte in data:
        value = ((value ^ byte) * _PRIME) & 0xFFFFFFFF
    return value

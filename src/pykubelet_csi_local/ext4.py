"""Reads the size of an ext4 file system from its superblock. Pure.

Source: the kernel's documentation "ext4 Data Structures and Algorithms", Super Block.
"""

from __future__ import annotations

#: Where the superblock is, and how much of it is read.
OFFSET, LENGTH = 1024, 1024
_MAGIC = 0xEF53
_HAS_64_BITS = 0x80


def file_system_bytes(superblock: bytes) -> int:
    """The size of the file system in bytes; 0 if `superblock` is none of ext4."""

    def number(at: int, length: int = 4) -> int:
        return int.from_bytes(superblock[at : at + length], "little")

    shift = number(0x18)
    if len(superblock) < LENGTH or number(0x38, 2) != _MAGIC or shift > 6:
        return 0
    blocks = number(0x4) + ((number(0x150) << 32) if number(0x60) & _HAS_64_BITS else 0)
    return blocks << (10 + shift)


def is_smaller(superblock: bytes, device_bytes: int) -> bool:
    """Whether the file system leaves a block or more of its device unused."""
    size = file_system_bytes(superblock)
    return size > 0 and size + (1024 << int.from_bytes(superblock[0x18:0x1C], "little")) <= device_bytes

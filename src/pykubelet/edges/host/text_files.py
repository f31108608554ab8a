"""Small files of the kernel: texts, numbers and tables. Blocks, for microseconds a file.

What is not there, or has gone with the group or process behind it, reads as nothing.
"""

from __future__ import annotations

import os


def read_file(path: str) -> str:
    """The content; "" when there is no such file, or the group behind it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 1 << 16).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def read_number(path: str) -> int | None:
    text = read_file(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def read_table(path: str) -> dict[str, int]:
    """Lines of a name and a number."""
    table = {}
    for line in read_file(path).splitlines():
        name, _, number = line.partition(" ")
        if number.strip().isdigit():
            table[name] = int(number)
    return table

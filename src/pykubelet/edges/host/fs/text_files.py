"""Small files of the kernel: texts, numbers and tables. Blocks, for microseconds a file.

What is not there, or has gone with the group or process behind it, reads as nothing.
"""

from __future__ import annotations

import os

_DIGITS = frozenset("-0123456789")


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
    return int(text) if text[:1] in _DIGITS and text.lstrip("-").isdigit() else None


def read_table(path: str) -> dict[str, int]:
    """Lines of a name and a number; others are left out."""
    text = read_file(path)
    words = text.split()
    if len(words) == 2 * text.count("\n"):  # as a rule each line is one, and a scrape reads many files of 60 lines
        try:
            return dict(zip(words[::2], map(int, words[1::2]), strict=True))
        except ValueError:
            pass
    table = {}
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if number.strip().isdigit():
            table[name] = int(number)
    return table

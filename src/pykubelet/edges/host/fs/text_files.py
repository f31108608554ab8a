"""Reads small files of the kernel: texts, numbers and tables. Blocks for microseconds per file.

A file that does not exist, or whose cgroup or process is gone, reads as empty.
"""

from __future__ import annotations

import os

_DIGITS = frozenset("-0123456789")


def read_file(path: str) -> str:
    """The content; "" if the file does not exist or its cgroup is gone."""
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
    """The content as an integer; None if the file does not exist or contains something else (`max`)."""
    text = read_file(path).strip()
    return int(text) if text[:1] in _DIGITS and text.lstrip("-").isdigit() else None


def read_table(path: str) -> dict[str, int]:
    """The numbers by name, from lines of a name and a number. Other lines are left out."""
    text = read_file(path)
    words = text.split()
    if len(words) == 2 * text.count("\n"):  # usually all lines match, and a scrape reads many files of 60 lines
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

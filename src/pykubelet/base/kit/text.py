"""Text from outside: cut to a size that may be kept in statuses, Events and logs, and made safe to show on a terminal."""

from __future__ import annotations

import re

_MARK = "..."


def shorten(text: str, most: int) -> str:
    """At most `most` characters of `text`. Text that was cut ends with three dots."""
    return text if len(text) <= most else text[: most - len(_MARK)] + _MARK


#: C0, DEL and C1 of ISO 6429, which control a terminal. A line feed is left out: it only begins a new line.
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def escape_controls(text: str) -> str:
    """`text` with all control characters but line feeds written as `\\x1b`."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def has_controls(text: str) -> bool:
    """Whether `escape_controls` changes it."""
    return _CONTROL.search(text) is not None

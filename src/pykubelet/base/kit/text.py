"""Cuts text from outside to a size that may be kept in statuses, Events and logs."""

from __future__ import annotations

_MARK = "..."


def shorten(text: str, most: int) -> str:
    """At most `most` characters of `text`. Text that was cut ends with three dots."""
    return text if len(text) <= most else text[: most - len(_MARK)] + _MARK

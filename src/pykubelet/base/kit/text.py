"""Text from outside, cut to a size that may be kept in statuses, Events and logs."""

from __future__ import annotations

_MARK = "..."


def shorten(text: str, most: int) -> str:
    """At most `most` characters of `text`; where something is left out it ends with three dots."""
    return text if len(text) <= most else text[: most - len(_MARK)] + _MARK

"""The known name that a mistyped one is nearest to. Pure."""

from __future__ import annotations

from collections.abc import Iterable

#: A name that is at least as similar is a mistyped one, not a longer word for a short one.
_MISTYPED = 0.75
_MIN_SHORT = 3


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The most similar of the `known` names, whatever the case of their letters; None if none is similar.

    If none is very similar, a name that the given one begins with is: `env` for `environment`.
    """
    import difflib  # only after a mistake

    by_lower = {one.lower(): one for one in known}
    lower = name.lower()
    if found := difflib.get_close_matches(lower, by_lower, n=1, cutoff=max(cutoff, _MISTYPED)):
        return by_lower[found[0]]
    if short := max((one for one in by_lower if len(one) >= _MIN_SHORT and lower.startswith(one)), key=len, default=""):
        return by_lower[short]
    found = difflib.get_close_matches(lower, by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None

"""`$(VAR)` references in commands, arguments, environment values and sub-paths. Pure.

Rules (source: Kubernetes docs, "Define Dependent Environment Variables"): `$(NAME)` is replaced by the value of NAME;
`$$` is a literal `$`, so `$$(NAME)` stays `$(NAME)`; a reference to an unknown name, a `$` before anything else, and an
unclosed `$(` stay as they are. Inserted values are not expanded again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, *variables: Mapping[str, str]) -> str:
    """`text` with its references resolved; the first mapping that has the name wins."""
    if "$" not in text:
        return text

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return "$"
        for mapping in variables:
            if name in mapping:
                return mapping[name]
        return match[0]

    return _REFERENCE.sub(value, text)


def expand_all_known(text: str, variables: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """As `expand`, where every name must have a value. Returns the text, and the sorted names that are unknown or empty."""
    missing: set[str] = set()

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return "$"
        found = variables.get(name, "")
        if not found:
            missing.add(name)
        return found

    return _REFERENCE.sub(value, text), tuple(sorted(missing))

"""What the node has of SELinux, and which words of a pod may become a part of an SELinux context. Pure.

The API server takes any text as a level, and Pod Security restricts user, role and type only. The text becomes an option of
mounts, of the agent and of the runtime, in which a quote or comma would begin another option.

Source: the SELinux Notebook, "Security Context" and "Multi-Level and Multi-Category Security".
"""

from __future__ import annotations

import re

from pykubelet.base.api.core import SELinuxOptions
from pykubelet.base.kit.values import Value

_MAX_LENGTH, _SHOWN = 4096, 100
_IDENTIFIER = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_CATEGORIES = r"c[0-9]+(?:\.c[0-9]+)?(?:,c[0-9]+(?:\.c[0-9]+)?)*"
_LEVEL = rf"s[0-9]+(?::{_CATEGORIES})?"
_RANGE = re.compile(rf"{_LEVEL}(?:-{_LEVEL})?")


class SelinuxHost(Value):
    """`file_context`: the context of files of containers, such as `system_u:object_r:container_file_t:s0`; "" if it is not known.

    `mounts_all`: volumes of any access mode are mounted with a context, not only those of one pod (the gate SELinuxMount).
    """

    is_enabled: bool = False
    file_context: str = ""
    mounts_all: bool = False


def options_problem(options: SELinuxOptions) -> str:
    """Why the options cannot be used in a context; empty if they can."""
    for name in ("user", "role", "type"):
        value: str = getattr(options, name)
        if value and not _IDENTIFIER.fullmatch(value):
            return _invalid(name, value, "must have at most 255 letters, digits, '_', '.' and '-'")
    if options.level and (len(options.level) > _MAX_LENGTH or not _RANGE.fullmatch(options.level)):
        return _invalid("level", options.level, "must be a level such as s0, s0:c1,c2 or s0-s1:c0.c1023")
    return ""


def _invalid(name: str, value: str, rule: str) -> str:
    shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
    return f"seLinuxOptions.{name}: Invalid value: {shown!a}: {rule}"

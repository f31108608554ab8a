"""Which rotated logs of a container stay, go, or get compressed. Pure.

A container that writes to `0.log` leaves `0.log.<UTC time>`, which the next rotation compresses to
`0.log.<UTC time>.gz` by way of `....tmp`. So the newest part stays as it is, for those who are still reading it.
Source: the Kubernetes documentation "Logging Architecture" (log rotation).
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.base.api.times import format_time
from pykubelet.base.kit.values import Value

GZIP = ".gz"
TEMPORARY = ".tmp"


class RotationPlan(Value):
    """File names: first `remove`, oldest first, then `compress`; then the log itself is renamed."""

    remove: tuple[str, ...]
    compress: tuple[str, ...]


def rotated_name(log_name: str, wall: float) -> str:
    """`0.log.20060102-150405`; `wall`: seconds since the epoch. Names sort by time."""
    date, _, time = format_time(wall).removesuffix("Z").partition("T")
    return f"{log_name}.{date.replace('-', '')}-{time.replace(':', '')}"


def plan_rotation(log_name: str, names: Iterable[str], max_files: int) -> RotationPlan:
    """What to do before the log is rotated. `names`: all files of its directory; `max_files` counts the log too.

    Leftovers of an interrupted compression go. After the rotation there are the log and the part just rotated, so that
    `max_files` - 2 older parts may stay.
    """
    rotated = sorted(name for name in names if name.startswith(f"{log_name}."))
    present = set(rotated)
    unused = [name for name in rotated if name.endswith(TEMPORARY) or name + GZIP in present]
    used = [name for name in rotated if name not in unused]
    excess = max(0, len(used) - max(0, max_files - 2))
    stay = used[excess:]
    return RotationPlan((*unused, *used[:excess]), tuple(name for name in stay if not name.endswith(GZIP)))

"""Decides which rotated logs of a container are kept, removed or compressed. Pure.

Rotation renames `0.log` to `0.log.<UTC time>`. The next rotation compresses this part to `0.log.<UTC time>.gz`, through a
file with the suffix `.tmp`. The newest part stays uncompressed for clients that still read it.
Source: the Kubernetes documentation "Logging Architecture" (log rotation).
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.base.api.times import format_time
from pykubelet.base.kit.values import Value

GZIP = ".gz"
TEMPORARY = ".tmp"


class RotationPlan(Value):
    """File names to `remove`, oldest first, and then to `compress`. The log itself is renamed afterwards."""

    remove: tuple[str, ...]
    compress: tuple[str, ...]


def rotated_name(log_name: str, wall: float) -> str:
    """The name of a rotated log, such as `0.log.20060102-150405`. `wall`: seconds since the epoch. Names sort by time."""
    date, _, time = format_time(wall).removesuffix("Z").partition("T")
    return f"{log_name}.{date.replace('-', '')}-{time.replace(':', '')}"


def plan_rotation(log_name: str, names: Iterable[str], max_files: int) -> RotationPlan:
    """What to do before the log is rotated. `names`: all files of its directory; `max_files` counts the log too.

    Leftovers of an interrupted compression are removed. After the rotation, the log and the part just rotated exist, so
    `max_files` - 2 older parts are kept.
    """
    rotated = sorted(name for name in names if name.startswith(f"{log_name}."))
    present = set(rotated)
    unused = [name for name in rotated if name.endswith(TEMPORARY) or name + GZIP in present]
    used = [name for name in rotated if name not in unused]
    excess = max(0, len(used) - max(0, max_files - 2))
    stay = used[excess:]
    return RotationPlan((*unused, *used[:excess]), tuple(name for name in stay if not name.endswith(GZIP)))

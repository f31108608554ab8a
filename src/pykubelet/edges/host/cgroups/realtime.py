"""Time for real-time scheduling (SCHED_FIFO, SCHED_RR) of a cgroup of version 1, on kernels with RT_GROUP_SCHED.

A cgroup has none at first, and its processes cannot choose these policies. The kernel refuses more than the parent has left. So
what a cgroup gets, its parents get first. They keep it: it is divided anew among what comes later.
Source: the kernel's documentation, "Real-Time group scheduling".
"""

from __future__ import annotations

import os

from pykubelet.base.kit.text import parse_decimal
from pykubelet.edges.host.cgroups.cgroups import join, read_control, sub_groups, write_control
from pykubelet.edges.host.cgroups.cgroups_v1 import CgroupsV1
from pykubelet.edges.host.fs.errors import HostError, suppress_not_found, translated

FILE = "cpu.rt_runtime_us"


def give_realtime(cgroups: CgroupsV1, top: str, path: str, runtime_us: int) -> None:
    """Set the time of the cgroup at `path`, in microseconds of each period, and raise that of its parents up to `top`.

    The cgroup is made if it does not exist. Raises HostError.
    """
    root, directory = cgroups.directory("cpu", "/"), cgroups.directory("cpu", path)
    if root is None or directory is None:
        raise HostError("write", f"{path}/{FILE}", "ENOENT", "no such controller")
    if not os.path.isdir(directory):
        if not runtime_us:
            return
        try:
            os.mkdir(directory, 0o755)
        except OSError as error:
            raise translated("mkdir", directory, error) from error
    highest = join(root, top)
    writes, here, wanted = [(directory, runtime_us)], directory, runtime_us
    while here not in (highest, root):
        parent, name = os.path.split(here)
        others = sum(_time_of(f"{parent}/{child}") for child in sub_groups(parent) if child != name)
        here, wanted = parent, max(_time_of(parent), others + wanted)
        writes.append((here, wanted))
    for folder, amount in reversed(writes):
        if folder != root and amount != _time_of(folder):
            write_control(f"{folder}/{FILE}", str(amount))


def _time_of(directory: str) -> int:
    with suppress_not_found:
        return parse_decimal(read_control(f"{directory}/{FILE}")) or 0
    return 0

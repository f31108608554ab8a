"""Chooses the cgroup driver of this machine by the mounted cgroup file systems."""

from __future__ import annotations

import os

from pykubelet.edges.host.cgroups.cgroup_stats import own_group
from pykubelet.edges.host.cgroups.cgroup_values import CgroupVersion
from pykubelet.edges.host.cgroups.cgroups import Cgroups, Units, join
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.mounts import read_mounts_of_type

ROOT = "/sys/fs/cgroup"
_NO_CONTROLLERS = frozenset({"rw", "ro", "xattr", "clone_children", "noprefix", "cpuset_v2_mode", "none", "all"})


def detect_cgroups(proc: str = "/proc", units: Units | None = None) -> Cgroups:
    """The driver for the cgroup file systems at and below `ROOT`. Raises HostError if none is mounted."""
    from pykubelet.edges.host.cgroups.cgroups_v1 import CgroupsV1, Hierarchy  # only the version in use is loaded
    from pykubelet.edges.host.cgroups.cgroups_v2 import CgroupsV2

    hierarchies = []
    unified: str | None = None
    for mount in read_mounts_of_type("cgroup", "cgroup2", proc=proc):
        if mount.fs_type == "cgroup2" and mount.target == ROOT:
            return CgroupsV2(ROOT, units)
        if not mount.target.startswith(ROOT + "/"):
            continue
        if mount.fs_type == "cgroup2":
            unified = mount.target
        elif mount.fs_type == "cgroup":
            options = set(mount.super_options) - _NO_CONTROLLERS
            names = frozenset(o for o in options if "=" not in o or o.startswith("name="))
            hierarchies.append(Hierarchy(mount.target, names))
    if not hierarchies:
        raise HostError("detect", ROOT, "", "no cgroup file system is mounted")
    return CgroupsV1(tuple(hierarchies), unified, units)


def can_limit_cpu(version: CgroupVersion, proc: str = "/proc") -> bool:
    """Whether the kernel has the files that limit CPU time. They are not looked for on version 2, as the reference does not."""
    if version is CgroupVersion.V2:
        return True
    mounts = [mount.target for mount in read_mounts_of_type("cgroup", proc=proc) if "cpu" in mount.super_options]
    return bool(mounts) and all(os.path.exists(f"{mounts[-1]}/cpu.cfs_{name}_us") for name in ("period", "quota"))


def can_limit_swap(version: CgroupVersion, ROOT: str = ROOT, proc: str = "/proc") -> bool:
    """Whether the kernel has the files that limit swap. Source: the Kubernetes documentation "Swap memory management".

    On version 2 the ROOT cgroup does not have them, so the cgroup of this process is checked.
    """
    if version is CgroupVersion.V1:
        return os.path.exists(f"{ROOT}/memory/memory.memsw.limit_in_bytes")
    try:
        group = own_group(proc, ("",))
    except HostError:
        return False
    return os.path.exists(f"{join(ROOT, group)}/memory.swap.max")

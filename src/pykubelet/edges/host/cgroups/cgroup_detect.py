"""Which cgroup driver this machine wants: what is mounted decides."""

from __future__ import annotations

from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.mounts import read_mounts

DEFAULT_ROOT = "/sys/fs/cgroup"
_NO_CONTROLLERS = frozenset({"rw", "ro", "xattr", "clone_children", "noprefix", "cpuset_v2_mode", "none", "all"})


def detect_cgroups(root: str = DEFAULT_ROOT, proc: str = "/proc") -> Cgroups:
    """The driver for what is mounted at and below `root`. HostError when nothing is."""
    from pykubelet.edges.host.cgroups.cgroups_v1 import CgroupsV1, Hierarchy  # only the version in use is loaded
    from pykubelet.edges.host.cgroups.cgroups_v2 import CgroupsV2

    hierarchies = []
    unified: str | None = None
    for mount in read_mounts(proc):
        if mount.fs_type == "cgroup2" and mount.target == root:
            return CgroupsV2(root)
        if not mount.target.startswith(root + "/"):
            continue
        if mount.fs_type == "cgroup2":
            unified = mount.target
        elif mount.fs_type == "cgroup":
            options = set(mount.super_options) - _NO_CONTROLLERS
            names = frozenset(o for o in options if "=" not in o or o.startswith("name="))
            hierarchies.append(Hierarchy(mount.target, names))
    if not hierarchies:
        raise HostError("detect", root, "", "no cgroup file system is mounted")
    return CgroupsV1(tuple(hierarchies), unified)

"""Limits that Docker Engine has no field for: files of cgroup version 2 (`unified`), and huge pages. Pure.

Source: the CRI API (LinuxContainerResources), the kernel's "Control Group v2" and "HugeTLB Controller".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pykubelet.base.kit.values import replace
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits, CgroupVersion
from pykubelet_cri_docker.errors import invalid

#: Files of `unified`, and sizes of huge pages.
MAX_FILES = 64
#: Characters of what is written to a file, which may have several lines.
MAX_VALUE = 4096
HUGE_PAGES = "hugetlb"
_UNIFIED = "linux.resources.unified"
#: A file of a controller, such as `memory.high` and `hugetlb.2MB.max`: no path, and none of `cgroup.kill` and `cgroup.procs`.
_FILE = re.compile(r"(?!cgroup\.)[a-z][a-z0-9_]{0,31}(\.[A-Za-z0-9_-]{1,64}){1,4}", re.ASCII)
_VALUE = re.compile(r"[ -~]+(\n[ -~]+)*\n?", re.ASCII)
_PAGE_SIZE = re.compile(r"[1-9][0-9]{0,9}[KMGT]B", re.ASCII)


def cgroup_limits(resources: pb.LinuxContainerResources) -> CgroupLimits:
    """The limits to write to files. Raises RpcError for names and values that no file of a controller can have."""
    if len(resources.unified) > MAX_FILES:
        raise invalid(_UNIFIED, f"has more than {MAX_FILES} files")
    for name, value in resources.unified.items():
        if not _FILE.fullmatch(name):
            raise invalid(_UNIFIED, f"{name[:MAX_FILES]!r} is no file of a cgroup controller")
        if len(value) > MAX_VALUE or not _VALUE.fullmatch(value):
            raise invalid(f"{_UNIFIED}[{name}]", f"must be lines of at most {MAX_VALUE} printable characters")
    if len(resources.hugepage_limits) > MAX_FILES:
        raise invalid("linux.resources.hugepage_limits", f"has more than {MAX_FILES} sizes")
    for limit in resources.hugepage_limits:
        if not _PAGE_SIZE.fullmatch(limit.page_size):
            raise invalid(
                "linux.resources.hugepage_limits", f"{limit.page_size[:MAX_FILES]!r} is no size of huge pages"
            )
    sizes = {limit.page_size: limit.limit for limit in resources.hugepage_limits}
    return CgroupLimits(huge_pages=sizes, unified=dict(resources.unified))


def possible(limits: CgroupLimits, version: CgroupVersion, controllers: Iterable[str]) -> CgroupLimits:
    """The limits that the machine has files for: without huge pages where it lacks their controller, as containerd does by default.

    Raises RpcError for any other file that it does not have.
    """
    known = frozenset(controllers)
    if limits.unified and version is not CgroupVersion.V2:
        raise invalid(_UNIFIED, "the machine has cgroup version 1")
    for name in limits.unified:
        controller = name.partition(".")[0]
        if controller not in known:
            raise invalid(_UNIFIED, f"the machine has no cgroup controller {controller!r}, to which {name} belongs")
    return limits if HUGE_PAGES in known else replace(limits, huge_pages={})


def merged(before: pb.LinuxContainerResources, update: pb.LinuxContainerResources) -> pb.LinuxContainerResources:
    """`unified` and the limits of huge pages after an update, which has only what changes."""
    sizes = {limit.page_size: limit.limit for limit in (*before.hugepage_limits, *update.hugepage_limits)}
    return pb.LinuxContainerResources(
        unified={**before.unified, **update.unified},
        hugepage_limits=[pb.HugepageLimit(page_size=size, limit=limit) for size, limit in sizes.items()],
    )

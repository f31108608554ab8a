"""The resources of a container as values of cgroup files, which extensions may change. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from pykubelet.act.runtime.render.context import AnyContainer, RenderSettings
from pykubelet.base.api.core import Container, Pod
from pykubelet.base.model.ids import ContainerID
from pykubelet.edges.cri import cri_pb2
from pykubelet.edges.host.cgroups.cgroup_values import UNLIMITED, shares_to_weight, weight_to_shares

MAX = "max"
#: Microseconds of each second for SCHED_FIFO and SCHED_RR, on cgroup v1.
REALTIME = "cpu.rt_runtime_us"
#: Sets it for a container that is not running yet, or runs. Returns the error, or an empty string.
GiveRealtime = Callable[[Pod, ContainerID, int], Awaitable[str]]


def ask_extensions(
    resources: cri_pb2.LinuxContainerResources,
    pod: Pod,
    container: AnyContainer,
    settings: RenderSettings,
    *,
    is_new: bool = False,
) -> int | None:
    """Change the rendered resources as extensions want it. In the main thread only. `is_new`: the container is about to be created.

    Returns the value of `REALTIME`, for which the runtime has no field; None: it stays as it is.
    """
    if settings.ask_extensions is None or not isinstance(container, Container):
        return None
    changed = dict(settings.ask_extensions(pod, container.name, values_of(resources), is_new))
    realtime = changed.pop(REALTIME, None)
    change_values(resources, changed, cgroup_v2=settings.cgroup_v2)
    return int(realtime) if realtime is not None else None


def values_of(resources: cri_pb2.LinuxContainerResources) -> dict[str, str]:
    """What is written for the container, under the names of the files of cgroup v2."""
    limit, swap = resources.memory_limit_in_bytes, resources.memory_swap_limit_in_bytes
    values = {"cpu.weight": str(shares_to_weight(resources.cpu_shares)), "memory.max": str(limit) if limit > 0 else MAX}
    if resources.cpu_period:
        values["cpu.max"] = f"{resources.cpu_quota if resources.cpu_quota > 0 else MAX} {resources.cpu_period}"
    if swap > 0:  # cgroup v1, where it is the limit of both
        values["memory.swap.max"] = str(swap - limit)
    for found in resources.hugepage_limits:
        values[_huge_file(found)] = str(found.limit)
    for name, cpuset in (("cpuset.cpus", resources.cpuset_cpus), ("cpuset.mems", resources.cpuset_mems)):
        if cpuset:
            values[name] = cpuset
    return {**values, **resources.unified}


def change_values(resources: cri_pb2.LinuxContainerResources, changed: Mapping[str, str], *, cgroup_v2: bool) -> None:
    """Set other values of these files, which are right."""
    for name, text in changed.items():
        if name == "cpu.weight":
            resources.cpu_shares = weight_to_shares(int(text))
            if cgroup_v2:  # runtimes differ in how they convert shares
                resources.unified[name] = text
        elif name == "cpu.max":
            quota, period = text.split()
            resources.cpu_quota, resources.cpu_period = _amount(quota), int(period)
        elif name == "memory.max":
            resources.memory_limit_in_bytes = _amount(text)
            if resources.memory_swap_limit_in_bytes:  # of both: as ever, no swap is left
                resources.memory_swap_limit_in_bytes = _amount(text)
        elif name.startswith("hugetlb."):
            for found in resources.hugepage_limits:
                if _huge_file(found) == name:
                    found.limit = int(text)
        else:
            resources.unified[name] = text


def _huge_file(found: cri_pb2.HugepageLimit) -> str:
    return f"hugetlb.{found.page_size}.max"


def _amount(text: str) -> int:
    return UNLIMITED if text == MAX else int(text)

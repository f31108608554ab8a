"""The files of cgroups that extensions may change, under their names of cgroup v2, and what each may contain. Pure.

Left out are files that another program than the agent or the container runtime writes too (systemd: `io.weight`,
`memory.zswap.max`), files that refuse what the agent writes (`cpu.idle`), and `cpuset.*`, which the CPU and Memory Manager write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

from pykubelet.act.runtime.render.container_values import REALTIME
from pykubelet.app.extensions.guard import WrongAnswer
from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.cgroups.cgroup_values import CgroupVersion

#: Files in one answer of an extension.
MAX_VALUES = 64
#: Characters of a file's name, and of its value.
MAX_VALUE = 64
MAX_BYTES = (1 << 63) - 1
#: The least `memory.max`, in bytes: no program starts with less.
MIN_MEMORY = 1 << 20
MAX = "max"
_HUGE = re.compile(r"hugetlb\.[0-9]{1,4}[KMG]B\.max")
_BANDWIDTH = re.compile(r"(max|[0-9]{4,11}) ([0-9]{4,7})")
_PERCENT = re.compile(r"(100|[0-9]{1,2})(\.[0-9]{1,2})?")


class CgroupFile(Value):
    """A file. `is_right`: whether a text may be written; `form`: in words. `default`: what the kernel has in a new cgroup.

    `v1`: its name on cgroup v1, "" if there is none; `on_v2`: cgroup v2 has it. `of_pods`, `of_containers`: where it may be written;
    `v1_of_containers`: on cgroup v1. `is_taken_back`: whether a container gets the default when a new answer leaves the file out.
    """

    is_right: Callable[[str], bool]
    form: str
    default: str
    v1: str = ""
    on_v2: bool = True
    of_pods: bool = True
    of_containers: bool = True
    v1_of_containers: bool = True
    is_taken_back: bool = True


class CgroupKernel(Value):
    """What the machine has: the version of cgroups, and the files in the group of all pods."""

    version: CgroupVersion = CgroupVersion.V2
    files: frozenset[str] = frozenset()


def _number(low: int, high: int) -> Callable[[str], bool]:
    return lambda text: (value := parse_decimal(text, high)) is not None and value >= low


def _or_max(is_right: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda text: text == MAX or is_right(text)


def _is_bandwidth(text: str) -> bool:
    found = _BANDWIDTH.fullmatch(text)
    return found is not None and int(found[2]) <= 1_000_000


def _is_percent(text: str) -> bool:
    found = _PERCENT.fullmatch(text)
    return found is not None and float(text) <= 100


_AMOUNT = _or_max(_number(0, MAX_BYTES))
_AMOUNT_FORM = "bytes or max"
_HUGE_FILE = CgroupFile(_number(0, MAX_BYTES), "bytes", "0")
FILES: Mapping[str, CgroupFile] = {
    "cpu.weight": CgroupFile(_number(1, 10_000), "a number from 1 to 10000", "100", "cpu.shares"),
    "cpu.max": CgroupFile(
        _is_bandwidth,
        "a quota from 1000 or max, and a period from 1000 to 1000000, in microseconds",
        "max 100000",
        "cpu.cfs_quota_us",
    ),
    # of kernels with RT_GROUP_SCHED: without it, no process of the container can choose SCHED_FIFO and SCHED_RR
    REALTIME: CgroupFile(
        _number(0, 1_000_000), "microseconds of a second, up to 1000000", "0", REALTIME, on_v2=False, of_pods=False
    ),
    "cpu.uclamp.min": CgroupFile(_is_percent, "a percentage", "0.00"),
    "cpu.uclamp.max": CgroupFile(_or_max(_is_percent), "a percentage or max", MAX),
    "memory.min": CgroupFile(_AMOUNT, _AMOUNT_FORM, "0"),
    "memory.low": CgroupFile(_AMOUNT, _AMOUNT_FORM, "0"),
    "memory.high": CgroupFile(_AMOUNT, _AMOUNT_FORM, MAX),
    "memory.max": CgroupFile(
        _or_max(_number(MIN_MEMORY, MAX_BYTES)), f"bytes from {MIN_MEMORY} or max", MAX, "memory.limit_in_bytes"
    ),
    "memory.swap.max": CgroupFile(_AMOUNT, _AMOUNT_FORM, MAX),
    "memory.oom.group": CgroupFile(_number(0, 1), "0 or 1", "0", of_pods=False),
    # systemd gives each container's scope a limit (DefaultTasksMax), which is not the kernel's default and must not be lifted
    "pids.max": CgroupFile(
        _or_max(_number(1, 1 << 22)),
        "a number from 1 or max",
        MAX,
        "pids.max",
        v1_of_containers=False,
        is_taken_back=False,
    ),
}
#: A machine with cgroup v2 and all files.
EVERY_FILE = CgroupKernel(CgroupVersion.V2, frozenset(FILES))


def take_values(
    kernel: CgroupKernel,
    container: str,
    given: Mapping[str, str],
    name: str,  # noqa: ARG001 - as all that take
    answer: object,
) -> Mapping[str, str]:
    """The values of the answer that differ from the given ones. Raises WrongAnswer. `container`: "" for the pod's own cgroup."""
    if type(answer) not in (dict, MappingProxyType):
        raise WrongAnswer(f"the answer must be a dict of files and values, or None: it is {type(answer).__name__}")
    assert isinstance(answer, Mapping)
    if len(answer) > MAX_VALUES:
        raise WrongAnswer(f"the answer must have at most {MAX_VALUES} files")
    changed: dict[str, str] = {}
    for file, value in answer.items():
        if type(file) is str and type(value) is str and given.get(file) == value:
            continue  # also a long list of CPUs
        if type(file) is not str or type(value) is not str or len(file) > MAX_VALUE or len(value) > MAX_VALUE:
            raise WrongAnswer(f"files and their values must be texts of at most {MAX_VALUE} characters")
        known = _HUGE_FILE if file in given and _HUGE.fullmatch(file) else FILES.get(file)
        if known is None:
            raise WrongAnswer(
                f"{file!r} cannot be changed: it must be one of {', '.join(_changeable(kernel, container))}"
            )
        if problem := _problem(kernel, container, file, known):
            raise WrongAnswer(problem)
        if not known.is_right(value):
            raise WrongAnswer(f"{file} must be {known.form}: it is {value!r}")
        changed[file] = value
    return changed


def defaults(kernel: CgroupKernel, container: str, given: Mapping[str, str]) -> Mapping[str, str]:
    """What takes an earlier answer back: the defaults of all files that extensions may change and the agent does not write."""
    taken_back = _taken_back(kernel, of_container=bool(container))
    return {file: default for file, default in taken_back.items() if file not in given}


@lru_cache(maxsize=8)
def _taken_back(kernel: CgroupKernel, *, of_container: bool) -> Mapping[str, str]:
    """The defaults of what extensions may change, which is the same for all pods of a machine."""
    files = _changeable(kernel, "any" if of_container else "")
    return {file: FILES[file].default for file in files if not of_container or FILES[file].is_taken_back}


def _changeable(kernel: CgroupKernel, container: str) -> Iterator[str]:
    return (file for file, known in FILES.items() if not _problem(kernel, container, file, known))


def _problem(kernel: CgroupKernel, container: str, file: str, known: CgroupFile) -> str:
    """Why the file cannot be written here; "" if it can."""
    of_what = f"of container {container}" if container else "of the pod's own cgroup"
    if not (known.of_containers if container else known.of_pods):
        return f"{file} {of_what} cannot be changed"
    if known is _HUGE_FILE:
        return ""
    if kernel.version is CgroupVersion.V2 and not known.on_v2:
        return f"this node has cgroup v2, which has no {file}"
    if kernel.version is CgroupVersion.V2:
        return "" if file in kernel.files else f"this kernel has no {file}, or its controller is not enabled"
    if not known.v1:
        return f"this node has cgroup v1, which has no {file}"
    if container and not known.v1_of_containers:
        return f"this node has cgroup v1, where the container runtime cannot write {file} {of_what}"
    alias = f" for {file}" if known.v1 != file else ""
    return "" if known.v1 in kernel.files else f"this kernel has no {known.v1}{alias}"

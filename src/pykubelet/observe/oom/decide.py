"""Finds OOM kills in the messages of the kernel. Pure.

Rules:
- `<program> invoked oom-killer: ...` begins the messages about one kill.
- `oom-kill:constraint=...,oom_memcg=<cgroup>,task_memcg=...,task=<program>,pid=<n>,uid=<n>` (Linux 5.0) ends them if the
  limit of a cgroup was hit. For the whole machine it has `global_oom` instead of `oom_memcg`.
- `... Killed process <pid> (<program>) ...` ends them otherwise. The kill is then one of the whole machine, unless an older
  kernel has logged `Task in <cgroup> killed as a result of limit of <cgroup>` before.
- A kill is a system OOM if only the memory of the machine was exhausted, whichever cgroup the victim was in.
Source: `mm/oom_kill.c` and `mm/memcontrol.c` of the kernel, for the messages.
"""

from __future__ import annotations

from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.reasons import EVENT_SYSTEM_OOM

MACHINE = "/"
_BEGINS = "invoked oom-killer:"
_OF_CGROUP = "oom-kill:constraint="
_FIELDS = ("nodemask", "cpuset", "mems_allowed", "oom_memcg", "task_memcg", "task", "pid", "uid")
_OF_CGROUP_BEFORE_5 = ("Task in ", " killed as a result of limit of ")
_KILLED = "Killed process "


class OomKill(Value):
    """One victim. `limit_cgroup`: the cgroup whose memory limit was hit, `/` for the whole machine."""

    limit_cgroup: str
    program: str
    pid: int


class OomMessages(Value):
    """The state after the messages so far: whether a kill has begun, and which cgroup's limit was hit."""

    begun: bool = False
    limit_cgroup: str = MACHINE


def step(state: OomMessages, message: str) -> tuple[OomMessages, OomKill | None]:
    """The state after one message of the kernel, and the kill that it completes."""
    if not state.begun:
        return (OomMessages(begun=True), None) if _BEGINS in message else (state, None)
    if (kill := _kill_of_cgroup(message) or _killed(message, state.limit_cgroup)) is not None:
        return OomMessages(), kill
    task, limit = _OF_CGROUP_BEFORE_5
    before, found, cgroup = message.rpartition(limit)
    if found and task in before:
        return OomMessages(begun=True, limit_cgroup=cgroup), None
    return state, None


def _kill_of_cgroup(message: str) -> OomKill | None:
    """The kill in a message of Linux 5.0 or later about the limit of a cgroup. Names may contain anything, so the last field of
    each name counts."""
    _, _, rest = message.partition(_OF_CGROUP)
    values: dict[str, str] = {}
    for name in reversed(_FIELDS):
        rest, found, values[name] = rest.rpartition(f",{name}=")
        if not found:
            return None
    pid = parse_decimal(values["pid"])
    return OomKill(values["oom_memcg"], values["task"], pid) if pid is not None else None


def _killed(message: str, limit: str) -> OomKill | None:
    _, _, rest = message.partition(_KILLED)
    number, _, rest = rest.partition(" (")
    program, pid = rest.rpartition(")")[0], parse_decimal(number)
    return OomKill(limit, program, pid) if program and pid is not None else None


def system_oom_event(kill: OomKill) -> KubeEvent | None:
    """The Event of the node for a system OOM; None for a kill at the limit of a cgroup."""
    if kill.limit_cgroup != MACHINE:
        return None
    text = "System OOM encountered"
    if kill.program and kill.pid:
        text += f", victim process: {kill.program}, pid: {kill.pid}"
    return warning(EVENT_SYSTEM_OOM, text)

"""SystemOOM: which of the kernel's OOM kills are the node's own, from the messages that the kernel writes."""

from __future__ import annotations

import asyncio

import pytest

from pykubelet.base.kit.cells import Sink
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.observe.oom.decide import OomKill, OomMessages, step
from pykubelet.observe.oom.loop import OomLoop

POD = "/kubepods/burstable/poda0d9"
IN_A_CGROUP = [
    "dd invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "CPU: 1 UID: 999 PID: 20640 Comm: dd Not tainted 6.18.44 #1",
    "Tasks state (memory values in pages):",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=1c1d,mems_allowed=0,"
    f"oom_memcg={POD},task_memcg={POD}/1c1d,task=dd,pid=20640,uid=999",
    "Memory cgroup out of memory: Killed process 20640 (dd) total-vm:22816kB, anon-rss:14848kB, UID:999",
]
OF_THE_MACHINE = [
    "stress invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE|__GFP_ZERO), order=0, oom_score_adj=1000",
    "Mem-Info:",
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=77ab,mems_allowed=0,global_oom,"
    f"task_memcg={POD}/77ab,task=stress,pid=411,uid=0",
    "Out of memory: Killed process 411 (stress) total-vm:8192kB, anon-rss:8000kB, UID:0 oom_score_adj:1000",
]
BEFORE_LINUX_5 = [
    "java invoked oom-killer: gfp_mask=0x14000c0(GFP_KERNEL), nodemask=(null),  order=0, oom_score_adj=968",
    f"Task in {POD}/9f killed as a result of limit of {POD}",
    "Memory cgroup out of memory: Kill process 77 (java) score 1955 or sacrifice child",
    "Killed process 77 (java) total-vm:10240kB, anon-rss:9000kB",
]
WHOLE_CGROUP = [
    *IN_A_CGROUP,
    f"Tasks in {POD}/1c1d are going to be killed due to memory.oom.group set",
    "Memory cgroup out of memory: Killed process 20641 (sh) total-vm:228kB",
]
WITH_BRACKETS = ["a b invoked oom-killer: order=0", "Out of memory: Killed process 5 (a) (b) total-vm:1kB"]
SYSTEM_OOM = "System OOM encountered, victim process: stress, pid: 411"


def kills(messages: list[str]) -> list[OomKill]:
    state, found = OomMessages(), []
    for message in messages:
        state, kill = step(state, message)
        if kill is not None:
            found.append(kill)
    return found


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (IN_A_CGROUP, [OomKill(POD, "dd", 20640)]),
        (OF_THE_MACHINE, [OomKill("/", "stress", 411)]),
        (BEFORE_LINUX_5, [OomKill(POD, "java", 77)]),
        (WHOLE_CGROUP, [OomKill(POD, "dd", 20640)]),
        (IN_A_CGROUP[3:], []),
        ([*IN_A_CGROUP, *OF_THE_MACHINE], [OomKill(POD, "dd", 20640), OomKill("/", "stress", 411)]),
        (["cni0: port 1 entered forwarding state"], []),
        (WITH_BRACKETS, [OomKill("/", "a) (b", 5)]),
    ],
)
def test_kills_in_the_messages_of_the_kernel(messages: list[str], expected: list[OomKill]) -> None:
    assert kills(messages) == expected


class Messages:
    """Hands out one batch after the other, and then nothing."""

    def __init__(self, *batches: list[str]) -> None:
        self.left = list(batches)
        self.drained = asyncio.Event()

    async def read(self) -> list[str]:
        if self.left:
            return self.left.pop(0)
        self.drained.set()
        return await asyncio.Future[list[str]]()


async def test_only_a_kill_of_the_whole_machine_is_an_event_of_the_node() -> None:
    recorder: Sink[KubeEvent] = Sink()
    kernel = Messages(IN_A_CGROUP, OF_THE_MACHINE[:2], OF_THE_MACHINE[2:], BEFORE_LINUX_5)
    running = asyncio.ensure_future(OomLoop(kernel, recorder).run())
    await kernel.drained.wait()
    assert recorder.events == [warning("SystemOOM", SYSTEM_OOM)]
    running.cancel()

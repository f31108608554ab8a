"""Follows the kernel's log and posts an Event of the node for each OOM kill of the whole machine.

The log is read from its oldest record on, as in the reference kubelet. So kills while the agent was not running are
reported too, and older ones are reported again after a restart. The runtime reports OOM-killed containers.
"""

from __future__ import annotations

from typing import Protocol

from pykubelet.base.kit.cells import Post
from pykubelet.base.kit.log import Log
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.observe.oom.decide import OomMessages, step, system_oom_event

log = Log("oom")


class KernelMessages(Protocol):
    """The part of `KernelLog` that the loop needs."""

    async def read(self) -> list[str]:
        """The next messages; waits until there are some; HostError."""
        ...


class OomLoop:
    """`run` never returns; HostError when the kernel's log can no longer be read."""

    def __init__(self, kernel: KernelMessages, recorder: Post[KubeEvent]) -> None:
        self._kernel = kernel
        self._recorder = recorder

    async def run(self) -> None:
        """Report OOM kills as the kernel logs them."""
        state = OomMessages()
        while True:
            for message in await self._kernel.read():
                state, kill = step(state, message)
                if kill is None:
                    continue
                log.debug("the kernel killed a process", program=kill.program, pid=kill.pid, limit=kill.limit_cgroup)
                if (event := system_oom_event(kill)) is not None:
                    self._recorder.post(event)

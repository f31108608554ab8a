"""The postStart hooks of one pod.

Owns: which of its hooks have not ended (`running`), here and on disk. A hook that is cut off, by the end of the agent or of a
sync, is run again while its container runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.act.pods.hook_records import HookRecords
from pykubelet.act.pods.waitbook import WaitBook
from pykubelet.act.runtime.lifecycle.start import ContainerStarter
from pykubelet.act.runtime.render.context import AnyContainer
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import Pod
from pykubelet.base.model.ids import ContainerID, PodRef
from pykubelet.base.model.waits import Owner, Wait


class PodHooks:
    """Runs the hooks. `running`: those that have not ended, by container, with the least attempt of the instance.

    It stays that of an earlier instance whose hook was cut off: the runtime may still show that one running after its end, and it
    must not be reported as running.
    """

    def __init__(self, ref: PodRef, starter: ContainerStarter, records: HookRecords) -> None:
        self._ref = ref
        self._starter = starter
        self._records = records
        self.running: Mapping[str, int] = {}

    async def announce(self, container: AnyContainer, attempt: int, waits: WaitBook) -> None:
        """Note, before a container is created, that its hook will run. A container without a hook has nothing to note."""
        if container.lifecycle is None or container.lifecycle.postStart is None:
            return
        self.running = {**self.running, container.name: min(attempt, self.running.get(container.name, attempt))}
        waits.notify()
        await self._records.begin(self._ref.uid, container.name, attempt)

    async def withdraw(self, container: AnyContainer) -> None:
        """Note that the container was not created."""
        await self._end(container.name)

    async def run(self, pod: Pod, container: AnyContainer, instance: ContainerID, pod_ip: str, waits: WaitBook) -> None:
        """Run the hook, if there is one, to its end. If it fails, the container is stopped, and ContainerStartError is raised."""
        if container.name not in self.running:
            return
        try:
            await self._starter.post_start(pod, container, instance, pod_ip, waits)
        except ContainerStartError as error:
            step = "start again once it has ended"
            wait = Wait("container start", Owner.POD_WORKER, 0.0, container.name, error.reason, error.message, step)
            waits.note(wait, None)
            await self._starter.stop_after_failed_hook(pod, container, instance, pod_ip, waits)
            raise
        await self._end(container.name)
        waits.notify()

    async def _end(self, container: str) -> None:
        if container in self.running:
            self.running = {name: attempt for name, attempt in self.running.items() if name != container}
            await self._records.end(self._ref.uid, container)

"""The postStart hooks of pods: which of them have not ended, here and on disk.

A hook is recorded before its container is created, and its record is removed when it has ended. So a hook runs at least once, and
twice if the agent is killed while it runs. One that is cut off, by the end of the agent or of a sync, is run again while its container
runs. The file `post_start_hooks` is needed only as long as the containers run, so it is not synced to the disk. A start waits for it a
second at most. A damaged file loses the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pykubelet.act.pods.waitbook import WaitBook
from pykubelet.act.runtime.lifecycle.start import ContainerStarter
from pykubelet.act.runtime.render.context import AnyContainer
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import finish
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.edges.host.fs.checkpoint import Checkpoint
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import names_in
from pykubelet.edges.host.fs.kept_state import KeptState

log = Log("pods")
FILE = "post_start_hooks"
SAVE_DEADLINE_S = 1.0
#: By container name, the attempt of the instance.
Hooks = Mapping[str, int]


def has_post_start(container: AnyContainer) -> bool:
    """Whether the container has a postStart hook. What is started after it waits for the end of the hook."""
    return container.lifecycle is not None and container.lifecycle.postStart is not None


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
        if not has_post_start(container):
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


class HookRecords:
    """The records below `root`. Call `load` before pods are started."""

    def __init__(self, root: str, flight: SingleFlight) -> None:
        self._file = Checkpoint(f"{root}/{FILE}", durable=False)
        self._kept = KeptState("running postStart hooks", self._file.path, flight, log, SAVE_DEADLINE_S)
        self._pods: dict[PodUID, Hooks] = {}
        self._changes = self._saved = 0
        self._lock = asyncio.Lock()

    def load(self, pods: str) -> None:
        """Read the records of the last run, of the pods that have a directory in `pods`. Never raises; an unreadable file is set
        aside."""
        data = self._file.load()
        if data is None:
            return
        try:
            found, known = decode(dict[PodUID, Hooks], data), set(names_in(pods))
        except (DecodeError, HostError) as error:
            log.warning("the records of postStart hooks cannot be read", error=error)
            return
        self._pods = {uid: hooks for uid, hooks in found.items() if uid in known}

    def of(self, uid: PodUID) -> Hooks:
        """The hooks of a pod that are not known to have ended."""
        return self._pods.get(uid, {})

    async def begin(self, uid: PodUID, container: str, attempt: int) -> None:
        """Record a hook, before its container is created with this attempt or a higher one."""
        await self._change(uid, {**self.of(uid), container: attempt})

    async def end(self, uid: PodUID, container: str) -> None:
        """Remove the record of a hook that has ended."""
        await self._change(uid, {name: attempt for name, attempt in self.of(uid).items() if name != container})

    async def forget(self, uid: PodUID) -> None:
        """Remove all records of a pod."""
        await self._change(uid, {})

    async def _change(self, uid: PodUID, hooks: Hooks) -> None:
        if hooks == self.of(uid):
            return
        if hooks:
            self._pods[uid] = hooks
        else:
            del self._pods[uid]
        self._changes += 1
        await finish(self._save(self._changes), SAVE_DEADLINE_S)

    async def _save(self, change: int) -> None:
        """Write the records unless a later write has done so. A failed one is repeated with the next change."""
        async with self._lock:
            if self._saved >= change:
                return
            changes, payload = self._changes, encode(self._pods) if self._pods else b""
            if await self._kept.write(lambda: self._file.save(payload) if payload else self._file.remove()):
                self._saved = changes

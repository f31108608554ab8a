"""Records on disk of the postStart hooks that run: an agent that starts again runs those that are not known to have ended.

Owns: the file `post_start_hooks`. A hook is recorded before its container is created, and its record is removed when it has
ended, so a hook runs at least once, and twice if the agent is killed while it runs. The file is needed only as long as the
containers run, so it is not synced to the disk. A start waits for it a second at most. A damaged file loses the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import finish
from pykubelet.base.model.ids import PodUID
from pykubelet.edges.host.fs.checkpoint import Checkpoint
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import names_in
from pykubelet.edges.host.fs.kept_state import KeptState

log = Log("pods")
FILE = "post_start_hooks"
SAVE_DEADLINE_S = 1.0
#: By container name, the attempt of the instance.
Hooks = Mapping[str, int]


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

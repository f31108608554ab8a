"""Keeps the sizes of pods over restarts of the agent.

Owns, in the root directory: `allocated_pods_state` and `actuated_pods_state` in the reference's format, with the sizes of all pods
(`allocation_state`), and `pod_sizes` with the resizes that are not done, and since when: the first two lack that. The spec of a pod
may request another size than is allocated; after a restart the agent must know the allocated one. What the first two files have
wins, because the reference may have run meanwhile. Without any file, every pod is assumed to have the size of its spec.

So only sizes that the specs do not give have to survive a power cut. While a resize is not done, and when a pod gets another size,
the files are synced to the disk; when pods only come and go, they are not. A resize that does not have to wait is done in a moment: what
it changes is written in a moment (`WRITE_S`), so that it survives the end of the agent, and synced once, `SYNC_S` later: clients do not
wait for the disk. If the agent ends before that, the kernel brings it to the disk, within half a minute as usual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.kit.cells import Cell, set_on_change
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import changed_keys, replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.roster import Roster, is_quarantined
from pykubelet.base.model.sizing import PodSize, size_of
from pykubelet.desired.roster.allocation_state import (
    ACTUATED,
    ALLOCATED,
    MAX_STATE_BYTES,
    AllocationStateError,
    StateEncoder,
    decode_state,
    is_of_another,
)
from pykubelet.desired.roster.kept_size import KeptSize, has_other_size, has_waiting, merged_sizes, with_kept_sizes
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.checkpoint import Checkpoint, set_aside
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.kept_state import KeptState

log = Log("roster")
SAVE_DEADLINE_S = 10.0
#: The files are written so many seconds after a change: the pods themselves come first.
WRITE_S = 0.005
#: What a resize changes is synced to the disk so many seconds after it has begun; at once if it is Deferred or Infeasible.
SYNC_S = 0.1
Sizes = Mapping[PodUID, PodSize]


class SizeMemory:
    """The files with the sizes below `root`. Call `load` first, then `follow`."""

    def __init__(self, root: str, flight: SingleFlight) -> None:
        self._root = root
        self._file = Checkpoint(f"{root}/pod_sizes")
        #: What `pod_sizes` has; None: it is not known, because a write has failed.
        self._saved: dict[PodUID, KeptSize] | None = {}
        #: What the files of the reference's format had at the start, by their names.
        self._loaded: dict[str, dict[PodUID, PodSize]] = {}
        #: What this agent has written to the files of the reference's format, by their names.
        self._written: dict[str, Sizes] = {}
        #: Those of them that survive a power cut.
        self._synced: set[str] = set()
        #: Those that have to after `SYNC_S`, as `pod_sizes` has; None: nothing has to.
        self._unsynced: frozenset[str] | None = None
        self._encoder = StateEncoder()
        self._kept = KeptState("the sizes of pods", self._file.path, flight, log, SAVE_DEADLINE_S)

    def load(self, now: float) -> Mapping[PodUID, KeptSize]:
        """Read the sizes of the last run, of this agent or of the reference, at `now` (wall seconds).

        Never raises; an unreadable file is logged and ignored.
        """
        data = self._file.load()
        if data is not None:
            try:
                self._saved = decode(dict[PodUID, KeptSize], data)
            except DecodeError as error:
                log.warning("the sizes of pods cannot be read", error=error)
        allocated = self._load_state(ALLOCATED)
        saved = self._saved or {}
        if allocated is None:
            return saved
        actuated = self._load_state(ACTUATED) or {}
        self._loaded = {ALLOCATED: allocated, ACTUATED: actuated}
        return merged_sizes(saved, allocated, actuated, now)

    def _load_state(self, name: str) -> dict[PodUID, PodSize] | None:
        path = f"{self._root}/{name}"
        try:
            content = files.read_bytes(path, MAX_STATE_BYTES)
            found = decode_state(content)
        except HostError as error:
            if not error.is_not_found:
                log.warning("the sizes of pods cannot be read", error=error)
            return None
        except AllocationStateError as error:
            set_aside(path, str(error))
            return None
        if not is_of_another(content):
            self._written[name] = found
        return found

    async def follow(self, roster: Cell[Roster], *, resizable: bool = True) -> None:
        """Update the files when the roster changes. Never returns. `resizable`: pods may be resized, by an API server.

        A pod that waits for its admission keeps what the last run has left of it.
        """
        sizes = dict(self._saved or {}) if resizable else {}
        allocated, actuated = dict(self._loaded.get(ALLOCATED, {})), dict(self._loaded.get(ACTUATED, {}))
        seen: Mapping[PodUID, object] = {**sizes, **allocated, **actuated}
        wakeup, loop = asyncio.Event(), asyncio.get_running_loop()
        sync_at: float | None = None
        with set_on_change(wakeup, roster):
            while True:
                await self._kept.wait(wakeup, None if sync_at is None else max(sync_at - loop.time(), 0.0))
                await asyncio.sleep(WRITE_S)
                wakeup.clear()
                now = roster.get()
                if not now.sources_ready:
                    sync_at = None
                    continue
                for uid in changed_keys(seen, now.pods):
                    item = now.pods.get(uid)
                    if item is None or item.rejection is not None:
                        allocated.pop(uid, None)
                        actuated.pop(uid, None)
                    elif item.admission_wait is None or is_quarantined(item):
                        allocated[uid] = replace(size_of(item.pod), volumes={})
                        before = item.change.before if item.change is not None else None
                        actuated[uid] = replace(before, volumes={}) if before is not None else allocated[uid]
                if resizable:
                    sizes = with_kept_sizes(sizes, seen, now.pods)
                seen = now.pods
                is_due = sync_at is not None and loop.time() >= sync_at
                syncs = is_due or self._kept.is_failing or has_waiting(sizes, now.pods)
                await self._save(sizes, {ALLOCATED: allocated, ACTUATED: actuated}, resizable=resizable, syncs=syncs)
                if self._unsynced is None:
                    sync_at = None
                elif sync_at is None:
                    sync_at = loop.time() + SYNC_S

    async def _save(
        self, sizes: dict[PodUID, KeptSize], states: Mapping[str, Sizes], *, resizable: bool, syncs: bool
    ) -> None:
        """Write what has changed. `syncs`: bring it to the disk now, although resizes may be done in a moment."""
        changed = [name for name, state in states.items() if state != self._written.get(name)]
        resized = any(has_other_size(self._written.get(name), states[name]) for name in changed)
        is_known = self._saved is not None and all(name in self._written for name in changed)
        must_last = resizable and (bool(sizes) or resized or self._unsynced is not None or not is_known)
        durable = must_last and (syncs or bool(self._saved) or not is_known)
        own = encode(sizes) if sizes != self._saved and durable == must_last else None
        late = self._unsynced or frozenset()
        news = {name: dict(state) for name, state in states.items() if name in changed or (durable and name in late)}
        unsynced = late | news.keys() if must_last and not durable else None
        if not news and own is None:
            self._unsynced = unsynced
            return

        # if the write fails, it is not known what the files have, and the next one begins anew
        self._unsynced = None
        saved, self._saved = self._saved, None if own is not None else self._saved
        for name in news:
            self._written.pop(name, None)
        written, synced = dict(self._written), set(self._synced & self._written.keys())

        def save() -> None:
            for name, state in news.items():
                same = next(
                    (n for n, content in written.items() if content == state and (n in synced or not durable)), ""
                )
                self._replace(name, state, same, durable=durable)
                written[name] = state
                if durable:
                    synced.add(name)
            if own is not None:
                self._file.save(own, syncs_directory=not durable)
            if durable:
                files.sync_directory(self._root)

        if await self._kept.write(save):
            self._written, self._synced, self._unsynced = written, synced, unsynced
            self._saved = saved if own is None else sizes

    def _replace(self, name: str, state: Sizes, same: str, *, durable: bool) -> None:
        """Write a file, or give it the content of the file `same`, which has it: as always, unless a resize is under way."""
        if same:
            with suppress(HostError):  # it was removed
                files.link_over(f"{self._root}/{same}", f"{self._root}/{name}")
                return
        files.write_atomic(f"{self._root}/{name}", self._encoder.encode(state), 0o600, whole=durable)

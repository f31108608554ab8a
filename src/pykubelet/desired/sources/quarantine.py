"""Keeps pods away from the agent that have ended it, until they are tried again.

Owns: the file `quarantine` in the root directory, with the ends of the agent that were charged to pods and manifests
(`decide_quarantine.py`), and the place between the sources and the roster where the pods in quarantine are replaced by stubs. At the
end of a quarantine the sets of the sources are posted again; manifests are read again by their sources.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from functools import partial

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.api.core import Pod
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.cells import Post, within
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import WORK, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Gauge
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.roster import OF_MANIFEST, SourceChanged, has_ended_in_api
from pykubelet.base.model.waits import Wait
from pykubelet.desired.sources.decide_quarantine import (
    Suspect,
    Suspects,
    charged,
    is_quarantined,
    remembered,
    stub_of,
    text_of,
    wait_of,
    with_content,
)
from pykubelet.edges.host.fs.checkpoint import Checkpoint
from pykubelet.edges.host.fs.kept_state import KeptState

log = Log("sources")
NAME = "quarantine"
SAVE_DEADLINE_S = 10.0
QUARANTINED = Gauge("pykubelet_quarantined", "Pods and manifests in quarantine, because the agent has ended at them.")


class _Seen(Value):
    """A pod of a source as it was posted: the pod itself, and what the roster got."""

    pod: Pod
    posted: Pod


def charge(root: str, charges: Iterable[tuple[str, str]], wall: float) -> None:
    """Charge the end of the last run in the file below `root`. `charges`: keys and causes. Raises HostError."""
    file = Checkpoint(f"{root}/{NAME}")
    file.save(encode(charged(_load(file), charges, wall)))


def manifest_key(shown: str) -> str:
    """The key of a manifest in the records of work and in the charges. `shown`: its place without credentials."""
    return f"manifest {shown}"


def _load(file: Checkpoint) -> Suspects:
    data = file.load()
    try:
        return decode(dict[str, Suspect], data) if data is not None else {}
    except DecodeError as error:
        log.warning("the ends of the agent that are charged to pods cannot be read", error=error)
        return {}


class Quarantine:
    """The suspects of this run, and the sets of the sources. Call `load` first."""

    def __init__(self, root: str, clock: Clock, flight: SingleFlight) -> None:
        self._file = Checkpoint(f"{root}/{NAME}")
        self._clock = clock
        self._kept = KeptState(
            "the ends of the agent that are charged to pods", self._file.path, flight, log, SAVE_DEADLINE_S
        )
        self._suspects: dict[str, Suspect] = {}
        self._is_saved = True
        self._changed = asyncio.Event()
        self._out: Post[SourceChanged] | None = None
        self._events: dict[str, SourceChanged] = {}
        self._seen: dict[str, dict[PodUID, _Seen]] = {}

    def load(self) -> None:
        """Read the file. Never raises; an unreadable file is logged and ignored."""
        before = _load(self._file)
        self._suspects = dict(remembered(before, self._clock.wall()))
        self._is_saved = len(before) == len(self._suspects)
        for key, suspect in self._suspects.items():
            if is_quarantined(suspect, self._clock.wall()):
                log.warning("in quarantine", key=key, until=format_time(suspect.until), reason=text_of(suspect))
        self._show()

    def between(self, out: Post[SourceChanged]) -> Post[SourceChanged]:
        """Where the sources post instead of `out`."""
        self._out = out
        return self

    def post(self, event: SourceChanged) -> None:
        """Post a source's set to the roster, with stubs of the pods in quarantine."""
        assert self._out is not None
        self._events[event.source] = event
        if not self._suspects:
            self._out.post(event)
            return
        before, seen = self._seen.get(event.source, {}), dict[PodUID, _Seen]()
        waits: dict[PodUID, Wait] = {}
        pods: list[Pod] = []
        for pod in event.pods:
            uid = PodUID(pod.metadata.uid)
            suspect = self._suspect(uid, pod)
            if suspect is None:
                pods.append(pod)
                continue
            known = before.get(uid)
            posted = known.posted if known is not None and known.pod is pod else stub_of(pod)
            seen[uid] = _Seen(pod, posted)
            pods.append(posted)
            if not pod.metadata.deletionTimestamp and not has_ended_in_api(pod):  # of the others nothing is started
                waits[uid] = wait_of(suspect)
        self._seen[event.source] = seen
        self._out.post(replace(event, pods=tuple(pods), quarantined=waits, by_uid=None))

    def problem(self, shown: str, data: bytes) -> str:
        """Why the manifest with this content must not be read now; empty if it may. `shown`: as in `manifest_key`."""
        reason = self.reason(manifest_key(shown), data)
        return f"{OF_MANIFEST}{reason}; it is tried again later, or when it is changed" if reason else ""

    def reason(self, key: str, data: bytes) -> str:
        """Why what has this key and content must not be used now; empty if it may."""
        suspect = self._suspects.get(key)
        if suspect is None or (suspect := self._with_content(key, suspect, data)) is None:
            return ""
        return text_of(suspect) if is_quarantined(suspect, self._clock.wall()) else ""

    async def run(self) -> None:
        """Save changes, and post the sets again when a quarantine ends. Never returns."""
        while True:
            if not self._is_saved:
                self._is_saved = await self._kept.write(partial(self._file.save, encode(self._suspects)))
            await self._wait()
            self._show()
            for event in list(self._events.values()):
                self.post(event)

    async def _wait(self) -> None:
        """Wait for a change, or until a quarantine ends."""
        now = self._clock.wall()
        ends = [suspect.until - now for suspect in self._suspects.values() if is_quarantined(suspect, now)]
        await within(min(ends) if ends else None, self._kept.wait(self._changed))

    def _suspect(self, uid: PodUID, pod: Pod) -> Suspect | None:
        """The charges of a pod that is in quarantine now; None if it is not."""
        suspect = self._suspects.get(uid)
        if suspect is None:
            return None
        with WORK.on(uid):
            suspect = self._with_content(uid, suspect, encode(pod.spec))
        return suspect if suspect is not None and is_quarantined(suspect, self._clock.wall()) else None

    def _with_content(self, key: str, suspect: Suspect, content: bytes) -> Suspect | None:
        found = with_content(suspect, hashlib.sha256(content).hexdigest())
        if found is suspect:
            return found
        self._is_saved = False
        if found is None:
            del self._suspects[key]
            log.info("tried again, because it was changed", key=key)
        else:
            self._suspects[key] = found
        self._changed.set()
        return found

    def _show(self) -> None:
        wall = self._clock.wall()
        QUARANTINED.set(sum(is_quarantined(suspect, wall) for suspect in self._suspects.values()))

"""Answers for the objects that pods refer to from manifests, on a node without an API server. Owns the cell `Content` there.

Reads `Roster`, which has the objects of all manifests, and `NodeView` for node affinity. Owns the file `<root>/volume_bindings`: which
claim has which volume, and which manifest counts of those with one name. It is written before a binding is published, so that a claim has
the same volume after a restart; other answers do not wait for the disk. Without the file, claims are bound anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Cell, CellWriter, set_on_change
from pykubelet.base.kit.flight import Done, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Derived
from pykubelet.base.model.content import BY_MANIFEST, Content, Found, ManifestObject, ObjectKey, Unreadable
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.needs import Needs
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.roster import Roster, RosterPod
from pykubelet.edges.host.fs.checkpoint import Checkpoint
from pykubelet.edges.host.fs.kept_state import KeptState
from pykubelet.provide.objects.binding import Bindings, Bound, bind, missing
from pykubelet.provide.objects.excess import MAX_KEYS, TOO_MANY

log = Log("content")
#: The answer about objects without a manifest of a pod that refers to more than `MAX_KEYS` of them.
_EXCESS = Unreadable(TOO_MANY, 0.0)
FILE_DEADLINE_S = 10.0


class StandaloneContent:
    """Keeps `Content`. `run` never returns. `path`: the file. `needs`: what a pod refers to, as far as it is known."""

    def __init__(
        self,
        path: str,
        roster: Cell[Roster],
        node: Cell[NodeView],
        content: CellWriter[Content],
        flight: SingleFlight,
        needs: Callable[[Pod, Content], Needs],
    ) -> None:
        self._file = Checkpoint(path)
        self._roster = roster
        self._node = node
        self._content = content
        self._flight = flight
        self._needs = needs
        self._bindings = self._saved = Bindings()
        self._kept = KeptState("the bindings of claims", path, flight, log, FILE_DEADLINE_S)
        content.publish(Content(has_manifests=True))

    async def run(self) -> None:
        """Follow the roster and keep `Content` up to date."""
        self._bindings = self._saved = await self._load()
        wakeup = asyncio.Event()
        seen: tuple[tuple[ManifestObject, ...], bool, Mapping[str, str]] | None = None
        pods: Mapping[PodUID, RosterPod] | None = None
        bound = Bound({}, self._bindings, is_complete=False, made_from=())
        missed = self._missed(bound)
        with set_on_change(wakeup, self._roster, self._node):
            while True:
                roster, node = self._roster.get(), self._node.get()
                now = roster.objects, roster.sources_ready, node.labels
                if now != seen or roster.pods is not pods:
                    if now != seen:
                        bound = bind(roster.objects, self._bindings, node, is_complete=roster.sources_ready)
                        _log_new(self._bindings, bound.bindings)
                        self._bindings, missed = bound.bindings, self._missed(bound)
                    if self._bindings.volumes != self._saved.volumes:
                        await self._save()
                        self._publish(bound, missed(roster.pods))
                    else:
                        self._publish(bound, missed(roster.pods))
                        await self._save()
                    seen, pods = now, roster.pods
                elif self._kept.is_failing:
                    await self._save()
                await self._kept.wait(wakeup)

    def _missed(self, bound: Bound) -> Derived[PodUID, RosterPod, tuple[ObjectKey, ...]]:
        """The objects that each pod refers to and that have no manifest; none while manifests may still be read."""
        known = Content(objects=bound.answers, has_manifests=True)

        def missed_by(entry: RosterPod) -> tuple[ObjectKey, ...] | None:
            wanted = self._needs(entry.pod, known).objects if bound.is_complete else ()
            return tuple(sorted(key for key in wanted if key.kind in BY_MANIFEST and key not in bound.answers)) or None

        return Derived(missed_by)

    def _publish(self, bound: Bound, missed: Mapping[PodUID, tuple[ObjectKey, ...]]) -> None:
        """Publish all answers, and those about objects that pods refer to and that have no manifest."""
        before = self._content.get()
        answers: dict[ObjectKey, Found] = {}
        for keys in missed.values():
            answers.update(dict.fromkeys(keys[MAX_KEYS:], _EXCESS))
        for keys in missed.values():
            answers.update((key, missing(key)) for key in keys[:MAX_KEYS])
        answers.update(bound.answers)
        objects = {key: _same(before.objects.get(key), found) for key, found in answers.items()}
        if objects != before.objects or bound.made_from != before.made_from:
            self._content.publish(Content(objects=objects, has_manifests=True, made_from=bound.made_from))

    # The file

    async def _load(self) -> Bindings:
        outcome = await self._flight.run("load:volume-bindings", self._file.load, FILE_DEADLINE_S)
        if not isinstance(outcome, Done):
            log.warning("the bindings of claims cannot be read", path=self._file.path)
            return Bindings()
        if outcome.value is None:
            return Bindings()
        try:
            return decode(Bindings, outcome.value)
        except DecodeError as error:
            log.warning("the bindings of claims cannot be read", path=self._file.path, error=error)
            return Bindings()

    async def _save(self) -> None:
        if self._bindings == self._saved:
            return
        bindings = self._bindings
        payload = encode(bindings)
        if await self._kept.write(lambda: self._file.save(payload)):
            self._saved = bindings


def _log_new(before: Bindings, now: Bindings) -> None:
    """Log the claims that have another volume than before."""
    for claim, volume in now.volumes.items():
        if before.volumes.get(claim) != volume:
            log.info("claim bound", claim=claim, volume=volume)


def _same(before: Found | None, now: Found) -> Found:
    """`before` if it is equal, so that readers see no change."""
    return before if before is not None and before == now else now

"""The loop of report/events: takes the `KubeEvent`s of all components, and publishes, logs and forwards them.

Owns: the cell `Recent`, and the log lines of Events: one for the first occurrence of an Event. Repetitions are counted, and
logged only at debug level. With an API server, each Event is also posted to `send.py`, unless its object has too many.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from pykubelet.base.kit.cells import CellWriter, Mailbox, Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import with_changes
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import EventType, KubeEvent, Occurrence, Recent
from pykubelet.report.events.correlate import Correlator, SpamFilter

log = Log("events")
#: Seconds before Events are handled: nothing waits for them, and more urgent work often starts at the same time.
SETTLE_S = 0.02
KEPT_PER_OBJECT = 32
KEPT_PODS = 256
Ring = tuple[Occurrence, ...]


class EventsLoop:
    """`run` never returns."""

    def __init__(
        self,
        recorder: Mailbox[KubeEvent],
        recent: CellWriter[Recent],
        clock: Clock,
        outbox: Post[Occurrence] | None = None,
    ) -> None:
        self._outbox = outbox
        self._spam = SpamFilter()
        self._recorder = recorder
        self._recent = recent
        self._clock = clock
        self._correlator = Correlator()
        self._pods: OrderedDict[PodUID, Ring] = OrderedDict()
        self._node: Ring = ()
        self._unpublished: set[PodUID] = set()

    async def run(self) -> None:
        """Take Events, count repeated ones, and publish the newest of each pod and of the node. Never returns."""
        while True:
            await self._take()
            news = {uid: self._pods.get(uid) for uid in self._unpublished}
            self._unpublished.clear()
            self._recent.publish(Recent(with_changes(self._recent.get().pods, news), self._node))

    async def _take(self) -> None:
        """Take the next Events. A separate method, so that no reference to their uncut messages remains while waiting for more."""
        first = await self._recorder.get_all()
        await asyncio.sleep(SETTLE_S)
        for kube_event in (*first, *self._recorder.take_all()):
            self._see(kube_event)

    def _see(self, kube_event: KubeEvent) -> None:
        now = self._clock.monotonic()
        found = self._correlator.see(kube_event, now, self._clock.wall())
        _log(found)
        if self._outbox is not None and self._spam.lets_pass(kube_event, now):
            self._outbox.post(found)
        if kube_event.pod is None:
            self._node = added(self._node, found)
            return
        uid = kube_event.pod.uid
        self._pods[uid] = added(self._pods.get(uid, ()), found)
        self._pods.move_to_end(uid)
        self._unpublished.add(uid)
        if len(self._pods) > KEPT_PODS:
            self._unpublished.add(self._pods.popitem(last=False)[0])


def added(ring: Ring, found: Occurrence) -> Ring:
    """The ring with `found` at its end, instead of the same Event with a smaller count. Pure."""
    kept = (known for known in ring if not _is_earlier(known, found))
    return (*kept, found)[-KEPT_PER_OBJECT:]


def _is_earlier(known: Occurrence, found: Occurrence) -> bool:
    """Whether `known` is the same Event as `found`, with a smaller count."""
    return known.serial == found.serial and known.count < found.count


def _log(found: Occurrence) -> None:
    kube_event = found.kube_event
    fields = {
        "type": kube_event.type,
        "reason": kube_event.reason,
        "object": kube_event.field_path or None,
        "pod": kube_event.pod,
        "uid": kube_event.pod.uid if kube_event.pod is not None else None,
        "count": found.count if found.count > 1 else None,
    }
    if found.count > 1:
        log.debug(found.message, **fields)
    elif kube_event.type is EventType.WARNING:
        log.warning(found.message, **fields)
    else:
        log.info(found.message, **fields)

"""The pods that the Pods API shows, and their encodings, which all of its clients share.

Reads: `Roster`, `Lifecycles`, `Statuses`. Owns: the newest encoding of each pod while clients watch; nothing is kept without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pykubelet.base.api.core import ObjectMeta, Pod, PodStatus
from pykubelet.base.api.protobuf import bytes_field, encode_now, encode_pod, varint_field
from pykubelet.base.kit.values import Value, changed_keys, replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import ENDED_STAGES, KillReason
from pykubelet.base.model.reasons import CONTAINERS_NOT_READY
from pykubelet.base.model.roster import is_mirror
from pykubelet.edges.plugins import pods_pb2 as pb
from pykubelet.serve.endpoints.known_pods import KnownPods

#: Bytes of encodings that are kept for other clients, together.
KEPT_BYTES = 24 << 20
_READY, _TRUE, _FALSE, _PENDING = "Ready", "True", "False", "Pending"
#: The message of the condition Ready until the node has a status of its own, as the kubelet has it.
_INITIALIZING = "Kubelet is initializing pod containers"
_TYPE, _POD = 1, 2


class ShownPod(Value):
    """A pod with its newest status; None until the node has computed one."""

    pod: Pod
    status: PodStatus | None


Shown = Mapping[PodUID, ShownPod]
Change = tuple[int, PodUID, ShownPod]


def plan_changes(sent: Shown, now: Shown) -> tuple[list[Change], Shown]:
    """The events for a client that has got `sent`, and what it has got after them. A new pod waits for its first status. Pure."""
    changed = changed_keys(sent, now)
    added = [uid for uid in changed if uid not in sent]
    waiting = {uid for uid in added if now[uid].status is None}
    events: list[Change] = [(pb.DELETED, uid, sent[uid]) for uid in changed if uid not in now]
    events += [(pb.MODIFIED, uid, now[uid]) for uid in changed if uid in sent and uid in now]
    events += [(pb.ADDED, uid, now[uid]) for uid in added if uid not in waiting]
    return events, {uid: shown for uid, shown in now.items() if uid not in waiting} if waiting else now


def status_of(shown: ShownPod) -> PodStatus:
    """The status that clients get. Before the node has one, the API server's, in which the pod is not ready. Pure."""
    if shown.status is not None:
        return shown.status
    status = shown.pod.status
    conditions = tuple(
        replace(known, status=_FALSE, reason=CONTAINERS_NOT_READY, message=_INITIALIZING)
        if known.type == _READY and known.status == _TRUE
        else known
        for known in status.conditions
    )
    return replace(status, phase=status.phase or _PENDING, conditions=conditions)


class Encoded:
    """A pod as protobuf, and the events with it, which are made once for all clients."""

    __slots__ = ("_events", "pod", "shown")

    def __init__(self, shown: ShownPod, pod: bytes) -> None:
        self.shown = shown
        self.pod = pod
        self._events: dict[int, bytes] = {}

    def event(self, type_: int) -> bytes:
        """A `WatchPodsEvent` with the pod."""
        if type_ not in self._events:
            self._events[type_] = varint_field(_TYPE, type_) + bytes_field(_POD, self.pod)
        return self._events[type_]

    @property
    def size(self) -> int:
        """The most bytes that it needs in memory, with the events ADDED and MODIFIED."""
        return 3 * len(self.pod)


def deleted_event(pod: Pod) -> bytes:
    """The event of a pod that is gone: it has only the names and the UID."""
    meta = pod.metadata
    named = Pod(metadata=ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid))
    return varint_field(_TYPE, pb.DELETED) + bytes_field(_POD, encode_now(named))


SYNC_EVENT = varint_field(_TYPE, pb.INITIAL_SYNC_COMPLETE)


class ShownPods:
    """The pods for all clients: those that are desired, and those that are being stopped. `watches`: clients that watch."""

    def __init__(self, pods: KnownPods) -> None:
        self._pods = pods
        self._shown: Shown = {}
        self._encoded: dict[PodUID, Encoded] = {}
        self._kept_bytes = 0
        self._encoding = asyncio.Lock()  # one pod at a time, so that clients share its encoding
        self.watches = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A client watches: what is read meanwhile is kept for all."""
        self.watches += 1
        try:
            yield
        finally:
            self.watches -= 1
            if not self.watches:
                self._shown, self._encoded, self._kept_bytes = {}, {}, 0

    def now(self) -> Shown:
        """The pods by UID. One that has not changed is the same object as before, for all clients that watch."""
        before, statuses = self._shown, self._pods.statuses.get().pods
        shown: dict[PodUID, ShownPod] = {}
        for uid, pod in self._current():
            old = before.get(uid)
            status = statuses.get(uid, old.status if old is not None else None)
            if old is not None and old.pod is pod and old.status is status:
                shown[uid] = old
            else:
                shown[uid] = ShownPod(pod, status)
        if self.watches:
            self._shown = shown if changed_keys(before, shown) else before
            return self._shown
        return shown

    def find(self, uid: PodUID) -> ShownPod | None:
        """One pod; None if there is no such pod."""
        if self.watches:
            return self.now().get(uid)
        pod = next((pod for known, pod in self._current() if known == uid), None)
        return ShownPod(pod, self._pods.statuses.get().pods.get(uid)) if pod is not None else None

    def _current(self) -> Iterator[tuple[PodUID, Pod]]:
        roster = self._pods.roster.get().pods
        for uid, entry in roster.items():
            if not is_mirror(entry.pod):
                yield uid, entry.pod
        for uid, life in self._pods.lifecycles.get().pods.items():
            if uid not in roster and life.stage not in ENDED_STAGES and life.kill_reason is not KillReason.ORPHANED:
                yield uid, life.pod

    async def encoded(self, uid: PodUID, shown: ShownPod) -> Encoded:
        """A pod as protobuf. Other tasks go on while it is made. Raises ProtobufError."""
        async with self._encoding:
            await asyncio.sleep(0)  # one client in each iteration of the loop, however many wait
            found = self._encoded.get(uid)
            if found is not None and found.shown is shown:
                return found
            steps = encode_pod(replace(shown.pod, status=status_of(shown)))
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    made = Encoded(shown, end.value)
                    break
                await asyncio.sleep(0)
            if self.watches:
                self._keep(uid, made)
            return made

    def _keep(self, uid: PodUID, made: Encoded) -> None:
        """Keep an encoding; the oldest ones make place for it."""
        if (old := self._encoded.pop(uid, None)) is not None:
            self._kept_bytes -= old.size
        self._encoded[uid] = made
        self._kept_bytes += made.size
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= self._encoded.pop(next(iter(self._encoded))).size

"""Fetches and keeps the API objects that the desired pods refer to. Owns the cell `Content`.

Reads `Roster`, and `ApiNode` for how long a read object may be used and for which volumes are attached. Owns the reference
counts: a key is requested when the first pod that needs it is in the roster, before volumes and containers need the answer.
It is dropped when the last such pod is gone. ConfigMaps are kept a while longer, because the next pod of the namespace
usually needs the same; Secrets and tokens are not. Answers that arrive together are published together.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import CellWriter, Mailbox, set_on_change
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import changed_keys
from pykubelet.base.kit.yields import Yields
from pykubelet.base.model.content import (
    LEADING,
    CertificateKey,
    CertificateRecord,
    Content,
    ContentKey,
    ContentKind,
    Found,
    ObjectKey,
    TokenKey,
    Unreadable,
)
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.needs import Needs
from pykubelet.base.model.phase import Phase
from pykubelet.base.model.roster import RosterPod
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.provide.objects.bundles import TrustBundles
from pykubelet.provide.objects.certificates import CertificateTools, PodCertificates
from pykubelet.provide.objects.excess import MANY, TOO_MANY, ExcessKeys
from pykubelet.provide.objects.model import (
    Answered,
    ContentInputs,
    ContentSettings,
    Event,
    ReferenceExpired,
    ServicesListed,
)
from pykubelet.provide.objects.objects import (
    KeeperTools,
    ObjectKeeper,
    ReadObject,
    ReadQueue,
    WatchedObject,
    is_watched,
    task_name,
)
from pykubelet.provide.objects.services import keep_services
from pykubelet.provide.objects.tokens import TokenKeeper

K = TypeVar("K", ObjectKey, TokenKey, CertificateKey)
V = TypeVar("V", Found, CertificateRecord)
CLOCK_PERIOD_S = 60.0
#: So many keepers are started before other tasks go on. While more than `MANY` answers are awaited, and a pod refers to many,
#: those of so many seconds are published together.
STARTED_AT_ONCE, GATHERED_S = 16, 0.25
#: The wall clock has jumped if it differs from the monotonic clock by this many seconds more than before.
JUMP_S = 5.0
_ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED})
_LINGERING = frozenset({ContentKind.CONFIG_MAP, ContentKind.RUNTIME_CLASS, ContentKind.CSI_DRIVER})


class ContentLoop:
    """Keeps `Content`. `run` never returns. From construction on, `Content` shows that there is an API server.

    `needs`: a pure function that returns what a pod refers to, as far as it is known from the objects that are there.
    """

    def __init__(
        self,
        inputs: ContentInputs,
        content: CellWriter[Content],
        client: ApiClient,
        clock: Clock,
        settings: ContentSettings,
        needs: Callable[[Pod, Content], Needs],
        issuing: CertificateTools,
    ) -> None:
        self._needs_of = needs
        self._node = inputs.node
        self._roster = inputs.roster
        self._content = content
        self._client = client
        self._clock = clock
        self._settings = settings
        self._wakeup = asyncio.Event()
        self._mailbox: Mailbox[Event] = Mailbox("content", self._wakeup)
        self._tasks = Supervisor("edges.content")
        self._bundles = TrustBundles(client, clock, self._mailbox, is_on=settings.trust_bundles)
        tools, is_on = KeeperTools(client, clock, settings, self._mailbox), settings.pod_certificates
        self._certificates = PodCertificates(tools, issuing, inputs.node, self._tasks, is_on=is_on)
        self._seen: Mapping[PodUID, RosterPod] = {}
        self._needs: dict[PodUID, tuple[Pod, Needs]] = {}
        self._users: Counter[ContentKey] = Counter()
        self._objects: dict[ObjectKey, ObjectKeeper] = {}
        self._to_start: dict[ContentKey, None] = {}
        self._excess = ExcessKeys()
        self._reads = ReadQueue(self._tasks, self._excess)
        self._seen_node = inputs.node.get()
        self._tokens: dict[TokenKey, tuple[TokenKeeper, asyncio.Task[None]]] = {}
        self._lingering: dict[ObjectKey, asyncio.TimerHandle] = {}
        self._services_wanted = False
        content.publish(Content(available=True))

    async def run(self) -> None:
        """Follow the roster and keep `Content` up to date."""
        async with self._tasks as tasks:
            tasks.start_root("content clock", self._watch_clock())
            tasks.start_root("content bundles", self._bundles.run())
            tasks.start_root("content certificates", self._certificates.run())
            tasks.start_root("content loop", self._iterate_forever())
            try:
                raise await tasks.wait_failed()
            finally:
                for timer in self._lingering.values():
                    timer.cancel()
                for keeper in self._objects.values():
                    keeper.cancel()
                self._certificates.cancel()

    async def _watch_clock(self) -> None:
        """Notify the token keepers when the wall clock jumps, for example after the machine was suspended."""
        ahead = self._clock.wall() - self._clock.monotonic()
        while True:
            await asyncio.sleep(CLOCK_PERIOD_S)
            before, ahead = ahead, self._clock.wall() - self._clock.monotonic()
            if abs(ahead - before) > JUMP_S:
                for keeper, _ in self._tokens.values():
                    keeper.clock_jumped()
                self._certificates.clock_jumped()

    async def _iterate_forever(self) -> None:
        with set_on_change(self._wakeup, self._roster, self._node):
            while True:
                await self._wakeup.wait()
                self._wakeup.clear()
                self._follow_node()
                self._iterate(self._mailbox.take_all())
                await self._start_keepers()
                if self._excess.has_many and len(self._users) - len(self._content.get().objects) > MANY:
                    await asyncio.sleep(GATHERED_S)  # each change of `Content` costs every reader of it

    def _follow_node(self) -> None:
        before, self._seen_node = self._seen_node, self._node.get()
        if self._seen_node is not before:
            for keeper in self._objects.values():
                keeper.node_changed()

    def _iterate(self, events: list[Event]) -> None:
        draft = _Draft(self._content.get())
        self._reconcile(draft)
        for event in events:
            match event:
                case Answered(key, found):
                    known = self._tokens, self._objects, self._bundles.keys, self._certificates
                    if any(key in keys for keys in known):
                        draft.put(key, found)
                case ServicesListed(services):
                    draft.services = services
                case ReferenceExpired(key):
                    self._lapse(key, draft)
        self._follow_leads(draft)
        if draft.differs:
            self._content.publish(draft.content())

    # What pods refer to

    def _reconcile(self, draft: _Draft) -> None:
        """Fetch objects that pods have begun to refer to, and drop those that no pod refers to any more."""
        self._refer(*self._take_roster(self._roster.get().pods, draft), draft)
        if self._needs and not self._services_wanted:
            self._services_wanted = True
            services = keep_services(self._client, self._clock, self._mailbox, self._settings.watch)
            self._tasks.start_root("content services", services)

    def _follow_leads(self, draft: _Draft) -> None:
        """Find what pods refer to by way of objects that have just become known or have changed."""
        changed = draft.leading()
        while changed:
            content = draft.content()
            arrived: list[ContentKey] = []
            left: list[ContentKey] = []
            for uid, (pod, old) in list(self._needs.items()):
                if old.objects.isdisjoint(changed):
                    continue
                needs = self._bounded(uid, self._needs_of(pod, content), draft)
                self._needs[uid] = pod, needs
                arrived += needs.all_keys - old.all_keys
                left += old.all_keys - needs.all_keys
            self._refer(arrived, left, draft)
            changed = {key for key in arrived if isinstance(key, ObjectKey) and _leads(key) and key in content.objects}

    def _refer(self, arrived: list[ContentKey], left: list[ContentKey], draft: _Draft) -> None:
        self._users.update(arrived)
        self._users.subtract(left)
        for key in sorted(set(arrived), key=_is_object):
            if isinstance(key, TokenKey):
                self._want_token(key)
            elif isinstance(key, CertificateKey):
                if key not in self._certificates:
                    self._certificates.want(key, self._needs[key.pod][0])
            elif key.kind is not ContentKind.TRUST_BUNDLE:
                self._want_object(key)
        for key in set(left):
            if not self._users[key]:
                del self._users[key]
                self._release(key, draft)
        if any(_is_bundle(key) for key in (*arrived, *left)):
            self._bundles.want(frozenset(key for key in self._users if isinstance(key, ObjectKey) and _is_bundle(key)))

    def _bounded(self, uid: PodUID, needs: Needs, draft: _Draft) -> Needs:
        """The keys that are requested for the pod. Those beyond a bound get an answer that names it."""
        kept, added, dropped = self._excess.bound(uid, needs)
        for key in dropped:
            draft.put(key, None)
        refused = Unreadable(TOO_MANY, self._clock.wall())  # one for all: there may be 10,000
        for key in added:
            draft.put(key, refused)
        return kept

    def _take_roster(
        self, pods: Mapping[PodUID, RosterPod], draft: _Draft
    ) -> tuple[list[ContentKey], list[ContentKey]]:
        """Update `_needs`. Returns the keys that pods have begun to refer to, and those they no longer do, once for each pod."""
        before, self._seen = self._seen, pods
        arrived: list[ContentKey] = []
        left: list[ContentKey] = []
        for uid in changed_keys(before, pods):
            had, entry = self._needs.pop(uid, None), pods.get(uid)
            needs = Needs()
            if entry is not None and _is_wanted(entry):
                # most changes of a pod are in its status
                is_same = had is not None and (had[0] is entry.pod or had[0].spec == entry.pod.spec)
                if had is not None and is_same:
                    needs = had[1]
                else:
                    needs = self._bounded(uid, self._needs_of(entry.pod, self._content.get()), draft)
                self._needs[uid] = entry.pod, needs
            else:
                self._bounded(uid, needs, draft)
            old = had[1] if had is not None else Needs()
            if needs != old:
                arrived += needs.all_keys
                left += old.all_keys
        return arrived, left

    # Keepers

    def _want_token(self, key: TokenKey) -> None:
        if key not in self._tokens:
            self._to_start[key] = None

    def _want_object(self, key: ObjectKey) -> None:
        timer = self._lingering.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._objects:
            self._objects[key].read_again()
        else:
            self._to_start[key] = None

    async def _start_keepers(self) -> None:
        """Start the keepers that are wanted, a few at a time."""
        yields = Yields(STARTED_AT_ONCE)
        while self._to_start:
            key = next(iter(self._to_start))
            del self._to_start[key]
            if isinstance(key, TokenKey):
                slot = self._excess.slot(key)
                token = TokenKeeper(key, self._client, self._clock, self._settings, self._mailbox, slot)
                self._tokens[key] = token, self._tasks.start_root(task_name(key), token.run())
            elif isinstance(key, ObjectKey):
                self._objects[key] = keeper = self._object_keeper(key)
                keeper.start()
            await yields.done()

    def _release(self, key: ContentKey, draft: _Draft) -> None:
        if key in self._to_start:
            del self._to_start[key]
        elif isinstance(key, TokenKey):
            self._tokens.pop(key)[1].cancel()
        elif isinstance(key, CertificateKey):
            self._certificates.drop(key)
        elif key.kind is not ContentKind.TRUST_BUNDLE:
            keeper = self._objects[key]
            if key.kind in _LINGERING and keeper.is_current and self._settings.linger_s > 0:
                later = asyncio.get_running_loop().call_later
                self._lingering[key] = later(self._settings.linger_s, self._mailbox.post, ReferenceExpired(key))
                return
            del self._objects[key]
            keeper.cancel()
        draft.put(key, None)

    def _lapse(self, key: ContentKey, draft: _Draft) -> None:
        if isinstance(key, ObjectKey) and self._lingering.pop(key, None) is not None:
            self._objects.pop(key).cancel()
            draft.put(key, None)

    def _object_keeper(self, key: ObjectKey) -> ObjectKeeper:
        settings = self._excess.settings(key, self._settings)
        tools = KeeperTools(self._client, self._clock, settings, self._mailbox)
        if is_watched(key, settings.strategy):
            return WatchedObject(key, tools, self._tasks)
        return ReadObject(key, tools, self._node, self._reads)


class _Draft:
    """A new `Content` that is being made."""

    def __init__(self, content: Content) -> None:
        self._before = content
        self._objects: dict[ObjectKey, Found] | None = None
        self._tokens: dict[TokenKey, Found] | None = None
        self._certificates: dict[CertificateKey, CertificateRecord] | None = None
        self.services = content.services

    def leading(self) -> set[ObjectKey]:
        """The keys with a new answer that decides what else a pod refers to."""
        if self._objects is None:
            return set()
        return {key for key in changed_keys(self._before.objects, self._objects) if _leads(key)}

    def put(self, key: ContentKey, found: Found | CertificateRecord | None) -> None:
        if isinstance(key, CertificateKey):
            if self._certificates is None:
                self._certificates = dict(self._before.certificates)
            _put(self._certificates, key, found if isinstance(found, CertificateRecord) else None)
            return
        answer = found if not isinstance(found, CertificateRecord) else found.found
        if isinstance(key, ObjectKey):
            if self._objects is None:
                self._objects = dict(self._before.objects)
            _put(self._objects, key, answer)
        else:
            if self._tokens is None:
                self._tokens = dict(self._before.tokens)
            _put(self._tokens, key, answer)

    @property
    def differs(self) -> bool:
        is_other = self.services is not self._before.services
        drafts = self._objects, self._tokens, self._certificates
        return is_other or any(draft is not None for draft in drafts)

    def content(self) -> Content:
        before = self._before
        return Content(
            True,
            before.objects if self._objects is None else self._objects,
            before.tokens if self._tokens is None else self._tokens,
            self.services,
            certificates=before.certificates if self._certificates is None else self._certificates,
        )


def _put(into: dict[K, V], key: K, found: V | None) -> None:
    if found is None:
        into.pop(key, None)
    else:
        into[key] = found


def _leads(key: ObjectKey) -> bool:
    return key.kind in LEADING


def _is_object(key: ContentKey) -> bool:
    return isinstance(key, ObjectKey)


def _is_bundle(key: ContentKey) -> bool:
    return isinstance(key, ObjectKey) and key.kind is ContentKind.TRUST_BUNDLE


def _is_wanted(entry: RosterPod) -> bool:
    """Whether the pod needs its objects: not if it is rejected or held, or has already ended."""
    if entry.rejection is not None or entry.admission_wait is not None:
        return False
    return entry.pod.status is None or entry.pod.status.phase not in _ENDED

"""The claim manager: prepares the resource claims of pods that are to run, and unprepares those of pods that have ended. Owns the
cell `Claims`.

Owns: one task for each pod whose claims are being prepared or unprepared; a driver that hangs delays only its pods. A failure
is tried again after a growing pause, or when the pod or the registered drivers change. Claims that containers still use after a restart
of the agent are taken over from the state file. Reads `Roster`, `Lifecycles`, `Observed` and, through `Drivers`, `Plugins`.
Source: the Kubernetes documentation "Dynamic Resource Allocation"; KEP-4381.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial

from msgspec import Struct

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell, CellWriter, Post, set_on_change, within
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, changed_keys, replace
from pykubelet.base.model.claims import ClaimDeviceHealth, Claims, DeviceKey, PodClaims
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle
from pykubelet.base.model.needs import has_claims
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.reasons import EVENT_FAILED_PREPARE_DYNAMIC_RESOURCES, FAILED_UNPREPARE_DYNAMIC_RESOURCES
from pykubelet.base.model.roster import Roster, RosterPod, pod_ref
from pykubelet.base.model.waits import CLAIMS_PREPARED, CLAIMS_UNPREPARED, Owner, Wait
from pykubelet.provide.claims.decide import (
    ClaimFacts,
    ClaimStep,
    container_claims,
    container_resources,
    due_step,
    pod_claims,
)
from pykubelet.provide.claims.drivers import Drivers
from pykubelet.provide.claims.model import ClaimError, PodClaimRef, claims_of, in_use
from pykubelet.provide.claims.operations import ClaimOperations

log = Log("claims")
#: Seconds after which a call that is not answered is published as the reason of a wait.
SHOW_AFTER_S = 0.3
RETRY = BackoffPolicy(initial_s=1.0, cap_s=10.0)


class ClaimInputs(Value):
    """The cells that decisions about claims read."""

    roster: Cell[Roster]
    lifecycles: Cell[Lifecycles]
    observed: Cell[Observed]


class _PodWork(Struct):
    """The work on one pod. `refs`: its claims, once all are prepared. `again`: set to try again at once after a failure.

    `error`: the last failure; `driver`: the one that it is due to; `pause_s`: the pause after it. `woken_at`: the loop's time at
    which the driver's return last ended a pause.
    """

    step: ClaimStep
    task: asyncio.Task[None] | None = None
    pod: Pod | None = None
    refs: tuple[PodClaimRef, ...] | None = None
    wait: Wait | None = None
    again: asyncio.Event | None = None
    driver: str = ""
    error: str = ""
    pause_s: float = 0.0
    woken_at: float | None = None

    def is_wakeable(self, now: float) -> bool:
        """Whether a driver that has come back may end the pause: once in its length, so that a driver cannot cause a busy loop."""
        return self.woken_at is None or now - self.woken_at >= self.pause_s


class ClaimsLoop:
    """Prepares and unprepares claims. `run` never returns. Stopping it unprepares nothing."""

    def __init__(
        self,
        inputs: ClaimInputs,
        claims: CellWriter[Claims],
        operations: ClaimOperations,
        drivers: Drivers,
        recorder: Post[KubeEvent],
        clock: Clock,
        retry: BackoffPolicy = RETRY,
    ) -> None:
        self._retry = retry
        self._inputs = inputs
        self._claims = claims
        self._operations = operations
        self._drivers = drivers
        self._recorder = recorder
        self._clock = clock
        self._wakeup = asyncio.Event()
        self._work: dict[PodUID, _PodWork] = {}
        self._pods: Mapping[PodUID, RosterPod] = {}
        self._lives: Mapping[PodUID, PodLifecycle] = {}
        #: Pods about which no decision was possible yet, and only the runtime has something to add: those of an earlier run of the agent,
        #: and those that are gone from the other inputs.
        self._undecided: set[PodUID] = {uid for info in operations.cache.values() for uid in info.pods}
        self._expiry: asyncio.TimerHandle | None = None
        self._publish(self._undecided)

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        async with Supervisor("claims") as tasks:
            tasks.start_root("drivers", self._drivers.run())
            tasks.start_root("claims retries", self._follow_drivers())
            tasks.start_root("claims health", self._follow_health())
            tasks.start_root("claims loop", self._follow(tasks))
            try:
                raise await tasks.wait_failed()
            finally:
                if self._expiry is not None:
                    self._expiry.cancel()

    async def _follow_drivers(self) -> None:
        before: frozenset[str] = frozenset()
        async for state in self._drivers.state.changes():
            usable, now = state.usable(), asyncio.get_running_loop().time()
            for work in self._work.values():
                if work.again is not None and work.driver in usable - before and work.is_wakeable(now):
                    work.woken_at = now
                    work.again.set()
            before = usable

    async def _follow(self, tasks: Supervisor) -> None:
        inputs = self._inputs
        with set_on_change(self._wakeup, inputs.roster, inputs.lifecycles):
            while True:
                await self._wakeup.wait()
                self._wakeup.clear()
                self._iterate(tasks)
                if self._undecided:
                    # the only pods for which the runtime matters
                    before = inputs.observed.version
                    with set_on_change(self._wakeup, inputs.observed):
                        if inputs.observed.version == before:
                            self._wakeup.clear()
                        await self._wakeup.wait()

    def _iterate(self, tasks: Supervisor) -> None:
        roster, lives = self._inputs.roster.get(), self._inputs.lifecycles.get().pods
        changed = {*changed_keys(self._pods, roster.pods), *changed_keys(self._lives, lives), *self._undecided}
        self._pods, self._lives = roster.pods, lives
        known = ClaimFacts(roster.sources_ready, self._inputs.observed.get())
        touched = [uid for uid in changed if self._decide(uid, known, tasks)]
        if touched:
            self._publish(touched)

    def _decide(self, uid: PodUID, known: ClaimFacts, tasks: Supervisor) -> bool:
        """Begin or end the work on one pod. Returns whether anything is to be published about it."""
        entry, work = self._pods.get(uid), self._work.get(uid)
        holds = uid in self._undecided or work is not None
        if not holds and (entry is None or not has_claims(entry.pod, extended=self._operations.extended)):
            return False
        step = due_step(uid, entry, self._lives.get(uid), known)
        if step is ClaimStep.PREPARE and uid in self._undecided and known.observed.listed_at is None:
            step = ClaimStep.KEEP
        if step is ClaimStep.KEEP:
            if entry is None and uid not in self._lives:
                self._undecided.add(uid)
            if work is not None and work.step is ClaimStep.PREPARE and work.refs is None:
                self._end(uid, work)
                self._work[uid] = _PodWork(step)
                return True
            return False
        if work is not None and work.step is step:
            self._renew(work, entry)
            return False
        if work is not None:
            self._end(uid, work)
        taken_over = uid in self._undecided and known.has_sandbox(uid)
        self._undecided.discard(uid)
        self._begin(uid, step, entry.pod if entry is not None else None, tasks, taken_over=taken_over)
        return True

    def _begin(self, uid: PodUID, step: ClaimStep, pod: Pod | None, tasks: Supervisor, *, taken_over: bool) -> None:
        if step is ClaimStep.RELEASE and not claims_of(self._operations.cache, uid):
            self._work.pop(uid, None)
            return
        work = self._work[uid] = _PodWork(step, pod=pod, again=asyncio.Event())
        if step is ClaimStep.PREPARE:
            assert pod is not None
            work.refs = self._held(pod) if taken_over else None
            if work.refs is not None:
                return
            work.wait = self._waiting(CLAIMS_PREPARED, "create the sandbox")
            work.task = tasks.start_child(f"claims {uid}", self._prepare(uid, work), partial(self._crashed, uid, work))
        else:
            work.wait = self._waiting(CLAIMS_UNPREPARED, "end the pod")
            work.task = tasks.start_child(f"claims {uid}", self._release(uid, work), partial(self._crashed, uid, work))

    def _renew(self, work: _PodWork, entry: RosterPod | None) -> None:
        """Pass a changed pod on: it may have got the names of its claims, so that the next try may succeed."""
        if entry is not None and work.pod is not entry.pod:
            before, work.pod = work.pod, entry.pod
            is_same = before is not None and _claims_in(before) == _claims_in(entry.pod)
            if work.again is not None and not is_same:
                work.again.set()

    def _end(self, uid: PodUID, work: _PodWork) -> None:
        if work.task is not None:
            work.task.cancel()
        del self._work[uid]

    def _held(self, pod: Pod) -> tuple[PodClaimRef, ...] | None:
        """The claims of the pod, if the cache has all of them with the pod as their user."""
        cache, uid = self._operations.cache, PodUID(pod.metadata.uid)
        try:
            refs = pod_claims(pod, extended=self._operations.extended)
        except ClaimError:
            return None
        return refs if all(ref.key in cache and uid in cache[ref.key].pods for ref in refs) else None

    # The work on one pod

    def _crashed(self, uid: PodUID, work: _PodWork, _: BaseException) -> None:
        """Forget the work after a bug, which the supervisor has logged; the next change of the pod begins it again.

        A pod that has ended may not change any more: what it holds is released after a pause.
        """
        if self._work.get(uid) is work:
            del self._work[uid]
            if work.step is ClaimStep.RELEASE:
                asyncio.get_running_loop().call_later(self._retry.cap_s, self._decide_again, uid)

    def _decide_again(self, uid: PodUID) -> None:
        if uid not in self._work and claims_of(self._operations.cache, uid):
            self._undecided.add(uid)
            self._wakeup.set()

    async def _prepare(self, uid: PodUID, work: _PodWork) -> None:
        failures = 0
        while True:
            assert work.pod is not None and work.again is not None
            work.again.clear()
            try:
                work.refs = await self._operations.prepare(work.pod, partial(self._calls, uid, work))
            except ClaimError as error:
                failures += 1
                self._failed(uid, work, error, failures)
                message = f"Failed to prepare dynamic resources: {error}"
                self._recorder.post(warning(EVENT_FAILED_PREPARE_DYNAMIC_RESOURCES, message, pod_ref(work.pod)))
                await within(self._retry.delay_s(failures), work.again.wait())
                continue
            work.wait, work.again = None, None
            self._publish((uid,))
            return

    async def _release(self, uid: PodUID, work: _PodWork) -> None:
        failures = 0
        while True:
            assert work.again is not None
            work.again.clear()
            try:
                await self._operations.unprepare(uid, partial(self._calls, uid, work))
            except ClaimError as error:
                failures += 1
                self._failed(uid, work, error, failures)
                await within(self._retry.delay_s(failures), work.again.wait())
                continue
            if self._work.get(uid) is work:
                del self._work[uid]
            self._publish((uid,))
            return

    def _calls(self, uid: PodUID, work: _PodWork, call: str, driver: str) -> None:
        """Note the call that comes next; it is published if it takes long."""
        if work.wait is not None:
            work.wait = replace(work.wait, reason="", detail=f"{call} of DRA driver {driver}", next_at=None)
            asyncio.get_running_loop().call_later(SHOW_AFTER_S, self._publish, (uid,))

    def _failed(self, uid: PodUID, work: _PodWork, error: ClaimError, failures: int) -> None:
        what, reason = CLAIMS_PREPARED, EVENT_FAILED_PREPARE_DYNAMIC_RESOURCES
        if work.step is ClaimStep.RELEASE:
            what, reason = CLAIMS_UNPREPARED, FAILED_UNPREPARE_DYNAMIC_RESOURCES
        work.driver, work.pause_s = error.driver, self._retry.delay_s(failures)
        if work.error != str(error):
            work.error = str(error)
            log.warning("resource claims", uid=uid, step=work.step, error=str(error))
        since = work.wait.since if work.wait is not None else self._clock.wall()
        next_at = self._clock.wall() + work.pause_s
        work.wait = Wait(what, Owner.CLAIM_MANAGER, since, "", reason, str(error), "try again", next_at)
        self._publish((uid,))

    def _waiting(self, what: str, step: str) -> Wait:
        return Wait(what, Owner.CLAIM_MANAGER, self._clock.wall(), next_step=step)

    # What the others see

    def _publish(self, touched: Iterable[PodUID]) -> None:
        before = self._claims.get()
        shown = {uid: self._shown(uid) for uid in touched}
        changed = {uid: pod for uid, pod in shown.items() if pod != before.pods.get(uid)}
        counts = in_use(self._operations.cache)
        health = self._health()
        if changed or counts != before.in_use or health != before.health:
            pods = {uid: pod for uid, pod in {**before.pods, **changed}.items() if pod is not None}
            self._claims.publish(Claims(pods, counts, health))

    def _health(self) -> dict[DeviceKey, ClaimDeviceHealth]:
        """The health of all devices of claims; it is read again when the next report on one of them expires."""
        reports = self._drivers.reports
        if reports is None:
            return {}
        keys = {
            (device.driver, device.pool, device.device)
            for info in self._operations.cache.values()
            for device in info.devices
        }
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._expiry is not None:
            self._expiry.cancel()
        end = reports.next_expiry(keys, now)
        self._expiry = None if end is None else loop.call_at(end, self._publish, ())
        return reports.read(keys, now)

    async def _follow_health(self) -> None:
        async for _ in self._drivers.health.changes():
            self._publish(())

    def _shown(self, uid: PodUID) -> PodClaims | None:
        work, cache = self._work.get(uid), self._operations.cache
        if work is None and uid not in self._undecided and not claims_of(cache, uid):
            return None
        waits = (work.wait,) if work is not None and work.wait is not None else ()
        if work is None or work.refs is None or work.pod is None:
            return PodClaims(waits=waits)
        containers = container_claims(work.pod, work.refs, cache)
        return PodClaims(
            True,
            containers,
            waits,
            container_resources(work.pod, work.refs, cache, extended=self._operations.reports_extended),
        )


def _claims_in(pod: Pod) -> tuple[object, object]:
    return pod.status.resourceClaimStatuses, pod.status.extendedResourceClaimStatus

"""The loop of placement: finds CPUs, memory and devices for admitted pods, and takes them back from pods that have ended.

Owns: the cell `Placements`, the managers' state and their files, and the `Diagnostics` of the newest decisions. Reads:
`Roster` (the pods to place), `Lifecycles` (the pods that have ended), `Observed` (what runs).

All managers are one value, and one pod after the other is admitted by pure code. Where a device plugin has a say, this is
repeated once its answer is there; its `Allocate` is called while the devices are already the pod's. Other pods go on meanwhile,
so a slow plugin delays only the pods that use it. The state files are written before the decision is published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell, CellWriter, LazyCellWriter, Mailbox, set_on_change
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.kit.yields import Yields
from pykubelet.base.model.diagnostics import Diagnostics, StepLog
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import ENDED_STAGES, KillReason, Lifecycles
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.placement import Placements, PodPlacement
from pykubelet.base.model.roster import Rejection, Roster, RosterPod
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.provide.placement.explanation import explain_rejection, pod_name
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.metrics import DURATION, count_increments, show_gauges
from pykubelet.provide.placement.provider import UNEXPECTED, AllocationError, PreferredAllocationRequest
from pykubelet.provide.placement.rebuild import as_running, rebuilt
from pykubelet.provide.placement.recording import KEPT_STEPS, add_admission, add_release
from pykubelet.provide.placement.store import StateFiles
from pykubelet.provide.placement.topology_scopes import Admission, Admitted

log = Log("placement")
#: As often are plugins asked about one pod. Each container has a request for each resource, and a new one if its devices change.
MAX_QUESTIONS = 256
#: So many pods are placed before what has happened meanwhile is taken in.
PLACED_AT_ONCE = 32
#: So many containers are placed before other tasks of the loop go on; each takes up to 0.2 ms, with eight NUMA nodes.
CONTAINERS_AT_ONCE = 64
#: State files that could not be written, for instance because the disk is full.
SAVE_RETRY = BackoffPolicy(initial_s=5.0, cap_s=60.0)
UNKNOWN_HOLDERS = Wait(
    "pod sources",
    Owner.POD_SOURCES,
    0.0,
    detail="what the pod needs is held for pods that no source has reported yet",
    next_step="admit the pod or refuse it",
)


class DevicePlugins(Protocol):
    """The asynchronous side of devices: the plugins. Implemented in provide/placement/devices.

    Its own tasks set `changed`; `refresh` then takes what the plugins have reported into the provider. Each call has a deadline.
    """

    changed: asyncio.Event

    def refresh(self, devices: Any) -> Any:
        """The provider with all that plugins have reported since the last call; the same object if nothing has changed."""

    async def prefer(self, request: PreferredAllocationRequest) -> Collection[str] | AllocationError:
        """The devices that the plugin prefers; none if it does not care."""

    async def allocate(self, pod_uid: str, call: Any) -> bytes | AllocationError:
        """The plugin's response to `Allocate`."""

    def is_saved(self, devices: Any) -> bool:
        """Whether the checkpoint has the state."""

    async def save(self, devices: Any) -> bool:
        """Write the checkpoint, if the state has changed. Returns whether the file has the state. Never raises."""

    async def run(self) -> None:
        """Keep the connections to the plugins. Never returns."""


class PlacementInputs(Value):
    """The cells that the loop reads."""

    roster: Cell[Roster]
    lifecycles: Cell[Lifecycles]
    observed: Cell[Observed]


class _Answered(Value):
    """A plugin has answered which devices it prefers, or failed to."""

    uid: PodUID
    request: PreferredAllocationRequest
    answer: Collection[str] | AllocationError


class _Allocated(Value):
    """The plugins have allocated the pod's devices: the response to each call; or why one of them has not."""

    uid: PodUID
    responses: tuple[tuple[Any, bytes], ...]
    error: AllocationError | None = None


class PlacementLoop:
    """Keeps `Placements`. `run` never returns. `plugins` None: there are no device plugins."""

    def __init__(
        self,
        managers: Managers,
        inputs: PlacementInputs,
        outputs: tuple[CellWriter[Placements], LazyCellWriter[Diagnostics]],
        files: StateFiles,
        clock: Clock,
        plugins: DevicePlugins | None = None,
    ) -> None:
        self._managers = managers
        self._inputs = inputs
        self._placements, diagnostics = outputs
        self._files = files
        self._clock = clock
        self._plugins = plugins
        self._wakeup = plugins.changed if plugins is not None else asyncio.Event()
        self._failed_saves = 0
        self._save_timer: asyncio.TimerHandle | None = None
        self._is_save_due = False
        self._done: Mailbox[_Answered | _Allocated] = Mailbox("placement", self._wakeup)
        #: Without a state file, until it is known that no running container has CPUs of its own.
        self._places_all = managers.is_new
        self._decided: Mapping[PodUID, PodPlacement] = {}
        self._waits: Mapping[PodUID, Wait] = {}
        self._working: dict[PodUID, tuple[RosterPod, asyncio.Task[None]]] = {}
        self._begun: dict[PodUID, tuple[float, int]] = {}
        self._postponed: set[PodUID] = set()
        self._supervisor = Supervisor("placement")
        self._yields = Yields(CONTAINERS_AT_ONCE)
        self._steps = StepLog(maxlen=KEPT_STEPS)
        diagnostics.answer_with(lambda: Diagnostics(steps=tuple(self._steps)))
        self._publish()

    async def run(self) -> None:
        """Place pods until a task fails, and raise its error."""
        async with self._supervisor as supervisor:
            supervisor.start_root("placement", self._follow())
            if self._plugins is not None:
                supervisor.start_root("device-plugins", self._plugins.run())
            raise await supervisor.wait_failed()

    async def _follow(self) -> None:
        inputs = self._inputs
        devices = self._managers.devices
        is_new = self._managers.is_new
        if is_new or self._managers.is_memory_new or (devices is not None and devices.holders):
            observed = await inputs.observed.wait_for(lambda now: now.listed_at is not None)
            if is_new:
                self._managers = rebuilt(self._managers, observed)
                self._places_all = bool(self._managers.holders())
        show_gauges(self._managers)
        await self._save()
        self._publish()
        cells = (inputs.roster, inputs.lifecycles, *((inputs.observed,) if self._managers.places_memory else ()))
        more = False
        with set_on_change(self._wakeup, *cells):
            while True:
                if not more:
                    await self._wakeup.wait()
                    self._wakeup.clear()
                    self._postponed.clear()
                before = self._managers
                more = await self._pass()
                if self._managers is not before:
                    show_gauges(self._managers)
                if self._managers is not before or self._is_save_due:
                    await self._save()
                self._publish()
                await asyncio.sleep(0)  # other tasks go on between two passes

    async def _pass(self) -> bool:
        """Take in what has happened, release what pods that have ended hold, and place those that wait for it.

        Returns whether more pods wait.
        """
        roster = self._inputs.roster.get()
        if self._plugins is not None and self._managers.devices is not None:
            devices = self._plugins.refresh(self._managers.devices)
            if devices is not self._managers.devices:
                self._managers = replace(self._managers, devices=devices)
        self._forget(roster)
        self._release(roster)
        for event in self._done.take_all():
            await self._take(event)
        undecided = [uid for uid in roster.awaiting_placement if self._is_undecided(uid, roster.pods[uid])]
        for uid in undecided[:PLACED_AT_ONCE]:
            await self._place(uid, roster.pods[uid])
        return len(undecided) > PLACED_AT_ONCE

    def _is_undecided(self, uid: PodUID, item: RosterPod) -> bool:
        """Whether the pod is to be placed now."""
        known = self._decided.get(uid)
        is_new = known is None or known.seen_at != item.seen_at
        return is_new and uid not in self._working and uid not in self._postponed

    # Pods that have gone

    def _forget(self, roster: Roster) -> None:
        """Drop the work on pods that are not to be placed any more, and the decisions on pods that are neither desired nor held."""
        for uid, (item, task) in list(self._working.items()):
            now = roster.pods.get(uid)
            is_changed = now is None or now.rejection is not None or now.seen_at != item.seen_at
            if is_changed or uid not in roster.awaiting_placement:
                task.cancel()
                self._end_work(uid)
                self._settle(uid)
                is_idle = not is_changed and self._is_idle(uid)  # nothing of a pod that leaves is started any more
                if is_idle or not is_active(uid, roster, self._inputs.lifecycles.get()):
                    self._take_back((uid,))
        if any(uid not in roster.pods for uid in self._decided):
            kept = self._managers.holders().union(roster.pods)
            self._decided = {uid: decided for uid, decided in self._decided.items() if uid in kept}
        if any(uid not in roster.awaiting_placement for uid in self._waits):
            self._waits = {uid: wait for uid, wait in self._waits.items() if uid in roster.awaiting_placement}

    def _is_idle(self, uid: PodUID) -> bool:
        """Whether it is certain that nothing of the pod runs."""
        observed = self._inputs.observed.get()
        if observed.listed_at is None or observed.is_unread(uid) or uid in self._inputs.lifecycles.get().pods:
            return False
        view = observed.pods.get(uid)
        return view is None or not view.is_alive

    def _release(self, roster: Roster) -> None:
        """Take back what pods hold that are not active. Before all sources have reported, an unknown pod may be active."""
        self._release_completed(roster)
        if not roster.sources_ready or roster.withheld:
            return
        lives = self._inputs.lifecycles.get()
        gone = [uid for uid in self._managers.holders() if not is_active(PodUID(uid), roster, lives)]
        if gone:
            log.debug("what pods had that have ended is free again", pods=len(gone))
            self._take_back(gone)
            self._decided = {
                uid: decided for uid, decided in self._decided.items() if uid not in gone or decided.rejection
            }

    def _take_back(self, uids: Sequence[str]) -> None:
        before = self._managers
        self._managers = before.release(uids)
        add_release(self._steps, self._clock.monotonic(), before, uids, self._managers)

    def _release_completed(self, roster: Roster) -> None:
        """Take back the memory of init containers that have run to completion."""
        memory, observed = self._managers.memory, self._inputs.observed.get()
        for uid in memory.state.entries:
            item, view = roster.pods.get(PodUID(uid)), observed.pods.get(PodUID(uid))
            if item is None or view is None or not item.pod.spec.initContainers:
                continue
            names = [c.name for c in (*item.pod.spec.initContainers, *item.pod.spec.containers)]
            created = [name for name in names if view.newest(name) is not None]
            after = memory.release_completed(item.pod, created[-1]) if created else memory
            if after is not memory:
                memory = after
                self._managers = replace(self._managers, memory=memory)
                if PodUID(uid) in self._decided:
                    self._admit(PodUID(uid), item)

    # Placing a pod

    async def _place(self, uid: PodUID, item: RosterPod) -> None:
        began, asked = self._begun.get(uid, (self._clock.monotonic(), 0))
        self._begun[uid] = began, asked + 1
        self._managers = as_running(self._managers, item.pod, self._inputs.observed.get().pods.get(uid))
        managers = self._managers
        admission = Admission(managers.topology, managers.providers, item.pod)
        for _ in admission.containers():
            await self._yields.done()
        result = admission.result()
        if uid in self._inputs.roster.get().rejected_anyway and isinstance(
            result, (Admitted, PreferredAllocationRequest)
        ):
            count_increments(result.increments if isinstance(result, Admitted) else ())
            self._admit(uid, item)  # it could have been placed; it is rejected for another reason
            return
        add_admission(self._steps, self._clock.monotonic(), managers, item.pod, result)
        if isinstance(result, PreferredAllocationRequest) and asked < MAX_QUESTIONS:
            self._start(uid, item, result.resource, "GetPreferredAllocation", self._ask(uid, result))
        elif isinstance(result, PreferredAllocationRequest):
            self._reject(uid, item, Rejection(UNEXPECTED, f"the devices of {result.resource} change too often"))
        elif isinstance(result, Admitted):
            count_increments(result.increments)
            self._managers = managers.with_providers(result.providers)
            self._allocate(uid, item)
        elif managers.has_all(item.pod):
            # It has this from before. (The reference would end the pod if, for instance, no other core is free.)
            self._allocate(uid, item)
        elif self._may_fit_later():
            self._begun.pop(uid)
            self._postponed.add(uid)
            self._waits = {**self._waits, uid: replace(UNKNOWN_HOLDERS, since=self._clock.wall())}
        else:
            count_increments(result.increments)
            names = {str(other): pod_name(entry.pod) for other, entry in self._inputs.roster.get().pods.items()}
            why = explain_rejection(managers.topology, managers.providers, item.pod, names)
            self._reject(uid, item, Rejection(result.reason, result.message), why)

    def _may_fit_later(self) -> bool:
        """Whether resources are held for pods of sources that have not reported yet, which may have ended."""
        roster = self._inputs.roster.get()
        return not roster.sources_ready and not self._managers.holders() <= roster.pods.keys()

    def _allocate(self, uid: PodUID, item: RosterPod) -> None:
        """Have the plugins allocate the pod's devices, if it has any that they have not allocated."""
        devices = self._managers.devices
        calls = devices.unanswered(uid) if devices is not None else ()
        if calls:
            self._start(uid, item, calls[0].resource, "Allocate", self._call(uid, calls))
        else:
            self._admit(uid, item)

    def _admit(self, uid: PodUID, item: RosterPod) -> None:
        self._settle(uid)
        self._decided = {**self._decided, uid: self._managers.placement(item.pod, item.seen_at)}

    def _reject(self, uid: PodUID, item: RosterPod, rejection: Rejection, why: str = "") -> None:
        self._settle(uid)
        placement = PodPlacement(seen_at=item.seen_at, rejection=rejection, explanation=why)
        self._decided = {**self._decided, uid: placement}

    def _settle(self, uid: PodUID) -> None:
        """The decision on the pod is made, or not needed any more."""
        if (begun := self._begun.pop(uid, None)) is not None:
            DURATION.observe((self._clock.monotonic() - begun[0]) * 1000)
        if (devices := self._managers.devices) is not None and (settled := devices.settled(uid)) is not devices:
            self._managers = replace(self._managers, devices=settled)

    # Device plugins

    def _start(self, uid: PodUID, item: RosterPod, resource: str, what: str, work: Any) -> None:
        """Wait for a plugin in a task of its own. The pod's wait shows it."""
        task = self._supervisor.start_child(f"placement-{uid}", work, partial(self._crashed, uid))
        self._working[uid] = (item, task)
        since = self._clock.wall()
        wait = Wait("device plugin", Owner.TOPOLOGY_MANAGER, since, resource, detail=what, next_step="admit the pod")
        self._waits = {**self._waits, uid: wait}

    def _end_work(self, uid: PodUID) -> RosterPod | None:
        """The work on the pod is over; returns its pod, None if it was dropped before."""
        item, _ = self._working.pop(uid, (None, None))
        self._waits = {other: wait for other, wait in self._waits.items() if other != uid}
        return item

    def _crashed(self, uid: PodUID, error: BaseException) -> None:
        self._done.post(_Allocated(uid, (), AllocationError(f"an internal error: {error!r}")))

    async def _ask(self, uid: PodUID, request: PreferredAllocationRequest) -> None:
        assert self._plugins is not None
        self._done.post(_Answered(uid, request, await self._plugins.prefer(request)))

    async def _call(self, uid: PodUID, calls: Sequence[Any]) -> None:
        assert self._plugins is not None
        responses: list[tuple[Any, bytes]] = []
        for call in calls:
            response = await self._plugins.allocate(uid, call)
            if isinstance(response, AllocationError):
                self._done.post(_Allocated(uid, tuple(responses), response))
                return
            responses.append((call, response))
        self._done.post(_Allocated(uid, tuple(responses)))

    async def _take(self, event: _Answered | _Allocated) -> None:
        """Go on with a pod after a plugin has answered."""
        devices = self._managers.devices
        if event.uid not in self._working or devices is None:
            return
        item = self._end_work(event.uid)
        assert item is not None
        error = event.answer if isinstance(event, _Answered) else event.error
        if isinstance(error, AllocationError):
            if event.uid not in self._inputs.lifecycles.get().pods:  # otherwise what it has is free once it has ended
                self._take_back((event.uid,))
            self._reject(event.uid, item, Rejection(error.reason, error.message()))
        elif isinstance(event, _Answered):
            assert not isinstance(event.answer, AllocationError)
            self._managers = replace(self._managers, devices=devices.with_answer(event.request, event.answer))
            await self._place(event.uid, item)
        else:
            for call, response in event.responses:
                devices = devices.with_response(event.uid, call, response)
            self._managers = replace(self._managers, devices=devices)
            self._admit(event.uid, item)

    # Results

    async def _save(self) -> None:
        """Write the state files. If that fails, it is tried again later, even if nothing changes until then."""
        self._is_save_due = False
        managers, plugins, saves = self._managers, self._plugins, []
        if not self._files.is_saved(managers):
            saves.append(self._files.save(managers))
        if plugins is not None and managers.devices is not None and not plugins.is_saved(managers.devices):
            saves.append(plugins.save(managers.devices))
        is_saved = all(await asyncio.gather(*saves))
        if self._save_timer is not None:
            self._save_timer.cancel()
            self._save_timer = None
        self._failed_saves = 0 if is_saved else self._failed_saves + 1
        if not is_saved:
            delay = SAVE_RETRY.delay_s(self._failed_saves)
            self._save_timer = asyncio.get_running_loop().call_later(delay, self._save_again)

    def _save_again(self) -> None:
        self._is_save_due = True
        self._wakeup.set()

    def _publish(self) -> None:
        now = self._managers.publish(self._decided, self._waits, places_all=self._places_all)
        if now != self._placements.get():
            self._placements.publish(now)


def is_active(uid: PodUID, roster: Roster, lifecycles: Lifecycles) -> bool:
    """Whether a pod may have a running container now or later, so that what it holds is not free."""
    item, life = roster.pods.get(uid), lifecycles.pods.get(uid)
    is_wanted = item is not None and item.rejection is None
    if life is None:
        return is_wanted
    comes_back = life.kill_reason in (KillReason.REMOVED, KillReason.RENEWED)
    return life.stage not in ENDED_STAGES or (is_wanted and comes_back)

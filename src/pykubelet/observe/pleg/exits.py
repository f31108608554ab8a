"""Follows hints that containers and sandboxes have ended, until the runtime's status shows it.

Owns: one record for each container or sandbox ID that is ending. `decide.py` has the rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

from msgspec import Struct

from pykubelet.base.kit.cells import Post, within
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.observed import ObservedState, PodReadWanted, PodView, StopInProgress
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.cri.events import HintKind, RuntimeEventSource, RuntimeHint
from pykubelet.observe.pleg.cache import PodCache
from pykubelet.observe.pleg.decide import ExitStep, exit_pauses, exit_step, has_ended, with_exit, with_trusted_end
from pykubelet.observe.pleg.read import read_exit

#: So many containers of one pod are read at once. Each result is a new view of the whole pod.
READS_OF_POD = 8


class _IdRecord(Struct):
    """The record of one container or sandbox ID."""

    #: The agent is stopping it; `timer` runs from the first hint of its end on.
    is_being_stopped: bool = False
    timer: asyncio.TimerHandle | None = None
    #: Set by the hint "reaped"; None unless the ID is being read until its exit is visible.
    reaped: asyncio.Event | None = None
    #: The kernel's OOM killer has killed a process in it.
    is_oom_killed: bool = False

    @property
    def is_spent(self) -> bool:
        return not self.is_being_stopped and self.reaped is None and not self.is_oom_killed


class ExitReader:
    """Reads ending containers and sandboxes. `stopper_s`: as in `RelistPeriods`. `touched`: takes requests to read a whole pod."""

    def __init__(
        self,
        cri: CriClient,
        clock: Clock,
        cache: PodCache,
        supervisor: Supervisor,
        stopper_s: float,
        touched: Post[PodReadWanted],
    ) -> None:
        self._cri = cri
        self._clock = clock
        self._cache = cache
        self._supervisor = supervisor
        self._stopper_s = stopper_s
        self._touched = touched
        self._ids: dict[str, _IdRecord] = {}
        self._slots: WeakValueDictionary[PodUID, asyncio.Semaphore] = WeakValueDictionary()

    def trusted(self, hint: RuntimeHint) -> RuntimeHint:
        """The hint, without an end that contradicts an earlier OOM hint of the same ID."""
        if hint.kind is HintKind.OOM:
            self._record(hint.id).is_oom_killed = True
        record = self._ids.get(hint.id)
        return with_trusted_end(hint, record is not None and record.is_oom_killed)

    def take_hint(self, uid: PodUID, hint: RuntimeHint) -> None:
        """Publish how a container ended before the runtime's status shows it, and read until it does."""
        view, record = self._cache.view(uid), self._ids.get(hint.id)
        if view is not None and hint.end is not None and not (record is not None and record.is_being_stopped):
            pending = view.add_pending_exits((hint.end,))
            if pending.pending_exits != view.pending_exits:
                self._cache.update(pending)
        self.follow(uid, hint.id, hint.source)

    def follow_stop(self, stop: StopInProgress) -> None:
        """Note that the agent's call to stop a container or sandbox has begun or ended."""
        record = self._record(stop.id)
        record.is_being_stopped = not stop.is_over
        if not stop.is_over:
            return
        if record.timer is not None:
            record.timer.cancel()
            record.timer = None
        self._drop_spent(stop.id, record)
        view = self._cache.view(stop.ref.uid)
        if view is not None and not stop.for_good and view.container(stop.id) is not None:
            self.follow(
                stop.ref.uid, stop.id, RuntimeEventSource.CRI
            )  # a stopped sandbox is read at the pod's next touch

    def follow(self, uid: PodUID, runtime_id: str, source: RuntimeEventSource) -> None:
        """React to a hint that a container or sandbox has ended."""
        view, record = self._cache.view(uid), self._record(runtime_id)
        is_being_read = record.reaped is not None
        step = exit_step(
            view,
            runtime_id,
            is_being_stopped=record.is_being_stopped,
            is_being_read=is_being_read,
            is_oom_killed=record.is_oom_killed,
        )
        match step:
            case ExitStep.WAIT:
                if record.timer is None:
                    loop = asyncio.get_running_loop()
                    record.timer = loop.call_later(self._stopper_s, self._miss_stopper, uid, runtime_id, source)
            case ExitStep.REAPED:
                if record.reaped is not None:
                    record.reaped.set()
            case ExitStep.READ:
                record.reaped = asyncio.Event()
                work = self._read_until_ended(uid, runtime_id, record, source)
                self._supervisor.start_child(f"pleg-exit-{runtime_id[:12]}", work)
            case ExitStep.NONE:
                self._drop_spent(runtime_id, record)

    def forget_ooms(self, is_known: Callable[[str], bool]) -> None:
        """Forget OOM kills of IDs that are not known any more."""
        for runtime_id, record in list(self._ids.items()):
            if record.is_oom_killed and not is_known(runtime_id):
                record.is_oom_killed = False
                self._drop_spent(runtime_id, record)

    def _record(self, runtime_id: str) -> _IdRecord:
        record = self._ids.get(runtime_id)
        if record is None:
            record = self._ids[runtime_id] = _IdRecord()
        return record

    def _drop_spent(self, runtime_id: str, record: _IdRecord) -> None:
        if record.is_spent:
            self._ids.pop(runtime_id, None)

    def _miss_stopper(self, uid: PodUID, runtime_id: str, source: RuntimeEventSource) -> None:
        """Stop waiting for the call that stops the container or sandbox, because it has not answered in time."""
        record = self._record(runtime_id)
        record.is_being_stopped, record.timer = False, None
        self.follow(uid, runtime_id, source)

    async def _read_until_ended(
        self, uid: PodUID, runtime_id: str, record: _IdRecord, source: RuntimeEventSource
    ) -> None:
        hinted_at = self._clock.monotonic()
        try:
            reap_s, pauses = exit_pauses(self._cache.view(uid), runtime_id, source)
            if reap_s and record.reaped is not None:
                await within(reap_s, record.reaped.wait())
            for pause in pauses:
                await asyncio.sleep(pause)
                async with self._slots.setdefault(uid, asyncio.Semaphore(READS_OF_POD)):
                    view = self._cache.view(uid)
                    if record.is_being_stopped or view is None:
                        return
                    if has_ended(view, runtime_id, hinted_at, is_oom_killed=record.is_oom_killed):
                        return
                    await self._read_exit(view, runtime_id)
        finally:
            record.reaped = None
            self._drop_spent(runtime_id, record)

    async def _read_exit(self, before: PodView, runtime_id: str) -> None:
        """Read only the container of the hint. A sandbox, or an error, needs a read of the whole pod."""
        try:
            container = await read_exit(self._cri, before, runtime_id)
        except CriError:
            container = None
        view = self._cache.view(before.ref.uid)
        if container is None or view is None:
            self._touched.post(PodReadWanted(before.ref, "exit hinted"))
        elif container.state is ObservedState.EXITED:
            self._cache.update(with_exit(view, container))

"""The loop of the pod workers: starts, ends and wakes the worker of each pod.

Owns: the cells `Lifecycles` and `Heartbeat`, the workers and their `Diagnostics`. Reads: `Roster`, `Observed`, `ProbeResults`,
`Content`, `Evictions`, `NodeShutdown`.
`decide_workers.py` makes the decisions; the loop carries them out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from pykubelet.act.pods.decide import Rules
from pykubelet.act.pods.decide_workers import (
    Action,
    ForgetPod,
    LastPass,
    PodsSnapshot,
    RequestEviction,
    RequestKill,
    RequestRead,
    SendView,
    StartWorker,
    UpdateWorker,
    WorkerRecord,
    crash_pause,
    decide_workers,
    is_worker_done,
    sandbox_in_use,
    workers_of_content,
    workers_of_probes,
)
from pykubelet.act.pods.execute import PodExecution
from pykubelet.act.pods.metrics import ORPHANED, RESTARTED
from pykubelet.act.pods.model import CgroupGone, ContentChanged, Event, PodWorkerState, ProbesChanged, RuntimeRestarted
from pykubelet.act.pods.tools import PodTools
from pykubelet.act.pods.worker import PodWorker, WorkerCrashed
from pykubelet.base.kit.cells import Cell, CellWriter, LazyCellWriter, Mailbox, Post, set_on_change
from pykubelet.base.kit.heartbeat import Heartbeat, resync_forever
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace, with_changes
from pykubelet.base.model.content import Content
from pykubelet.base.model.diagnostics import Diagnostics, PodDiagnostics
from pykubelet.base.model.evictions import Evictions, NodeShutdown
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import warning
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, PodLifecycle
from pykubelet.base.model.observed import Observed, PodReadWanted
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.reasons import EVENT_FAILED_SYNC
from pykubelet.base.model.roster import Roster, is_static

log = Log("pods")


class PodInputs(Value):
    """The cells that the loop reads."""

    roster: Cell[Roster]
    observed: Cell[Observed]
    probes: Cell[ProbeResults]
    content: Cell[Content]
    evictions: Cell[Evictions]
    shutdown: Cell[NodeShutdown]


class PodOutputs(Value):
    """The cells that the loop writes. `heartbeat` None: there is no resync."""

    lifecycles: CellWriter[Lifecycles]
    diagnostics: LazyCellWriter[Diagnostics]
    heartbeat: CellWriter[Heartbeat] | None = None


class PodsLoop:
    """Keeps one worker for each pod that is desired or observed, and publishes `Lifecycles`. `run` never returns."""

    def __init__(
        self,
        inputs: PodInputs,
        outputs: PodOutputs,
        tools: PodTools,
        rules: Rules,
        touched: Post[PodReadWanted],
    ) -> None:
        self._inputs = inputs
        self._lifecycles = outputs.lifecycles
        self._heartbeat = outputs.heartbeat
        self._tools = tools
        self._rules = rules
        self._touched = touched
        self._records: dict[PodUID, WorkerRecord[PodWorker]] = {}
        self._last = LastPass()
        #: Pods of which a worker has ended since the last pass.
        self._ended: dict[PodUID, None] = {}
        self._mailbox: Mailbox[PodLifecycle | WorkerCrashed] = Mailbox("lifecycles")
        self._supervisor = Supervisor("pods")
        outputs.diagnostics.answer_with(self._diagnostics)

    async def run(self) -> None:
        """Run the loop's root tasks until one of them fails, and raise its error."""
        async with self._supervisor as supervisor:
            supervisor.start_root("pods-desired", self._follow_cells())
            supervisor.start_root("pods-lifecycles", self._follow_lifecycles())
            supervisor.start_root("pods-probes", self._follow_probes())
            supervisor.start_root("pods-content", self._follow_content())
            supervisor.start_root("pods-runtime", self._follow_runtime())
            supervisor.start_root("pods-cgroups", self._check_cgroups())
            if self._heartbeat is not None:
                scan = partial(self._reconcile, all_pods=True)
                supervisor.start_root("pods-heartbeat", resync_forever(scan, self._heartbeat, self._tools.clock))
            raise await supervisor.wait_failed()

    # Inputs

    async def _follow_cells(self) -> None:
        changed, inputs = asyncio.Event(), self._inputs
        with set_on_change(changed, inputs.roster, inputs.observed, inputs.evictions, inputs.shutdown):
            while True:
                await changed.wait()
                changed.clear()
                self._reconcile()

    async def _follow_probes(self) -> None:
        before = self._inputs.probes.get()
        async for now in self._inputs.probes.changes():
            _post(workers_of_probes(self._records, before, now), ProbesChanged(now))
            before = now

    async def _follow_content(self) -> None:
        before = self._inputs.content.get()
        async for now in self._inputs.content.changes():
            _post(workers_of_content(self._records, before, now), ContentChanged())
            before = now

    async def _follow_runtime(self) -> None:
        """Report restarts of the runtime to all workers, so that they retry at once."""
        cell = self._tools.cells.runtime
        epoch = cell.get().epoch
        async for now in cell.changes():
            _post(self._workers() if now.epoch != epoch else (), RuntimeRestarted())
            epoch = now.epoch

    async def _check_cgroups(self) -> None:
        """Find pods whose cgroup was removed while their containers run. They start again in a new cgroup, as in the reference
        kubelet."""
        while True:
            await asyncio.sleep(self._rules.resync_s)
            await self._check_all_cgroups()

    async def _check_all_cgroups(self) -> None:
        for worker in self._workers():
            sandbox = sandbox_in_use(worker.state)
            if sandbox is None or not await self._tools.cgroups.is_gone(worker.state.pod):
                continue
            if sandbox_in_use(worker.state) == sandbox:
                log.warning("the cgroup of a pod is gone while its containers run", pod=worker.ref)
                worker.mailbox.post(CgroupGone(sandbox))

    async def _follow_lifecycles(self) -> None:
        """Publish the lifecycles of the workers, and end the workers that are done."""
        while True:
            self._take_lifecycles(await self._mailbox.get_all())

    def _take_lifecycles(self, events: Iterable[PodLifecycle | WorkerCrashed]) -> None:
        before = self._lifecycles.get().pods
        news, has_ended = dict[PodUID, PodLifecycle | None](), False
        for event in events:
            uid = event.uid if isinstance(event, WorkerCrashed) else event.ref.uid
            record = self._records.get(uid)
            if record is None or record.worker is None:
                continue
            if isinstance(event, WorkerCrashed):
                self._pause_crashed(record, record.worker, event)
                news[uid] = None
            elif is_worker_done(event, record.worker.state.removed, uid in self._inputs.roster.get().pods):
                if event.kill_reason is KillReason.RENEWED:
                    RESTARTED.inc("true" if is_static(event.pod) else "")
                self._end_worker(record, record.worker)
                news[uid] = None
                has_ended = True
            elif news.get(uid, before.get(uid)) != event:
                news[uid] = event
        shown = with_changes(before, news)
        if shown is not before:
            self._lifecycles.publish(Lifecycles(shown))
        if has_ended:
            self._reconcile()

    def _diagnostics(self) -> Diagnostics:
        """The waits of pods without a worker, and what the workers know of their pods."""
        waiting = {uid: PodDiagnostics((wait,)) for uid, wait in self._last.waiting.items()}
        return Diagnostics({**waiting, **{worker.ref.uid: worker.diagnostics() for worker in self._workers()}})

    # Workers

    def _workers(self) -> list[PodWorker]:
        return [record.worker for record in self._records.values() if record.worker is not None]

    def _reconcile(self, *, all_pods: bool = False) -> None:
        clock = self._tools.clock
        roster, observed = self._inputs.roster.get(), self._inputs.observed.get()
        evictions = {**self._inputs.evictions.get().pods, **self._inputs.shutdown.get().pods}
        now = PodsSnapshot(roster, observed, clock.monotonic(), clock.wall(), evictions)
        shown = self._lifecycles.get().pods
        decision = decide_workers(self._records, shown, self._last, now, self._ended, all_pods=all_pods)
        self._last = decision.last
        self._ended.clear()
        for action in decision.actions:
            self._execute(action)
        if decision.shown:
            self._lifecycles.publish(Lifecycles(with_changes(shown, decision.shown)))

    def _execute(self, action: Action) -> None:
        match action:
            case StartWorker():
                self._start_worker(action)
            case UpdateWorker(uid=uid, entry=entry):
                self._records[uid].entry, self._records[uid].kill_sent = entry, False
                self._send(uid, *action.events)
            case RequestEviction(uid=uid):
                self._send(uid, action.event)
            case RequestKill(uid=uid):
                self._records[uid].kill_sent = True
                self._send(uid, action.event)
            case SendView(uid=uid):
                self._send(uid, action.event)
            case RequestRead():
                self._touched.post(
                    PodReadWanted(action.ref, "its worker waits for a view that the last relist did not bring")
                )
            case ForgetPod():
                del self._records[action.uid]

    def _send(self, uid: PodUID, *events: Event) -> None:
        if (worker := self._records[uid].worker) is not None:
            for event in events:
                worker.mailbox.post(event)

    def _start_worker(self, action: StartWorker) -> None:
        uid, is_orphan = action.state.ref.uid, action.entry is None
        if is_orphan:
            ORPHANED.inc()
        record = self._records.setdefault(uid, WorkerRecord())
        record.entry, record.kill_sent, record.removed_at = action.entry, is_orphan, None
        unhooked = self._tools.hook_records.of(uid)
        state = replace(action.state, unhooked=unhooked) if unhooked else action.state
        if self._tools.asks_again:
            state = replace(state, sizes=replace(state.sizes, asks_again=True))
        record.worker = self._make_worker(state)
        self._send(uid, *action.events)

    def _make_worker(self, state: PodWorkerState) -> PodWorker:
        execution = PodExecution(self._tools, state.ref)
        worker = PodWorker(state, self._current_rules, execution, self._mailbox, self._touched, self._supervisor)
        worker.start()
        return worker

    def _current_rules(self) -> Rules:
        probes = self._inputs.probes.get()
        if self._rules.probes is not probes:
            self._rules = replace(self._rules, probes=probes)
        return self._rules

    def _end_worker(self, record: WorkerRecord[PodWorker], worker: PodWorker) -> None:
        worker.close()
        self._ended[worker.ref.uid] = None
        record.worker, record.entry, record.kill_sent = None, None, False
        record.removed_at = worker.state.removed_at
        if record.removed_at is None:
            # only a read that begins from now on shows what is left: a relist in which nothing changes reads nothing
            record.removed_at = self._tools.clock.monotonic()
            self._touched.post(PodReadWanted(worker.ref, "its worker has ended"))

    def _pause_crashed(self, record: WorkerRecord[PodWorker], worker: PodWorker, crash: WorkerCrashed) -> None:
        """Report a bug with the pod's history; after a pause a new worker starts from what is observed."""
        history = [f"{line.at:.3f} {line.what} ({line.cause})" for line in worker.history]
        log.error("a pod worker crashed", pod=worker.ref, uid=crash.uid, history=history, error=repr(crash.error))
        message = f"internal error: {crash.error!r}"
        self._tools.recorder.post(warning(EVENT_FAILED_SYNC, message, worker.ref))
        worker.abandon()
        self._end_worker(record, worker)
        clock = self._tools.clock
        record.backoff, record.pause = crash_pause(record.backoff, message, clock.monotonic(), clock.wall())
        asyncio.get_running_loop().call_later(record.backoff.delay_s, self._end_pause, record)

    def _end_pause(self, record: WorkerRecord[PodWorker]) -> None:
        record.pause = None
        self._reconcile()


def _post(workers: Iterable[PodWorker], event: Event) -> None:
    """Post an event to each worker. A function, so that no worker stays in a variable of a loop that waits."""
    for worker in workers:
        worker.mailbox.post(event)

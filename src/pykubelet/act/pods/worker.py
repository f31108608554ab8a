"""The pod worker, one per pod UID: feeds events through the state machine in `decide.py` and carries out its commands.

Owns: one pod's state, history, timers and running work. Reads: the probe results. Posts its lifecycle to the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from pykubelet.act.pods.decide import Rules, find_container, step
from pykubelet.act.pods.execute import PodExecution
from pykubelet.act.pods.metrics import WORK_DURATIONS, StartCount
from pykubelet.act.pods.model import (
    AbandonSync,
    CleanEnded,
    CleanUp,
    Command,
    Event,
    KillRequested,
    PodWorkerState,
    ReportBackOff,
    ReportResize,
    ReportStay,
    RuntimeChanged,
    SpecChanged,
    StopEnded,
    StopPod,
    Sync,
    SyncEnded,
    TimerFired,
    WakeAt,
    Work,
)
from pykubelet.act.pods.waitbook import LifecycleChanged, WaitBook
from pykubelet.base.kit.cells import Mailbox, Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import WORK
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.tracing import NO_SPAN, NoSpan, Span, is_traced, span
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.containers import container_field_path
from pykubelet.base.model.diagnostics import KEPT_STEPS, PodDiagnostics, StepLog, WorkerStep
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.kube_events import KubeEvent, normal, warning
from pykubelet.base.model.lifecycle import KillReason, PodLifecycle, Stage, StartError, StatusOverride
from pykubelet.base.model.observed import PodReadWanted, Removed, Stopped
from pykubelet.base.model.phase import Phase
from pykubelet.base.model.reasons import (
    DEADLINE_EXCEEDED,
    EVENT_BACK_OFF,
    EVENT_FAILED_SYNC,
    EVENT_NOT_RESTARTED,
    EVENT_RESIZE_COMPLETED,
    EVENT_RESIZE_ERROR,
    INTERNAL_ERROR,
)
from pykubelet.base.model.sizing import size_in_words
from pykubelet.base.model.waits import TimelineEntry

log = Log("pods")
HISTORY_LINES = 40
#: After these kills the exits of the containers are not read, because the containers are removed next.
REMOVED_AT_ONCE = frozenset({KillReason.REMOVED, KillReason.ORPHANED})
DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"


class WorkerCrashed(Value):
    """A bug ended a pod's worker."""

    uid: PodUID
    error: BaseException


class PodWorker:
    """Runs one pod. `mailbox` takes the pod's events; `lifecycles` gets its lifecycle after every change, and its crash."""

    def __init__(
        self,
        state: PodWorkerState,
        rules: Callable[[], Rules],
        execution: PodExecution,
        lifecycles: Post[PodLifecycle | WorkerCrashed],
        touched: Post[PodReadWanted],
        supervisor: Supervisor,
    ) -> None:
        self.state = state
        self.mailbox: Mailbox[Event | LifecycleChanged] = Mailbox(f"pod-{state.ref.uid}")
        self._rules = rules
        self._execution = execution
        self._clock: Clock = execution.clock
        self._lifecycles = lifecycles
        self._touched = touched
        self._supervisor = supervisor
        self._history: deque[TimelineEntry] = deque(maxlen=HISTORY_LINES)
        self._steps = StepLog(maxlen=KEPT_STEPS)
        self._task: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None
        self._abandoned = False
        self._stage_since = self._clock.wall()
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._waits = WaitBook(execution.clock, self.mailbox)
        self._published: PodLifecycle | None = None
        view, status = state.view, state.pod.status
        is_new = (view is None or view.is_gone) and not (status is not None and status.startTime)
        self._counts = StartCount(state.started_wall, is_new=is_new)

    @property
    def ref(self) -> PodRef:
        """The pod's namespace, name and UID."""
        return self.state.ref

    def start(self) -> None:
        """Start the worker; it runs until `close`. An unexpected exception is posted as `WorkerCrashed`."""
        uid = self.ref.uid
        self._task = self._supervisor.start_child(
            f"pod-{uid}", self.run(), lambda error: self._lifecycles.post(WorkerCrashed(uid, error))
        )

    async def run(self) -> None:
        """Process events until cancelled."""
        self._record("taken up", "")
        self._publish()
        self._watch_deadline()
        while True:
            self._take_all(await self.mailbox.get_all())

    def _take_all(self, events: list[Event | LifecycleChanged]) -> None:
        for event in _conflate(events):
            if not isinstance(event, LifecycleChanged):
                with WORK.on(self.ref.uid):
                    self._take(event)
        with WORK.on(self.ref.uid):
            self._publish()

    def _take(self, event: Event) -> None:
        if isinstance(event, (SyncEnded, StopEnded, CleanEnded)):
            self._work = None
        before = self.state
        now, rules = self._clock.monotonic(), self._rules()
        self.state, commands = step(before, event, now, rules)
        self._steps.append(WorkerStep(now, before, event, rules, self.state, commands))
        if self.state.stage is not before.stage:
            self._stage_since = self._clock.wall()
            self._record(f"{before.stage} -> {self.state.stage}", event.cause)
            log.info(f"pod is {self.state.stage}", pod=self.ref, uid=self.ref.uid, cause=event.cause)
        if isinstance(event, SpecChanged):
            self._watch_deadline()
        elif isinstance(event, RuntimeChanged):
            self._counts.saw(self.state.pod, event.view, self._clock.wall(), self._execution.pulled)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Sync():
                self._record(_describe(command), command.cause)
                self._abandoned = False
                self._execution.begin_sync(self.state.unhooked)
                self._start("sync", self._sync(command)).add_done_callback(self._sync_over)
            case AbandonSync():
                if command.hard and self._work is not None:
                    self._abandoned = True
                    self._work.cancel()
                else:
                    self._execution.interrupt(is_outdated=command.is_outdated)
            case StopPod():
                self._record(f"stopping within {command.grace_s} s", command.cause)
                if self._work is not None:
                    if self._work.done():
                        return  # its StopEnded is already in the mailbox
                    self._work.cancel()
                self._start("stop", self._stop(command))
            case CleanUp():
                self._start("clean", self._clean(command))
            case WakeAt():
                self._wake_at(command.at)
            case ReportResize():
                self._execution.recorder.post(_resize_event(command, self.ref))
                self._record(f"resize: {command.progress.error or 'done'}", command.cause)
            case ReportBackOff():
                container = find_container(self.state.pod, command.container)
                message = f"Back-off restarting failed container {container.name} in pod {self.ref}"
                path = container_field_path(self.state.pod, container.name)
                self._execution.recorder.post(warning(EVENT_BACK_OFF, message, self.ref, path))
                self._record(f"{container.name} is held back", command.cause)
            case ReportStay():
                verdict = command.verdict
                why = f"{verdict.message} (extension {verdict.extension})".lstrip()
                message = f"Container {command.container} is not restarted: {why}"
                path = container_field_path(self.state.pod, command.container)
                self._execution.recorder.post(warning(EVENT_NOT_RESTARTED, message, self.ref, path))
                self._record(f"{command.container} is not restarted: {why}", command.cause)

    def _start(self, what: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._work = self._supervisor.start_child(f"{what}-{self.ref.uid}", work)
        return self._work

    async def _sync(self, command: Sync) -> None:
        began = self._clock.monotonic()
        operation = self._counts.begins(command.pod, command.cause, self._clock.wall())
        with _pod_span("syncPod", self.ref, operation) as traced:
            try:
                ended = await self._execution.sync(command, self._waits)
                WORK_DURATIONS.observe(self._clock.monotonic() - began, operation)
            except Exception as error:  # noqa: BLE001 - a bug in one pod's work must not end the others
                ended = SyncEnded(pod_error=self._report_bug("sync", error))
            if failure := _first_failure(ended):
                traced.fail(failure)
        self._sync_ended(ended)

    def _sync_over(self, task: asyncio.Task[None]) -> None:
        """Post `SyncEnded` for an abandoned sync that was cancelled before its first step: it could not post it itself."""
        if task.cancelled() and self._abandoned:
            self._sync_ended(SyncEnded(unfinished=True, cause="sync abandoned"))

    def _sync_ended(self, ended: SyncEnded) -> None:
        self.mailbox.post(replace(ended, unhooked=self._execution.hooks.running))
        changed = frozenset(ended.resized.containers) if ended.resized is not None else frozenset()
        self._touched.post(PodReadWanted(self.ref, ended.cause, changed, ended.made))

    @property
    def _is_removed_at_once(self) -> bool:
        return self.state.kill is not None and self.state.kill.reason in REMOVED_AT_ONCE

    async def _stop(self, command: StopPod) -> None:
        with _pod_span("syncTerminatingPod", self.ref) as traced:
            try:
                error = await self._execution.stop(command, self._waits, for_good=self._is_removed_at_once)
            except Exception as bug:  # noqa: BLE001 - as above
                error = self._report_bug("stop", bug).message
            if error:
                traced.fail(error)
        # volumes are unmounted once the pod's view shows that nothing runs; of a pod without any, only the removal matters
        if error or not self._is_removed_at_once or self._execution.ending.is_held:
            is_sure = not (error or self._abandoned)
            answer = Stopped(self._clock.monotonic()) if is_sure else None
            self._touched.post(PodReadWanted(self.ref, "stopped", answer=answer))
        if not error and not self._is_removed_at_once:
            await self._execution.ending.wait_ends_reported(self._waits)
        if not error and not (self.state.kill is not None and self.state.kill.reason is KillReason.ORPHANED):
            await self._execution.ending.after_stop(self._waits)
        self.mailbox.post(StopEnded(error=error))

    async def _clean(self, command: CleanUp) -> None:
        with _pod_span("syncTerminatedPod", self.ref) as traced:
            try:
                ended = await self._execution.ending.clean(command, self._waits)
            except Exception as bug:  # noqa: BLE001 - as above
                ended = CleanEnded(error=self._report_bug("clean-up", bug).message)
            if ended.error:
                traced.fail(ended.error)
        if self._abandoned:
            ended = replace(ended, removed_at=None)  # the runtime may still create what an abandoned call has requested
        self.mailbox.post(ended)
        if command.remove:
            answer = Removed(ended.removed_at) if ended.removed_at is not None else None
            self._touched.post(PodReadWanted(self.ref, "removed", answer=answer))

    def _report_bug(self, what: str, error: Exception) -> StartError:
        lines = [f"{line.at:.3f} {line.what} ({line.cause})" for line in self._history]
        log.error(f"{what} crashed", pod=self.ref, uid=self.ref.uid, history=lines, exc_info=error)
        message = f"internal error in {what}: {error!r}"
        self._execution.recorder.post(warning(EVENT_FAILED_SYNC, message, self.ref))
        return StartError(INTERNAL_ERROR, message)

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.0, at - self._clock.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self.mailbox.post, TimerFired())

    @property
    def history(self) -> tuple[TimelineEntry, ...]:
        """The newest transitions, oldest first."""
        return tuple(self._history)

    def diagnostics(self) -> PodDiagnostics:
        """What the pod waits for, its transitions, and the newest steps of its state machine."""
        return PodDiagnostics(self._waits.snapshot(), self.history, tuple(self._steps))

    def abandon(self) -> None:
        """Cancel the running work. The next view shows what it has already done."""
        if self._work is not None:
            self._work.cancel()

    def _watch_deadline(self) -> None:
        """Request the pod's kill when `activeDeadlineSeconds` have passed since the pod became active.

        A change of the wall clock has no effect: `active_since` is monotonic and was computed once.
        """
        if self._deadline is not None:
            self._deadline.cancel()
        allowed = self.state.pod.spec.activeDeadlineSeconds
        if allowed is None:
            return
        left = self.state.active_since + allowed - self._clock.monotonic()
        if left > 0:
            self._deadline = asyncio.get_running_loop().call_later(left, self._pass_deadline)
        else:
            self._pass_deadline()  # before any work starts

    def _pass_deadline(self) -> None:
        if self.state.kill is not None:
            return
        self._execution.recorder.post(normal(DEADLINE_EXCEEDED, DEADLINE_MESSAGE, self.ref))
        override = StatusOverride(Phase.FAILED, DEADLINE_EXCEEDED, DEADLINE_MESSAGE)
        self.mailbox.post(KillRequested(KillReason.DEADLINE, "active deadline passed", override=override))

    def close(self) -> None:
        """End the worker and its timers. Running work continues unless `abandon` was called.

        A task that was cancelled keeps the frames in which it ended, and these the worker: if the worker kept its tasks, both would
        stay, with the pod's history, until a full garbage collection.
        """
        if self._task is not None:
            self._task.cancel()
        self._task = self._work = None
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()
        self._waits.close()

    def _record(self, what: str, cause: str) -> None:
        self._history.append(TimelineEntry(self._clock.wall(), what, cause))

    def _publish(self) -> None:
        """Post the lifecycle if it changed. The lifecycle of a finished pod is posted after every event, because the end of the
        worker also depends on the roster."""
        state = self.state
        is_failing = self._waits.follow(state, self._rules().crash)
        lifecycle = PodLifecycle(
            ref=state.ref,
            pod=state.pod,
            stage=state.stage,
            stage_since=self._stage_since,
            started_at=state.started_wall,
            start_errors=state.start_errors,
            override=state.kill.override if state.kill else None,
            kill_reason=state.kill.reason if state.kill else None,
            terminal=state.terminal,
            restarting_all=state.restarting_all,
            reset=state.reset_instances,
            to_restart=state.to_restart,
            stays=state.back_offs.stays,
            uncounted={useless.id: useless.ended for useless in state.loss.uncounted},
            resize=state.sizes.resize,
            post_starting=self._execution.hooks.running if state.work is Work.SYNC else state.unhooked,
            ahead=self._execution.ahead,
            is_stopped=self._execution.is_stopped,
            is_held_up=state.stage is Stage.SYNCING and is_failing,
        )
        if lifecycle != self._published or state.stage is Stage.FINISHED:
            self._published = lifecycle
            self._lifecycles.post(lifecycle)


def _conflate(events: list[Event | LifecycleChanged]) -> list[Event | LifecycleChanged]:
    """Keep only the newest view of the runtime."""
    changes = [event for event in events if isinstance(event, RuntimeChanged)]
    if len(changes) < 2:
        return events
    newest = max(reversed(changes), key=lambda change: change.view.read_at)
    return [event for event in events if not isinstance(event, RuntimeChanged) or event is newest]


def _resize_event(command: ReportResize, ref: PodRef) -> KubeEvent:
    pod, progress = command.pod, command.progress
    if progress.error:
        message = size_in_words("Pod resize error", pod, progress.generation, progress.error)
        return warning(EVENT_RESIZE_ERROR, message, ref)
    return normal(EVENT_RESIZE_COMPLETED, size_in_words("Pod resize completed", pod, progress.generation), ref)


def _describe(command: Sync) -> str:
    plan = command.plan
    parts: list[str] = []
    if plan.stop_pod and command.view.sandboxes:
        parts.append("stop what is left")
    if plan.restart_all:
        parts.append("remove all containers to start again")
    parts.extend(f"kill {kill.container.name} ({kill.cause})" for kill in plan.kills if not plan.restart_all)
    if plan.hooks:
        parts.append(f"run the postStart hook of {', '.join(plan.hooks)} again")
    if plan.resize_pod:
        parts.append("resize " + (", ".join(change.name for change in plan.resizes) or "the pod"))
    if plan.create_sandbox:
        parts.append(f"create sandbox (attempt {plan.attempt})")
    if plan.starts:
        parts.append("start " + ", ".join(plan.starts))
    return "; ".join(parts) or "prune"


def _pod_span(name: str, ref: PodRef, update_type: str = "") -> Span | NoSpan:
    """A span of the work on one pod, with the name and attributes of the reference kubelet. `update_type`: create, update or sync."""
    if not is_traced():
        return NO_SPAN
    attributes = {
        "k8s.pod.uid": str(ref.uid),
        "k8s.pod": f"{ref.namespace}/{ref.name}",
        "k8s.pod.name": ref.name,
        "k8s.namespace.name": ref.namespace,
    }
    if update_type:
        attributes["k8s.pod.update_type"] = update_type
    return span(name, attributes=attributes)


def _first_failure(ended: SyncEnded) -> str:
    """Why a sync has failed: the error of the pod, else that of a container, else of a resize. Empty if it has not."""
    if ended.pod_error is not None:
        return ended.pod_error.message
    failed = next(iter(ended.failed.values()), None)
    return failed.error.message if failed is not None else ended.resize_error

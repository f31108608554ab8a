"""The pod state machine: the pure function `step` maps a pod's state and an event to the next state and commands.

Rules:
- A pod goes from syncing to terminating, terminated and finished, never back. A finished pod is cleaned again when it is
  removed for good. `invariants.py` has the table of all transitions.
- Only one kind of work runs for a pod at a time (`Work`). Events that arrive meanwhile are kept in the state, and decided
  on when the work has ended. A kill, a changed spec or a changed view of the runtime abandons the running sync.
- No plan is made from a view of the runtime that was read before the last work on the pod ended.
- An exit that is known only from a runtime event is enough to start the next container, but not to end the pod.
- A second kill can shorten the grace period, never lengthen it.
- A container that ends repeatedly waits in crash back-off (`backoff.py`), or as an extension decides (`restarts.py`).
- A pod that has ended in the API is also ended here.
- When a pod is terminated, a container that was killed to be restarted is not restarted: it has ended as it did.
- A pod that is desired again while it is terminating keeps its containers and logs, and starts again when it has
  terminated, unless its restartPolicy is Never.
- After a restart of the agent, the state is derived again from what is observed.
- A container that was created and not started, because its sync ended before that, is removed when it is next to start, and
  created anew. It does not count as a restart.
- A postStart hook runs at least once. One that was cut off, by the end of the agent or of a sync, is run again while its container
  runs, and until it has ended the container does not count as running. Nothing is started beside a hook: what comes next depends on
  how it ends, and on the probes after it. A hook of a container that has ended, or is being killed, is not run.
"""

from __future__ import annotations

from typing import assert_never

from pykubelet.act.pods.backoff import START_RETRY_S, Pause
from pykubelet.act.pods.invariants import check_step
from pykubelet.act.pods.model import (
    REMOVING,
    AbandonSync,
    CgroupGone,
    CleanEnded,
    CleanUp,
    Command,
    ContentChanged,
    Event,
    KillOrder,
    KillRequested,
    PodFailure,
    PodWorkerState,
    ProbesChanged,
    ReportBackOff,
    ReportResize,
    ReportStay,
    RuntimeChanged,
    RuntimeRestarted,
    SpecChanged,
    StopEnded,
    StopPod,
    Sync,
    SyncEnded,
    TimerFired,
    WakeAt,
    Work,
)
from pykubelet.act.pods.restarts import AskForRestart, ask_about_exits
from pykubelet.act.runtime.plan.plan import HashOf, PodPlan, plan_pod
from pykubelet.base.api.core import Container, EphemeralContainer, Pod, PodSpec
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.checks import CHECKS
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model import containers
from pykubelet.base.model.lifecycle import KillReason, Stage, StartError
from pykubelet.base.model.observed import ObservedState, PodView, end_in_words
from pykubelet.base.model.phase import failed_init, pod_phase
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.reasons import (
    CRASH_LOOP_BACK_OFF,
    CREATE_CONTAINER_CONFIG_ERROR,
    CREATE_POD_SANDBOX_ERROR,
    EVENT_FAILED_KILL_POD,
    FAILED_CLEAN_UP,
)
from pykubelet.base.model.restart import ALWAYS, init_failed, is_sidecar, restartable_pod
from pykubelet.base.model.roster import has_ended_in_api
from pykubelet.base.model.sizing import ResizeProgress

DEFAULT_GRACE_S = 30
MIN_GRACE_S = 1
POD_RETRY = BackoffPolicy(1.0, 10.0)


class Rules(Value):
    """What a decision needs besides state, event and time. `resync_s`: the period of the resync of one pod, in seconds.

    `ask_extensions`: None: no extension takes part in restarts.
    """

    hash_of: HashOf
    crash: BackoffPolicy
    resync_s: float
    probes: ProbeResults
    ask_extensions: AskForRestart | None = None


Result = tuple[PodWorkerState, tuple[Command, ...]]


def step(state: PodWorkerState, event: Event, now: float, rules: Rules) -> Result:
    """One step of the state machine: the next state and the commands. `now`: monotonic seconds.

    Raises ValueError for an event that cannot occur in this state, and BrokenInvariantError while `CHECKS` is on (bugs).
    """
    before = state
    state, commands = _step(state, event, now, rules)
    state, done = _with_resize_progress(state)
    commands = (*commands, *(ReportResize(state.pod, resize, event.cause) for resize in done))
    if CHECKS.is_on:
        check_step(before, event, state, commands)
    return state, commands


def _step(state: PodWorkerState, event: Event, now: float, rules: Rules) -> Result:
    match event:
        case SpecChanged():
            return _spec_changed(state, event, now, rules)
        case RuntimeChanged():
            return _runtime_changed(state, event, now, rules)
        case ProbesChanged():
            return _advance(state, now, rules, event.cause)
        case ContentChanged():
            return _content_changed(state, event, now, rules)
        case KillRequested():
            return _kill_requested(state, event, now, rules)
        case RuntimeRestarted():
            return _advance(_without_pauses(state, forgets_failures=True), now, rules, event.cause)
        case CgroupGone():
            return _advance(replace(state, outside_cgroup=event.sandbox), now, rules, event.cause)
        case TimerFired():
            return _advance(state, now, rules, event.cause)
        case SyncEnded():
            return _sync_ended(state, event, now, rules)
        case StopEnded():
            return _stop_ended(state, event, now, rules)
        case CleanEnded():
            return _clean_ended(state, event, now, rules)
        case _:
            assert_never(event)


def _with_resize_progress(state: PodWorkerState) -> tuple[PodWorkerState, tuple[ResizeProgress, ...]]:
    """The state after any event, and the resize that has completed."""
    sizes, done = state.sizes, tuple[ResizeProgress, ...]()
    if state.stage is not Stage.SYNCING:
        sizes = sizes.without_resize()
    elif state.view is not None:
        sizes, done = sizes.after_step(state.pod, state.view, is_at_rest=state.work is Work.NONE and _is_fresh(state))
    return (state if sizes is state.sizes else replace(state, sizes=sizes)), done


def _expect(state: PodWorkerState, work: Work, event: Event) -> None:
    if state.work is not work:
        raise ValueError(f"{type(event).__name__} while {state.work} ({state.ref})")


# Events


def _spec_changed(state: PodWorkerState, event: SpecChanged, now: float, rules: Rules) -> Result:
    changed = state.pod.spec != event.pod.spec
    others = changed and _lasting(state.pod.spec) != _lasting(event.pod.spec)
    if _can_renew(state):
        assert state.kill is not None
        state = replace(state, kill=replace(state.kill, reason=KillReason.RENEWED))
    state = replace(state, sizes=state.sizes.after_spec(state.pod, event.pod), pod=event.pod)
    if event.pod.metadata.deletionTimestamp:
        order = KillRequested(KillReason.DELETED, event.cause, event.pod.metadata.deletionGracePeriodSeconds)
        return _kill_requested(state, order, now, rules)
    if has_ended_in_api(event.pod) and state.kill is None:
        state = replace(state, terminal=True)
        return _kill_requested(state, KillRequested(KillReason.COMPLETED, "it has ended in the API"), now, rules)
    if changed and state.stage is Stage.SYNCING:
        state = _without_pauses(state, forgets_failures=True)
        state = replace(state, back_offs=state.back_offs.without_pod_back_off())
        if state.work is Work.SYNC:
            return state, (AbandonSync(hard=others, cause=event.cause, is_outdated=True),)
    return _advance(state, now, rules, event.cause)


def _without_pauses(state: PodWorkerState, *, forgets_failures: bool = False) -> PodWorkerState:
    """Try again at once what has failed. `forgets_failures`: the next failure of the pod is the first one."""
    failure = replace(state.failure, retry_at=None) if state.failure is not None else None
    if failure is not None and forgets_failures:
        failure = replace(failure, count=0)
    return replace(
        state, back_offs=state.back_offs.without_pauses(), failure=failure, sizes=state.sizes.without_pause()
    )


def _lasting(spec: PodSpec) -> PodSpec:
    """The spec without the fields that do not affect running containers. If only those change, running hooks are not cancelled."""
    return replace(
        spec,
        initContainers=tuple(replace(c, resources=None) for c in spec.initContainers),
        containers=tuple(replace(c, resources=None) for c in spec.containers),
        ephemeralContainers=(),
        resources=None,
        tolerations=(),
        activeDeadlineSeconds=None,
    )


def _can_renew(state: PodWorkerState) -> bool:
    """Whether a pod that is desired again while it is terminating keeps its containers and logs, and starts again.

    If one of its containers need not start again after the end that it has now, the pod begins anew instead.
    """
    is_removed = state.kill is not None and state.kill.reason is KillReason.REMOVED
    policies = (c.restartPolicy or state.pod.spec.restartPolicy or ALWAYS for c in state.pod.spec.containers)
    return is_removed and not state.removed and all(policy == ALWAYS for policy in policies)


def _runtime_changed(state: PodWorkerState, event: RuntimeChanged, now: float, rules: Rules) -> Result:
    if state.view is not None and event.view.read_at < state.view.read_at:
        return state, ()
    started = _started(state.pod, event.view)
    errors = {name: error for name, error in state.start_errors.items() if name not in started}
    present = {c.id for c in event.view.containers}
    killed = {container: why for container, why in state.killed.items() if container in present}
    newest = {found.id for c in event.view.containers if (found := event.view.newest(c.name)) is not None}
    before = state.view
    state = replace(
        state,
        view=event.view,
        back_offs=state.back_offs.after_view(before, event.view, now, event.wall),
        start_errors=errors,
        killed=killed,
        to_restart=state.to_restart & newest,
    )
    if _is_fresh(state):
        state = _with_unhooked(state, event.view)
    view = event.view
    if state.stage is Stage.SYNCING:
        loss = state.loss.after_view(before, view, state.back_offs.exits, killed, now)
        view = view.without(loss.uncounted_ids)
        state = replace(state, loss=loss, view=view)
    has_changed = before is None or _contents(before) != _contents(view)
    if has_changed and state.work is Work.SYNC and state.stage is Stage.SYNCING and _is_fresh(state):
        return state, (AbandonSync(hard=False, cause=event.cause),)
    return _advance(state, now, rules, event.cause)


def _started(pod: Pod, view: PodView) -> set[str]:
    """The containers that run, and the init containers that have succeeded: their start has not failed, whatever was answered to it."""
    init = {container.name for container in pod.spec.initContainers if not is_sidecar(container)}
    newest = (found for name in init if (found := view.newest(name)) is not None)
    succeeded = {c.name for c in newest if c.state is ObservedState.EXITED and not init_failed(c)}
    return succeeded | {container.name for container in view.running}


def _content_changed(state: PodWorkerState, event: ContentChanged, now: float, rules: Rules) -> Result:
    """Retry at once what failed because of a missing object; during a sync, after its end."""
    if state.work is Work.SYNC:
        return replace(state, content_changed=True), ()
    return _advance(_without_content_pauses(state), now, rules, event.cause)


def _without_content_pauses(state: PodWorkerState) -> PodWorkerState:
    over = [name for name, error in state.start_errors.items() if error.reason == CREATE_CONTAINER_CONFIG_ERROR]
    failure = state.failure
    if failure is not None and failure.error.reason == CREATE_POD_SANDBOX_ERROR:
        failure = replace(failure, retry_at=None)
    return replace(state, back_offs=state.back_offs.without_pauses(over), failure=failure)


def _contents(view: PodView) -> tuple[object, object]:
    return view.sandboxes, view.containers


def _kill_requested(state: PodWorkerState, event: KillRequested, now: float, rules: Rules) -> Result:
    grace = _grace(state, event.grace_s)
    if state.kill is None:
        state = replace(state, kill=KillOrder(event.reason, grace, event.override))
        if state.work is Work.SYNC:
            return replace(state, stage=Stage.TERMINATING), (AbandonSync(hard=True, cause=event.cause),)
        return _advance(state, now, rules, event.cause)
    reason = event.reason if event.reason in REMOVING else state.kill.reason
    shorter = min(grace, state.kill.grace_s)
    hurry = shorter < state.kill.grace_s
    state = replace(state, kill=replace(state.kill, reason=reason, grace_s=shorter))
    if state.work is Work.STOP and hurry:
        return state, (StopPod(state.pod, shorter, event.cause),)
    return _advance(state, now, rules, event.cause)


def _grace(state: PodWorkerState, override: int | None) -> int:
    """The grace period in seconds: the shorter of the API object's and the kill request's; without both, the pod's own."""
    asked = [s for s in (state.pod.metadata.deletionGracePeriodSeconds, override) if s is not None]
    own = state.pod.spec.terminationGracePeriodSeconds
    return max(MIN_GRACE_S, min(asked, default=DEFAULT_GRACE_S if own is None else own))


def _sync_ended(state: PodWorkerState, event: SyncEnded, now: float, rules: Rules) -> Result:
    _expect(state, Work.SYNC, event)
    sizes, resizes = state.sizes.after_sync(event.resized, event.resize_error, now)
    errors = {name: error for name, error in state.start_errors.items() if name not in event.started}
    killed, pauses = dict(state.killed), dict[str, Pause]()
    failed = {name: failure.error for name, failure in event.failed.items()}
    for name, failure in event.failed.items():
        if failure.instance is not None:
            killed[failure.instance] = failure.error.message
        else:
            retry_at = failure.retry_at if failure.retry_at is not None else now + START_RETRY_S
            pauses[name] = Pause(retry_at, failure.unstarted)
    is_empty = not (event.pod_error or event.unfinished or event.started or event.failed)
    failure_of_pod = _pod_failure(state, event.pod_error, now) if event.pod_error is not None else None
    if failure_of_pod is not None and state.kill is not None:
        failure_of_pod = replace(failure_of_pod, retry_at=None)  # its containers are stopped at once
    had_content_change = state.content_changed
    state = replace(
        state,
        work=Work.NONE,
        sizes=sizes,
        start_errors={**errors, **failed},
        killed=killed,
        unhooked=event.unhooked,
        back_offs=state.back_offs.after_sync(
            event.started, failed, pauses, has_removed_all=state.restarting_all and is_empty
        ),
        failure=failure_of_pod,
        read_after=now,
        content_changed=False,
        restarting_all=state.restarting_all and not (event.started or event.failed),
    )
    if had_content_change:
        state = _without_content_pauses(state)
    state, commands = _advance(state, now, rules, event.cause)
    return state, (*(ReportResize(state.pod, failed, "resize failed") for failed in resizes), *commands)


def _pod_failure(state: PodWorkerState, error: StartError, now: float) -> PodFailure:
    count = state.failure.count + 1 if state.failure is not None else 1
    return PodFailure(error, count, now + POD_RETRY.delay_s(count))


def _stop_ended(state: PodWorkerState, event: StopEnded, now: float, rules: Rules) -> Result:
    _expect(state, Work.STOP, event)
    state = replace(state, work=Work.NONE, read_after=now)
    if event.error:
        state = replace(state, failure=_pod_failure(state, StartError(EVENT_FAILED_KILL_POD, event.error), now))
        return _advance(state, now, rules, event.cause)
    view = event.view if event.view is not None else state.view
    state = replace(state, view=view, stage=Stage.TERMINATED, failure=None)
    return _advance(state, now, rules, event.cause)


def _clean_ended(state: PodWorkerState, event: CleanEnded, now: float, rules: Rules) -> Result:
    _expect(state, Work.CLEAN, event)
    state = replace(state, work=Work.NONE)
    if event.error:
        state = replace(state, failure=_pod_failure(state, StartError(FAILED_CLEAN_UP, event.error), now))
        return _advance(state, now, rules, event.cause)
    state = replace(state, stage=Stage.FINISHED, removed_at=event.removed_at, failure=None)
    return _advance(state, now, rules, event.cause)


# What follows


def _advance(state: PodWorkerState, now: float, rules: Rules, cause: str) -> Result:
    """Start the next work that the state requires, if none is under way."""
    if state.work is not Work.NONE:
        return state, ()
    pause = state.failure.retry_at if state.failure is not None else None
    if pause is not None and pause > now and not (state.kill and state.stage is Stage.SYNCING):
        return state, (WakeAt(pause),)
    match state.stage:
        case Stage.SYNCING:
            if state.kill is not None:
                return _terminate(state, cause)
            return _advance_syncing(state, now, rules, cause)
        case Stage.TERMINATING:
            return _terminate(state, cause)
        case Stage.TERMINATED:
            removing = state.kill is not None and state.kill.reason in REMOVING
            return replace(state, work=Work.CLEAN, removed=removing), (CleanUp(removing, cause),)
        case Stage.FINISHED:
            if state.kill is not None and state.kill.reason in REMOVING and not state.removed:
                state = replace(state, stage=Stage.TERMINATED, work=Work.CLEAN, removed=True)
                return state, (CleanUp(True, cause),)
            return state, ()
        case _:
            assert_never(state.stage)


def _terminate(state: PodWorkerState, cause: str) -> Result:
    assert state.kill is not None
    grace = state.kill.grace_s
    state = replace(
        state,
        stage=Stage.TERMINATING,
        work=Work.STOP,
        restarting_all=False,
        back_offs=state.back_offs.without_pod_back_off(),
        to_restart=frozenset(),
        unhooked={},
    )
    return state, (StopPod(state.pod, grace, cause),)


def _complete(state: PodWorkerState, cause: str) -> Result:
    if state.view is not None and state.view.pending_exits:
        return state, ()  # the runtime will confirm the exits in a moment
    kill = KillOrder(KillReason.COMPLETED, _grace(state, None))
    return _terminate(replace(state, terminal=True, kill=kill), cause)


def _end_cause(pod: Pod, state: PodWorkerState) -> str:
    """Why the pod has ended, for its history. `pod`: as of `restartable_pod`."""
    failed = failed_init(pod, state.view, state.to_restart)
    if failed is None:
        return "all containers have ended"
    return f"init container {failed.name} has failed: {end_in_words(failed)}"


def _is_fresh(state: PodWorkerState) -> bool:
    return state.view is not None and state.view.read_at >= state.read_after


def _advance_syncing(state: PodWorkerState, now: float, rules: Rules, cause: str) -> Result:
    view = state.view
    if view is None or not _is_fresh(state):
        return state, ()
    back_offs, pod = state.back_offs, state.pod
    if back_offs.verdicts:
        pod = restartable_pod(pod, view, back_offs.stays)
    errors, restarted = state.start_errors, state.to_restart
    if view.containers and pod_phase(pod, view, errors, ended=False, to_restart=restarted).is_terminal:
        return _complete(state, _end_cause(pod, state))
    state = replace(state, sizes=state.sizes.after_view(state.pod, view))
    applied = state.sizes.applied
    plan = plan_pod(pod, view, rules.probes, rules.hash_of, applied, state.to_restart, state.outside_cgroup)
    if plan.stop_pod and not plan.create_sandbox:
        return _complete(state, "nothing is left to run")
    if rules.ask_extensions is not None and plan.starts:
        inputs = state.back_off_inputs(rules.crash)
        asked = ask_about_exits(rules.ask_extensions, state.back_offs, plan, inputs, state.to_restart)
        state, plan = replace(state, back_offs=asked.back_offs), asked.plan
        if asked.never:
            errors = {name: error for name, error in state.start_errors.items() if name not in asked.never}
            state, commands = _advance_syncing(replace(state, start_errors=errors), now, rules, cause)
            return state, (*(ReportStay(name, verdict) for name, verdict in asked.never.items()), *commands)
    if plan.create_sandbox:
        state = replace(
            _without_pauses(state), start_errors={}
        )  # what failed in the old sandbox may work in the new one
    if state.sizes.unasked and plan.sandbox is not None and (more := state.sizes.rewrites(view, plan)):
        plan = replace(plan, resizes=(*plan.resizes, *more), resize_pod=True)
    wanted = plan.starts  # including those that are in back-off
    starts = state.back_offs.decide(plan, state.ref, state.back_off_inputs(rules.crash), now)
    reports = tuple(ReportBackOff(name, CRASH_LOOP_BACK_OFF) for name in starts.reports)
    state = replace(state, back_offs=starts.back_offs, start_errors={**state.start_errors, **starts.errors})
    plan, wakes = starts.plan, list(starts.wakes)
    if plan.resize_pod and (again := state.sizes.retry_at) is not None and again > now:
        plan = replace(plan, resizes=(), resize_pod=False)
        wakes.append(again)
    plan = _without_leftovers(_with_hooks(plan, state), state, view)
    if not (plan.starts or plan.restart_all):
        plan = replace(plan, remove=())  # old instances are removed when the next one starts
    if plan.is_empty:
        return state, (*reports, WakeAt(min(wakes, default=now + rules.resync_s)))
    if plan.restart_all:
        state = _with_restart_of_all(state, plan, now, rules)
    killed = {**state.killed, **{kill.container.id: kill.cause.words for kill in plan.kills}}
    to_restart = {kill.container.id for kill in plan.kills if kill.container.name in wanted}
    at_once = {kill.container.id for kill in plan.kills if kill.container.name in plan.starts}
    state = replace(state, to_restart=state.to_restart | to_restart, back_offs=state.back_offs.after_kills(at_once))
    sizes = state.sizes.before_sync(state.pod, plan.starts, is_new_sandbox=plan.create_sandbox)
    state = replace(
        state, sizes=sizes, work=Work.SYNC, restarting_all=bool(plan.restart_all) or state.restarting_all, killed=killed
    )
    useless = tuple(start.instance for start in state.loss.uncounted)
    return state, (*reports, Sync(state.pod, plan, view, cause, sizes.applied, useless))


def _without_leftovers(plan: PodPlan, state: PodWorkerState, view: PodView) -> PodPlan:
    """The plan that also removes what was created for a start that did not come: it has never run, so its successor is no restart.

    One that the runtime could not start stays: its start has counted.
    """
    if not plan.starts or not any(found.state is ObservedState.CREATED for found in view.containers):
        return plan
    tried = {pause.unstarted for pause in state.back_offs.pauses.values()}
    every = (found for name in plan.starts for found in view.instances(name))
    useless = (
        c.id for c in every if c.state is ObservedState.CREATED and c.id not in tried and c.id not in plan.remove
    )
    return replace(plan, remove=(*plan.remove, *useless))


def _with_restart_of_all(state: PodWorkerState, plan: PodPlan, now: float, rules: Rules) -> PodWorkerState:
    """Note that all containers are removed now; they start again after the back-off of the container whose exit requires it."""
    state = _without_pauses(state)  # nothing of what was before counts any more
    gone = state.reset_instances if state.restarting_all else frozenset()  # an earlier removal was not finished
    return replace(
        state,
        back_offs=state.back_offs.before_restart_of_all(plan.restart_all, state.back_off_inputs(rules.crash), now),
        reset_instances=gone.union(plan.remove),
        start_errors={},
        loss=state.loss.forgotten(),
    )


# Hooks


def _with_unhooked(state: PodWorkerState, view: PodView) -> PodWorkerState:
    """The state with the hooks that have not ended, of containers that run in this view.

    Also of containers that the runtime still shows running after the event of their exit: they must not be reported as running.
    """
    if not state.unhooked:
        return state
    hooked, ending = _hooked(state.pod), {exited.id for exited in view.pending_exits}
    left: dict[str, int] = {}
    for name, attempt in state.unhooked.items():
        newest = view.newest(name)
        if name not in hooked or newest is None or newest.attempt < attempt:
            continue
        if newest.is_running or newest.id in ending:
            left[name] = attempt
    return replace(state, unhooked=left)


def _hooked(pod: Pod) -> frozenset[str]:
    """The containers with a postStart hook."""
    every = containers.every_container(pod)
    return frozenset(c.name for c in every if c.lifecycle is not None and c.lifecycle.postStart is not None)


def _with_hooks(plan: PodPlan, state: PodWorkerState) -> PodPlan:
    """The plan with the hooks that have not ended, and without starts if there are any."""
    if not state.unhooked or plan.create_sandbox or plan.restart_all:
        return plan
    killed = {kill.container.name for kill in plan.kills}
    running = {container.name for container in state.view.running} if state.view is not None else set[str]()
    hooks = tuple(name for name in state.unhooked if name in running and name not in killed)
    return replace(plan, hooks=hooks, start_init=(), start=(), start_ephemeral=()) if hooks else plan


def find_container(pod: Pod, name: str) -> Container | EphemeralContainer:
    """The container of that name, which the pod has."""
    found = containers.find_container(pod, name)
    assert found is not None, name
    return found

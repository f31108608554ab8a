"""The pod state machine: the pure function `step` maps a pod's state and an event to the next state and commands.

Rules:
- A pod goes from syncing to terminating, terminated and finished, never back. A finished pod is cleaned again when it is
  removed for good.
- Only one kind of work runs for a pod at a time (`Work`). Events that arrive meanwhile are kept in the state, and decided
  on when the work has ended. A kill, a changed spec or a changed view of the runtime abandons the running sync.
- No plan is made from a view of the runtime that was read before the last work on the pod ended.
- An exit that is known only from a runtime event is enough to start the next container, but not to end the pod.
- A second kill can shorten the grace period, never lengthen it.
- A container that ends repeatedly waits in crash back-off: 10 s, doubling to the cap, counted from its end, and forgotten
  after twice the cap. A container that was stopped because its postStart hook failed counts as ended. A container that
  could not be started waits 10 s in addition, unless the runtime shows it as ended. If the exit of a container restarts
  the whole pod, all containers are removed at once, and all wait for its back-off (KEP-5532).
- A pod that has ended in the API is also ended here.
- When a pod is terminated, a container that was killed to be restarted is not restarted: it has ended as it did.
- A pod that is desired again while it is terminating keeps its containers and logs, and starts again when it has
  terminated, unless its restartPolicy is Never.
- After a restart of the agent, the state is derived again from what is observed.
"""

from __future__ import annotations

from math import inf
from typing import assert_never

from pykubelet.act.pods.decide_hooks import with_hooks, with_unhooked
from pykubelet.act.pods.decide_lost import is_raised, with_lost_sandbox
from pykubelet.act.pods.decide_resize import (
    resize_ended,
    resized_spec,
    with_instances,
    with_progress,
    with_starts,
    without_held_resize,
)
from pykubelet.act.pods.model import (
    REMOVING,
    RESIZE,
    AbandonSync,
    CgroupGone,
    CleanEnded,
    CleanUp,
    Command,
    ContentChanged,
    CrashHold,
    Event,
    KillOrder,
    KillRequested,
    PodWorkerState,
    ProbesChanged,
    ReportBackOff,
    ResetHold,
    RuntimeChanged,
    RuntimeRestarted,
    SpecChanged,
    StopEnded,
    StopPod,
    Sync,
    SyncEnded,
    WakeAt,
    Woke,
    Work,
)
from pykubelet.act.runtime.plan.plan import HashOf, PodPlan, plan_pod
from pykubelet.base.api.core import Container, EphemeralContainer, Pod, PodSpec
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.durations import format_seconds
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model import fieldpath
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import KillReason, Stage, StartError
from pykubelet.base.model.moments import wall_to_monotonic
from pykubelet.base.model.observed import ContainerView, ObservedState, PodView, end_in_words
from pykubelet.base.model.phase import failed_init, pod_phase
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.reasons import (
    CRASH_LOOP_BACK_OFF,
    CREATE_CONTAINER_CONFIG_ERROR,
    CREATE_POD_SANDBOX_ERROR,
    EVENT_FAILED_KILL_POD,
    FAILED_CLEAN_UP,
    POST_START_HOOK_ERROR,
    RUN_CONTAINER_ERROR,
)
from pykubelet.base.model.restart import ALWAYS, init_failed, is_sidecar
from pykubelet.base.model.roster import has_ended_in_api

DEFAULT_GRACE_S = 30
MIN_GRACE_S = 1
START_RETRY_S = 10.0
POD_RETRY = BackoffPolicy(1.0, 10.0)
RAN_AND_FAILED = frozenset({RUN_CONTAINER_ERROR, POST_START_HOOK_ERROR})


class Rules(Value):
    """What a decision needs besides state, event and time. `resync_s`: the period of the resync of one pod, in seconds."""

    hash_of: HashOf
    crash: BackoffPolicy
    resync_s: float
    probes: ProbeResults


Result = tuple[PodWorkerState, tuple[Command, ...]]


def step(state: PodWorkerState, event: Event, now: float, rules: Rules) -> Result:
    """One step of the state machine: the next state and the commands. `now`: monotonic seconds.

    Raises ValueError for an event that cannot occur in this state (a bug).
    """
    state, commands = _step(state, event, now, rules)
    state, reports = with_progress(state, event.cause)
    return state, (*commands, *reports) if reports else commands


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
            return _advance(replace(state, retry_at={}, pod_failures=0), now, rules, event.cause)
        case CgroupGone():
            return _advance(replace(state, outside=event.sandbox), now, rules, event.cause)
        case Woke():
            return _advance(state, now, rules, event.cause)
        case SyncEnded():
            return _sync_ended(state, event, now, rules)
        case StopEnded():
            return _stop_ended(state, event, now, rules)
        case CleanEnded():
            return _clean_ended(state, event, now, rules)
        case _:
            assert_never(event)


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
    state = replace(resized_spec(state, event.pod) if changed else state, pod=event.pod)
    if event.pod.metadata.deletionTimestamp:
        order = KillRequested(KillReason.DELETED, event.cause, event.pod.metadata.deletionGracePeriodSeconds)
        return _kill_requested(state, order, now, rules)
    if has_ended_in_api(event.pod) and state.kill is None:
        state = replace(state, terminal=True)
        return _kill_requested(state, KillRequested(KillReason.COMPLETED, "it has ended in the API"), now, rules)
    if changed and state.stage is Stage.SYNCING:
        state = replace(state, retry_at={}, pod_failures=0, reset=None)
        if state.work is Work.SYNC:
            return state, (AbandonSync(hard=others, cause=event.cause, is_outdated=True),)
    return _advance(state, now, rules, event.cause)


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
    exits = _exits(state, event.view, now, event.wall)
    started = _started(state.pod, event.view)
    errors = {name: error for name, error in state.start_errors.items() if name not in started}
    present = {c.id for c in event.view.containers}
    killed = {container: why for container, why in state.killed.items() if container in present}
    newest = {found.id for c in event.view.containers if (found := event.view.newest(c.name)) is not None}
    # If the runtime shows a container that it could not start as ended, the crash back-off replaces the start pause.
    over = {name for name, instance in state.unstarted.items() if instance in exits}
    before = state.view
    state = replace(
        state,
        view=event.view,
        exits=exits,
        start_errors=errors,
        killed=killed,
        retry_at={name: at for name, at in state.retry_at.items() if name not in over},
        to_restart=state.to_restart & newest,
        restart_without_backoff=state.restart_without_backoff & newest,
    )
    if _is_fresh(state):
        state = with_unhooked(state, event.view)
    state = with_lost_sandbox(before, state, now)
    assert state.view is not None
    has_changed = before is None or _contents(before) != _contents(state.view)
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
    return _advance(replace(state, retry_at=_without_content_pauses(state)), now, rules, event.cause)


def _without_content_pauses(state: PodWorkerState) -> dict[str, float]:
    over = {name for name, error in state.start_errors.items() if error.reason == CREATE_CONTAINER_CONFIG_ERROR}
    if state.pod_error is not None and state.pod_error.reason == CREATE_POD_SANDBOX_ERROR:
        over.add("")
    return {name: at for name, at in state.retry_at.items() if name not in over}


def _contents(view: PodView) -> tuple[object, object]:
    return view.sandboxes, view.containers


def _exits(state: PodWorkerState, view: PodView, now: float, wall: float) -> dict[ContainerID, float]:
    """When each ended container ended, in monotonic seconds. The first estimate is kept, even if the wall clock changes.

    A container that still ran in the last view ended after that view was read. The runtime's date alone counts only for
    containers that had already ended in the first view.
    """
    before = state.view if state.view is not None else PodView(state.ref, read_at=-inf)
    found = {c.id for c in before.containers if c.state is ObservedState.EXITED}
    exits: dict[ContainerID, float] = {}
    for container in view.containers:
        if container.state is ObservedState.EXITED:
            not_before = -inf if container.id in found else before.read_at
            ended = wall_to_monotonic(container.finished_at / 1e9, now, wall, not_before)
            exits[container.id] = state.exits.get(container.id, ended)
    return exits


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
    state, resize_reports = resize_ended(state, event)
    errors = {name: error for name, error in state.start_errors.items() if name not in event.started}
    retry = {name: at for name, at in state.retry_at.items() if name and name not in event.started}
    killed, unstarted = dict(state.killed), dict[str, ContainerID]()
    for name, failure in event.failed.items():
        errors[name] = failure.error
        if failure.instance is not None:
            retry.pop(name, None)
            killed[failure.instance] = failure.error.message
        else:
            if failure.unstarted is not None:
                unstarted[name] = failure.unstarted
            retry[name] = failure.retry_at if failure.retry_at is not None else now + START_RETRY_S
    if event.resize_error:
        retry[RESIZE] = now + START_RETRY_S
    else:
        retry.pop(RESIZE, None)
    failures = state.pod_failures + 1 if event.pod_error is not None else 0
    had_content_change = state.content_changed
    if event.pod_error is not None and state.kill is None:
        retry[""] = now + POD_RETRY.delay_s(failures)
    state = replace(
        state,
        work=Work.NONE,
        start_errors=errors,
        killed=killed,
        retry_at=retry,
        unstarted=unstarted,
        unhooked=event.unhooked,
        holds={
            **state.holds,
            **{name: hold for name, hold in state.pending_holds.items() if _counts(state, name, event)},
        },
        pending_holds={},
        pod_error=event.pod_error,
        pod_failures=failures,
        read_after=now,
        content_changed=False,
        restarting_all=state.restarting_all and not (event.started or event.failed),
    )
    if had_content_change:
        state = replace(state, retry_at=_without_content_pauses(state))
    state, commands = _advance(state, now, rules, event.cause)
    return state, (*resize_reports, *commands)


def _counts(state: PodWorkerState, name: str, ended: SyncEnded) -> bool:
    """Whether the sync raises the container's back-off: it tried to run the container, or it removed all containers."""
    if state.restarting_all and not (ended.pod_error or ended.unfinished or ended.started or ended.failed):
        return True
    failure = ended.failed.get(name)
    return name in ended.started or (failure is not None and failure.error.reason in RAN_AND_FAILED)


def _stop_ended(state: PodWorkerState, event: StopEnded, now: float, rules: Rules) -> Result:
    _expect(state, Work.STOP, event)
    state = replace(state, work=Work.NONE, read_after=now)
    if event.error:
        failures = state.pod_failures + 1
        wait = POD_RETRY.delay_s(failures)
        error = StartError(EVENT_FAILED_KILL_POD, event.error)
        return replace(state, pod_failures=failures, pod_error=error, retry_at={"": now + wait}), (WakeAt(now + wait),)
    view = event.view if event.view is not None else state.view
    state = replace(state, view=view, stage=Stage.TERMINATED, pod_failures=0, pod_error=None, retry_at={})
    return _advance(state, now, rules, event.cause)


def _clean_ended(state: PodWorkerState, event: CleanEnded, now: float, rules: Rules) -> Result:
    _expect(state, Work.CLEAN, event)
    state = replace(state, work=Work.NONE)
    if event.error:
        failures = state.pod_failures + 1
        wait = POD_RETRY.delay_s(failures)
        error = StartError(FAILED_CLEAN_UP, event.error)
        return replace(state, pod_failures=failures, pod_error=error, retry_at={"": now + wait}), (WakeAt(now + wait),)
    state = replace(state, stage=Stage.FINISHED, gone_at=event.gone_at, pod_failures=0, pod_error=None, retry_at={})
    return _advance(state, now, rules, event.cause)


# What follows


def _advance(state: PodWorkerState, now: float, rules: Rules, cause: str) -> Result:
    """Start the next work that the state requires, if none is under way."""
    if state.work is not Work.NONE:
        return state, ()
    if (pause := state.retry_at.get("", now)) > now and not (state.kill and state.stage is Stage.SYNCING):
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
        reset=None,
        to_restart=frozenset(),
        unhooked={},
    )
    return state, (StopPod(state.pod, grace, cause),)


def _complete(state: PodWorkerState, cause: str) -> Result:
    if state.view is not None and state.view.pending_exits:
        return state, ()  # the runtime will confirm the exits in a moment
    kill = KillOrder(KillReason.COMPLETED, _grace(state, None))
    return _terminate(replace(state, terminal=True, kill=kill), cause)


def _end_cause(state: PodWorkerState) -> str:
    """Why the pod has ended, for its history."""
    failed = failed_init(state.pod, state.view, state.to_restart)
    if failed is None:
        return "all containers have ended"
    return f"init container {failed.name} has failed: {end_in_words(failed)}"


def _is_fresh(state: PodWorkerState) -> bool:
    return state.view is not None and state.view.read_at >= state.read_after


def _advance_syncing(state: PodWorkerState, now: float, rules: Rules, cause: str) -> Result:
    view = state.view
    if view is None or not _is_fresh(state):
        return state, ()
    if pod_phase(state.pod, view, state.start_errors, ended=False, to_restart=state.to_restart).is_terminal:
        return _complete(state, _end_cause(state))
    state = with_instances(state)
    plan = plan_pod(state.pod, view, rules.probes, rules.hash_of, state.applied, state.to_restart, state.outside)
    if plan.stop_pod and not plan.create_sandbox:
        return _complete(state, "nothing is left to run")
    if plan.create_sandbox:
        state = replace(state, retry_at={}, start_errors={})  # what failed in the old sandbox may work in the new one
    wanted = plan.starts  # including those that are in back-off
    state, plan, wakes, reports = _hold_back(state, plan, now, rules)
    plan = without_held_resize(state, plan, now, wakes)
    plan = with_hooks(plan, state)
    if not (plan.starts or plan.restart_all):
        plan = replace(plan, remove=())  # old instances are removed when the next one starts
    if plan.is_empty:
        return state, (*reports, WakeAt(min(wakes, default=now + rules.resync_s)))
    if plan.restart_all:
        state = _with_reset(state, plan, now, rules)
    killed = {**state.killed, **{kill.container.id: kill.cause.words for kill in plan.kills}}
    to_restart = {kill.container.id for kill in plan.kills if kill.container.name in wanted}
    at_once = {kill.container.id for kill in plan.kills if kill.container.name in plan.starts}
    state = replace(
        state, to_restart=state.to_restart | to_restart, restart_without_backoff=state.restart_without_backoff | at_once
    )
    state = with_starts(state, plan)
    state = replace(state, work=Work.SYNC, restarting_all=bool(plan.restart_all) or state.restarting_all, killed=killed)
    useless = tuple(one.instance for one in state.uncounted)
    return state, (*reports, Sync(state.pod, plan, view, cause, state.applied, useless))


def _with_reset(state: PodWorkerState, plan: PodPlan, now: float, rules: Rules) -> PodWorkerState:
    """Note that all containers are removed now; they start again after the back-off of the container whose exit requires it."""
    trigger = plan.restart_all
    ended = _last_ended(state, trigger)
    assert ended is not None
    container = find_container(state.pod, trigger)
    free_at, hold = _free_at(state, container, ended, rules)
    raised = rules.crash.raised(hold.entry if hold else None, state.exits[ended.id], now)
    reset = ResetHold(trigger, free_at, hold.entry.delay_s if hold else 0.0)
    gone = state.reset_instances if state.restarting_all else frozenset()  # an earlier removal was not finished
    return replace(
        state,
        pending_holds={trigger: CrashHold(back_off_key(state.pod, container), raised, ended.id)},
        reset=reset,
        reset_instances=gone.union(plan.remove),
        retry_at={},  # nothing of what was before counts any more
        start_errors={},
        uncounted=(),
    )


def _hold_reset(
    state: PodWorkerState, plan: PodPlan, reset: ResetHold
) -> tuple[PodWorkerState, PodPlan, tuple[Command, ...]]:
    """Hold back all starts except those of ephemeral containers until the back-off of the whole pod has passed."""
    error = StartError(CRASH_LOOP_BACK_OFF, back_off_message(state, reset.container, reset.delay_s))
    reports = () if reset.is_reported else (ReportBackOff(reset.container, CRASH_LOOP_BACK_OFF),)
    errors = {**state.start_errors, reset.container: error}
    state = replace(state, start_errors=errors, reset=replace(reset, is_reported=True))
    return state, replace(plan, start_init=(), start=()), reports


def _hold_back(
    state: PodWorkerState, plan: PodPlan, now: float, rules: Rules
) -> tuple[PodWorkerState, PodPlan, list[float], tuple[Command, ...]]:
    """Remove the starts in back-off from the plan, and raise the back-off of the other restarts. Kills never wait."""
    wakes: list[float] = []
    reports: list[Command] = []
    held: set[str] = set()
    if (reset := state.reset) is not None and reset.free_at > now and (plan.start_init or plan.start):
        wakes.append(reset.free_at)
        state, plan, reset_reports = _hold_reset(state, plan, reset)
        reports.extend(reset_reports)
    errors, pending_holds, reported = dict(state.start_errors), dict[str, CrashHold](), set(state.reported_backoffs)
    for name in plan.starts:
        container = find_container(state.pod, name)
        ended = _last_ended(state, name)
        free_at, hold = _free_at(state, container, ended, rules)
        if (retry := state.retry_at.get(name, now)) > now:
            held.add(name)
            wakes.append(retry)
        elif free_at > now and ended is not None and hold is not None:
            held.add(name)
            wakes.append(free_at)
            errors[name] = StartError(CRASH_LOOP_BACK_OFF, back_off_message(state, name, hold.entry.delay_s))
            if ended.id not in reported:
                reported.add(ended.id)
                reports.append(ReportBackOff(name, CRASH_LOOP_BACK_OFF))
        elif ended is not None and not (hold is not None and is_raised(state, ended, hold)):
            raised = rules.crash.raised(hold.entry if hold else None, state.exits[ended.id], now)
            pending_holds[name] = CrashHold(back_off_key(state.pod, container), raised, ended.id)
    state = replace(state, pending_holds=pending_holds)
    if not held:
        return state, plan, wakes, tuple(reports)
    plan = replace(
        plan,
        start_ephemeral=tuple(n for n in plan.start_ephemeral if n not in held),
        start_init=tuple(n for n in plan.start_init if n not in held),
        start=tuple(n for n in plan.start if n not in held),
    )
    present = {c.id for c in state.view.containers} if state.view is not None else set()
    state = replace(state, start_errors=errors, reported_backoffs=frozenset(reported & present))
    return state, plan, wakes, tuple(reports)


def _last_ended(state: PodWorkerState, name: str) -> ContainerView | None:
    """The newest ended instance, except those that restart without back-off. A running container that is killed may have one."""
    instances = state.view.instances(name) if state.view is not None else ()
    return next((c for c in instances if c.id in state.exits and c.id not in state.restart_without_backoff), None)


def _free_at(
    state: PodWorkerState, container: Container | EphemeralContainer, ended: ContainerView | None, rules: Rules
) -> tuple[float, CrashHold | None]:
    """When the container's crash back-off ends (0.0: none), in monotonic seconds, and its back-off entry."""
    hold = state.holds.get(container.name)
    if hold is not None and hold.key != back_off_key(state.pod, container):
        hold = None
    if ended is None or (hold is not None and is_raised(state, ended, hold)):
        return 0.0, hold
    return rules.crash.free_at(hold.entry if hold else None, state.exits[ended.id]), hold


def back_off_key(pod: Pod, container: Container | EphemeralContainer) -> str:
    """The key of a container's back-off. It changes with image and resources, so that a changed container starts without back-off."""
    meta = pod.metadata
    return f"{meta.name}_{meta.namespace}_{meta.uid}_{container.name}_{container.image}_{container.resources}"


def back_off_message(state: PodWorkerState, container: str, delay_s: float) -> str:
    """The message of a container in crash back-off. `delay_s`: the whole back-off in seconds."""
    return f"back-off {format_seconds(delay_s)} restarting failed container={container} pod={state.ref}"


def find_container(pod: Pod, name: str) -> Container | EphemeralContainer:
    """The container of that name, which the pod has."""
    found = fieldpath.find_container(pod, name)
    assert found is not None, name
    return found

"""One pod's life as a pure machine: `step(state, event, now)` gives the next state and the commands.

Rules:
- syncing -> terminating -> terminated -> finished; never back, except that a finished pod is cleaned again when it is
  removed for good.
- One thing is done to a pod at a time (`Work`). What arrives meanwhile is kept in the state and looked at afterwards;
  a kill, and a change that a waiting sync should not miss, abandon the running sync.
- Nothing is planned from a look at the runtime that is older than the last thing done to the pod.
- What an event tells of a container's end is enough to start what comes next, not to end the pod.
- A kill shortens the grace period, never lengthens it.
- A container that ended again waits: 10 s doubling to the cap, measured from its end, forgotten after twice the cap.
  One that was stopped because its postStart hook failed has ended, too; one that could not be started waits 10 s besides.
  One whose end restarts all others has them removed at once, and all wait (KEP-5532).
- A pod that has ended in the API is ended here too.
- What is ended owes no container another start: what was killed for that has ended as it did.
- A pod that is desired again while it is being ended keeps its containers and logs, and starts again when it has ended.
- After a restart of the agent everything is derived again from what is observed.
"""

from __future__ import annotations

from math import inf
from typing import assert_never

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
    PodState,
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
from pykubelet.base.model.fieldpath import every_container
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import KillReason, Stage, StartError
from pykubelet.base.model.moments import moment_of
from pykubelet.base.model.observed import ContainerState, ContainerView, PodView
from pykubelet.base.model.phase import pod_phase
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
from pykubelet.base.model.restart import NEVER
from pykubelet.base.model.roster import has_ended_in_api

DEFAULT_GRACE_S = 30
MIN_GRACE_S = 1
START_RETRY_S = 10.0
POD_RETRY = BackoffPolicy(1.0, 10.0)
RAN_AND_FAILED = frozenset({RUN_CONTAINER_ERROR, POST_START_HOOK_ERROR})


class Rules(Value):
    """What a decision needs besides state, event and time. `resync_s`: the safety net's period for one pod."""

    hash_of: HashOf
    crash: BackoffPolicy
    resync_s: float
    probes: ProbeResults


Result = tuple[PodState, tuple[Command, ...]]


def step(state: PodState, event: Event, now: float, rules: Rules) -> Result:
    """The machine. Raises ValueError for an event that cannot happen in this state (a bug)."""
    state, commands = _step(state, event, now, rules)
    state, reports = with_progress(state, event.cause)
    return state, (*commands, *reports) if reports else commands


def _step(state: PodState, event: Event, now: float, rules: Rules) -> Result:
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


def _expect(state: PodState, work: Work, event: Event) -> None:
    if state.work is not work:
        raise ValueError(f"{type(event).__name__} while {state.work} ({state.ref})")


# Events


def _spec_changed(state: PodState, event: SpecChanged, now: float, rules: Rules) -> Result:
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
        return _kill_requested(state, KillRequested(KillReason.COMPLETED, "it has ended, says the API"), now, rules)
    if changed and state.stage is Stage.SYNCING:
        state = replace(state, retry_at={}, pod_failures=0, reset=None)
        if state.work is Work.SYNC:
            return state, (AbandonSync(hard=others, cause=event.cause, is_outdated=True),)
    return _advance(state, now, rules, event.cause)


def _lasting(spec: PodSpec) -> PodSpec:
    """The spec without what may change and leaves the containers as they are: for that no hook is cut off."""
    return replace(
        spec,
        initContainers=tuple(replace(c, resources=None) for c in spec.initContainers),
        containers=tuple(replace(c, resources=None) for c in spec.containers),
        ephemeralContainers=(),
        resources=None,
        tolerations=(),
        activeDeadlineSeconds=None,
    )


def _can_renew(state: PodState) -> bool:
    """The pod is wanted again while it is being ended: what is left of it is kept, and it goes on as after a restart."""
    is_removed = state.kill is not None and state.kill.reason is KillReason.REMOVED
    return is_removed and not state.removed and state.pod.spec.restartPolicy != NEVER


def _runtime_changed(state: PodState, event: RuntimeChanged, now: float, rules: Rules) -> Result:
    if state.view is not None and event.view.read_at < state.view.read_at:
        return state, ()
    exits = _exits(state, event.view, now, event.wall)
    running = {c.name for c in event.view.running}
    errors = {name: error for name, error in state.start_errors.items() if name not in running}
    present = {c.id for c in event.view.containers}
    killed = {container: why for container, why in state.killed.items() if container in present}
    newest = {found.id for c in event.view.containers if (found := event.view.newest(c.name)) is not None}
    # what the runtime could not start and shows as ended is due when its back-off says, not after the pause
    over = {name for name, instance in state.unstarted.items() if instance in exits}
    is_news = state.view is None or _contents(state.view) != _contents(event.view)
    state = replace(
        state,
        view=event.view,
        exits=exits,
        start_errors=errors,
        killed=killed,
        retry_at={name: at for name, at in state.retry_at.items() if name not in over},
        owed=state.owed & newest,
        restart_without_backoff=state.restart_without_backoff & newest,
    )
    if is_news and state.work is Work.SYNC and state.stage is Stage.SYNCING and _is_fresh(state):
        return state, (AbandonSync(hard=False, cause=event.cause),)
    return _advance(state, now, rules, event.cause)


def _content_changed(state: PodState, event: ContentChanged, now: float, rules: Rules) -> Result:
    """What failed for want of an object is tried again at once, also when it is just about to fail."""
    if state.work is Work.SYNC:
        return replace(state, content_changed=True), ()
    return _advance(replace(state, retry_at=_without_content_pauses(state)), now, rules, event.cause)


def _without_content_pauses(state: PodState) -> dict[str, float]:
    over = {name for name, error in state.start_errors.items() if error.reason == CREATE_CONTAINER_CONFIG_ERROR}
    if state.pod_error is not None and state.pod_error.reason == CREATE_POD_SANDBOX_ERROR:
        over.add("")
    return {name: at for name, at in state.retry_at.items() if name not in over}


def _contents(view: PodView) -> tuple[object, object]:
    return view.sandboxes, view.containers


def _exits(state: PodState, view: PodView, now: float, wall: float) -> dict[ContainerID, float]:
    """When each ended container ended, on the monotonic clock; the first estimate stays, whatever the wall clock does.

    One that had not ended at the last look ended after it; dates count only for those that were found ended.
    """
    before = state.view if state.view is not None else PodView(state.ref, read_at=-inf)
    found = {c.id for c in before.containers if c.state is ContainerState.EXITED}
    exits: dict[ContainerID, float] = {}
    for container in view.containers:
        if container.state is ContainerState.EXITED:
            not_before = -inf if container.id in found else before.read_at
            ended = moment_of(container.finished_at / 1e9, now, wall, not_before)
            exits[container.id] = state.exits.get(container.id, ended)
    return exits


def _kill_requested(state: PodState, event: KillRequested, now: float, rules: Rules) -> Result:
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


def _grace(state: PodState, override: int | None) -> int:
    """What the API or the one who kills asks for, the shorter of both; else the pod's own."""
    asked = [s for s in (state.pod.metadata.deletionGracePeriodSeconds, override) if s is not None]
    own = state.pod.spec.terminationGracePeriodSeconds
    return max(MIN_GRACE_S, min(asked, default=DEFAULT_GRACE_S if own is None else own))


def _sync_ended(state: PodState, event: SyncEnded, now: float, rules: Rules) -> Result:
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


def _counts(state: PodState, name: str, ended: SyncEnded) -> bool:
    """Whether the sync got as far as a process of this container, or as removing all: that counts for its back-off."""
    if state.restarting_all and not (ended.pod_error or ended.unfinished or ended.started or ended.failed):
        return True
    failure = ended.failed.get(name)
    return name in ended.started or (failure is not None and failure.error.reason in RAN_AND_FAILED)


def _stop_ended(state: PodState, event: StopEnded, now: float, rules: Rules) -> Result:
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


def _clean_ended(state: PodState, event: CleanEnded, now: float, rules: Rules) -> Result:
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


def _advance(state: PodState, now: float, rules: Rules, cause: str) -> Result:
    """Start whatever the state asks for, if nothing is being done."""
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


def _terminate(state: PodState, cause: str) -> Result:
    assert state.kill is not None
    grace = state.kill.grace_s
    state = replace(state, stage=Stage.TERMINATING, work=Work.STOP, restarting_all=False, reset=None, owed=frozenset())
    return state, (StopPod(state.pod, grace, cause),)


def _complete(state: PodState, cause: str) -> Result:
    if state.view is not None and state.view.pending_exits:
        return state, ()  # the runtime's last word comes in a moment
    kill = KillOrder(KillReason.COMPLETED, _grace(state, None))
    return _terminate(replace(state, terminal=True, kill=kill), cause)


def _is_fresh(state: PodState) -> bool:
    return state.view is not None and state.view.read_at >= state.read_after


def _advance_syncing(state: PodState, now: float, rules: Rules, cause: str) -> Result:
    view = state.view
    if view is None or not _is_fresh(state):
        return state, ()
    if pod_phase(state.pod, view, state.start_errors, ended=False, owed=state.owed).is_terminal:
        return _complete(state, "all containers have ended")
    state = with_instances(state)
    plan = plan_pod(state.pod, view, rules.probes, rules.hash_of, state.applied, state.owed, state.outside)
    if plan.stop_pod and not plan.create_sandbox:
        return _complete(state, "nothing is left to run")
    if plan.create_sandbox:
        state = replace(state, retry_at={}, start_errors={})  # what failed in the old one may work in the new one
    wanted = plan.starts  # also those that must wait now
    state, plan, wakes, reports = _hold_back(state, plan, now, rules)
    plan = without_held_resize(state, plan, now, wakes)
    if not (plan.starts or plan.restart_all):
        plan = replace(plan, remove=())  # old instances go when the next one comes
    if plan.is_empty:
        return state, (*reports, WakeAt(min(wakes, default=now + rules.resync_s)))
    if plan.restart_all:
        state = _with_reset(state, plan, now, rules)
    killed = {**state.killed, **{kill.container.id: kill.cause.words for kill in plan.kills}}
    owed = {kill.container.id for kill in plan.kills if kill.container.name in wanted}
    at_once = {kill.container.id for kill in plan.kills if kill.container.name in plan.starts}
    state = replace(state, owed=state.owed | owed, restart_without_backoff=state.restart_without_backoff | at_once)
    state = with_starts(state, plan)
    state = replace(state, work=Work.SYNC, restarting_all=bool(plan.restart_all) or state.restarting_all, killed=killed)
    return state, (*reports, Sync(state.pod, plan, view, cause, state.applied))


def _with_reset(state: PodState, plan: PodPlan, now: float, rules: Rules) -> PodState:
    """All containers are removed at once; when they start again is up to the back-off of the one that asked for it."""
    trigger = plan.restart_all
    ended = _last_ended(state, trigger)
    assert ended is not None
    container = find_container(state.pod, trigger)
    free_at, hold = _free_at(state, container, ended, rules)
    raised = rules.crash.raised(hold.entry if hold else None, state.exits[ended.id], now)
    reset = ResetHold(trigger, free_at, hold.entry.delay_s if hold else 0.0)
    gone = state.reset_instances if state.restarting_all else frozenset()  # tried before, and not finished
    return replace(
        state,
        pending_holds={trigger: CrashHold(back_off_key(state.pod, container), raised)},
        reset=reset,
        reset_instances=gone.union(plan.remove),
    )


def _hold_reset(state: PodState, plan: PodPlan, reset: ResetHold) -> tuple[PodState, PodPlan, tuple[Command, ...]]:
    """Nothing but ephemeral containers starts before all may start again."""
    error = StartError(CRASH_LOOP_BACK_OFF, back_off_message(state, reset.container, reset.delay_s))
    reports = () if reset.is_reported else (ReportBackOff(reset.container, CRASH_LOOP_BACK_OFF),)
    errors = {**state.start_errors, reset.container: error}
    state = replace(state, start_errors=errors, reset=replace(reset, is_reported=True))
    return state, replace(plan, start_init=(), start=()), reports


def _hold_back(
    state: PodState, plan: PodPlan, now: float, rules: Rules
) -> tuple[PodState, PodPlan, list[float], tuple[Command, ...]]:
    """Take out of the plan the starts that must wait, and remember the restarts that go ahead. Kills never wait."""
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
        elif ended is not None:
            raised = rules.crash.raised(hold.entry if hold else None, state.exits[ended.id], now)
            pending_holds[name] = CrashHold(back_off_key(state.pod, container), raised)
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


def _last_ended(state: PodState, name: str) -> ContainerView | None:
    """The newest instance that has ended by itself; a container whose probe gave it up may run and still have one."""
    instances = state.view.instances(name) if state.view is not None else ()
    return next((c for c in instances if c.id in state.exits and c.id not in state.restart_without_backoff), None)


def _free_at(
    state: PodState, container: Container | EphemeralContainer, ended: ContainerView | None, rules: Rules
) -> tuple[float, CrashHold | None]:
    """When the crash back-off lets a container start, and the entry that holds it."""
    hold = state.holds.get(container.name)
    if hold is not None and hold.key != back_off_key(state.pod, container):
        hold = None
    if ended is None:
        return 0.0, hold
    return rules.crash.free_at(hold.entry if hold else None, state.exits[ended.id]), hold


def back_off_key(pod: Pod, container: Container | EphemeralContainer) -> str:
    """A change of image or resources is a new key and so a new start."""
    meta = pod.metadata
    return f"{meta.name}_{meta.namespace}_{meta.uid}_{container.name}_{container.image}_{container.resources}"


def back_off_message(state: PodState, container: str, delay_s: float) -> str:
    """The message of a container in crash back-off. `delay_s`: the whole back-off in seconds."""
    return f"back-off {format_seconds(delay_s)} restarting failed container={container} pod={state.ref}"


def find_container(pod: Pod, name: str) -> Container | EphemeralContainer:
    """The container of that name among regular, init and ephemeral ones."""
    return next(container for container in every_container(pod) if container.name == name)

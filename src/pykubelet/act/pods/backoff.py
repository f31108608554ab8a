"""The crash back-off of one pod as a value: which containers may start now, when the others may, and what is reported. Pure.

Rules:
- A container that ends repeatedly waits, counted from its end; `BackoffPolicy` has the delays. The first restart does not wait.
- A restart raises the back-off when the sync has tried to run the container, or has removed all containers of the pod.
- A container that was stopped because its postStart hook failed counts as ended.
- A container that could not be started waits START_RETRY_S in addition, unless the runtime shows it as ended.
- A container that was killed to be restarted, when its back-off had passed, starts without another one.
- If the exit of a container restarts the whole pod, all containers are removed at once, and all except ephemeral ones wait for
  its back-off (KEP-5532).
- The back-off belongs to a container definition: with another image or other resources, it starts without one.
- An extension may have another delay for one exit (`restarts.py`); the back-off is raised as without it.

All times are monotonic seconds. The pod state machine and the published waits both take the next start of a container from
`CrashBackOffs.delay_of`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from typing import Self

from pykubelet.act.runtime.plan.plan import PodPlan
from pykubelet.base.api.core import Pod
from pykubelet.base.api.times import wall_to_monotonic
from pykubelet.base.kit.backoff import Backoff, BackoffPolicy
from pykubelet.base.kit.durations import format_seconds
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.containers import find_container
from pykubelet.base.model.ids import ContainerID, PodRef
from pykubelet.base.model.lifecycle import StartError
from pykubelet.base.model.observed import ObservedState, PodView
from pykubelet.base.model.reasons import CRASH_LOOP_BACK_OFF, POST_START_HOOK_ERROR, RUN_CONTAINER_ERROR

#: The pause after a container could not be started, or a pod could not be resized.
START_RETRY_S = 10.0
#: Failures of a start after which the container counts as started.
RAN_AND_FAILED = frozenset({RUN_CONTAINER_ERROR, POST_START_HOOK_ERROR})


NO_INSTANCES: frozenset[ContainerID] = frozenset()


class RestartVerdict(Value):
    """What an extension has decided about one exit: the container starts again after `delay_s` seconds, or never (None)."""

    extension: str
    delay_s: float | None = None
    message: str = ""


class PastExit(Value):
    """An exit of a container, for extensions. Times in wall seconds."""

    instance: ContainerID
    exit_code: int
    reason: str
    started_at: float
    finished_at: float


class CrashEntry(Value):
    """The crash back-off of one container: its entry, and the key (`back_off_key`) of the container definition it belongs to.

    `ended`: the instance whose end has raised it last.
    """

    key: str
    entry: Backoff
    ended: ContainerID | None = None


class Pause(Value):
    """The pause of a container that could not be started. It is over when `unstarted`, the instance that was created, has ended.

    `until` None: it may be tried again now, but the start of `unstarted` has counted.
    """

    until: float | None
    unstarted: ContainerID | None = None


class PodBackOff(Value):
    """The back-off of a pod whose containers were all removed because of the exit of `container`. They start again at `free_at`."""

    container: str
    free_at: float
    delay_s: float
    is_reported: bool = False


class BackOffInputs(Value):
    """What the back-off depends on besides its own value. `view`: the newest view of the runtime.

    `taken_back`: ended instances whose next start does not count, because it was made while the sandbox ended.
    """

    pod: Pod
    view: PodView | None
    policy: BackoffPolicy
    taken_back: frozenset[ContainerID] = frozenset()


class StartDelay(Value):
    """What delays the next start of one container.

    `paused_until`: the end of its pause after a failed start; None without a pause. `ended`: the instance whose end the crash
    back-off counts from. `entry`: the back-off after that end; None without one. `free_at`: the end of the back-off, 0 if no
    end counts. `is_raised`: the end has raised the back-off already, for a restart that does not count. `verdict`: of an extension, whose
    delay takes the place of the back-off.
    """

    name: str
    paused_until: float | None = None
    free_at: float = 0.0
    entry: Backoff | None = None
    ended: ContainerID | None = None
    is_raised: bool = False
    verdict: RestartVerdict | None = None

    @property
    def next_at(self) -> float | None:
        """When the container may start; None if nothing has delayed it."""
        if self.delay_s is None:
            return self.paused_until
        return max(self.free_at, self.paused_until or 0.0)

    @property
    def delay_s(self) -> float | None:
        """The delay after the end; None without one."""
        if self.verdict is not None:
            return self.verdict.delay_s
        return self.entry.delay_s if self.entry is not None else None


class PlannedStarts(Value):
    """The decision about the starts of a plan. `plan`: without the starts that wait; `wakes`: when those are to be decided again.

    `errors`: why containers wait in back-off, by name. `reports`: the containers whose back-off is to be reported by an Event.
    """

    back_offs: CrashBackOffs
    plan: PodPlan
    wakes: tuple[float, ...] = ()
    errors: Mapping[str, StartError] = field(default_factory=dict)
    reports: tuple[str, ...] = ()


class CrashBackOffs(Value):
    """What keeps the containers of one pod from starting, and since when."""

    #: When each exited instance has exited, by the first estimate.
    exits: Mapping[ContainerID, float] = field(default_factory=dict)
    #: By container name.
    entries: Mapping[str, CrashEntry] = field(default_factory=dict)
    #: The entries that apply when the running sync has made its starts.
    pending: Mapping[str, CrashEntry] = field(default_factory=dict)
    #: By the name of a container whose start has failed.
    pauses: Mapping[str, Pause] = field(default_factory=dict)
    #: What delays all containers after a restart of all.
    whole_pod: PodBackOff | None = None
    #: Killed instances that are restarted without back-off; each until a newer instance exists.
    exempt: frozenset[ContainerID] = frozenset()
    #: Exited instances whose back-off was reported by an Event.
    reported: frozenset[ContainerID] = frozenset()
    #: The exits that extensions were asked about; None: they left it to the rules above.
    verdicts: Mapping[ContainerID, RestartVerdict | None] = field(default_factory=dict)
    #: By container name, its last exits that extensions were asked about, newest first.
    past: Mapping[str, tuple[PastExit, ...]] = field(default_factory=dict)

    # What may start

    def delay_of(self, name: str, inputs: BackOffInputs) -> StartDelay:
        """What delays the next start of a container, except for the back-off of the whole pod."""
        found, pause = self.entries.get(name), self.pauses.get(name)
        entry = found.entry if found is not None and found.key == back_off_key(inputs.pod, name) else None
        delay = StartDelay(name, pause.until if pause is not None else None, entry=entry)
        ended = self._last_ended(name, inputs.view)
        if ended is None:
            return delay
        is_raised = found is not None and entry is not None and found.ended == ended and ended in inputs.taken_back
        verdict = self.verdicts.get(ended)
        if verdict is not None and verdict.delay_s is not None and not is_raised:
            return replace(delay, free_at=self.exits[ended] + verdict.delay_s, ended=ended, verdict=verdict)
        free_at = 0.0 if is_raised else inputs.policy.free_at(entry, self.exits[ended])
        return replace(delay, free_at=free_at, ended=ended, is_raised=is_raised)

    def _last_ended(self, name: str, view: PodView | None) -> ContainerID | None:
        """The newest ended instance that is not exempt. A running container that is killed may have one."""
        instances = view.instances(name) if view is not None else ()
        return next((c.id for c in instances if c.id in self.exits and c.id not in self.exempt), None)

    def next_start(self, name: str, inputs: BackOffInputs) -> float | None:
        """When a container may start, to be shown; None if nothing has delayed it. Of the containers that wait for the back-off of
        the whole pod, only the one that has caused it."""
        own = self.delay_of(name, inputs).next_at
        if self.whole_pod is None or self.whole_pod.container != name:
            return own
        return max(self.whole_pod.free_at, own or 0.0)

    def decide(self, plan: PodPlan, ref: PodRef, inputs: BackOffInputs, now: float) -> PlannedStarts:
        """Take the starts that wait out of a plan, and raise the back-off of the other restarts. Kills never wait."""
        back_offs, wakes, reports = self, list[float](), list[str]()
        errors, waiting, pending, reported = (
            dict[str, StartError](),
            set[str](),
            dict[str, CrashEntry](),
            set(self.reported),
        )
        whole = self.whole_pod
        if whole is not None and whole.free_at > now and (plan.start_init or plan.start):
            wakes.append(whole.free_at)
            errors[whole.container] = back_off_error(ref, whole.container, whole.delay_s)
            reports += [] if whole.is_reported else [whole.container]
            back_offs = replace(back_offs, whole_pod=replace(whole, is_reported=True))
            plan = replace(plan, start_init=(), start=())
        for name in plan.starts:
            delay = self.delay_of(name, inputs)
            if delay.paused_until is not None and delay.paused_until > now:
                waiting.add(name)
                wakes.append(delay.paused_until)
            elif delay.free_at > now and delay.delay_s is not None and delay.ended is not None:
                waiting.add(name)
                wakes.append(delay.free_at)
                errors[name] = back_off_error(ref, name, delay.delay_s, delay.verdict)
                reports += [] if delay.ended in reported else [name]
                reported.add(delay.ended)
            elif delay.ended is not None and not delay.is_raised:
                pending[name] = self._raised(delay, inputs, now)
        if waiting:
            plan = replace(
                plan,
                start_ephemeral=tuple(n for n in plan.start_ephemeral if n not in waiting),
                start_init=tuple(n for n in plan.start_init if n not in waiting),
                start=tuple(n for n in plan.start if n not in waiting),
            )
            reported &= {c.id for c in inputs.view.containers} if inputs.view is not None else set()
        back_offs = replace(back_offs, pending=pending, reported=frozenset(reported))
        return PlannedStarts(back_offs, plan, tuple(wakes), errors, tuple(reports))

    def _raised(self, delay: StartDelay, inputs: BackOffInputs, now: float) -> CrashEntry:
        assert delay.ended is not None
        raised = inputs.policy.raised(delay.entry, self.exits[delay.ended], now)
        return CrashEntry(back_off_key(inputs.pod, delay.name), raised, delay.ended)

    @property
    def stays(self) -> frozenset[ContainerID]:
        """The ended instances that an extension does not let start again."""
        never = (ended for ended, verdict in self.verdicts.items() if verdict is not None and verdict.delay_s is None)
        return frozenset(never) if self.verdicts else NO_INSTANCES

    # What has happened

    def after_view(self, before: PodView | None, view: PodView, now: float, wall: float) -> Self:
        """The value after a newer view of the runtime, at the times `now` and `wall`. `before`: the view before it."""
        exits = self._exits(before, view, now, wall)
        newest = {found.id for c in view.containers if (found := view.newest(c.name)) is not None}
        pauses = {name: pause for name, pause in self.pauses.items() if pause.unstarted not in exits}
        verdicts = {ended: verdict for ended, verdict in self.verdicts.items() if ended in exits}
        return replace(self, exits=exits, pauses=pauses, exempt=self.exempt & newest, verdicts=verdicts)

    def _exits(self, before: PodView | None, view: PodView, now: float, wall: float) -> dict[ContainerID, float]:
        """When each ended container ended. The first estimate is kept, even if the wall clock changes.

        A container that still ran in the last view ended after that view was read. The runtime's date alone counts only for
        containers that had already ended in the first view.
        """
        running_at = before.read_at if before is not None else -inf
        found = {c.id for c in before.containers if c.state is ObservedState.EXITED} if before is not None else set()
        exits: dict[ContainerID, float] = {}
        for container in view.containers:
            if container.state is ObservedState.EXITED:
                not_before = -inf if container.id in found else running_at
                ended = wall_to_monotonic(container.finished_at / 1e9, now, wall, not_before)
                exits[container.id] = self.exits.get(container.id, ended)
        return exits

    def after_sync(
        self,
        started: Collection[str],
        errors: Mapping[str, StartError],
        pauses: Mapping[str, Pause],
        *,
        has_removed_all: bool,
    ) -> Self:
        """The value after a sync. `started`, `errors`: the containers that it has started, and why it could not start others.

        `pauses`: of the latter, except for those that ran. `has_removed_all`: it has removed all containers of the pod.
        """
        tried = {*started, *(name for name, error in errors.items() if error.reason in RAN_AND_FAILED)}
        raised = {name: entry for name, entry in self.pending.items() if has_removed_all or name in tried}
        kept = {name: pause for name, pause in self.pauses.items() if name not in started and name not in errors}
        return replace(self, entries={**self.entries, **raised}, pending={}, pauses={**kept, **pauses})

    def after_kills(self, restarted_at_once: Collection[ContainerID]) -> Self:
        """The value with these killed instances exempt."""
        return replace(self, exempt=self.exempt.union(restarted_at_once)) if restarted_at_once else self

    def before_restart_of_all(self, name: str, inputs: BackOffInputs, now: float) -> Self:
        """The value when all containers are about to be removed because of the last exit of this one."""
        delay = self.delay_of(name, inputs)
        pending = {name: self._raised(delay, inputs, now)}
        whole = PodBackOff(name, delay.free_at, delay.entry.delay_s if delay.entry is not None else 0.0)
        return replace(self, pending=pending, whole_pod=whole)

    def without_pauses(self, of: Collection[str] | None = None) -> Self:
        """The value without the pauses of these containers; None: of all. What was created and could not be started stays known."""
        if not self.pauses:
            return self
        over = self.pauses.keys() if of is None else of
        left = {name: pause for name, pause in self.pauses.items() if name not in over}
        tried = {name: Pause(None, p.unstarted) for name, p in self.pauses.items() if name in over and p.unstarted}
        return replace(self, pauses={**left, **tried})

    def without_pod_back_off(self) -> Self:
        """The value without the back-off of the whole pod."""
        return replace(self, whole_pod=None) if self.whole_pod is not None else self


def back_off_key(pod: Pod, name: str) -> str:
    """The key of a container's back-off. It changes with image and resources, so that a changed container starts without back-off."""
    meta, container = pod.metadata, find_container(pod, name)
    if container is None:
        return ""
    return f"{meta.name}_{meta.namespace}_{meta.uid}_{container.name}_{container.image}_{container.resources}"


def back_off_error(ref: PodRef, container: str, delay_s: float, verdict: RestartVerdict | None = None) -> StartError:
    """The error of a container in crash back-off. `delay_s`: the whole back-off in seconds. `verdict`: of the extension that sets it."""
    message = f"back-off {format_seconds(delay_s)} restarting failed container={container} pod={ref}"
    if verdict is None:
        return StartError(CRASH_LOOP_BACK_OFF, message)
    return StartError(CRASH_LOOP_BACK_OFF, f"{message} (extension {verdict.extension})", verdict.extension)

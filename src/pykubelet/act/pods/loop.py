"""The pods room's loop: which pods have an actor.

Owns: the cells `Lifecycles` and `PodsTurn`, and the actors. Reads: `Roster`, `Observed`, `ProbeResults`.

Rules:
- A desired pod gets an actor once the runtime has been listed and what is there of the pod was read; a static pod only
  when no older pod of the same full name is left, and until then it shows that it waits.
- A pod that is no longer desired is killed; but before all sources have reported, nothing is killed for being absent.
- What runs in the runtime and is wanted by nobody is killed with a grace of one second.
- An actor whose pod has nothing left is dropped; a pod that is wanted again starts afresh. One whose pod was deleted in
  the API stays until it is gone there, so that all know it is finished.
- A pod that has ended in the API and of which nothing runs is never made to run: it begins as terminated.
"""

from __future__ import annotations

import asyncio

from pykubelet.act.pods.actor import PodActor
from pykubelet.act.pods.api_content import start_keys
from pykubelet.act.pods.decide import MIN_GRACE_S, Rules
from pykubelet.act.pods.execute import PodExecution
from pykubelet.act.pods.model import (
    REMOVING,
    CgroupGone,
    ContentChanged,
    KillOrder,
    KillRequested,
    PodState,
    ProbesChanged,
    RuntimeChanged,
    RuntimeRestarted,
    SpecChanged,
    Work,
)
from pykubelet.act.pods.orphans import orphan_pod
from pykubelet.act.pods.tally import ORPHANED, RESTARTED
from pykubelet.act.pods.tools import PodTools
from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.backoff import Backoff, BackoffPolicy
from pykubelet.base.kit.cells import Cell, CellWriter, ringing
from pykubelet.base.kit.changes import changed_keys, missing_keys
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.mailbox import Mailbox, Post
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.turns import Turn, come_round
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.content import Content, ObjectKey, changed_content
from pykubelet.base.model.happenings import warning
from pykubelet.base.model.ids import PodRef, PodUID, SandboxID
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, PodLifecycle, Stage, StatusOverride
from pykubelet.base.model.moments import moment_of
from pykubelet.base.model.observed import Observed, PodTouched, PodView
from pykubelet.base.model.phase import Phase
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.reasons import EVENT_FAILED_SYNC, INTERNAL_ERROR, PREEMPTING
from pykubelet.base.model.roster import Rejection, Roster, RosterPod, has_ended_in_api, is_static, pod_ref
from pykubelet.base.model.waits import Wait

ORPHAN_GRACE_S = 1
CRASH_PAUSE = BackoffPolicy(initial_s=1.0, cap_s=60.0)
TAKE_UP = "take the pod up"
log = Log("pods")


class ActorCrashed(Value):
    """A bug ended a pod's actor."""

    uid: PodUID
    error: BaseException


class PodInputs(Value):
    """The cells this room reads."""

    roster: Cell[Roster]
    observed: Cell[Observed]
    probes: Cell[ProbeResults]
    content: Cell[Content]


class PodsLoop:
    """`run` never returns."""

    def __init__(
        self,
        inputs: PodInputs,
        lifecycles: CellWriter[Lifecycles],
        tools: PodTools,
        rules: Rules,
        touched: Post[PodTouched],
        turn: CellWriter[Turn] | None = None,
    ) -> None:
        self._turn = turn
        self._inputs = inputs
        self._lifecycles = lifecycles
        self._tools = tools
        self._rules = rules
        self._touched = touched
        self._actors: dict[PodUID, PodActor] = {}
        self._tasks: dict[PodUID, asyncio.Task[None]] = {}
        self._seen_views: dict[PodUID, PodView] = {}
        self._full_look: float | None = None
        self._seen_pods: dict[PodUID, RosterPod] = {}
        self._kills_sent: set[PodUID] = set()
        self._removed_at: dict[PodUID, float] = {}
        self._published: dict[PodUID, PodLifecycle] = {}
        self._crashes: dict[PodUID, Backoff] = {}
        self._paused: dict[PodUID, Wait] = {}
        self._mailbox: Mailbox[PodLifecycle | ActorCrashed] = Mailbox("lifecycles")
        self._supervisor = Supervisor("pods")

    async def run(self) -> None:
        async with self._supervisor as supervisor:
            supervisor.start_root("pods-desired", self._follow_cells())
            supervisor.start_root("pods-lifecycles", self._follow_lifecycles())
            supervisor.start_root("pods-probes", self._follow_probes())
            supervisor.start_root("pods-content", self._follow_content())
            supervisor.start_root("pods-runtime", self._follow_runtime())
            supervisor.start_root("pods-cgroups", self._look_for_cgroups())
            if self._turn is not None:
                supervisor.start_root("pods-turn", come_round(self._reconcile, self._turn, self._tools.clock))
            raise await supervisor.wait_failed()

    async def _follow_cells(self) -> None:
        bell = asyncio.Event()
        with ringing(bell, self._inputs.roster, self._inputs.observed):
            while True:
                await bell.wait()
                bell.clear()
                self._reconcile()

    async def _follow_probes(self) -> None:
        before = self._inputs.probes.get()
        async for now in self._inputs.probes.changes():
            changed = {container for container, _ in changed_keys(before.results, now.results)}
            for actor in self._actors.values():
                view = actor.state.view
                if before.watched != now.watched or (view and any(c.id in changed for c in view.containers)):
                    actor.mailbox.post(ProbesChanged(now))
            before = now

    async def _follow_content(self) -> None:
        """Wake the pods that an object they could not start without concerns."""
        before = self._inputs.content.get()
        async for content in self._inputs.content.changes():
            # whoever waited for the first answer got it; only a later one changes what was decided by it
            news = {
                key for key in changed_content(before, content) if isinstance(key, ObjectKey) and key in before.objects
            }
            before = content
            for actor in self._actors.values() if news else ():
                if actor.state.needs_content and not news.isdisjoint(start_keys(actor.state.pod)):
                    actor.mailbox.post(ContentChanged())

    async def _follow_runtime(self) -> None:
        """A restarted runtime ends the pauses that its absence has caused."""
        cell = self._tools.cells.runtime
        epoch = cell.get().epoch
        async for now in cell.changes():
            for actor in self._actors.values() if now.epoch != epoch else ():
                actor.mailbox.post(RuntimeRestarted())
            epoch = now.epoch

    async def _look_for_cgroups(self) -> None:
        """Pods whose cgroup was removed under their containers are to be started anew inside one, as by the kubelet."""
        while True:
            await asyncio.sleep(self._rules.resync_s)
            for actor in tuple(self._actors.values()):
                sandbox = _sandbox_in_use(actor.state)
                if sandbox is None or not await self._tools.cgroups.is_gone(actor.state.pod):
                    continue
                if _sandbox_in_use(actor.state) == sandbox:
                    log.warning("the cgroup of a pod is gone while its containers run", pod=actor.ref)
                    actor.mailbox.post(CgroupGone(sandbox))

    async def _follow_lifecycles(self) -> None:
        """Publish what the actors tell, and drop the actors that are done."""
        while True:
            dropped = is_news = False
            for lifecycle in await self._mailbox.get_all():
                if isinstance(lifecycle, ActorCrashed):
                    self._replace_crashed(lifecycle)
                    is_news = True
                    continue
                uid = lifecycle.ref.uid
                actor = self._actors.get(uid)
                if actor is None:
                    continue
                before = self._published.get(uid)
                self._published[uid] = lifecycle
                is_news = is_news or before is None or not before.means_the_same(lifecycle)
                if lifecycle.stage is Stage.FINISHED and self._is_done(lifecycle, actor.state.removed):
                    if lifecycle.kill_reason is KillReason.RENEWED:
                        RESTARTED.inc("true" if is_static(lifecycle.pod) else "")
                    self._drop(uid)
                    dropped = True
            if dropped:
                self._reconcile()
            self._publish(is_news=is_news or dropped)

    def _is_done(self, lifecycle: PodLifecycle, removed: bool) -> bool:
        if lifecycle.kill_reason is KillReason.RENEWED:
            return True
        if lifecycle.kill_reason is KillReason.DELETED:
            return removed and lifecycle.ref.uid not in self._inputs.roster.get().pods
        return removed and lifecycle.kill_reason in REMOVING

    def _replace_crashed(self, crash: ActorCrashed) -> None:
        """Report a bug with the pod's story; after a pause the pod starts afresh from what is observed."""
        actor = self._actors.get(crash.uid)
        if actor is None:
            return
        story = [f"{line.at:.3f} {line.what} ({line.cause})" for line in actor.story]
        log.error("a pod's actor crashed", pod=actor.ref, uid=crash.uid, story=story, error=repr(crash.error))
        message = f"internal error: {crash.error!r}"
        self._tools.happenings.post(warning(EVENT_FAILED_SYNC, message, actor.ref))
        actor.abandon()
        self._drop(crash.uid)
        now, wall = self._tools.clock.monotonic(), self._tools.clock.wall()
        entry = self._crashes[crash.uid] = CRASH_PAUSE.raised(self._crashes.get(crash.uid), now, now)
        self._paused[crash.uid] = Wait(
            "retry", "act/pods", wall, "pod", INTERNAL_ERROR, message, "start afresh", wall + entry.delay_s
        )
        self._touched.post(PodTouched(actor.ref, "actor crashed"))
        asyncio.get_running_loop().call_later(entry.delay_s, self._resume, crash.uid)

    def _resume(self, uid: PodUID) -> None:
        self._paused.pop(uid, None)
        self._reconcile()

    def _publish(self, *, is_news: bool = True) -> None:
        self._lifecycles.publish(Lifecycles(dict(self._published)), is_news=is_news)

    def _drop(self, uid: PodUID) -> None:
        actor = self._actors.pop(uid)
        actor.close()
        self._tasks.pop(uid).cancel()
        gone_at = actor.state.gone_at
        self._removed_at[uid] = self._tools.clock.monotonic() if gone_at is None else gone_at
        for known in (self._published, self._seen_pods, self._seen_views):
            known.pop(uid, None)
        self._kills_sent.discard(uid)

    # What should have an actor

    def _reconcile(self) -> None:
        roster, observed = self._inputs.roster.get(), self._inputs.observed.get()
        self._forget_removed(observed)
        if observed.listed_at is not None:
            for uid in sorted(changed_keys(self._seen_pods, roster.pods), key=lambda uid: uid not in observed.pods):
                if uid in roster.pods:
                    self._take_desired(uid, roster.pods[uid], roster, observed)
            if roster.sources_ready:
                self._kill_undesired(roster, observed)
            self._hand_on_views(observed)
        self._show_held_back(roster, observed)

    def _forget_removed(self, observed: Observed) -> None:
        """A pod that was removed is news again once the runtime was looked at after that; so are its crashes."""
        for uid, at in list(self._removed_at.items()):
            view = observed.pods.get(uid)
            if view is None or view.read_at >= at:
                del self._removed_at[uid]
        roster = self._inputs.roster.get()
        for uid in list(self._crashes):
            if not any(uid in known for known in (self._actors, self._paused, observed.pods, roster.pods)):
                del self._crashes[uid]

    def _take_desired(self, uid: PodUID, entry: RosterPod, roster: Roster, observed: Observed) -> None:
        actor = self._actors.get(uid)
        if actor is None:
            is_free = entry.held is None and uid not in self._removed_at and uid not in self._paused
            is_free = is_free and pod_ref(entry.pod) not in observed.unread
            if is_free and self._namesake(entry, roster, observed) is None:
                self._start(entry, observed)
        elif (before := self._seen_pods.get(uid)) is not entry:
            self._seen_pods[uid] = entry
            self._kills_sent.discard(uid)
            if entry.rejection is not None and (before is None or before.rejection is None):
                actor.mailbox.post(_refusal(entry.rejection))
                return
            if before is not None and before.seen_at != entry.seen_at and is_static(entry.pod):
                actor.mailbox.post(KillRequested(KillReason.REMOVED, "it was away and has come back"))
            actor.mailbox.post(SpecChanged(entry.pod, "manifest changed"))

    def _namesake(self, entry: RosterPod, roster: Roster, observed: Observed) -> PodRef | None:
        """The other static pod of the same full name that must end first: one with an actor, or left by an earlier run."""
        if not is_static(entry.pod):
            return None
        mine = pod_ref(entry.pod)
        strange = (view for uid, view in observed.pods.items() if uid not in roster.pods)
        found = (view.ref for view in strange if view.is_alive and view.ref.uid not in self._removed_at)
        left = (*found, *(ref for ref in observed.unread if ref.uid not in roster.pods))
        busy = (a.ref for uid, a in self._actors.items() if uid not in roster.pods or is_static(roster.pods[uid].pod))
        refs = (*busy, *left)
        return next((ref for ref in refs if ref.full_name == mine.full_name and ref.uid != mine.uid), None)

    def _start(self, entry: RosterPod, observed: Observed) -> None:
        ref = pod_ref(entry.pod)
        now = self._tools.clock.monotonic()
        view = observed.pods.get(ref.uid)
        state = PodState(
            ref=ref,
            pod=entry.pod,
            stage=Stage.SYNCING,
            started_wall=min((entry.seen_at, *_earlier_starts(entry, view))),
            active_since=self._active_since(_earlier_starts(entry, view)),
            view=view if view is not None else PodView(ref, read_at=now),
        )
        if has_ended_in_api(entry.pod) and (view is None or not view.is_alive):
            kill = KillOrder(KillReason.COMPLETED, MIN_GRACE_S)
            state = replace(state, stage=Stage.TERMINATED, kill=kill, terminal=True)
        self._seen_pods[ref.uid] = entry
        actor = self._make(state)
        if entry.rejection is not None:  # first of all, so that nothing is begun
            actor.mailbox.post(_refusal(entry.rejection))
        elif entry.pod.metadata.deletionTimestamp or has_ended_in_api(entry.pod):
            actor.mailbox.post(SpecChanged(entry.pod, "deleted or ended in the API"))
        if view is not None:
            self._seen_views[ref.uid] = view
            actor.mailbox.post(RuntimeChanged(view, self._tools.clock.wall(), "found running"))
        else:
            actor.mailbox.post(RuntimeChanged(PodView(ref, read_at=now), self._tools.clock.wall(), "new pod"))

    def _active_since(self, dates: tuple[float, ...]) -> float:
        """Monotonic seconds of the earliest of these dates; without one the pod begins now."""
        now, wall = self._tools.clock.monotonic(), self._tools.clock.wall()
        return min((moment_of(date, now, wall) for date in dates), default=now)

    def _make(self, state: PodState) -> PodActor:
        execution = PodExecution(self._tools, state.ref)
        actor = PodActor(state, self._current_rules, execution, self._mailbox, self._touched, self._supervisor)
        self._actors[state.ref.uid] = actor
        uid = state.ref.uid
        self._tasks[uid] = self._supervisor.start_child(
            f"pod-{uid}", actor.run(), lambda error: self._mailbox.post(ActorCrashed(uid, error))
        )
        return actor

    def _current_rules(self) -> Rules:
        probes = self._inputs.probes.get()
        if self._rules.probes is not probes:
            self._rules = replace(self._rules, probes=probes)
        return self._rules

    def _kill_undesired(self, roster: Roster, observed: Observed) -> None:
        for uid in missing_keys(self._actors, roster.pods):
            if uid not in self._kills_sent:
                self._kills_sent.add(uid)
                self._actors[uid].mailbox.post(KillRequested(KillReason.REMOVED, "no longer desired"))
        for uid in missing_keys(observed.pods, self._actors):
            view = observed.pods[uid]
            if uid in roster.pods or uid in self._removed_at or uid in self._paused or view.is_gone:
                continue
            ORPHANED.inc()
            state = PodState(
                ref=view.ref,
                pod=orphan_pod(view),
                stage=Stage.SYNCING,
                started_wall=self._tools.clock.wall(),
                view=view,
            )
            self._seen_views[uid] = view
            self._kills_sent.add(uid)
            actor = self._make(state)
            actor.mailbox.post(KillRequested(KillReason.ORPHANED, "found running, not desired", ORPHAN_GRACE_S))

    def _hand_on_views(self, observed: Observed) -> None:
        wall = self._tools.clock.wall()
        is_full, self._full_look = observed.listed_at != self._full_look, observed.listed_at
        for uid in missing_keys(self._actors, observed.pods):
            if absent := _seen_absent(self._actors[uid], observed):
                self._actors[uid].mailbox.post(RuntimeChanged(absent, wall))
        news = [uid for uid in changed_keys(self._seen_views, observed.pods) if uid in self._actors]
        for uid in news:
            if (view := observed.pods.get(uid)) is not None:
                self._seen_views[uid] = view
                self._actors[uid].mailbox.post(RuntimeChanged(view.foretold(), wall))
        for uid in self._actors.keys() & observed.pods.keys() - set(news) if is_full else ():
            if _is_overlooked(actor := self._actors[uid], observed):
                self._touched.post(PodTouched(actor.ref, "it waits for a look, and a full one brought none"))

    def _show_held_back(self, roster: Roster, observed: Observed) -> None:
        """Pods without an actor yet still say what they wait for."""
        changed = False
        waiting = missing_keys(roster.pods, self._actors)
        held = {uid: self._held_back(roster.pods[uid], roster, observed) for uid in waiting}
        for uid in missing_keys(self._published, self._actors):
            if uid not in held:
                del self._published[uid]
                changed = True
        for uid, lifecycle in held.items():
            if _waits_in_words(self._published.get(uid)) != _waits_in_words(lifecycle):
                self._published[uid] = lifecycle
                changed = True
        if changed:
            self._publish()

    def _held_back(self, entry: RosterPod, roster: Roster, observed: Observed) -> PodLifecycle:
        wall = self._tools.clock.wall()
        uid = pod_ref(entry.pod).uid
        if entry.held is not None:
            wait = entry.held
        elif observed.listed_at is None:
            detail = "its pods have not been listed yet"
            wait = Wait("container runtime", "observe/pleg", wall, detail=detail, next_step="list them")
        elif older := self._namesake(entry, roster, observed):
            detail = f"the older pod {older} must end first"
            wait = Wait(
                "older pod of the same name", "act/pods", wall, str(older.uid), detail=detail, next_step=TAKE_UP
            )
        elif uid in self._paused:
            wait = self._paused[uid]
        else:
            detail = "what it has of the pod is not known yet"
            wait = Wait("container runtime", "observe/pleg", wall, detail=detail, next_step=TAKE_UP)
        return PodLifecycle(pod_ref(entry.pod), entry.pod, Stage.SYNCING, wall, entry.seen_at, waits=(wait,))


def _waits_in_words(lifecycle: PodLifecycle | None) -> list[tuple[str, str, str]] | None:
    return None if lifecycle is None else [(wait.what, wait.subject, wait.detail) for wait in lifecycle.waits]


def _seen_absent(actor: PodActor, observed: Observed) -> PodView | None:
    """A full look shows nothing of the pod: news if it knows otherwise, or waits for a look at all."""
    state, listed_at = actor.state, observed.listed_at
    if listed_at is None or state.ref in observed.unread:
        return None
    read_at = state.view.read_at if state.view is not None else 0.0
    knows = state.view is not None and state.view.is_gone and read_at >= state.look_after
    return PodView(state.ref, read_at=listed_at) if listed_at > read_at and not knows else None


def _is_overlooked(actor: PodActor, observed: Observed) -> bool:
    """The pod was to be looked at after what was done to it, and was not until the last full look."""
    state, listed_at = actor.state, observed.listed_at
    if listed_at is None or state.view is None or state.work is not Work.NONE:
        return False
    return state.view.read_at < state.look_after < listed_at


def _refusal(rejection: Rejection) -> KillRequested:
    """The end of a pod that the node does not take, or that has to make room for another."""
    if rejection.reason == PREEMPTING:
        override = StatusOverride(Phase.FAILED, rejection.reason, rejection.message, yields=True)
        return KillRequested(KillReason.EVICTED, "preempted", override=override)
    override = StatusOverride(Phase.FAILED, rejection.reason, f"Pod was rejected: {rejection.message}")
    return KillRequested(KillReason.REJECTED, "rejected by the node", override=override)


def _earlier_starts(entry: RosterPod, view: PodView | None) -> tuple[float, ...]:
    """Dates that tell of an earlier start of the pod than this one, before the agent's last restart: wall seconds."""
    told = entry.pod.status.startTime
    sandboxes = view.sandboxes if view is not None else ()
    return (*((parse_time(told),) if told else ()), *(sandbox.created_at / 1e9 for sandbox in sandboxes))


def _sandbox_in_use(state: PodState) -> SandboxID | None:
    """The sandbox in which a pod runs that nothing is being done to."""
    view = state.view
    if state.stage is not Stage.SYNCING or state.work is not Work.NONE or view is None or not view.running:
        return None
    return view.sandboxes[0].id if view.sandboxes else None

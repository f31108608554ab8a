"""The probes' loop: workers for all probes of all pods, one timer, and what they find out.

Owns: the cells `ProbeResults` and `ProbeWaits`, the workers, the running probes. Reads: `Lifecycles` (which pods, which
probes), `Observed` (which containers run), `NodeView` (addresses of pods in the host's network). Does not restart or
judge anything: act/pods and report/status read the results.

Results are told once per turn of the loop, and only when they have changed. Each probe runs in a task of its own,
behind the bulkhead of its sort; what hangs, hangs alone.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Mapping
from math import inf

from msgspec import Struct

from pykubelet.base.api.core import Container, Probe
from pykubelet.base.kit.bulkhead import Place
from pykubelet.base.kit.cells import Cell, CellWriter, ringing
from pykubelet.base.kit.changes import changed_keys
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.happenings import Happening
from pykubelet.base.model.ids import ContainerID, PodUID
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.observed import Observed, PodView
from pykubelet.base.model.probes import ProbeKind, ProbeResult, ProbeResults, ProbeWaits
from pykubelet.edges.probing.outcome import Outcome, errored
from pykubelet.observe.probes import decide
from pykubelet.observe.probes.decide import Kept, Phase, Started, Worker
from pykubelet.observe.probes.execute import Ask, Prober
from pykubelet.observe.probes.gates import Gates, ProbeLimits
from pykubelet.observe.probes.sights import (
    Key,
    Scene,
    Starts,
    address_of,
    is_at_work,
    is_probed,
    probed_containers,
    probes_of,
    scene_of,
)
from pykubelet.observe.probes.tally import FAILED, SUCCESSFUL, UNKNOWN, ProbeTally
from pykubelet.observe.probes.words import Late, happening, needs_word, wait_of

OVERDUE_S = 3.0
"""So long beyond its time-out a probe may take before it is shown as hanging."""
AT_WORK_S = 2.0
"""So long after its last change a pod that is being made or ended keeps commands waiting: one that is stuck does not."""
SOON_S = 0.25
"""What is told of a probe may be so much behind."""
log = Log("probes")


class ProbeInputs(Value):
    """The cells this room reads, and what was written down before the agent's start.

    `keeps`: rule 7 of `decide`; without it all containers begin anew (gate ChangeContainerStatusOnKubeletRestart).
    """

    lifecycles: Cell[Lifecycles]
    observed: Cell[Observed]
    node: Cell[NodeView]
    remembered: Mapping[ContainerID, Kept] = field(default_factory=dict)
    keeps: bool = True


class _Running(Struct):
    """A probe that is being carried out, or waits for its turn. `told_until`: what is said of it may be wrong after that."""

    container: ContainerID
    task: asyncio.Task[None]
    place: Place
    timeout_s: float
    began_at: float | None = None
    told_until: float = inf


class ProbesLoop:
    """`run` never returns. `fraction` gives random numbers in [0, 1)."""

    def __init__(
        self,
        inputs: ProbeInputs,
        cells: tuple[CellWriter[ProbeResults], CellWriter[ProbeWaits]],
        prober: Prober,
        clock: Clock,
        happenings: Post[Happening],
        limits: ProbeLimits | None = None,
        fraction: Callable[[], float] = random.random,
    ) -> None:
        self._inputs = inputs
        self._results, self._waits = cells
        self._prober = prober
        self._clock = clock
        self._happenings = happenings
        self._fraction = fraction
        self._limits = limits or ProbeLimits()
        self._gates = Gates(self._limits)
        self._started = clock.monotonic()
        self._workers: dict[Key, Worker] = {}
        self._asked: dict[Key, tuple[Container, Probe]] = {}
        self._tallies: dict[Key, ProbeTally] = {}
        self._running: dict[Key, _Running] = {}
        self._pods: dict[PodUID, tuple[PodLifecycle, PodView | None]] = {}
        self._keys: dict[PodUID, list[Key]] = {}
        self._at_work: dict[PodUID, float] = {}
        self._starts = Starts()
        self._kept: dict[ContainerID, Kept] | None = None
        self._unread: frozenset[PodUID] = frozenset()  # were there at the first look, and nobody knows yet how they are
        self._followed: tuple[Mapping[PodUID, PodLifecycle], Observed] = {}, Observed()
        self._heap: list[tuple[float, int, Key]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._bell = asyncio.Event()
        self._changed = True
        self._unsaid: set[PodUID] = set()
        self._supervisor = Supervisor("probes")
        kept = {
            (c, kind): found for c, had in inputs.remembered.items() for kind in ProbeKind if (found := had.of(kind))
        }
        self._results.publish(ProbeResults(kept, frozenset(ProbeKind)))

    async def run(self) -> None:
        async with self._supervisor as supervisor:
            with ringing(self._bell, self._inputs.lifecycles, self._inputs.observed):
                supervisor.start_root("probes-turns", self._turn_for_ever())
                raise await supervisor.wait_failed()

    async def _turn_for_ever(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            now = self._clock.monotonic()
            self._follow_cells(now)
            self._start_due(now)
            self._publish(now)
            self._set_timer(now)

    # Which workers there are, and what they see

    def _follow_cells(self, now: float) -> None:
        observed, lifecycles = self._inputs.observed.get(), self._inputs.lifecycles.get().pods
        had, before = self._followed
        if observed.listed_at is None or (had is lifecycles and before is observed):
            return
        self._followed = lifecycles, observed
        if self._kept is None or self._unread:
            self._take_over(observed, now)
        changed = dict.fromkeys([*changed_keys(had, lifecycles), *changed_keys(before.pods, observed.pods)])
        for uid in changed:
            lifecycle, view = lifecycles.get(uid), observed.pods.get(uid)
            if lifecycle is not None:
                self._pods[uid] = lifecycle, view
                self._follow_pod(uid, lifecycle, view, now)
                self._claim(view)
            elif uid in self._pods:
                self._drop_pod(uid)
            self._at_work.pop(uid, None)
            if lifecycle is not None and is_at_work(lifecycle):
                self._at_work[uid] = now
        if changed:
            self._gates.pods_moved(now, at_work=any(since > now - AT_WORK_S for since in self._at_work.values()))
        self._starts.looked(observed)

    def _take_over(self, observed: Observed, now: float) -> None:
        """The first look at each pod: what its containers had before the agent's start. Not all may be in the first list."""
        wall, is_first = self._clock.wall(), self._kept is None
        views = [view for uid, view in observed.pods.items() if is_first or uid in self._unread]
        self._unread = frozenset(ref.uid for ref in observed.unread if is_first or ref.uid in self._unread)
        for view in views:
            self._starts.learn(view, now, wall)
        running = {container.id: self._starts[container.id] for view in views for container in view.running}
        remembered = self._inputs.remembered
        if self._kept is None:
            self._kept = dict(remembered) if self._unread and self._inputs.keeps else {}
        if self._inputs.keeps:
            self._kept |= decide.keep(remembered, running, self._started)
        self._changed = True

    def _follow_pod(self, uid: PodUID, lifecycle: PodLifecycle, view: PodView | None, now: float) -> None:
        if not is_probed(lifecycle):
            self._drop_workers(uid)
            return
        containers = list(probed_containers(lifecycle))
        if not containers:
            return
        if view is not None:
            self._starts.learn(view, now, self._clock.wall())
        keys = []
        for container in containers:
            for kind, probe in probes_of(container):
                key = Key(uid, container.name, kind)
                keys.append(key)
                self._asked[key] = (container, probe)
                if key not in self._workers:
                    terms, age = decide.terms_of(probe), now - self._started
                    self._workers[key] = decide.make_worker(kind, terms, now, age, self._fraction())
                    self._tallies[key] = ProbeTally(lifecycle.ref, container.name, kind)
                    if probe.exec is not None:
                        self._gates.asked(key, terms.period_s)
        for key in [key for key in self._keys.get(uid, ()) if key not in keys]:
            self._drop(key)
        self._keys[uid] = keys
        for container in containers:
            self._look(uid, container.name, now)

    def _claim(self, view: PodView | None) -> None:
        """What a pod's containers had is with its workers now, or of no use to anybody."""
        for container in view.running if view is not None else ():
            self._keep_no_more(container.id)

    def _keep_no_more(self, container: ContainerID) -> None:
        if self._kept is not None and self._kept.pop(container, None) is not None:
            self._changed = True

    def _look(self, uid: PodUID, name: str, now: float) -> None:
        """Let the workers of a container see how it is."""
        lifecycle, view = self._pods[uid]
        scene = scene_of(name, lifecycle, view, self._starts, self._kept or {}, self._started)
        startup = self._see(Key(uid, name, ProbeKind.STARTUP), scene, Started.NO, now)
        started = decide.started_by(startup, scene.container)
        for kind in (ProbeKind.LIVENESS, ProbeKind.READINESS):
            self._see(Key(uid, name, kind), scene, started, now)

    def _see(self, key: Key, scene: Scene, started: Started, now: float) -> Worker | None:
        worker = self._workers.get(key)
        if worker is None:
            return None
        return self._put(key, worker, decide.look(worker, scene.sight(started), now))

    def _put(self, key: Key, before: Worker, after: Worker) -> Worker:
        if after is before:
            return after
        self._workers[key] = after
        if after.container != before.container or after.result is not before.result:
            self._changed = True
        if needs_word(after) or needs_word(before):
            self._unsaid.add(key.uid)
        if after.phase is not Phase.PROBING and (running := self._running.pop(key, None)) is not None:
            running.task.cancel()
        is_news = before.phase is not Phase.ARMED or after.due != before.due
        if after.phase is Phase.ARMED and after.due is not None and is_news:
            self._push(after.due, key)
        return after

    def _push(self, at: float, key: Key) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))

    def _drop_pod(self, uid: PodUID) -> None:
        del self._pods[uid]
        self._drop_workers(uid)

    def _drop_workers(self, uid: PodUID) -> None:
        for key in self._keys.pop(uid, ()):
            self._drop(key)

    def _drop(self, key: Key) -> None:
        """A pod that is taken up again goes on with what its containers had."""
        worker = self._workers.pop(key)
        if worker.container is not None and worker.result is ProbeResult.SUCCESS and self._kept is not None:
            before = self._kept.get(worker.container, Kept())
            self._kept[worker.container] = decide.with_kept(before, worker)
        self._tallies.pop(key).forget()
        del self._asked[key]
        self._gates.forget(key)
        if (running := self._running.pop(key, None)) is not None:
            running.task.cancel()
        self._changed = True
        self._unsaid.add(key.uid)

    # Probing

    def _start_due(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now + decide.EARLY_S:
            _, _, key = heapq.heappop(self._heap)
            worker = self._workers.get(key)
            if worker is None:
                continue
            if decide.is_due(worker, now):
                self._start(key, worker, now)
            elif (running := self._running.get(key)) is not None and running.told_until <= now + decide.EARLY_S:
                self._unsaid.add(key.uid)
                self._tell_anew(key, running, now)

    def _tell_anew(self, key: Key, running: _Running, now: float) -> None:
        """Set the time after which what is told of a command now will be wrong; others keep their time themselves."""
        if running.began_at is None:
            after_s = running.place.turn_within_s() if running.told_until < inf else running.timeout_s
            running.told_until = now + max(after_s, SOON_S)
        else:
            late_at = running.began_at + running.timeout_s
            running.told_until = next((at for at in (late_at, late_at + OVERDUE_S) if at > now + decide.EARLY_S), inf)
        if running.told_until < inf:
            self._push(running.told_until, key)

    def _start(self, key: Key, worker: Worker, now: float) -> None:
        lifecycle, view = self._pods[key.uid]
        container, probe = self._asked[key]
        assert worker.container is not None
        address = address_of(lifecycle, view, self._inputs.node.get().ips)
        ask = Ask(lifecycle.ref, container, probe, worker.container, address, worker.terms.timeout_s)
        self._workers[key] = decide.begin(worker)
        if needs_word(worker):
            self._unsaid.add(key.uid)  # what comes next has changed
        place = self._gates.place(key, is_exec=probe.exec is not None, is_first=worker.last is None)
        task = self._supervisor.start_child(
            f"probe-{key.kind}", self._probe(key, ask, place), lambda error: self._crashed(key, ask, error)
        )
        self._running[key] = running = _Running(worker.container, task, place, worker.terms.timeout_s)
        if probe.exec is not None:
            self._tell_anew(key, running, now)

    async def _probe(self, key: Key, ask: Ask, place: Place) -> None:
        async with place:
            began = self._clock.monotonic()
            if ask.probe.exec is not None:
                self._begun(key, began)
            outcome = await self._prober.probe(ask)
        now = self._clock.monotonic()
        if ask.probe.exec is not None:
            outcome = self._gates.judge(key, outcome, now - began, ask.timeout_s, now)
        self._ended(key, ask, outcome, now - began)

    def _begun(self, key: Key, now: float) -> None:
        """Its turn has come; only from now on it can hang."""
        running, due = self._running[key], self._workers[key].due
        running.began_at = now
        self._tell_anew(key, running, now)
        if due is not None and now > due + SOON_S:
            self._unsaid.add(key.uid)
            self._wake(now)

    def _crashed(self, key: Key, ask: Ask, error: BaseException) -> None:
        """A bug in a prober is one probe without an outcome."""
        self._ended(key, ask, errored(f"internal error: {error!r}"), 0.0)

    def _ended(self, key: Key, ask: Ask, outcome: Outcome, took_s: float) -> None:
        running = self._running.get(key)
        if running is None or running.container != ask.id:
            return
        del self._running[key]
        now = self._clock.monotonic()
        before = self._workers[key]
        after = self._put(key, before, decide.finish(before, ask.id, outcome, now))
        if decide.counts(outcome):
            self._tallies[key].count(SUCCESSFUL if decide.is_pass(outcome) else FAILED, took_s)
        elif outcome.error:
            self._tallies[key].count(UNKNOWN, took_s)
        lifecycle, _ = self._pods[key.uid]
        event = happening(key.kind, outcome, lifecycle, key.container)
        if event is not None:
            self._happenings.post(event)
        if after.result is not before.result:
            log.info(
                "a probe result changed",
                pod=lifecycle.ref,
                container=key.container,
                probe=key.kind,
                result=after.result,
                cause=outcome.output[:200] or None,
            )
        if key.kind is ProbeKind.STARTUP and (after.result, after.assumed) != (before.result, before.assumed):
            self._look(key.uid, key.container, now)  # the others have waited for it
        self._wake(now)

    # Telling

    def _publish(self, now: float) -> None:
        if self._unsaid:
            self._publish_waits(now)
        if not self._changed:
            return
        self._changed = False
        observed = self._inputs.observed.get()
        self._starts.forget_all_but(observed)
        results: dict[tuple[ContainerID, ProbeKind], ProbeResult] = {}
        for container, kept in self._unclaimed().items():
            for kind in ProbeKind:
                if (found := kept.of(kind)) is not None:
                    results[container, kind] = found
        for key, worker in self._workers.items():
            if worker.container is not None and worker.result is not None:
                results[worker.container, key.kind] = worker.result
        told = self._results.get()
        if results != told.results:
            self._results.publish(ProbeResults(results, told.watched))

    def _unclaimed(self) -> dict[ContainerID, Kept]:
        """Running containers from before the agent's start that nobody has taken up yet."""
        if self._kept is None:
            return dict(self._inputs.remembered)
        if not self._unread:
            for container in self._kept.keys() - self._starts.all.keys():
                del self._kept[container]
        return self._kept

    def _publish_waits(self, now: float) -> None:
        wall = self._clock.wall()
        waits = dict(self._waits.get().pods)
        for uid in self._unsaid:
            told = tuple(
                wait_of(worker, key.container, (now, wall), self._ends_at(key, now), self._late(key, now))
                for key in self._keys.get(uid, ())
                if needs_word(worker := self._workers[key]) or self._late(key, now)
            )
            if told:
                waits[uid] = told
            else:
                waits.pop(uid, None)
        self._unsaid.clear()
        self._waits.publish(ProbeWaits(waits))

    def _ends_at(self, key: Key, now: float) -> float:
        """The monotonic second at which a probe that is being carried out ends, as far as one can tell."""
        worker, running = self._workers[key], self._running.get(key)
        began = (running.began_at if running is not None else None, worker.due, now)
        ends_at = next(at for at in began if at is not None) + worker.terms.timeout_s
        return ends_at if now < ends_at - decide.EARLY_S else ends_at + OVERDUE_S

    def _late(self, key: Key, now: float) -> tuple[Late, float] | None:
        """How a command is late, and the monotonic second at which that ends by itself, at the latest."""
        running, worker = self._running.get(key), self._workers[key]
        if running is None or worker.due is None or self._asked[key][1].exec is None:
            return None
        now += decide.EARLY_S
        if running.began_at is None:
            waits_on = now >= worker.due + running.timeout_s
            return (Late.QUEUED, now + running.place.turn_within_s()) if waits_on else None
        late_at = running.began_at + running.timeout_s
        return (Late.HANGS, late_at + self._limits.answer_s) if now >= late_at + OVERDUE_S else None

    def _wake(self, now: float) -> None:
        """Have a turn at once if there is something to tell; else only see to it that the timer is early enough."""
        if self._changed or self._unsaid:
            self._bell.set()
        else:
            self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        if not self._heap:
            return
        at = self._heap[0][0]
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self._rang)

    def _rang(self) -> None:
        self._timer = None
        self._bell.set()

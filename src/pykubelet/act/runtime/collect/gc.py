"""The container garbage collector: every minute, and whenever a container has ended, removes what `gc_plan` chooses.

At the start it also removes log directories and links without a container, because the agent may have been killed during
a removal.

Owns: the removal of dead containers with their logs, of dead sandboxes, of log directories of unknown pods, and of links
to logs that are gone. Pods that are being removed are left to their workers. Reads: `Observed`, `Lifecycles`, `Roster`.
Does nothing before all sources have reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from pykubelet.act.runtime.collect.gc_files import (
    dangling_links,
    pod_log_dirs,
    remove_container_log,
    remove_dangling_link,
)
from pykubelet.act.runtime.collect.gc_plan import GcFacts, GcPolicy, PodGarbage, plan_ended, plan_gc, unknown_pod_dirs
from pykubelet.act.runtime.lifecycle.removal import remove_container, remove_sandbox
from pykubelet.base.kit.bulkhead import Bulkhead
from pykubelet.base.kit.cells import Cell, CellWriter, Mailbox, Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.tracing import span
from pykubelet.base.kit.values import Value, changed_keys, field
from pykubelet.base.model.evictions import Reclaimed, ReclaimWanted
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID, SandboxID
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.labels import POD_TERMINATION_GRACE_PERIOD
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.observed import ContainerView, Observed, ObservedState, PodReadWanted, PodView
from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.base.model.reasons import EVENT_CONTAINER_GC_FAILED
from pykubelet.base.model.roster import Roster
from pykubelet.config.settings import Settings
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.beneath import remove_tree
from pykubelet.edges.host.fs.errors import HostError

T = TypeVar("T")
log = Log("runtime")
PERIOD_S = 60.0
ROUND_S = 30.0
FILES_DEADLINE_S = 60.0
AT_ONCE = 4
SLOT_HOLD_S = 2.0  # a removal that takes longer does not block others
MIN_STOP_S = 2


class GcInputs(Value):
    """The cells that container garbage collection reads."""

    observed: Cell[Observed]
    lifecycles: Cell[Lifecycles]
    roster: Cell[Roster]

    def known(self) -> GcFacts:
        """The pods that the agent knows: current life cycles and the roster."""
        return GcFacts(self.lifecycles.get(), self.roster.get())

    @property
    def ready(self) -> bool:
        """True once all pod sources are ready and the runtime was listed."""
        return self.roster.get().sources_ready and self.observed.get().listed_at is not None


class GcSettings(Value):
    """`period_s`: seconds between rounds. `round_s`: how long a round waits for removals; slower removals continue after it."""

    paths: Paths
    policy: GcPolicy = field(default_factory=GcPolicy)
    period_s: float = PERIOD_S
    round_s: float = ROUND_S


def gc_settings(settings: Settings, period_s: float) -> GcSettings:
    """The settings of garbage collection from the agent's flags. `period_s`: seconds between two rounds."""
    flags = settings.flags
    policy = GcPolicy(
        min_age_s=flags.minimum_container_ttl_duration_s,
        per_container=flags.maximum_dead_containers_per_container,
        total=flags.maximum_dead_containers,
    )
    return GcSettings(settings.paths, policy, period_s)


class ContainerCollector:
    """Removes dead containers, sandboxes and logs. `run` never returns; `delete_unused` is for disk pressure."""

    def __init__(
        self,
        cri: CriClient,
        clock: Clock,
        flight: SingleFlight,
        inputs: GcInputs,
        settings: GcSettings,
        touched: Post[PodReadWanted],
        recorder: Post[KubeEvent],
    ) -> None:
        self._cri = cri
        self._clock = clock
        self._flight = flight
        self._inputs = inputs
        self._settings = settings
        self._touched = touched
        self._recorder = recorder
        self._supervisor = Supervisor("container-gc")
        self._slots = Bulkhead(AT_ONCE, SLOT_HOLD_S)
        self._busy: set[PodUID] = set()
        self._seen: Mapping[PodUID, PodView] = {}
        self._failed_before = False

    async def run(self) -> None:
        """Run garbage collection until one of its root tasks fails, and raise its error."""
        async with self._supervisor as supervisor:
            supervisor.start_root("container-gc-ended", self._follow_ended())
            supervisor.start_root("container-gc-rounds", self._go_round())
            raise await supervisor.wait_failed()

    async def _go_round(self) -> None:
        await self._until_ready()
        self._report(await self._collect_logs())
        while True:
            await asyncio.sleep(self._settings.period_s)
            await self.run_round()

    async def _until_ready(self) -> None:
        await self._inputs.roster.wait_for(lambda roster: roster.sources_ready)
        await self._inputs.observed.wait_for(lambda observed: observed.listed_at is not None)

    async def _follow_ended(self) -> None:
        async for observed in self._inputs.observed.changes():
            if self._inputs.ready:
                self._collect_ended(observed)

    def _collect_ended(self, observed: Observed) -> None:
        known = self._inputs.known()
        for uid in changed_keys(self._seen, observed.pods):
            view = observed.pods.get(uid)
            if view is not None and uid not in self._busy:
                garbage = plan_ended(view, known.gc_state(uid), self._settings.policy)
                if garbage is not None:
                    self._start(garbage, "container ended")
        self._seen = observed.pods

    async def run_round(self) -> None:
        """Run one complete collection. Failures are logged and recorded as an Event, never raised."""
        with span("Containers/GarbageCollect"):
            self._report(await self._collect(with_ended=False))

    def _report(self, problems: list[str]) -> None:
        if problems:
            message = "; ".join(dict.fromkeys(problems))
            self._recorder.post(warning(EVENT_CONTAINER_GC_FAILED, message))
            if not self._failed_before:
                log.warning("container garbage collection failed", error=message)
        elif self._failed_before:
            log.info("container garbage collection works again")
        self._failed_before = bool(problems)

    async def answer_reclaims(self, wanted: Mailbox[ReclaimWanted], reclaimed: CellWriter[Reclaimed]) -> None:
        """Remove all unused containers and sandboxes on each request for disk space. Never returns."""
        while True:
            at = max(request.at for request in await wanted.get_all())
            reclaimed.publish(Reclaimed(at, "; ".join(await self.delete_unused())))

    async def delete_unused(self) -> list[str]:
        """Run a collection that also removes what is kept of pods that have ended. Returns the errors as texts."""
        return await self._collect(with_ended=True)

    async def _collect(self, *, with_ended: bool) -> list[str]:
        if not self._inputs.ready:
            return []
        observed, known = self._inputs.observed.get(), self._inputs.known()
        plans = plan_gc(observed, known, self._settings.policy, self._clock.wall(), with_ended=with_ended)
        tasks = [self._start(garbage, "collected") for garbage in plans if garbage.ref.uid not in self._busy]
        problems: list[str] = []
        if tasks:
            done, slow = await asyncio.wait(tasks, timeout=self._settings.round_s)
            problems.extend(problem for task in done if task.exception() is None for problem in task.result())
            if slow:
                problems.append(f"removing what is left of {len(slow)} pods takes long")
        problems.extend(await self._collect_logs())
        return problems

    # Containers and sandboxes

    def _start(self, garbage: PodGarbage, cause: str) -> asyncio.Task[list[str]]:
        self._busy.add(garbage.ref.uid)
        work = self._remove(garbage, cause)
        return self._supervisor.start_child(f"container-gc-{garbage.ref.uid}", work, self._report_crash)

    def _report_crash(self, error: BaseException) -> None:
        self._recorder.post(warning(EVENT_CONTAINER_GC_FAILED, f"internal error: {error!r}"))

    async def _remove(self, garbage: PodGarbage, cause: str) -> list[str]:
        """Remove the containers and sandboxes in `garbage`. Returns the errors as texts."""
        ref = garbage.ref
        problems: list[str] = []
        try:
            async with self._slots.slot():
                for container in garbage.containers:
                    problems.extend(await self._remove_container(ref, container, cause))
                for sandbox in garbage.sandboxes:
                    problems.extend(await self._remove_sandbox(ref, sandbox, cause))
        finally:
            self._busy.discard(ref.uid)
            self._touched.post(PodReadWanted(ref, "garbage collected"))
        return problems

    async def _remove_container(self, ref: PodRef, container: ContainerView, cause: str) -> list[str]:
        try:
            if container.state is ObservedState.UNKNOWN:
                grace = container.annotations.get(POD_TERMINATION_GRACE_PERIOD, "")
                await self._cri.stop_container(container.id, max(MIN_STOP_S, parse_decimal(grace) or 0))
            await remove_container(self._cri, container.id)
        except CriError as error:
            if not error.is_not_found:
                return [f"failed to remove container {container.name} of {ref}: {error}"]
        log.info("container removed", pod=ref, container=container.name, id=container.id, cause=cause)
        paths = self._settings.paths
        link = paths.log_link(ref, container.name, container.id)
        outcome = await self._files(
            f"logs:{ref.uid}:{container.id}", lambda: remove_container_log(paths, container.log_path, link)
        )
        return [outcome] if isinstance(outcome, str) else []

    async def _remove_sandbox(self, ref: PodRef, sandbox: SandboxID, cause: str) -> list[str]:
        try:
            await self._cri.stop_pod_sandbox(sandbox)
            await remove_sandbox(self._cri, sandbox)
        except CriError as error:
            if not error.is_not_found:
                return [f"failed to remove sandbox of {ref}: {error}"]
        log.info("sandbox removed", pod=ref, id=sandbox, cause=cause)
        return []

    # Logs

    async def _collect_logs(self) -> list[str]:
        paths = self._settings.paths
        names = await self._files("log-dirs", lambda: pod_log_dirs(paths))
        if isinstance(names, str):
            return [names]
        problems = []
        for name, uid in self._unknown(names):
            if not self._unknown([name]):
                continue  # the pod has become known
            path = Beneath(paths.logs, name)
            outcome = await self._files(f"logs:{uid}", partial(remove_tree, path))
            if isinstance(outcome, str):
                problems.append(outcome)
            else:
                log.info("log directory of an unknown pod removed", path=path)
        return [*problems, *await self._collect_links()]

    def _unknown(self, names: list[str]) -> list[tuple[str, PodUID]]:
        observed = self._inputs.observed.get()
        found = unknown_pod_dirs(names, self._inputs.known(), observed.pods)
        return [(name, uid) for name, uid in found if not observed.is_unread(uid)]

    async def _collect_links(self) -> list[str]:
        paths = self._settings.paths
        links = await self._files("log-links", lambda: dangling_links(paths))
        if isinstance(links, str):
            return [links]
        problems = []
        for path, container in links.items():
            if await self._may_still_log(ContainerID(container)):
                continue
            outcome = await self._files(f"log-link:{path}", partial(remove_dangling_link, paths, path))
            if isinstance(outcome, str):
                problems.append(outcome)
        return problems

    async def _may_still_log(self, container: ContainerID) -> bool:
        """Whether the container may still write a log: a log is missing for a moment while it starts or is rotated."""
        try:
            status = (await self._cri.container_status(container)).status
        except CriError as error:
            return not error.is_not_found
        return bool(status.state != pb.CONTAINER_EXITED)

    async def _files(self, key: str, work: Callable[[], T]) -> T | str:
        """The result of blocking work, or the error as text."""
        outcome = await self._flight.run(key, work, FILES_DEADLINE_S)
        if isinstance(outcome, Done):
            return outcome.value
        if isinstance(outcome, Failed):
            if isinstance(outcome.error, HostError):
                return str(outcome.error)
            raise outcome.error
        return "the file system of the logs does not answer"

"""Carries out the commands of the pod state machine: does all I/O for one pod through the other packages of `act`.

Owns: the order of the steps of one sync. The steps of a pod's end are in `ending.py`, and what a pod needs is in `needs.py`. Reads:
`Observed`, `RuntimeReady`, `Placements`.
Every step may be repeated: what already exists is adopted, and what is already gone is no error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property, partial
from math import inf
from typing import TypeVar

from pykubelet.act.pods.ahead import Ahead, Early
from pykubelet.act.pods.decide import find_container
from pykubelet.act.pods.ending import LOGS_DEADLINE_S, PodEnding
from pykubelet.act.pods.hooks import PodHooks
from pykubelet.act.pods.metrics import RESIZE_DURATIONS, PullTime
from pykubelet.act.pods.model import StartFailed, StopPod, Sync, SyncEnded
from pykubelet.act.pods.need import SyncRun
from pykubelet.act.pods.resize import resize_pod
from pykubelet.act.pods.sandbox_loss import may_have_ended_with
from pykubelet.act.pods.tools import ASK_AGAIN, PodTools, pod_ip, runtime_wait
from pykubelet.act.pods.waitbook import ENDING, WaitBook
from pykubelet.act.runtime.collect.gc_files import remove_container_log
from pykubelet.act.runtime.lifecycle.metrics import (
    IMAGE_VOLUMES_ERRORS,
    IMAGE_VOLUMES_MOUNTED,
    STARTED_CONTAINERS,
    STARTED_USERNS_ERRORS,
)
from pykubelet.act.runtime.lifecycle.sandbox import Sandbox
from pykubelet.act.runtime.lifecycle.start import CreatedContainer, SandboxEnded
from pykubelet.act.runtime.lifecycle.stop import ContainerStop, StopTarget, restart_grace
from pykubelet.act.runtime.plan.plan import Applied, ContainerKill, KillCause
from pykubelet.act.runtime.render.context import AnyContainer, ContainerContext, RenderSettings
from pykubelet.act.runtime.render.security import needs_user_namespace
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model import containers
from pykubelet.base.model.containers import container_kind
from pykubelet.base.model.ids import ContainerID, PodRef, SandboxID, pods_of
from pykubelet.base.model.kube_events import KubeEvent, normal, warning
from pykubelet.base.model.lifecycle import Starts
from pykubelet.base.model.node import RuntimeReady
from pykubelet.base.model.observed import ContainerView, ObservedState, PodView, SandboxView, Started
from pykubelet.base.model.reasons import (
    CREATE_POD_SANDBOX_ERROR,
    EVENT_FAILED_KILL_POD,
    EVENT_NETWORK_NOT_READY,
    EVENT_SANDBOX_CHANGED,
    KILL_CONTAINER_ERROR,
    START_ERROR,
)
from pykubelet.base.model.restart import ALWAYS
from pykubelet.base.model.waits import CONTAINER_START, SANDBOX, Owner, Wait
from pykubelet.edges.cri.errors import CriError

T = TypeVar("T")
log = Log("pods")


class Interrupted(Exception):
    """The sync ends here, because a newer event must be decided on first."""


class ReadyContainer(Value):
    """What a container needs for its creation."""

    settings: RenderSettings
    ctx: ContainerContext


AheadOfStart = Ahead[ReadyContainer, CreatedContainer | SandboxEnded]
EarlyContainer = Early[ReadyContainer, CreatedContainer | SandboxEnded]


class PodExecution:
    """The work of one pod. At most one of `sync`, `stop` and `ending.clean` runs at a time.

    `hooks`: the postStart hooks of its containers. `ahead`: the containers that the running sync makes ahead. `pulled`: the time that its
    image pulls took.
    """

    def __init__(self, tools: PodTools, ref: PodRef) -> None:
        self._tools = tools
        self._ref = ref
        self._interrupted = asyncio.Event()
        self._is_outdated = False
        self._needs = [make(tools, ref) for make in tools.needs]
        self.clock: Clock = tools.clock
        self.recorder: Post[KubeEvent] = tools.recorder
        self.hooks = PodHooks(ref, tools.starter, tools.hook_records)
        self.ahead: frozenset[str] = frozenset()
        self.pulled = PullTime()
        #: All containers have ended, and none will be started any more.
        self.is_stopped = False
        self._changed_at = 0.0
        self._calls = 0

    def begin_sync(self, unhooked: Mapping[str, int]) -> None:
        """Prepare for a sync: `interrupt` from now on ends this sync. `unhooked`: as in `PodWorkerState`."""
        self._interrupted.clear()
        self._is_outdated = False
        self.hooks.running = unhooked

    def interrupt(self, *, is_outdated: bool = False) -> None:
        """End the running sync when it next waits. `is_outdated`: also before it starts the next container."""
        self._interrupted.set()
        self._is_outdated = self._is_outdated or is_outdated

    @cached_property
    def ending(self) -> PodEnding:
        """What ends the pod."""
        return PodEnding(self._tools, self._ref, self._needs)

    async def stop(self, command: StopPod, waits: WaitBook, *, for_good: bool) -> str:
        """Stop all containers, then the sandboxes. Returns the error, or an empty string. `for_good`: see `stop_pod`."""
        error = await self.ending.stop(command, waits, self._changed_at, for_good=for_good)
        if not error:
            self.is_stopped = True
            waits.notify()
        return error

    # Sync

    async def sync(self, command: Sync, waits: WaitBook) -> SyncEnded:
        """Carry out a plan. The result contains the errors."""
        try:
            ended = await self._outcome(SyncRun(command, waits, self._interruptible, self.pulled))
            _count_user_namespace_error(command, ended)
            return ended
        finally:
            self.ahead = frozenset()
            self._changed_at = self.clock.monotonic()
            waits.forget_notes()

    async def _outcome(self, run: SyncRun) -> SyncEnded:
        """Carry out the steps, and return their failure as a value."""
        try:
            return await self._sync(run)
        except Interrupted:
            return SyncEnded(unfinished=True, cause="interrupted by a newer event")
        except ContainerStartError as error:
            self._cancel_needs()  # the next attempt may be a long time off
            return SyncEnded(pod_error=error.value)
        except BaseException:
            self._cancel_needs()
            raise

    async def _sync(self, run: SyncRun) -> SyncEnded:
        """The steps of a sync. Each may be repeated; the plan names what the pod lacks."""
        self.is_stopped = False
        # 1. The runtime takes calls, and has a network if a sandbox is to be made.
        await self._runtime_ready(run)
        async with self._adopting(run) as adoption:
            return await self._sync_ready(run, adoption)

    async def _sync_ready(self, run: SyncRun, adoption: Awaitable[Sandbox] | None) -> SyncEnded:
        plan = run.command.plan
        # 2. What the plan replaces is stopped and removed.
        await self._clear_away(run)
        # 3. The hooks of running containers that were cut off are run again.
        failed = await self._run_hooks(run)
        if not (plan.create_sandbox or plan.starts or plan.resize_pod):
            return SyncEnded(failed=failed)
        # 4. What takes long begins: image pulls.
        if adoption is None:
            self._begin_needs(run)
        # 5. What the sandbox needs is there: the cgroup, its RuntimeClass, prepared claims, volumes that are at least being mounted.
        for need in self._needs:
            await need.before_sandbox(run)
        # 6. The sandbox, with its network.
        sandbox = await (self._sandbox(run) if adoption is None else adoption)
        # 7. What all containers need is there: mounted volumes.
        for need in self._needs:
            await need.before_containers(run)
        sandbox = self._tools.sandboxes.with_volume_groups(run.pod, sandbox)
        # 8. Running containers get their new size.
        resized, problem = await self._resize(run, sandbox) if plan.resize_pod else (None, "")
        # 9. Each container, in order: what it needs is there, then it is created and started, then its postStart hook runs. What has no
        #    order is done ahead, for the containers after it (`ahead.py`).
        ended = await self._start_all(run, sandbox, failed)
        made = ended.made
        if made is not None and plan.resize_pod:
            made = replace(made, resized=tuple(resized.containers)) if resized is not None and not problem else None
        return replace(ended, made=made, resized=resized, resize_error=problem)

    @asynccontextmanager
    async def _adopting(self, run: SyncRun) -> AsyncIterator[Awaitable[Sandbox] | None]:
        """While containers are being stopped to start again in their sandbox, it is adopted and their images are looked for.

        None for any other sync, which has nothing to wait for before.
        """
        plan = run.command.plan
        if not (plan.kills and plan.starts) or plan.sandbox is None or plan.restart_all:
            yield None
            return
        self._begin_needs(run)
        adoption = self._tools.supervisor.start_child(f"adopt-{self._ref.uid}", self._sandbox(run))
        try:
            yield adoption
        finally:
            adoption.cancel()
            await asyncio.gather(adoption, return_exceptions=True)

    def _begin_needs(self, run: SyncRun) -> None:
        for need in self._needs:
            need.begin(run)

    def _cancel_needs(self) -> None:
        for need in reversed(self._needs):
            need.cancel()

    def _interruptible(self, work: Awaitable[T]) -> Awaitable[T]:
        return self._unless(self._interrupted.wait(), work)

    async def _unless(self, interruption: Awaitable[object], work: Awaitable[T]) -> T:
        """Await `work`. Raises Interrupted if `interruption` ends first; a task passed as `work` then continues."""
        other = self._tools.supervisor.start_child(f"attention-{self._ref.uid}", _awaited(interruption))
        task: asyncio.Task[T]
        task = work if isinstance(work, asyncio.Task) else self._tools.supervisor.start_child("wait", _awaited(work))
        try:
            await asyncio.wait((task, other), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Interrupted
        finally:
            other.cancel()
            if task is not work:
                task.cancel()

    @contextmanager
    def _starting(self, wait: Wait, waits: WaitBook) -> Iterator[None]:
        """A context manager: while the block runs, `wait` is open, and `Starts` has the pod."""
        starts, uid = self._tools.starts, self._ref.uid
        before = dict(starts.get().since)
        before.pop(uid, None)
        starts.publish(Starts({**before, uid: self.clock.wall()}))
        self._calls += 1
        try:
            with waits.waiting(wait):
                yield
        finally:
            self._calls -= 1
            if not self._calls:
                since = dict(starts.get().since)
                since.pop(uid, None)
                starts.publish(Starts(since))

    async def _runtime_ready(self, run: SyncRun) -> None:
        cell = self._tools.cells.runtime
        with_network = run.command.plan.create_sandbox and not run.pod.spec.hostNetwork

        def unready(now: RuntimeReady) -> Wait | None:
            if not now.takes_calls:
                return runtime_wait(now)
            why = now.network_error if with_network else ""
            return (
                Wait("network", Owner.RUNTIME_STATUS, 0.0, "", EVENT_NETWORK_NOT_READY, why, ASK_AGAIN) if why else None
            )

        if (wait := unready(cell.get())) is not None and wait.reason == EVENT_NETWORK_NOT_READY:
            self.recorder.post(warning(EVENT_NETWORK_NOT_READY, f"network is not ready: {wait.detail}", self._ref))
        await run.until(cell, unready)

    def _killed_within(self, grace_s: int) -> Wait:
        return Wait(ENDING, Owner.RUNTIME_MANAGER, 0.0, next_step="SIGKILL", next_at=self.clock.wall() + grace_s)

    async def _clear_away(self, run: SyncRun) -> None:
        """Stop and remove the containers and sandboxes that the plan names. Raises ContainerStartError."""
        command, waits = run.command, run.waits
        pod, plan, stopper = command.pod, command.plan, self._tools.stopper
        try:
            if plan.create_sandbox:
                await self._tidy_up(command.uncounted, waits)
            if plan.stop_pod and not command.view.is_gone:
                message = "Pod sandbox changed, it will be killed and re-created."
                self.recorder.post(normal(EVENT_SANDBOX_CHANGED, message, self._ref))
                grace = restart_grace(pod)
                with waits.waiting(self._killed_within(grace)):
                    await stopper.stop_pod(pod, self._ref, grace, self._pod_ip(), waits=waits)
            elif plan.kills:
                ends = [
                    ContainerStop(
                        StopTarget(pod, self._ref, k.container.name, k.container.id, self._pod_ip()),
                        _kill_grace(pod, k),
                        k.message,
                    )
                    for k in plan.kills
                ]
                with waits.waiting(self._killed_within(restart_grace(pod))):
                    await stopper.stop_containers(ends, waits)
            if plan.restart_all:
                for container in plan.remove:
                    await stopper.remove_container(container, waits)
            else:
                await self._tidy_up([c for c in command.view.containers if c.id in plan.remove], waits)
        except CriError as error:
            self.recorder.post(warning(EVENT_FAILED_KILL_POD, f"error killing pod: {error}", self._ref))
            raise ContainerStartError(str(error), KILL_CONTAINER_ERROR) from error

    async def _tidy_up(self, old: Iterable[ContainerView], waits: WaitBook) -> None:
        """Remove instances with their logs. A failed removal blocks nothing; the next start tries it again.

        Raises Interrupted for one that seemed to have never been started, and was: the next view shows what has become of it.
        """
        paths = self._tools.sandboxes.paths
        for container in old:
            link = paths.log_link(self._ref, container.name, container.id)
            problem = ""
            try:
                if not _may_be_starting(container):
                    await self._tools.stopper.remove_container(container.id, waits)
                elif not await self._tools.stopper.remove_unstarted(container.id, waits):
                    raise Interrupted
                remove = partial(remove_container_log, paths, container.log_path, link)
                outcome = await self._tools.flight.run(f"logs:{self._ref.uid}:{container.id}", remove, LOGS_DEADLINE_S)
                problem = "" if isinstance(outcome, Done) else str(outcome)
            except CriError as error:
                problem = str(error)
            if problem:
                log.warning("an old container cannot be removed", pod=self._ref, id=container.id, error=problem)

    async def _sandbox(self, run: SyncRun) -> Sandbox:
        """Make the pod's sandbox, or adopt it. Some volumes may still be mounting (`PodMounts.mounting`). Raises ContainerStartError."""
        pod, plan, tools = run.pod, run.command.plan, self._tools
        parent = tools.cgroups.cgroup_parent(pod)
        if plan.sandbox is not None:
            return await tools.sandboxes.adopt(pod, plan.sandbox, parent, for_starts=bool(plan.starts))
        detail = "RunPodSandbox: network and pause container"
        wait = Wait(SANDBOX, Owner.CONTAINER_RUNTIME, 0.0, detail=detail, next_step="start the containers")
        with self._starting(wait, run.waits):
            return await tools.sandboxes.create(pod, plan.attempt, parent)

    def _pod_ip(self) -> str:
        return pod_ip(self._tools.cells.observed.get().pods.get(self._ref.uid))

    async def _resize(self, run: SyncRun, sandbox: Sandbox) -> tuple[Applied | None, str]:
        tools = self._tools
        detail = "cgroups and UpdateContainerResources"
        wait = Wait("resize", Owner.CONTAINER_RUNTIME, 0.0, detail=detail, next_step="start what is missing")
        with run.waits.waiting(wait):
            began = tools.clock.monotonic()
            settings, placements = tools.sandboxes.settings(), tools.cells.placements.get()
            done, problem = await resize_pod(run.command, sandbox, tools.cgroups, tools.resizer, settings, placements)
            RESIZE_DURATIONS.observe((tools.clock.monotonic() - began) * 1000, str(not problem).lower())
            return done, problem

    # Containers

    async def _run_hooks(self, run: SyncRun) -> dict[str, StartFailed]:
        """Run the hooks of containers that run already. Returns those that failed."""
        failed: dict[str, StartFailed] = {}
        for name in run.command.plan.hooks:
            container, instance = find_container(run.pod, name), run.command.view.newest(name)
            assert instance is not None
            try:
                await self._run_hook(run, container, instance.id, instance.sandbox_id, self._pod_ip())
            except ContainerStartError as error:
                failed[name] = _outcome(error)
        return failed

    async def _run_hook(
        self, run: SyncRun, container: AnyContainer, instance: ContainerID, sandbox: SandboxID, pod_ip: str
    ) -> None:
        """Run the container's hook, if it has not ended. Raises Interrupted when the sandbox ends, which a hook may outlive."""
        if container.name not in self.hooks.running:
            return
        view, began = self._tools.cells.observed.entry(pods_of, self._ref.uid), self.clock.monotonic()
        ended = view.wait_for(lambda now: _shows_end_of(now, sandbox, began))
        await self._unless(ended, self.hooks.run(run.pod, container, instance, pod_ip, run.waits))

    async def _start_all(self, run: SyncRun, sandbox: Sandbox, failed: dict[str, StartFailed]) -> SyncEnded:
        """Start the containers of the plan, in its order."""
        if len(run.command.plan.start) < 2:
            return await self._start_in_order(run, sandbox, failed, None)
        tools = self._tools
        make = partial(self._prepare, run, sandbox), partial(self._create, run, sandbox)
        async with Ahead(tools.supervisor, tools.ahead, run.pod, run.command.plan.start, *make) as ahead:
            return await self._start_in_order(run, sandbox, failed, ahead)

    async def _start_in_order(
        self, run: SyncRun, sandbox: Sandbox, failed: dict[str, StartFailed], ahead: AheadOfStart | None
    ) -> SyncEnded:
        started: dict[str, ContainerID] = {}
        pod, plan = run.pod, run.command.plan
        for name in plan.starts:
            container = find_container(pod, name)
            try:
                with self._tools.starter.reporting(pod, container):
                    await self._start_one(run, container, sandbox, ahead, started)
            except Interrupted:
                return SyncEnded(tuple(started), failed, unfinished=True, cause="interrupted by a newer event")
            except ContainerStartError as error:
                started.pop(name, None)
                failed[name] = _outcome(error)
                if name in plan.start_init and container.restartPolicy != ALWAYS:
                    break
        self._cancel_needs()
        cleared = plan.remove or (plan.stop_pod and not run.command.view.is_gone)
        ended = tuple(kill.container.id for kill in plan.kills)
        made = None if failed or cleared else Started(sandbox.id, tuple(started.values()), sandbox.seen, ended=ended)
        return SyncEnded(tuple(started), failed, made=made)

    async def _start_one(
        self,
        run: SyncRun,
        container: AnyContainer,
        sandbox: Sandbox,
        ahead: AheadOfStart | None,
        started: dict[str, ContainerID],
    ) -> None:
        """The steps of one container's start. `ahead`: the containers that are made ahead; None: there are none.

        `started`: gets the instance once it is started, so that the start counts although its hook may be interrupted.
        """
        if self._is_outdated or self._has_ended(run.command.plan.sandbox):
            raise Interrupted
        STARTED_CONTAINERS.inc(container_kind(run.pod, container))
        early = ahead.take(container.name) if ahead is not None else None
        # 1. What it needs is there, and its files are made.
        try:
            ready = await (self._prepare(run, sandbox, container) if early is None else early.ready)
        except ContainerStartError:
            self._record_needs(run, container)
            raise
        self._record_needs(run, container)
        # 2. The next ones begin to be made.
        if ahead is not None and ahead.begin(container):
            self.ahead = ahead.names
            run.waits.notify()
        # 3. It is created and started.
        instance = started[container.name] = await self._create_and_start(run, sandbox, container, ready, early)
        # 4. Its postStart hook. The container is reported as running after the hook has ended.
        await self._run_hook(run, container, instance, sandbox.id, ready.ctx.pod_ips[0] if ready.ctx.pod_ips else "")

    async def _prepare(self, run: SyncRun, sandbox: Sandbox, container: AnyContainer) -> ReadyContainer:
        """Wait for what a container needs, and find the one whose processes it shares."""
        ctx = ContainerContext(sandbox=sandbox.context, pod_ips=sandbox.ips)
        for need in self._needs:
            ctx = await need.before_container(run, container, ctx)
        target = _target(run.command, container)
        if target is None:
            raise ContainerStartError(
                f"unable to find target container {getattr(container, 'targetContainerName', '')}"
            )
        return ReadyContainer(self._tools.sandboxes.settings(), replace(ctx, target_container_id=target))

    def _record_needs(self, run: SyncRun, container: AnyContainer) -> None:
        for need in self._needs:
            need.before_start(run, container)

    def _has_ended(self, sandbox: SandboxView | None) -> bool:
        """Whether the newest view of the pod shows the end of the sandbox in which containers are being started."""
        view = self._tools.cells.observed.get().pods.get(self._ref.uid)
        return sandbox is not None and _shows_end_of(view, sandbox.id)

    async def _create(
        self, run: SyncRun, sandbox: Sandbox, container: AnyContainer, ready: ReadyContainer
    ) -> CreatedContainer | SandboxEnded:
        """Create a container ahead."""
        await self.hooks.announce(container, ready.ctx.restart_count, run.waits)
        with self._starting(_start_wait(container), run.waits):
            return await self._create_now(run, sandbox, container, ready)

    async def _create_now(
        self, run: SyncRun, sandbox: Sandbox, container: AnyContainer, ready: ReadyContainer
    ) -> CreatedContainer | SandboxEnded:
        may_have_ended = _may_have_ended(run.command, container.name)
        create = self._tools.starter.create
        return await create(run.pod, container, sandbox, ready.settings, ready.ctx, may_have_ended=may_have_ended)

    async def _create_and_start(
        self,
        run: SyncRun,
        sandbox: Sandbox,
        container: AnyContainer,
        ready: ReadyContainer,
        early: EarlyContainer | None,
    ) -> ContainerID:
        """Create and start the container. That its hook will run is noted before, so that it runs after a restart of the agent."""
        start, may_have_ended = self._tools.starter.start, _may_have_ended(run.command, container.name)
        images = len(ready.ctx.image_volumes)
        if early is None:
            await self.hooks.announce(container, ready.ctx.restart_count, run.waits)
        try:
            with self._starting(_start_wait(container), run.waits):
                made = await (self._create_now(run, sandbox, container, ready) if early is None else early.created())
                instance = (
                    await start(run.pod, container, made, sandbox, ready.settings, may_have_ended=may_have_ended)
                    if isinstance(made, CreatedContainer)
                    else made
                )
        except ContainerStartError as error:
            IMAGE_VOLUMES_ERRORS.inc(by=images)
            if error.unstarted is None:
                await self.hooks.withdraw(container)
            raise
        if isinstance(instance, SandboxEnded):
            raise Interrupted
        IMAGE_VOLUMES_MOUNTED.inc(by=images)
        return instance


def _kill_grace(pod: Pod, kill: ContainerKill) -> int:
    """The grace period in seconds: 0 when all containers are restarted, else that of the failed probe or the pod."""
    if kill.cause is KillCause.RESTART_ALL:
        return 0
    container = containers.find_container(pod, kill.container.name)
    probe = None
    if container is not None and kill.cause is KillCause.LIVENESS:
        probe = container.livenessProbe
    elif container is not None and kill.cause is KillCause.STARTUP:
        probe = container.startupProbe
    return restart_grace(pod, probe)


def _may_be_starting(container: ContainerView) -> bool:
    """Whether an earlier agent may have left a call that starts the container. One whose start was interrupted has ended."""
    return container.state is ObservedState.CREATED and container.reason != START_ERROR


def _start_wait(container: AnyContainer) -> Wait:
    detail = "CreateContainer and StartContainer"
    return Wait(CONTAINER_START, Owner.CONTAINER_RUNTIME, 0.0, container.name, detail=detail, next_step="run it")


def _may_have_ended(command: Sync, name: str) -> bool:
    """Whether the sandbox in which a container is started may have ended with the container's last instance."""
    sandbox = command.plan.sandbox
    return sandbox is not None and may_have_ended_with(sandbox, next(iter(command.left(name)), None))


def _target(command: Sync, container: AnyContainer) -> str | None:
    """The instance whose process namespace an ephemeral container shares; "": shares none; None: the instance does not exist."""
    name = getattr(container, "targetContainerName", "")
    if not name:
        return ""
    return next((instance.id for instance in command.left(name)), None)


def _shows_end_of(view: PodView | None, sandbox: SandboxID, existed_at: float = inf) -> bool:
    """Whether a view shows the end of a sandbox, or its removal if it existed at a time before the view was read (monotonic seconds)."""
    if view is None:
        return False
    found = next((s for s in view.sandboxes if s.id == sandbox), None)
    return not found.ready if found is not None else view.read_at > existed_at


def _outcome(error: ContainerStartError) -> StartFailed:
    return StartFailed(error.value, error.retry_at, error.instance, error.unstarted)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _count_user_namespace_error(command: Sync, ended: SyncEnded) -> None:
    """Count the failure of a sync that made a sandbox with a user namespace: most show when a container is made in it."""
    error = ended.pod_error
    sandbox_failed = error is not None and error.reason == CREATE_POD_SANDBOX_ERROR
    if command.plan.create_sandbox and needs_user_namespace(command.pod) and (sandbox_failed or ended.failed):
        STARTED_USERNS_ERRORS.inc()

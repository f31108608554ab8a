"""Carries out the commands of the pod state machine: does all I/O for one pod through the other packages of `act`.

Owns: the order of the steps of one sync. The steps of a pod's end are in `ending.py`. Reads: `Mounts`, `Observed`, `NodeView`,
`RuntimeReady`, `Content`, `Placements`.
Every step may be repeated: what already exists is adopted, and what is already gone is no error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import TypeVar

from pykubelet.act.pods.api_content import PodContent
from pykubelet.act.pods.claims import PodClaimsView
from pykubelet.act.pods.decide import find_container
from pykubelet.act.pods.ending import LOGS_DEADLINE_S, PodEnding
from pykubelet.act.pods.hooks import PodHooks
from pykubelet.act.pods.images import BEHIND_SANDBOX_S, PodImages
from pykubelet.act.pods.metrics import RESIZE_DURATIONS, PullTime
from pykubelet.act.pods.model import CleanEnded, CleanUp, StartFailed, StopPod, Sync, SyncEnded
from pykubelet.act.pods.resize import pod_before, resize_pod
from pykubelet.act.pods.sandbox_loss import may_have_ended_with
from pykubelet.act.pods.tools import ASK_AGAIN, PodTools, pod_ip, runtime_wait
from pykubelet.act.pods.waitbook import ENDING, LifecycleChanged, WaitBook
from pykubelet.act.runtime.collect.gc_files import remove_container_log
from pykubelet.act.runtime.lifecycle.metrics import IMAGE_VOLUMES_ERRORS, IMAGE_VOLUMES_MOUNTED, STARTED_USERNS_ERRORS
from pykubelet.act.runtime.lifecycle.sandbox import Sandbox
from pykubelet.act.runtime.lifecycle.start import SandboxEnded
from pykubelet.act.runtime.lifecycle.stop import ContainerStop, StopTarget, restart_grace
from pykubelet.act.runtime.plan.plan import ContainerKill, KillCause
from pykubelet.act.runtime.plan.plan_resize import Applied
from pykubelet.act.runtime.render.api_objects import environment_objects, service_environment
from pykubelet.act.runtime.render.context import AnyContainer, ContainerContext, RenderSettings
from pykubelet.act.runtime.render.render_mounts import relative_sub_paths
from pykubelet.act.runtime.render.security import needs_user_namespace
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.act.volumes.subpath import SubPathError
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.kit.values import replace
from pykubelet.base.model import fieldpath
from pykubelet.base.model.content import ObjectKey
from pykubelet.base.model.ids import ContainerID, PodRef, SandboxID
from pykubelet.base.model.kube_events import KubeEvent, normal, warning
from pykubelet.base.model.lifecycle import Starts
from pykubelet.base.model.mounts import Mounts, PodMounts
from pykubelet.base.model.needs import environment_keys, runtime_class_key
from pykubelet.base.model.node import RuntimeReady
from pykubelet.base.model.observed import ContainerView, PodView, SandboxView, Started
from pykubelet.base.model.placement import Placements
from pykubelet.base.model.reasons import (
    CREATE_POD_SANDBOX_ERROR,
    EVENT_FAILED_CREATE_POD_CONTAINER,
    EVENT_FAILED_KILL_POD,
    EVENT_NETWORK_NOT_READY,
    EVENT_SANDBOX_CHANGED,
    KILL_CONTAINER_ERROR,
)
from pykubelet.base.model.restart import ALWAYS
from pykubelet.base.model.waits import CONTAINER_START, SANDBOX, Owner, Wait
from pykubelet.edges.cri.errors import CriError

T = TypeVar("T")
log = Log("pods")


class Interrupted(Exception):
    """The sync ends here, because a newer event must be decided on first."""


class PodExecution:
    """The work of one pod. At most one of `sync`, `stop` and `clean` runs at a time."""

    def __init__(self, tools: PodTools, ref: PodRef) -> None:
        self._tools = tools
        self._ref = ref
        self._attention = asyncio.Event()
        self._is_outdated = False
        self._ending = PodEnding(tools, ref)
        self._hooks = PodHooks(ref, tools.starter, tools.hook_records)
        self._claims = PodClaimsView(tools.cells.claims, ref.uid, extended=tools.extended_claims)
        self._content = PodContent(tools.cells.content, ref, tools.recorder)
        self._images = PodImages(
            ref, tools.images, tools.cgroups, self._content, tools.supervisor, self._wait, tools.recorder
        )

    @property
    def pulled(self) -> PullTime:
        """The time that the pod's image pulls took."""
        return self._images.pulled

    @property
    def is_stopped(self) -> bool:
        """Whether all containers have ended, and none will be started any more."""
        return self._ending.is_stopped

    @property
    def clock(self) -> Clock:
        """The clock that all pods share."""
        return self._tools.clock

    @property
    def recorder(self) -> Post[KubeEvent]:
        """The mailbox that takes Kubernetes Events."""
        return self._tools.recorder

    @property
    def holds_volumes(self) -> bool:
        """Whether volumes of the pod are mounted, or may be."""
        return self._ending.holds_volumes

    def book(self, mailbox: Post[LifecycleChanged]) -> WaitBook:
        """A new, empty wait book that posts its changes to `mailbox`."""
        return WaitBook(self._tools.clock, mailbox)

    @property
    def post_starting(self) -> Mapping[str, int]:
        """The containers whose postStart hook has not ended, with the attempt that was asked for."""
        return self._hooks.running

    def attend(self, unhooked: Mapping[str, int]) -> None:
        """Prepare for a sync: `interrupt` from now on ends this sync. `unhooked`: as in `PodWorkerState`."""
        self._attention.clear()
        self._is_outdated = False
        self._hooks.running = unhooked

    def interrupt(self, *, is_outdated: bool = False) -> None:
        """End the running sync when it next waits. `is_outdated`: also before it starts the next container."""
        self._attention.set()
        self._is_outdated = self._is_outdated or is_outdated

    async def stop(self, command: StopPod, waits: WaitBook, *, for_good: bool) -> str:
        """Stop all containers, then the sandboxes. Returns the error, or an empty string."""
        self._images.drop()
        return await self._ending.stop(command, waits, for_good=for_good)

    async def wait_ends_reported(self, waits: WaitBook) -> None:
        """Wait until the pod's status shows how its containers ended."""
        await self._ending.wait_ends_reported(waits)

    async def wait_unprepared(self, waits: WaitBook) -> None:
        """Wait until the pod's resource claims are unprepared."""
        await self._claims.wait_unprepared(waits)

    async def clean(self, command: CleanUp, waits: WaitBook) -> CleanEnded:
        """Release all resources of the pod. The result contains the errors."""
        return await self._ending.clean(command, waits)

    # Sync

    async def sync(self, command: Sync, waits: WaitBook) -> SyncEnded:
        """Carry out a plan. The result contains the errors."""
        try:
            ended = await self._sync(command, waits)
            _count_user_namespace_error(command, ended)
            return ended
        finally:
            self._ending.acted()
            waits.forget_notes()

    async def _sync(self, command: Sync, waits: WaitBook) -> SyncEnded:
        pod, plan = command.pod, command.plan
        self._ending.is_stopped = False
        try:
            await self._runtime_ready(pod, plan.create_sandbox, waits)
            await self._clear_away(command, waits)
            failed = await self._run_hooks(command, waits)
            if not (plan.create_sandbox or plan.starts or plan.resize_pod):
                return SyncEnded(failed=failed)
            pause_s = BEHIND_SANDBOX_S if plan.create_sandbox else 0.0
            self._images.start(pod, [find_container(pod, name) for name in plan.starts], waits, pause_s)
            try:
                sandbox = await self._sandbox(command, waits)
            except ContainerStartError:
                self._images.drop()
                raise
            await self._mounted(waits, lambda mounts: mounts.ready, "start the containers")
            sandbox = self._tools.sandboxes.with_volume_groups(pod, sandbox)
            resized, problem = await self._resize(command, sandbox, waits) if plan.resize_pod else (None, "")
            ended = await self._start_all(command, sandbox, failed, waits)
            return replace(ended, resized=resized, resize_error=problem)
        except Interrupted:
            return SyncEnded(unfinished=True, cause="interrupted by a newer event")
        except ContainerStartError as error:
            return SyncEnded(pod_error=error.value)
        except BaseException:
            self._images.drop()
            raise

    async def _wait(self, work: Awaitable[T], wait: Wait, waits: WaitBook) -> T:
        """Await `work`. Raises Interrupted when `interrupt` is called meanwhile; a task passed as `work` then continues."""
        with waits.waiting(wait):
            return await self._interruptible(work)

    def _interruptible(self, work: Awaitable[T]) -> Awaitable[T]:
        return self._unless(self._attention.wait(), work)

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
        starts.publish(Starts({**starts.get().since, uid: self.clock.wall()}))
        try:
            with waits.waiting(wait):
                yield
        finally:
            starts.publish(Starts({other: since for other, since in starts.get().since.items() if other != uid}))

    async def _runtime_ready(self, pod: Pod, needs_network: bool, waits: WaitBook) -> None:
        cell = self._tools.cells.runtime
        with_network = needs_network and not pod.spec.hostNetwork

        def unready(now: RuntimeReady) -> Wait | None:
            if not now.takes_calls:
                return runtime_wait(now)
            why = now.network_error if with_network else ""
            return (
                Wait("network", Owner.RUNTIME_STATUS, 0.0, "", EVENT_NETWORK_NOT_READY, why, ASK_AGAIN) if why else None
            )

        if (wait := unready(cell.get())) is not None and wait.reason == EVENT_NETWORK_NOT_READY:
            self.recorder.post(warning(EVENT_NETWORK_NOT_READY, f"network is not ready: {wait.detail}", self._ref))
        await waits.until(cell, unready, self._interruptible)

    async def _clear_away(self, command: Sync, waits: WaitBook) -> None:
        """Stop and remove the containers and sandboxes that the plan names. Raises ContainerStartError."""
        pod, plan, stopper = command.pod, command.plan, self._tools.stopper
        grace = restart_grace(pod)
        wait = Wait(ENDING, Owner.RUNTIME_MANAGER, 0.0, next_step="SIGKILL", next_at=self.clock.wall() + grace)
        try:
            if plan.create_sandbox:
                await self._tidy_up(command.uncounted, waits)
            if plan.stop_pod and not command.view.is_gone:
                message = "Pod sandbox changed, it will be killed and re-created."
                self.recorder.post(normal(EVENT_SANDBOX_CHANGED, message, self._ref))
                with waits.waiting(wait):
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
                with waits.waiting(wait):
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
        """Remove instances with their logs. A failed removal blocks nothing; the next start tries it again."""
        paths = self._tools.sandboxes.paths
        for container in old:
            link = paths.log_link(self._ref, container.name, container.id)
            problem: object = None
            try:
                await self._tools.stopper.remove_container(container.id, waits)
                remove = partial(remove_container_log, paths, container.log_path, link)
                outcome = await self._tools.flight.run(f"logs:{self._ref.uid}:{container.id}", remove, LOGS_DEADLINE_S)
                problem = outcome if not isinstance(outcome, Done) else None
            except CriError as error:
                problem = error
            if problem is not None:
                log.warning("an old container cannot be removed", pod=self._ref, id=container.id, error=problem)

    async def _sandbox(self, command: Sync, waits: WaitBook) -> Sandbox:
        """Make the pod's cgroup, then its sandbox. Some volumes may still be mounting (`PodMounts.mounting`).

        Raises ContainerStartError.
        """
        pod, plan = command.pod, command.plan
        tools = self._tools
        size_now = pod_before(command) if plan.resize_pod else pod
        exclusive = not self._placements().has_quota(self._ref.uid)
        cgroup = await tools.cgroups.ensure_pod(size_now, exclusive_cpus=exclusive)  # while volumes are being mounted
        if cgroup is not None:
            message = f"unable to ensure pod container exists: {cgroup.message}"
            self.recorder.post(warning(EVENT_FAILED_CREATE_POD_CONTAINER, message, self._ref))
            raise ContainerStartError(message, EVENT_FAILED_CREATE_POD_CONTAINER)
        await self._mounted(waits, lambda mounts: mounts.ready or mounts.mounting, "create the sandbox")
        await self._claims.wait_prepared(pod, waits, self._interruptible)
        parent = tools.cgroups.cgroup_parent(pod)
        if plan.sandbox is not None:
            return await tools.sandboxes.adopt(pod, plan.sandbox, parent)
        runtime_class = runtime_class_key(pod)
        await self._answers(() if runtime_class is None else (runtime_class,), waits)
        detail = "RunPodSandbox: network and pause container"
        wait = Wait(SANDBOX, Owner.CONTAINER_RUNTIME, 0.0, detail=detail, next_step="start the containers")
        with self._starting(wait, waits):
            return await tools.sandboxes.create(pod, plan.attempt, parent)

    def _pod_ip(self) -> str:
        return pod_ip(self._tools.cells.observed.get().pods.get(self._ref.uid))

    def _placements(self) -> Placements:
        return self._tools.cells.placements.get()

    async def _prepare_devices(self, name: str, waits: WaitBook) -> None:
        """Have device plugins prepare the container's devices, which they may demand before each start."""
        devices, plugins = self._placements().container(self._ref.uid, name).devices, self._tools.devices
        if not devices or plugins is None:
            return
        resources = ", ".join(assigned.resource for assigned in devices)
        detail = f"PreStartContainer of {resources}"
        wait = Wait("device plugin", Owner.POD_WORKER, 0.0, name, detail=detail, next_step="create the container")
        with waits.waiting(wait):
            problem = await plugins.pre_start(devices)
        if problem:
            raise ContainerStartError(problem)

    def _mounts(self) -> PodMounts | None:
        return self._tools.cells.mounts.get().pods.get(self._ref.uid)

    async def _mounted(self, waits: WaitBook, enough: Callable[[PodMounts], bool], next_step: str) -> None:
        """Wait until enough volumes are mounted. When one has failed, the wait has its reason."""
        uid = self._ref.uid

        def unmounted(now: Mounts) -> Wait | None:
            entry = now.pods.get(uid, PodMounts())
            if uid in now.pods and enough(entry):
                return None
            wait = Wait("volumes", Owner.VOLUME_MANAGER, 0.0, next_step=next_step)
            failed = next((one for one in entry.waits if one.reason), wait)
            return replace(wait, reason=failed.reason, detail=failed.detail)

        await waits.until(self._tools.cells.mounts, unmounted, self._interruptible)

    async def _answers(self, keys: Iterable[ObjectKey], waits: WaitBook) -> None:
        """Wait until `Content` has the API server's answer for each of these objects."""
        await self._content.wait_answered(tuple(dict.fromkeys(keys)), waits, self._interruptible)

    async def _resize(self, command: Sync, sandbox: Sandbox, waits: WaitBook) -> tuple[Applied | None, str]:
        tools = self._tools
        detail = "cgroups and UpdateContainerResources"
        wait = Wait("resize", Owner.CONTAINER_RUNTIME, 0.0, detail=detail, next_step="start what is missing")
        with waits.waiting(wait):
            began = tools.clock.monotonic()
            settings, placements = tools.sandboxes.settings(), self._placements()
            done, problem = await resize_pod(command, sandbox, tools.cgroups, tools.resizer, settings, placements)
            RESIZE_DURATIONS.observe((tools.clock.monotonic() - began) * 1000, str(not problem).lower())
            return done, problem

    # Containers

    async def _run_hooks(self, command: Sync, waits: WaitBook) -> dict[str, StartFailed]:
        """Run the hooks of containers that run already. Returns those that failed."""
        failed: dict[str, StartFailed] = {}
        for name in command.plan.hooks:
            container, instance = find_container(command.pod, name), command.view.newest(name)
            assert instance is not None
            try:
                await self._run_hook(command.pod, container, instance.id, instance.sandbox_id, self._pod_ip(), waits)
            except ContainerStartError as error:
                failed[name] = _outcome(error)
        return failed

    async def _run_hook(
        self, pod: Pod, container: AnyContainer, instance: ContainerID, sandbox: SandboxID, pod_ip: str, waits: WaitBook
    ) -> None:
        """Run the container's hook, if it has not ended. Raises Interrupted when the sandbox ends, which a hook may outlive."""
        if container.name not in self._hooks.running:
            return
        cell, began = self._tools.cells.observed, self.clock.monotonic()
        ended = cell.wait_for(lambda observed: _shows_end_of(observed.pods.get(self._ref.uid), sandbox, began))
        await self._unless(ended, self._hooks.run(pod, container, instance, pod_ip, waits))

    async def _start_all(
        self, command: Sync, sandbox: Sandbox, failed: dict[str, StartFailed], waits: WaitBook
    ) -> SyncEnded:
        started: dict[str, ContainerID] = {}
        pod, plan = command.pod, command.plan
        for name in plan.starts:
            container = find_container(pod, name)
            try:
                with self._tools.starter.reporting(pod, container):
                    started[name] = await self._start_one(command, container, sandbox, waits)
            except Interrupted:
                return SyncEnded(tuple(started), failed, unfinished=True, cause="interrupted by a newer event")
            except ContainerStartError as error:
                failed[name] = _outcome(error)
                if name in plan.start_init and container.restartPolicy != ALWAYS:
                    break
        self._images.drop()
        cleared = plan.kills or plan.remove or plan.resize_pod or (plan.stop_pod and not command.view.is_gone)
        made = None if failed or cleared else Started(sandbox.id, tuple(started.values()), sandbox.seen)
        return SyncEnded(tuple(started), failed, made=made)

    async def _start_one(
        self, command: Sync, container: AnyContainer, sandbox: Sandbox, waits: WaitBook
    ) -> ContainerID:
        if self._is_outdated or self._has_ended(command.plan.sandbox):
            raise Interrupted
        pod, tools, name = command.pod, self._tools, container.name
        image = await self._images.take(pod, container, waits)
        volumes = await self._images.take_volumes(pod, container, waits)
        await self._answers(environment_keys(pod, container), waits)
        await self._content.wait_services(pod, waits, self._interruptible)
        settings = tools.sandboxes.settings()
        repeated = max((c.restart_count for c in command.uncounted if c.name == name), default=0)
        instances = command.view.instances(name)
        files = await tools.starter.prepare(pod, container, instances, settings, sandbox.ips, least_count=repeated)
        target = _target(command, container)
        if target is None:
            raise ContainerStartError(
                f"unable to find target container {getattr(container, 'targetContainerName', '')}"
            )
        await self._prepare_devices(name, waits)
        services = service_environment(pod, self._content.get())
        node, mounts = tools.cells.node.get(), self._mounts()
        mounted = mounts.volumes if mounts is not None else {}
        ctx = ContainerContext(
            restart_count=files.restart_count,
            image_ref=image.image_ref,
            image_uid=image.uid,
            image_username=image.username,
            sandbox=sandbox.context,
            pod_ips=node.host_ips if pod.spec.hostNetwork else sandbox.ips,
            host_ips=node.host_ips,
            mounts=mounted,
            services=services,
            api_objects=environment_objects(pod, container, self._content.get()),
            env_files=await tools.starter.read_env_files(pod, container, mounted),
            image_volumes=volumes,
            termination_log_host_path=files.termination_log,
            etc_hosts_host_path=files.etc_hosts,
            target_container_id=target,
            devices=self._claims.with_devices(name, self._placements().container(self._ref.uid, name).options),
            cpuset=self._placements().cpuset(self._ref.uid, name),
        )
        bound = await self._with_subpaths(pod, container, settings, ctx)
        old = command.plan.sandbox
        may_have_ended = old is not None and may_have_ended_with(old, command.view.newest(name))
        return await self._create_and_start(pod, container, sandbox, settings, bound, may_have_ended, waits)

    def _has_ended(self, sandbox: SandboxView | None) -> bool:
        """Whether the newest view of the pod shows the end of the sandbox in which containers are being started."""
        view = self._tools.cells.observed.get().pods.get(self._ref.uid)
        return sandbox is not None and _shows_end_of(view, sandbox.id)

    async def _create_and_start(
        self,
        pod: Pod,
        container: AnyContainer,
        sandbox: Sandbox,
        settings: RenderSettings,
        ctx: ContainerContext,
        may_have_ended: bool,
        waits: WaitBook,
    ) -> ContainerID:
        """Create and start the container, then run its postStart hook. It is reported as running after the hook has ended."""
        name, starter = container.name, self._tools.starter
        await self._hooks.announce(container, ctx.restart_count, waits)
        detail = "CreateContainer and StartContainer"
        wait = Wait(CONTAINER_START, Owner.CONTAINER_RUNTIME, 0.0, name, detail=detail, next_step="run it")
        try:
            with self._starting(wait, waits):
                instance = await starter.start(pod, container, sandbox, settings, ctx, may_have_ended=may_have_ended)
        except ContainerStartError as error:
            IMAGE_VOLUMES_ERRORS.inc(by=len(ctx.image_volumes))
            if error.unstarted is None:
                await self._hooks.withdraw(container)
            raise
        if isinstance(instance, SandboxEnded):
            raise Interrupted
        IMAGE_VOLUMES_MOUNTED.inc(by=len(ctx.image_volumes))
        await self._run_hook(pod, container, instance, sandbox.id, ctx.pod_ips[0] if ctx.pod_ips else "", waits)
        return instance

    async def _with_subpaths(
        self, pod: Pod, container: AnyContainer, settings: RenderSettings, ctx: ContainerContext
    ) -> ContainerContext:
        volumes = [mount.name for mount in container.volumeMounts]
        changed = await self._tools.subpaths.check_host_paths(self._ref.uid, container.name, volumes)
        if changed is not None:
            raise ContainerStartError(str(changed))
        wanted = relative_sub_paths(pod, container, settings, ctx)
        if not wanted:
            return ctx
        paths: dict[int, str] = {}
        for index, sub_path in wanted.items():
            volume = container.volumeMounts[index].name
            path = await self._tools.subpaths.prepare_subpath(self._ref.uid, volume, container.name, index, sub_path)
            if isinstance(path, SubPathError):
                raise ContainerStartError(str(path))
            paths[index] = path
        return replace(ctx, subpaths=paths)


def _kill_grace(pod: Pod, kill: ContainerKill) -> int:
    """The grace period in seconds: 0 when all containers are restarted, else that of the failed probe or the pod."""
    if kill.cause is KillCause.RESTART_ALL:
        return 0
    container = fieldpath.find_container(pod, kill.container.name)
    probe = None
    if container is not None and kill.cause is KillCause.LIVENESS:
        probe = container.livenessProbe
    elif container is not None and kill.cause is KillCause.STARTUP:
        probe = container.startupProbe
    return restart_grace(pod, probe)


def _target(command: Sync, container: AnyContainer) -> str | None:
    """The instance whose process namespace an ephemeral container shares; "": shares none; None: the instance does not exist."""
    name = getattr(container, "targetContainerName", "")
    if not name:
        return ""
    newest = command.view.newest(name)
    return newest.id if newest is not None else None


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

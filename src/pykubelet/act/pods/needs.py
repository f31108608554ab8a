"""The needs of a pod, in their order; its images, the longest of them, are in `need_images.py`.

Each class takes one need from what supplies it (`provide/cgroups`, `provide/objects`, `provide/placement`, `provide/claims`,
`provide/volumes`), or waits for it. `NEEDS`, at the end, has all in the order in which a start meets them, which is also that of the
classes.
"""

from __future__ import annotations

from collections.abc import Callable

from pykubelet.act.pods.need import PodNeed, SyncRun, wait_answered
from pykubelet.act.pods.need_images import ImagesNeed
from pykubelet.act.pods.resize import pod_before
from pykubelet.act.pods.tools import MakeNeed, PodTools
from pykubelet.act.pods.waitbook import WaitBook
from pykubelet.act.runtime.render.context import (
    AnyContainer,
    ContainerContext,
    environment_objects,
    service_environment,
    waits_for_services,
)
from pykubelet.act.runtime.render.render_mounts import relative_sub_paths
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.kit.values import replace
from pykubelet.base.model.claims import PodClaims
from pykubelet.base.model.ids import PodRef, pods_of
from pykubelet.base.model.kube_events import warning
from pykubelet.base.model.mounts import PodMounts
from pykubelet.base.model.needs import environment_keys, has_claims, runtime_class_key
from pykubelet.base.model.reasons import EVENT_FAILED_CREATE_POD_CONTAINER
from pykubelet.base.model.waits import CLAIMS_PREPARED, CLAIMS_UNPREPARED, Owner, Wait
from pykubelet.provide.volumes.subpath import SubPathError

SERVICES = Wait("services", Owner.OBJECT_CACHE, 0.0, detail="they have not been listed yet")


class CgroupNeed(PodNeed):
    """The cgroup of one pod: made before its sandbox, while its volumes are being mounted; removed after them, as it is charged for
    their memory.
    """

    def __init__(self, tools: PodTools, ref: PodRef) -> None:
        self._cgroups = tools.cgroups
        self._placements = tools.cells.placements
        self._recorder = tools.recorder
        self._ref = ref

    async def before_sandbox(self, run: SyncRun) -> None:
        """Make the cgroup, with the limits that the pod's containers have now. If there is only a resize, they run in it already."""
        plan = run.command.plan
        if plan.resize_pod and plan.sandbox is not None and not plan.starts:
            return
        size_now = pod_before(run.command) if plan.resize_pod else run.pod
        exclusive = not self._placements.get().has_quota(self._ref.uid)
        error = await self._cgroups.ensure_pod(size_now, exclusive_cpus=exclusive)
        if error is not None:
            message = f"unable to ensure pod container exists: {error.message}"
            self._recorder.post(warning(EVENT_FAILED_CREATE_POD_CONTAINER, message, self._ref))
            raise ContainerStartError(message, EVENT_FAILED_CREATE_POD_CONTAINER)

    async def release(self, waits: WaitBook) -> str:
        """Remove the cgroup."""
        return "" if await self._cgroups.remove_pod(self._ref.uid) else "the pod's cgroup is still in use"


class ContentNeed(PodNeed):
    """The objects of one pod, as `Content` has them: its RuntimeClass before its sandbox, and before each container the objects and
    services of its environment, and the node's addresses, which may come while an image is being pulled.

    `provide/objects` reads them as soon as the pod is desired; `act/runtime` decides what an answer means for a container or sandbox.
    """

    def __init__(self, tools: PodTools, ref: PodRef) -> None:
        self._cell = tools.cells.content
        self._node = tools.cells.node

    async def before_sandbox(self, run: SyncRun) -> None:
        """Wait for an answer about the RuntimeClass of a new sandbox."""
        runtime_class = runtime_class_key(run.pod)
        if runtime_class is not None and run.command.plan.sandbox is None:
            await wait_answered(self._cell, (runtime_class,), run.until)

    async def before_container(self, run: SyncRun, container: AnyContainer, ctx: ContainerContext) -> ContainerContext:
        """Add the objects and services of the container's environment."""
        await run.until(self._cell, lambda now: SERVICES if waits_for_services(run.pod, now) else None)
        await wait_answered(self._cell, dict.fromkeys(environment_keys(run.pod, container)), run.until)
        content = self._cell.get()
        host_ips = self._node.get().host_ips
        return replace(
            ctx,
            host_ips=host_ips,
            pod_ips=host_ips if run.pod.spec.hostNetwork else ctx.pod_ips,
            services=service_environment(run.pod, content),
            api_objects=environment_objects(run.pod, container, content),
        )


class DevicesNeed(PodNeed):
    """The placement of one pod's containers, as `Placements` has it: their CPUs, memory and devices.

    Device plugins may demand a call before each start.
    """

    def __init__(self, tools: PodTools, ref: PodRef) -> None:
        self._cell = tools.cells.placements
        self._plugins = tools.devices
        self._uid = ref.uid

    async def before_container(self, run: SyncRun, container: AnyContainer, ctx: ContainerContext) -> ContainerContext:
        """Have the device plugins prepare the container's devices, and add them."""
        placed = self._cell.get().container(self._uid, container.name)
        if placed.devices and self._plugins is not None:
            resources = ", ".join(assigned.resource for assigned in placed.devices)
            detail, step = f"PreStartContainer of {resources}", "create the container"
            with run.waits.waiting(
                Wait("device plugin", Owner.POD_WORKER, 0.0, container.name, detail=detail, next_step=step)
            ):
                problem = await self._plugins.pre_start(placed.devices)
            if problem:
                raise ContainerStartError(problem)
        cpuset = self._cell.get().cpuset(self._uid, container.name)
        return replace(ctx, devices=placed.options, cpuset=cpuset)


class ClaimsNeed(PodNeed):
    """The claims of one pod, as `Claims` has them: prepared before its sandbox, unprepared after its containers have ended.

    Admission has reserved their devices.
    """

    def __init__(self, tools: PodTools, ref: PodRef) -> None:
        self._claims = tools.cells.claims.entry(pods_of, ref.uid)
        self._extended = tools.extended_claims

    async def before_sandbox(self, run: SyncRun) -> None:
        """Wait until all claims of the pod are prepared. A pod without claims does not wait."""
        if has_claims(run.pod, extended=self._extended):
            await run.until(self._claims, self._unprepared)

    async def before_container(self, run: SyncRun, container: AnyContainer, ctx: ContainerContext) -> ContainerContext:
        """Add the devices of the container's claims."""
        pod = self._claims.get()
        claims = pod.containers.get(container.name, ()) if pod is not None else ()
        if not claims:
            return ctx
        names = dict.fromkeys((*ctx.devices.cdi, *(name for claim in claims for name in claim.cdi)))
        return replace(ctx, devices=replace(ctx.devices, cdi=tuple(names)))

    async def after_stop(self, waits: WaitBook) -> None:
        """Wait until nothing of the pod's claims is left on this node."""
        await waits.until(self._claims, self._left)

    def _unprepared(self, pod: PodClaims | None) -> Wait | None:
        return None if pod is not None and pod.ready else _why(pod, CLAIMS_PREPARED)

    def _left(self, pod: PodClaims | None) -> Wait | None:
        return None if pod is None else _why(pod, CLAIMS_UNPREPARED)


def _why(pod: PodClaims | None, what: str) -> Wait:
    """The last failure, or the call that is being waited for, if there is one."""
    waits = pod.waits if pod is not None else ()
    return next((wait for wait in waits if wait.reason or wait.detail), Wait(what, Owner.CLAIM_MANAGER, 0.0))


class VolumesNeed(PodNeed):
    """The volumes of one pod, as `Mounts` has them, and what its containers mount of them.

    A sandbox is made while they are being mounted.
    """

    def __init__(self, tools: PodTools, ref: PodRef) -> None:
        self._mounts = tools.cells.mounts.entry(pods_of, ref.uid)
        self._subpaths = tools.subpaths
        self._starter = tools.starter
        self._sandboxes = tools.sandboxes
        self._uid = ref.uid

    async def before_sandbox(self, run: SyncRun) -> None:
        """Wait until the volumes are mounted, or are being mounted."""
        await self._mounted(run, lambda mounts: mounts.ready or mounts.mounting, "create the sandbox")

    async def before_containers(self, run: SyncRun) -> None:
        """Wait until all volumes are mounted."""
        await self._mounted(run, lambda mounts: mounts.ready, "start the containers")

    async def _mounted(self, run: SyncRun, enough: Callable[[PodMounts], bool], next_step: str) -> None:
        """Wait until enough volumes are mounted. When one has failed, the wait has its reason."""

        def unmounted(mounts: PodMounts | None) -> Wait | None:
            if mounts is not None and enough(mounts):
                return None
            wait = Wait("volumes", Owner.VOLUME_MANAGER, 0.0, next_step=next_step)
            waits = mounts.waits if mounts is not None else ()
            failed = next((mount for mount in waits if mount.reason), wait)
            return replace(wait, reason=failed.reason, detail=failed.detail)

        await run.until(self._mounts, unmounted)

    async def before_container(self, run: SyncRun, container: AnyContainer, ctx: ContainerContext) -> ContainerContext:
        """Add the volumes, the environment files that are in them, and the directories of sub-paths."""
        mounts = (self._mounts.get() or PodMounts()).volumes
        files = await self._starter.read_env_files(run.pod, container, mounts)
        return await self._with_subpaths(run, container, replace(ctx, mounts=mounts, env_files=files))

    async def _with_subpaths(self, run: SyncRun, container: AnyContainer, ctx: ContainerContext) -> ContainerContext:
        mounted = {mount.name: ctx.mounts.get(mount.name) for mount in container.volumeMounts}
        typed = [volume for volume in mounted.values() if volume is not None and volume.host_type]
        if typed and (changed := await self._subpaths.check_host_paths(self._uid, container.name, typed)):
            raise ContainerStartError(str(changed))
        wanted = relative_sub_paths(run.pod, container, self._sandboxes.settings(), ctx)
        if not wanted:
            return ctx
        paths: dict[int, str] = {}
        for index, sub_path in wanted.items():
            volume = container.volumeMounts[index].name
            path = await self._subpaths.prepare_subpath(self._uid, volume, container.name, index, sub_path)
            if isinstance(path, SubPathError):
                raise ContainerStartError(str(path))
            paths[index] = path
        return replace(ctx, subpaths=paths)

    @property
    def is_held(self) -> bool:
        """Whether volumes of the pod are mounted, or may be."""
        return self._holds(self._mounts.get())

    async def release(self, waits: WaitBook) -> str:
        """Wait until the volumes are unmounted."""
        wait = Wait("volumes to be unmounted", Owner.VOLUME_MANAGER, 0.0, next_step="remove the cgroup")
        await waits.until(self._mounts, lambda now: wait if self._holds(now) else None)
        return ""

    def _holds(self, mounts: PodMounts | None) -> bool:
        """Whether the pod has volumes to be unmounted. One of the host has nothing to unmount, though containers use it."""
        return mounts is not None and mounts.holds


#: In the order in which a start meets them. An end gives them back in the reverse order. What depends on it: a missing image is reported
#: before any other lack, as in the reference; a cgroup is removed after the volumes whose memory it is charged with; `DevicesNeed` sets
#: the devices to which `ClaimsNeed` and others add; a `subPathExpr` of `VolumesNeed` may refer to variables of the content and the devices.
NEEDS: tuple[MakeNeed, ...] = (
    ImagesNeed,
    CgroupNeed,
    ContentNeed,
    DevicesNeed,
    ClaimsNeed,
    VolumesNeed,
)

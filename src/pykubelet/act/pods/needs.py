"""The needs of a pod, in their order.

Each class takes one need from what supplies it (`provide/images`, `provide/cgroups`, `provide/objects`, `provide/placement`,
`provide/claims`, `provide/volumes`), or waits for it. `NEEDS`, at the end, has all in the order in which a start meets them, which is
also that of the classes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from operator import is_

from pykubelet.act.pods.decide import find_container
from pykubelet.act.pods.need import PodNeed, SyncRun, wait_answered
from pykubelet.act.pods.resize import pod_before
from pykubelet.act.pods.tools import MakeNeed, PodTools
from pykubelet.act.pods.waitbook import WaitBook, start_wait
from pykubelet.act.runtime.lifecycle.metrics import IMAGE_VOLUMES, IMAGE_VOLUMES_ERRORS, STARTED_CONTAINERS_ERRORS
from pykubelet.act.runtime.lifecycle.start import ContainerFiles, wants_hosts
from pykubelet.act.runtime.render.context import (
    AnyContainer,
    ContainerContext,
    ImageVolume,
    environment_objects,
    service_environment,
    waits_for_services,
)
from pykubelet.act.runtime.render.render_config import render_puller
from pykubelet.act.runtime.render.render_mounts import relative_sub_paths
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import Pod, Secret
from pykubelet.base.kit.cells import Cell, Post
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import replace
from pykubelet.base.model.claims import PodClaims
from pykubelet.base.model.containers import container_field_path, container_kind
from pykubelet.base.model.content import Content, Found, Present
from pykubelet.base.model.ids import PodRef, pods_of
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.lifecycle import StartError
from pykubelet.base.model.mounts import PodMounts
from pykubelet.base.model.needs import environment_keys, has_claims, pull_secret_keys, runtime_class_key
from pykubelet.base.model.reasons import EVENT_FAILED_CREATE_POD_CONTAINER, EVENT_FAILED_TO_RETRIEVE_IMAGE_PULL_SECRET
from pykubelet.base.model.waits import CLAIMS_PREPARED, CLAIMS_UNPREPARED, Owner, Wait
from pykubelet.provide.images.keyring import PodPullSecrets, PullSecret, SecretSource
from pykubelet.provide.images.model import ImageError, ImageReady, ImageRequest, PullAccount
from pykubelet.provide.volumes.subpath import SubPathError

log = Log("pods")
SERVICES = Wait("services", Owner.OBJECT_CACHE, 0.0, detail="they have not been listed yet")
START_IT = "start the container"
#: Seconds that pulls and files wait when a sandbox must be made too, or containers stopped. That takes longest, so it is requested first.
BEHIND_SANDBOX_S = 0.005
#: So many images of one pod are asked for at once, and the files of so many containers made.
AT_ONCE = 16
Pull = asyncio.Task[ImageReady | ImageError]


def behind_sandbox_s(run: SyncRun) -> float:
    """Seconds that the work of `begin` waits in a sync."""
    plan = run.command.plan
    return BEHIND_SANDBOX_S if plan.create_sandbox or plan.kills else 0.0


class ImagesNeed(PodNeed):
    """The images of one pod: those of its containers, and those that containers mount as volumes. `provide/images` pulls.

    A pull continues after its sync is interrupted, until `cancel` is called. A failed pull is published at once, before the sync needs the
    image; that an image was present is recorded when its container is to be made, after the pod's volumes are mounted.
    """

    def __init__(self, tools: PodTools, ref: PodRef) -> None:
        self._ref = ref
        self._images = tools.images
        self._cgroups = tools.cgroups
        self._supervisor = tools.supervisor
        self._recorder = tools.recorder
        self._secrets = PullSecrets(tools.cells.content, ref, tools.recorder, at_once=tools.reports_secrets_at_once)
        #: By container, or container and volume, and image.
        self._pulls: dict[tuple[str, str], Pull] = {}
        self._later: dict[tuple[str, str], Callable[[], object]] = {}
        #: By container name, what `before_start` records.
        self._found: dict[str, list[ImageReady | ImageError]] = {}
        self._running = 0
        self._next: asyncio.Handle | None = None

    def begin(self, run: SyncRun) -> None:
        """Begin to pull the images of the containers that are to start: a few at a time, one in an iteration of the event loop."""
        pause_s = behind_sandbox_s(run)
        containers = [find_container(run.pod, name) for name in run.command.plan.starts]
        self._later = {(c.name, c.image): partial(self._begin, run, c) for c in containers}
        if containers:
            self._begin(run, containers[0], pause_s)

    def _go_on(self) -> None:
        """Begin the next pull in the next iteration, if there is one and not too many run."""
        if self._later and self._next is None and self._running < AT_ONCE:
            self._next = asyncio.get_running_loop().call_soon(self._begin_next)

    def _begin_next(self) -> None:
        self._next = None
        if self._later:
            next(iter(self._later.values()))()

    def _ended(self, _pull: Pull) -> None:
        self._running -= 1
        self._go_on()

    def _begin(self, run: SyncRun, container: AnyContainer, pause_s: float = 0.0) -> Pull:
        """The pull of one container's image, which is begun if it was not yet."""
        key = (container.name, container.image)
        self._later.pop(key, None)
        if key not in self._pulls:
            image = self._ensure(run, container, container.image, container.imagePullPolicy, pause_s)
            task = self._supervisor.start_child(f"image-{self._ref.uid}-{container.name}", image)
            task.add_done_callback(partial(_report_failure, container.name, run.waits))
            task.add_done_callback(self._ended)
            self._running += 1
            self._pulls[key] = task
        else:
            self._go_on()
        return self._pulls[key]

    async def before_container(self, run: SyncRun, container: AnyContainer, ctx: ContainerContext) -> ContainerContext:
        """Wait for the container's image, then for those that it mounts. ContainerStartError if one cannot be pulled."""
        wait = Wait("image", Owner.IMAGE_MANAGER, 0.0, container.name, detail=container.image, next_step=START_IT)
        outcome = await run.wait(self._begin(run, container), wait)
        self._found[container.name] = []
        image = self._used(container, outcome)
        volumes = await self._volumes(run, container)
        return replace(
            ctx, image_ref=image.image_ref, image_uid=image.uid, image_username=image.username, image_volumes=volumes
        )

    async def _volumes(self, run: SyncRun, container: AnyContainer) -> dict[str, ImageVolume]:
        """Pull the images that a container mounts as volumes."""
        sources = {v.name: v.image for v in run.pod.spec.volumes if v.image is not None}
        volumes: dict[str, ImageVolume] = {}
        for mount in container.volumeMounts:
            source = sources.get(mount.name)
            if source is None or mount.name in volumes:
                continue
            key = (f"{container.name}/{mount.name}", source.reference)
            if key not in self._pulls:
                IMAGE_VOLUMES.inc()
                image = self._ensure(run, container, source.reference, source.pullPolicy)
                name = f"image-volume-{self._ref.uid}-{mount.name}"
                self._pulls[key] = self._supervisor.start_child(name, image)
            detail = source.reference
            wait = Wait("image volume", Owner.IMAGE_MANAGER, 0.0, mount.name, detail=detail, next_step=START_IT)
            outcome = await run.wait(self._pulls[key], wait)
            self._pulls.pop(key, None)
            if isinstance(outcome, ImageError):
                IMAGE_VOLUMES_ERRORS.inc()
            volumes[mount.name] = ImageVolume(self._used(container, outcome).image_ref, source.reference)
        return volumes

    def _used(self, container: AnyContainer, image: ImageReady | ImageError) -> ImageReady:
        """The image, which is noted for `before_start`."""
        self._found[container.name].append(image)
        if isinstance(image, ImageError):
            raise ContainerStartError(
                image.message, image.reason, retry_at=image.retry_at, is_reported=True, extension=image.extension
            )
        return image

    def before_start(self, run: SyncRun, container: AnyContainer) -> None:
        """Record the Events of images that were present. A failed start is counted; the puller has recorded its Event."""
        self._pulls.pop((container.name, container.image), None)
        for image in self._found.pop(container.name, ()):
            if isinstance(image, ImageError):
                if image.extension:
                    continue  # a delay is no failure
                STARTED_CONTAINERS_ERRORS.inc(container_kind(run.pod, container), image.reason)
            elif image.present is not None:
                self._recorder.post(image.present)

    def cancel(self) -> None:
        """Cancel the running pulls."""
        self._later.clear()
        for task in self._pulls.values():
            task.cancel()
        self._pulls.clear()
        self._found.clear()

    async def release(self, waits: WaitBook) -> str:
        """Forget how pulls for the pod have failed."""
        self._images.forget(self._ref.uid)
        return ""

    async def _ensure(
        self, run: SyncRun, container: AnyContainer, image: str, policy: str, pause_s: float = 0.0
    ) -> ImageReady | ImageError:
        if pause_s:
            await asyncio.sleep(pause_s)
        self._go_on()
        pod = run.pod
        account = pod.spec.serviceAccountName
        request = ImageRequest(
            pod=self._ref,
            container=container.name,
            field_path=container_field_path(pod, container.name),
            image=image,
            policy=policy,
            annotations=pod.metadata.annotations,
            secrets=await self._secrets.read(pod, run.waits),
            account=PullAccount(pod.metadata.namespace, account) if account else None,
            sandbox_config=render_puller(pod, self._cgroups.cgroup_parent(pod)),
            full_pod=pod,
        )
        time = asyncio.get_running_loop().time
        began = time()
        outcome = await self._images.ensure(request)
        run.pulled.add(began, time())
        if isinstance(outcome, ImageError) and not outcome.extension:
            self._secrets.report_missing()
        return outcome


class PullSecrets:
    """The pull secrets of one pod. `at_once`: missing ones are reported when they are read, in place of after a failed pull."""

    def __init__(self, cell: Cell[Content], ref: PodRef, recorder: Post[KubeEvent], *, at_once: bool) -> None:
        self._cell = cell
        self._ref = ref
        self._recorder = recorder
        self._at_once = at_once
        self._missing: list[str] = []
        self._reported: list[str] = []
        self._answers: tuple[Found, ...] = ()
        self._secrets = PodPullSecrets()

    async def read(self, pod: Pod, waits: WaitBook) -> PodPullSecrets:
        """Those that can be read. The pull continues without the others."""
        keys = [key for key in pull_secret_keys(pod) if self._cell.get().may_answer(key)]
        if not keys:
            return PodPullSecrets()
        await wait_answered(self._cell, keys, waits.until)
        content = self._cell.get()
        answers = tuple(content.objects[key] for key in keys)
        if all(map(is_, answers, self._answers)) and len(answers) == len(self._answers):
            return self._secrets
        secrets: list[PullSecret] = []
        missing: list[str] = []
        for key, found in zip(keys, answers, strict=True):
            if isinstance(found, Present) and isinstance(found.value, Secret):
                secret, metadata = found.value, found.value.metadata
                source = SecretSource(metadata.uid, metadata.namespace, metadata.name)
                secrets.append(PullSecret(source, secret.type, secret.data))
            else:
                missing.append(key.name)
        self._missing = missing
        if self._at_once:
            self.report_missing()
        self._answers, self._secrets = answers, PodPullSecrets(tuple(secrets))
        return self._secrets

    def report_missing(self) -> None:
        """Record the Event about the secrets that could not be read, once for the same ones."""
        missing = self._missing
        if missing and missing != self._reported:
            text = (
                f"Unable to retrieve some image pull secrets ({', '.join(missing)}); "
                "attempting to pull the image may not succeed."
            )
            self._recorder.post(warning(EVENT_FAILED_TO_RETRIEVE_IMAGE_PULL_SECRET, text, self._ref))
        self._reported = missing


def _report_failure(container: str, waits: WaitBook, task: Pull) -> None:
    """Publish a failed pull as a wait of its container, independent of the sync's current step."""
    if task.cancelled() or task.exception() is not None:
        return
    outcome = task.result()
    if isinstance(outcome, ImageError):
        error = StartError(outcome.reason, outcome.message, outcome.extension)
        waits.note(start_wait(container, error, 0.0), outcome.retry_at)


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
        self._ref = ref
        self._uid = ref.uid
        #: By container: why it cannot have its files or sub-paths, as the log has it. Each start is tried again.
        self._logged: dict[str, str] = {}

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
        unreadable = next((file.cause for file in files.values() if file.cause), "")
        if unreadable:
            self._log_change(container, "an environment file cannot be read", unreadable)
        made = await self._with_subpaths(run, container, replace(ctx, mounts=mounts, env_files=files))
        if not unreadable:
            self._logged.pop(container.name, None)
        return made

    def _log_change(self, container: AnyContainer, message: str, cause: str) -> None:
        """Log why a container cannot start, unless that is what was logged last."""
        if self._logged.get(container.name) != cause:
            self._logged[container.name] = cause
            log.warning(message, pod=self._ref, container=container.name, error=cause)

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
                if path.cause:
                    self._log_change(container, "a subPath is refused", path.cause)
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


class FilesNeed(PodNeed):
    """What containers get of the pod's own directories: the directory of their logs, termination messages, and /etc/hosts.

    All but /etc/hosts, which has the pod's addresses, is made while the sandbox is.
    """

    def __init__(self, tools: PodTools, ref: PodRef) -> None:
        self._starter = tools.starter
        self._sandboxes = tools.sandboxes
        self._supervisor = tools.supervisor
        self._uid = ref.uid
        self._made: dict[str, asyncio.Task[ContainerFiles | ContainerStartError]] = {}
        #: The path of the /etc/hosts that this sync has written, empty before.
        self._hosts = ""

    def begin(self, run: SyncRun) -> None:
        """Begin to make the files of the first containers that are to start."""
        self.cancel()
        for name in run.command.plan.starts[:AT_ONCE]:
            self._begin(run, find_container(run.pod, name), behind_sandbox_s(run))

    def _begin(
        self, run: SyncRun, container: AnyContainer, pause_s: float = 0.0
    ) -> asyncio.Task[ContainerFiles | ContainerStartError]:
        """The files of one container, which are begun if they were not yet."""
        if container.name not in self._made:
            work = self._make(run, container, pause_s)
            self._made[container.name] = self._supervisor.start_child(f"files-{self._uid}-{container.name}", work)
        return self._made[container.name]

    async def _make(
        self, run: SyncRun, container: AnyContainer, pause_s: float
    ) -> ContainerFiles | ContainerStartError:
        if pause_s:
            await asyncio.sleep(pause_s)
        command, name, paths = run.command, container.name, self._sandboxes.paths
        repeated = max((c.restart_count for c in command.uncounted if c.name == name), default=0)
        try:
            return await self._starter.make_files(run.pod, container, command.left(name), paths, least_count=repeated)
        except ContainerStartError as error:
            return error

    async def before_container(self, run: SyncRun, container: AnyContainer, ctx: ContainerContext) -> ContainerContext:
        """Add the container's files and its number. The first container of a sync waits for the pod's /etc/hosts."""
        files = await self._begin(run, container)
        if isinstance(files, ContainerStartError):
            raise files
        hosts = ""
        if wants_hosts(run.pod, container, ctx.pod_ips):
            if not self._hosts:
                self._hosts = await self._starter.write_hosts(run.pod, self._sandboxes.settings(), ctx.pod_ips)
            hosts = self._hosts
        return replace(
            ctx,
            restart_count=files.restart_count,
            termination_log_host_path=files.termination_log,
            etc_hosts_host_path=hosts,
        )

    def before_start(self, run: SyncRun, container: AnyContainer) -> None:
        """The files are used."""
        self._made.pop(container.name, None)

    def cancel(self) -> None:
        """End what is being made. Files that no container uses are removed before its next start."""
        for task in self._made.values():
            task.cancel()
        self._made.clear()
        self._hosts = ""


#: In the order in which a start meets them. An end gives them back in the reverse order. What depends on it: a missing image is reported
#: before any other lack, as in the reference; a cgroup is removed after the volumes whose memory it is charged with; `DevicesNeed` sets
#: the devices to which `ClaimsNeed` and others add; a `subPathExpr` of `VolumesNeed` may refer to variables of the content and the devices;
#: a failure to make files is reported after every other lack.
NEEDS: tuple[MakeNeed, ...] = (
    ImagesNeed,
    CgroupNeed,
    ContentNeed,
    DevicesNeed,
    ClaimsNeed,
    VolumesNeed,
    FilesNeed,
)

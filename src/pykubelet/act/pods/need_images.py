"""The images of a pod: those of its containers, and those that containers mount as volumes.

Owns: the running pulls of one pod, which go on while other steps of its sync run, and the Event about missing pull secrets, recorded
once for the same secrets, after a pull has failed. A failed pull is published at once, before the sync needs the image; that an image was
present is recorded when its container is to be made, after the pod's volumes are mounted. `provide/images` pulls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from operator import is_

from pykubelet.act.pods.decide import find_container
from pykubelet.act.pods.need import PodNeed, SyncRun, wait_answered
from pykubelet.act.pods.tools import PodTools
from pykubelet.act.pods.waitbook import WaitBook, start_wait
from pykubelet.act.runtime.lifecycle.metrics import IMAGE_VOLUMES, IMAGE_VOLUMES_ERRORS, STARTED_CONTAINERS_ERRORS
from pykubelet.act.runtime.render.context import AnyContainer, ContainerContext, ImageVolume
from pykubelet.act.runtime.render.render_config import render_puller
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import Pod, Secret
from pykubelet.base.kit.cells import Cell, Post
from pykubelet.base.kit.values import replace
from pykubelet.base.model.containers import container_field_path, container_kind
from pykubelet.base.model.content import Content, Found, Present
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.lifecycle import StartError
from pykubelet.base.model.needs import pull_secret_keys
from pykubelet.base.model.reasons import EVENT_FAILED_TO_RETRIEVE_IMAGE_PULL_SECRET
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.provide.images.keyring import PodPullSecrets, PullSecret, SecretSource
from pykubelet.provide.images.model import ImageError, ImageReady, ImageRequest, PullAccount

START_IT = "start the container"
#: Seconds that pulls wait when a sandbox must be made too, or containers stopped. That takes longest, so it is requested first.
BEHIND_SANDBOX_S = 0.005
#: So many images of one pod are asked for at once.
AT_ONCE = 16
Pull = asyncio.Task[ImageReady | ImageError]


class ImagesNeed(PodNeed):
    """The images of one pod. A pull continues after its sync is interrupted, until `cancel` is called."""

    def __init__(self, tools: PodTools, ref: PodRef) -> None:
        self._ref = ref
        self._images = tools.images
        self._cgroups = tools.cgroups
        self._supervisor = tools.supervisor
        self._recorder = tools.recorder
        self._secrets = PullSecrets(tools.cells.content, ref, tools.recorder, at_once=tools.reports_secrets_at_once)
        self._pulls: dict[tuple[str, str], Pull] = {}
        self._later: dict[tuple[str, str], Callable[[], object]] = {}
        #: By container name, what `before_start` records.
        self._found: dict[str, list[ImageReady | ImageError]] = {}
        self._running = 0
        self._next: asyncio.Handle | None = None

    def begin(self, run: SyncRun) -> None:
        """Begin to pull the images of the containers that are to start: a few at a time, one in an iteration of the event loop."""
        plan = run.command.plan
        pause_s = BEHIND_SANDBOX_S if plan.create_sandbox or plan.kills else 0.0
        containers = [find_container(run.pod, name) for name in plan.starts]
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
            IMAGE_VOLUMES.inc()
            image = self._ensure(run, container, source.reference, source.pullPolicy)
            task = self._supervisor.start_child(f"image-volume-{self._ref.uid}-{mount.name}", image)
            detail = source.reference
            wait = Wait("image volume", Owner.IMAGE_MANAGER, 0.0, mount.name, detail=detail, next_step=START_IT)
            outcome = await run.wait(task, wait)
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

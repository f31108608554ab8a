"""Pulls the images of one pod while other steps of its sync run.

Owns: the running pulls of one pod. A failed pull is published at once, before the sync needs the image; that an image was present
is recorded when its container is to be made, after the pod's volumes are mounted. Reads: `Content`, through `PodContent` (pull secrets).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Protocol, TypeVar

from pykubelet.act.images.execute import ImagePuller
from pykubelet.act.images.model import ImageError, ImageReady, ImageRequest, PullAccount
from pykubelet.act.pods.api_content import PodContent
from pykubelet.act.pods.metrics import PullTime
from pykubelet.act.pods.waitbook import WaitBook
from pykubelet.act.resources.execute import PodCgroups
from pykubelet.act.runtime.lifecycle.metrics import (
    IMAGE_VOLUMES,
    IMAGE_VOLUMES_ERRORS,
    STARTED_CONTAINERS_ERRORS,
    container_kind,
)
from pykubelet.act.runtime.render.context import AnyContainer, ImageVolume
from pykubelet.act.runtime.render.render_sandbox import render_puller
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.fieldpath import container_field_path
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.waits import Owner, Wait

T = TypeVar("T")
START_IT = "start the container"
#: Seconds that pulls wait when a sandbox must be made too. The sandbox takes longest, so it is requested first.
BEHIND_SANDBOX_S = 0.005
#: So many images of one pod are asked for at once.
AT_ONCE = 16
Pull = asyncio.Task[ImageReady | ImageError]


class WaitFor(Protocol):
    """Awaits something under a named wait; raises Interrupted when the sync is interrupted."""

    def __call__(self, work: Awaitable[T], wait: Wait, waits: WaitBook) -> Awaitable[T]: ...


class PodImages:
    """Pulls one pod's images. A pull continues after its sync is interrupted, until `drop` is called."""

    def __init__(
        self,
        ref: PodRef,
        images: ImagePuller,
        cgroups: PodCgroups,
        content: PodContent,
        supervisor: Supervisor,
        wait: WaitFor,
        recorder: Post[KubeEvent],
    ) -> None:
        self._ref = ref
        self._images = images
        self._cgroups = cgroups
        self._content = content
        self._supervisor = supervisor
        self._wait = wait
        self._recorder = recorder
        self._pulls: dict[tuple[str, str], Pull] = {}
        self._later: dict[tuple[str, str], Callable[[], object]] = {}
        self.pulled = PullTime()

    def start(self, pod: Pod, containers: Iterable[AnyContainer], waits: WaitBook, pause_s: float = 0.0) -> None:
        """Begin to pull the images of these containers, a few at a time; does not wait for the pulls."""
        self._later = {
            (container.name, container.image): partial(self._begin, pod, container, waits, pause_s)
            for container in containers
        }
        for _ in range(AT_ONCE):
            self._begin_next()

    def _begin_next(self, _ended: Pull | None = None) -> None:
        if self._later:
            next(iter(self._later.values()))()

    def _begin(self, pod: Pod, container: AnyContainer, waits: WaitBook, pause_s: float = 0.0) -> Pull:
        """The pull of one container's image, which is begun if it was not yet."""
        key = (container.name, container.image)
        self._later.pop(key, None)
        if key not in self._pulls:
            image = self._ensure(pod, container, container.image, container.imagePullPolicy, waits, pause_s)
            task = self._supervisor.start_child(f"image-{self._ref.uid}-{container.name}", image)
            task.add_done_callback(partial(_report_failure, container.name, waits))
            task.add_done_callback(self._begin_next)
            self._pulls[key] = task
        return self._pulls[key]

    async def take(self, pod: Pod, container: AnyContainer, waits: WaitBook) -> ImageReady:
        """Wait for the image of one container. Raises ContainerStartError if it cannot be pulled."""
        pull = self._begin(pod, container, waits)
        wait = Wait("image", Owner.IMAGE_MANAGER, 0.0, container.name, detail=container.image, next_step=START_IT)
        outcome = await self._wait(pull, wait, waits)
        del self._pulls[container.name, container.image]
        return self._used(pod, container, outcome)

    async def take_volumes(self, pod: Pod, container: AnyContainer, waits: WaitBook) -> dict[str, ImageVolume]:
        """Pull the images that a container mounts as volumes. Raises ContainerStartError if one cannot be pulled."""
        sources = {v.name: v.image for v in pod.spec.volumes if v.image is not None}
        volumes: dict[str, ImageVolume] = {}
        for mount in container.volumeMounts:
            source = sources.get(mount.name)
            if source is None or mount.name in volumes:
                continue
            IMAGE_VOLUMES.inc()
            image = self._ensure(pod, container, source.reference, source.pullPolicy, waits)
            task = self._supervisor.start_child(f"image-volume-{self._ref.uid}-{mount.name}", image)
            wait = Wait(
                "image volume", Owner.IMAGE_MANAGER, 0.0, mount.name, detail=source.reference, next_step=START_IT
            )
            outcome = await self._wait(task, wait, waits)
            if isinstance(outcome, ImageError):
                IMAGE_VOLUMES_ERRORS.inc()
            volumes[mount.name] = ImageVolume(self._used(pod, container, outcome).image_ref, source.reference)
        return volumes

    def _used(self, pod: Pod, container: AnyContainer, image: ImageReady | ImageError) -> ImageReady:
        """The image, whose Event is recorded if it was present. A failed start is counted; the puller has recorded its Event."""
        if isinstance(image, ImageError):
            STARTED_CONTAINERS_ERRORS.inc(container_kind(pod, container), image.reason)
            raise ContainerStartError(image.message, image.reason, retry_at=image.retry_at, is_reported=True)
        if image.present is not None:
            self._recorder.post(image.present)
        return image

    def drop(self) -> None:
        """Cancel the running pulls."""
        self._later.clear()
        for task in self._pulls.values():
            task.cancel()
        self._pulls.clear()

    async def _ensure(
        self, pod: Pod, container: AnyContainer, image: str, policy: str, waits: WaitBook, pause_s: float = 0.0
    ) -> ImageReady | ImageError:
        if pause_s:
            await asyncio.sleep(pause_s)
        account = pod.spec.serviceAccountName
        request = ImageRequest(
            pod=self._ref,
            container=container.name,
            field_path=container_field_path(pod, container.name),
            image=image,
            policy=policy,
            annotations=pod.metadata.annotations,
            secrets=await self._content.pull_secrets(pod, waits),
            account=PullAccount(pod.metadata.namespace, account) if account else None,
            sandbox_config=render_puller(pod, self._cgroups.cgroup_parent(pod)),
        )
        time = asyncio.get_running_loop().time
        began = time()
        outcome = await self._images.ensure(request)
        self.pulled.add(began, time())
        return outcome


def _report_failure(container: str, waits: WaitBook, task: Pull) -> None:
    """Publish a failed pull as a wait of its container, independent of the sync's current step."""
    if task.cancelled() or task.exception() is not None:
        return
    outcome = task.result()
    if isinstance(outcome, ImageError):
        wait = Wait("container start", Owner.POD_WORKER, 0.0, container, outcome.reason, outcome.message, "start again")
        waits.note(wait, outcome.retry_at)

"""What a pod refers to of the API server and the node: its RuntimeClass before its sandbox, and before each container the objects
and services of its environment, and the node's addresses, which may come while an image is being pulled.

`provide/objects` reads them as soon as the pod is desired; `act/runtime` decides what an answer means for a container or sandbox.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial

from pykubelet.act.pods.need import PodNeed, SyncRun
from pykubelet.act.pods.tools import PodTools
from pykubelet.act.runtime.render.context import (
    AnyContainer,
    ContainerContext,
    environment_objects,
    service_environment,
    unanswered,
    waits_for_services,
)
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Content, ObjectKey, wait_for_key
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.needs import environment_keys, runtime_class_key
from pykubelet.base.model.waits import Owner, Wait

SERVICES = Wait("services", Owner.OBJECT_CACHE, 0.0, detail="they have not been listed yet")
#: `WaitBook.until` or `SyncRun.until`.
Until = Callable[[Cell[Content], Callable[[Content], Wait | None]], Awaitable[None]]


class ContentNeed(PodNeed):
    """The objects of one pod, as `Content` has them."""

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


async def wait_answered(cell: Cell[Content], keys: Collection[ObjectKey], until: Until) -> None:
    """Wait until all keys have an answer in `Content` at once: an answer may be dropped again. An error is also an answer."""
    while unanswered(keys, cell.get()) is not None:
        for key in keys:
            await until(cell, partial(_unanswered, key))


def _unanswered(key: ObjectKey, content: Content) -> Wait | None:
    return None if unanswered((key,), content) is None else wait_for_key(key, 0.0)

"""A pod with very many containers: its images are asked for a few at a time, and nothing of a pod that has gone is kept."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest
from act.pods.node import Groups, Images, named, node
from act.pods.scenes import REF, container, pod
from support.cost import no_collections
from support.virtual_time import virtual_clock

from pykubelet.act.pods.metrics import PullTime
from pykubelet.act.pods.model import Sync
from pykubelet.act.pods.need import SyncRun
from pykubelet.act.pods.needs import AT_ONCE, ImagesNeed
from pykubelet.act.pods.tools import PodTools
from pykubelet.act.pods.waitbook import WaitBook
from pykubelet.act.pods.worker import PodWorker
from pykubelet.base.api.core import ConfigMap
from pykubelet.base.kit.cells import Sink, make_cell
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.content import Absent, Content, ContentKind, ObjectKey, Present
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.provide.images.model import ImageRequest

pytestmark = pytest.mark.virtual_time

MANY = 3 * AT_ONCE
T = TypeVar("T")


async def test_the_images_of_a_pod_are_asked_for_a_few_at_a_time(tmp_path: Path) -> None:
    many = named(pod(*(container(f"c{n}", image=f"image-{n}:1") for n in range(MANY))), "many")
    open_requests, most = 0, 0

    async def answer() -> None:
        nonlocal open_requests, most
        open_requests += 1
        most = max(most, open_requests)
        await asyncio.sleep(0.02)
        open_requests -= 1

    def hook(_: ImageRequest) -> object:
        return answer()

    async with node(tmp_path) as n:
        n.images.hook = hook
        n.want(many)
        await n.wait_running("many", *(f"c{number}" for number in range(MANY)), within_s=60)
        assert most == AT_ONCE
        assert sorted(n.images.asked) == sorted(f"image-{number}:1" for number in range(MANY))  # each once


async def test_the_images_of_later_containers_are_asked_for_after_an_interruption() -> None:
    """The pulls of the sync before go on, and do not keep others from beginning."""
    images, waits = Images(), asyncio.Event()
    images.hook = lambda _: waits.wait()
    async with Supervisor("test") as supervisor:
        cells = SimpleNamespace(content=make_cell("content", Content())[0])
        tools = SimpleNamespace(
            images=images,
            cgroups=Groups(),
            supervisor=supervisor,
            recorder=Sink[KubeEvent](),
            cells=cells,
            reports_secrets_at_once=True,
        )
        need = ImagesNeed(cast(PodTools, tools), REF)
        for image in ("old", "new"):
            begun = pod(container("c0", image="image-0:1"), container("c1", image=f"image-{image}:1"))
            plan = SimpleNamespace(starts=("c0", "c1"), create_sandbox=False, kills=())
            command = cast(Sync, SimpleNamespace(pod=begun, plan=plan))
            need.begin(SyncRun(command, WaitBook(virtual_clock(), Sink()), _uninterrupted, PullTime()))
            await asyncio.sleep(1)
        assert images.asked == ["image-0:1", "image-old:1", "image-new:1"]
        need.cancel()


async def _uninterrupted(work: Awaitable[T]) -> T:
    return await work


async def test_images_that_cannot_be_pulled_do_not_keep_others_waiting(tmp_path: Path) -> None:
    waits = asyncio.Event()
    many = named(pod(*(container(f"c{n:03}", image=f"image-{n}:1") for n in range(MANY))), "many")

    def hook(request: ImageRequest) -> object:
        return waits.wait() if request.image == "image-0:1" else None

    async with node(tmp_path) as n:
        n.images.hook = hook
        n.want(many)
        await n.wait_for(lambda: len(n.images.asked) == MANY)
        waits.set()
        await n.wait_running("many", *(f"c{number:03}" for number in range(MANY)), within_s=60)


async def test_nothing_of_a_pod_that_has_gone_is_kept(tmp_path: Path) -> None:
    """Nor left to the garbage collector, which looks at what has lived for a while hardly ever."""
    key = ObjectKey(ContentKind.CONFIG_MAP, "shop", "m")
    async with node(tmp_path) as n:
        n.content.publish(Content(True, {key: Absent("not found")}, services=()))
        n.want(named(pod(container(envFrom=[{"configMapRef": {"name": "m"}}])), "web"))
        await n.wait_life("web", lambda life: bool(life.start_errors))
        n.content.publish(Content(True, {key: Present(ConfigMap(data={}))}, services=()))  # its worker learns of it
        await n.wait_running("web")
        with no_collections():
            n.unwant("web")
            await n.wait_gone("web")
            await n.wait_for(lambda: not _workers())


def _workers() -> list[PodWorker]:
    return [worker for worker in gc.get_objects() if isinstance(worker, PodWorker)]

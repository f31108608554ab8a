"""A pod with very many containers: its images are asked for a few at a time, and nothing of a pod that has gone is kept."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
from act.pods.node import named, node
from act.pods.scenes import container, pod

from pykubelet.act.images.model import ImageRequest
from pykubelet.act.pods.needs.images import AT_ONCE
from pykubelet.act.pods.worker import PodWorker
from pykubelet.base.api.core import ConfigMap
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Absent, Content, ContentKind, ObjectKey, Present

pytestmark = pytest.mark.virtual_time

MANY = 3 * AT_ONCE


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


async def test_images_of_later_containers_are_asked_for_after_an_interruption(tmp_path: Path) -> None:
    """The pulls of the sync before go on, and do not keep a new one from beginning."""
    waits = asyncio.Event()
    three = named(pod(*(container(f"c{n}", image=f"image-{n}:1") for n in range(3))), "web")
    containers = (*three.spec.containers[:2], replace(three.spec.containers[2], image="image-new:1"))
    changed = replace(three, spec=replace(three.spec, containers=containers))
    async with node(tmp_path) as n:
        n.images.hook = lambda _: waits.wait()
        n.want(three)
        await n.wait_for(lambda: len(n.images.asked) == 3)
        n.want(changed)
        await n.wait_for(lambda: "image-new:1" in n.images.asked)
        waits.set()
        await n.wait_running("web", "c0", "c1", "c2")


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
    key = ObjectKey(ContentKind.CONFIG_MAP, "shop", "m")
    async with node(tmp_path) as n:
        n.content.publish(Content(True, {key: Absent("not found")}, services=()))
        n.want(named(pod(container(envFrom=[{"configMapRef": {"name": "m"}}])), "web"))
        await n.wait_life("web", lambda life: bool(life.start_errors))
        n.content.publish(Content(True, {key: Present(ConfigMap(data={}))}, services=()))  # its worker learns of it
        await n.wait_running("web")
        n.unwant("web")
        await n.wait_gone("web")
        await n.wait_for(lambda: not _workers())


def _workers() -> list[PodWorker]:
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, PodWorker)]

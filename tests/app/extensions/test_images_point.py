"""The point `rank_images_for_removal`: what an extension gets, and what the collector removes after its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from app.extensions.conftest import Host
from provide.images.stand import image
from provide.images.test_gc import Node

from pykubelet.extension import Extension, Image

DAY_S = 86400.0


class Images(Extension):
    name, api = "images", "1.0"

    def __init__(self, answer: Callable[[Sequence[Image]], Any]) -> None:
        super().__init__()
        self.answer = answer
        self.seen: list[Sequence[Image]] = []

    def rank_images_for_removal(self, images: Sequence[Image]) -> Any:
        self.seen.append(images)
        return self.answer(images)


def node(tmp_path: Path, host: Host, **settings: Any) -> Node:
    """A node with four images, the last seen first; `c` is used."""
    found = Node(
        tmp_path,
        *(image(f"{name}:1", size=size) for name, size in (("a", 1000), ("b", 3000), ("c", 9000), ("d", 2000))),
        ask_for_order=host.points.rank_images_for_removal,
        **settings,
    )
    found.use("c:1")
    return found


def by_size(images: Sequence[Image]) -> list[Image]:
    return sorted(images, key=lambda image: image.size, reverse=True)


async def test_images_go_in_the_order_of_the_extension(tmp_path: Path, hosts: Callable[..., Host]) -> None:
    extension = Images(by_size)
    made = node(tmp_path, hosts(extension))
    await made.collector.run_round()
    assert extension.seen == []  # nothing is to be removed
    began = made.clock.wall()
    made.clock.advance(300)
    made.available = 500  # 1500 bytes are to go
    await made.collector.collect()
    assert made.runtime.removed == ["id-of-b:1"]  # which is enough
    ((first, *others),) = extension.seen
    assert [found.id for found in (first, *others)] == ["id-of-a:1", "id-of-b:1", "id-of-d:1"]
    assert first.names[0] == "a:1" and len(first.names) == 2 and first.size == 1000
    assert first.first_seen == pytest.approx(began) and first.last_used == 0.0 and not first.is_over_age


async def test_images_that_were_used_have_a_date(tmp_path: Path, hosts: Callable[..., Host]) -> None:
    extension = Images(lambda images: None)
    made = node(tmp_path, hosts(extension))
    await made.collector.run_round()
    used_at = made.clock.wall()
    made.clock.advance(300)
    made.runtime.containers = []
    await made.collector.delete_unused()
    (images,) = extension.seen
    assert {found.id: found.last_used for found in images if found.last_used} == {"id-of-c:1": pytest.approx(used_at)}
    assert made.left() == set()


async def test_images_that_are_too_old_are_marked(tmp_path: Path, hosts: Callable[..., Host]) -> None:
    extension = Images(by_size)
    made = node(tmp_path, hosts(extension), max_age_s=DAY_S, high_percent=100)
    await made.collector.run_round()
    made.clock.advance(DAY_S + 1)
    await made.collector.run_round()
    (images,) = extension.seen
    assert all(found.is_over_age for found in images)
    assert made.runtime.removed == ["id-of-b:1", "id-of-d:1", "id-of-a:1"]


@pytest.mark.parametrize(
    "answer",
    [
        lambda images: images[:1],
        lambda images: [images[0]] * 3,
        lambda images: [Image(found.id) for found in images],
        lambda images: 1 / 0,
    ],
)
async def test_a_wrong_order_leaves_the_built_in_one(
    tmp_path: Path, hosts: Callable[..., Host], answer: Callable[[Sequence[Image]], Any]
) -> None:
    host = hosts(Images(answer))
    made = node(tmp_path, host)
    await made.collector.run_round()
    made.clock.advance(300)
    await made.collector.delete_unused()
    assert made.runtime.removed == ["id-of-a:1", "id-of-b:1", "id-of-d:1"]
    assert host.state.error.startswith("rank_images_for_removal: ")


async def test_an_image_in_use_is_safe_from_a_hostile_answer(tmp_path: Path, hosts: Callable[..., Host]) -> None:
    made = node(tmp_path, hosts(Images(lambda images: [Image("id-of-c:1"), *images])))
    await made.collector.run_round()
    made.clock.advance(300)
    await made.collector.delete_unused()
    assert made.left() == {"c:1"}

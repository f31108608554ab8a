"""Lists of Docker Engine: of any length, with names and labels that others chose."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from cri_docker.test_engine import ok, serving
from hypothesis import given, settings, strategies

from pykubelet_cri_docker.engine import client
from pykubelet_cri_docker.engine.lists import ArrayItems
from pykubelet_cri_docker.engine.transport import MAX_ANSWER, EngineError

JSON = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text('a"\\[]{},: \n', max_size=6),
    lambda inner: (
        strategies.lists(inner, max_size=3) | strategies.dictionaries(strategies.text('k"\\]}', max_size=3), inner)
    ),
)
BIG = b'{"Id":"big","Labels":{"a":"%s"}}' % (b'[\\"' * (3 << 20))


@settings(max_examples=40)
@given(
    strategies.lists(strategies.dictionaries(strategies.text(max_size=2), JSON, max_size=3)), strategies.integers(1, 40)
)
def test_the_items_of_any_list_are_found_wherever_it_is_cut(items: list[object], size: int) -> None:
    text, found, made = msgspec.json.encode(items), [], ArrayItems()
    for at in range(0, len(text), size):
        found += made.feed(text[at : at + size])
    assert ([msgspec.json.decode(item) for item in found], made.skipped) == (items, 0)


def test_an_item_that_is_too_large_is_left_out_alone() -> None:
    text, made, found = b'[{"a":1}, {"b":"%s"}, {"c":[2]}]' % (b"\\\\x}" * 100), ArrayItems(most=50), []
    for at in range(0, len(text), 20):
        found += made.feed(text[at : at + 20])
    assert (found, made.skipped) == ([b'{"a":1}', b'{"c":[2]}'], 1)


async def test_a_long_list_of_images_is_read_without_those_of_huge_labels(tmp_path: Path) -> None:
    other = b'{"Id":"%d","RepoTags":["x"],"Size":7,"Labels":{"a":"' + b"y" * (400 << 10) + b'"}}'
    images = b"[" + b",".join([BIG, *(other % number for number in range(5))]) + b"]"
    async with serving(tmp_path, {"/images/json": ok(images)}) as (made, engine):
        for _ in range(2):
            assert [(image.id, image.size) for image in await engine.list_images()] == [(str(n), 7) for n in range(5)]
        assert made.connections == 1


async def test_a_list_of_containers_is_refused_if_it_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_CONTAINERS", 2 << 20)
    containers = b'[{"Id":"a","Labels":{"a":"%s"}}]' % (b"y" * (3 << 20))
    async with serving(tmp_path, {"/containers/json": ok(containers)}) as (_, engine):
        with pytest.raises(
            EngineError, match=r"the answer of Docker Engine to GET /v1.41/containers/json.* has more than 2 MiB"
        ):
            await engine.list_containers([])
        assert not engine.lost.is_set()


async def test_a_container_of_huge_labels_is_not_left_out(tmp_path: Path) -> None:
    async with serving(tmp_path, {"/containers/json": ok(b"[" + BIG + b"]")}) as (_, engine):
        with pytest.raises(EngineError, match="lists a container of more than 8 MiB"):
            await engine.list_containers([])


async def test_the_size_of_images_is_known_if_their_labels_are_too_long_for_one_answer(tmp_path: Path) -> None:
    usage = b'{"LayersSize":5,"Images":[{"Labels":{"a":"%s"}}]}' % (b"y" * MAX_ANSWER)
    version = ok(b'{"Version":"28","ApiVersion":"1.51","MinAPIVersion":"1.24"}')
    answers = {"/version": version, "/system/df": ok(usage), "/images/json": ok(b'[{"Id":"a","Size":7}]')}
    async with serving(tmp_path, answers) as (_, engine):
        assert await engine.images_size() == 7


async def test_a_container_with_another_name_is_not_of_this_program_whatever_labels_its_image_has(
    tmp_path: Path,
) -> None:
    shown = b'{"Id":"c","Name":"/%s","Names":["/%s"],"Config":{"Labels":{"a":"b"}},"Labels":{"a":"b"}}'
    for name, count in ((b"k8s_x", 1), (b"happy_k8s_x", 0), (b"k8s", 0)):
        folder = tmp_path / name.decode()
        folder.mkdir()
        container = shown % (name, name)
        async with serving(
            folder, {"/containers/json": ok(b"[%s]" % container), "/containers/c/json": ok(container)}
        ) as (
            _,
            engine,
        ):
            assert len(await engine.list_containers(["a=b"], "k8s_")) == count
            assert (await engine.find("c", "a=b", "k8s_") is not None) is bool(count)

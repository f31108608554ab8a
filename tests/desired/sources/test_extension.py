"""The source of a process extension, with a double of the process under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.extension_process import FakeProgram
from support.virtual_time import virtual_clock

from pykubelet.base.kit.cells import Sink
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.extension_process import Point
from pykubelet.base.model.labels import CONFIG_SOURCE
from pykubelet.base.model.roster import SourceChanged, is_static
from pykubelet.desired.sources.decode import ManifestRules
from pykubelet.desired.sources.extension import FIRST_SET_S, ExtensionSource
from pykubelet.edges.plugins.extension_memory import KeptOffer
from pykubelet.edges.plugins.extension_process import HELLO_S

pytestmark = pytest.mark.virtual_time


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "x:1"}], **spec}}


@asynccontextmanager
async def source(program: FakeProgram, earlier: KeptOffer | None = None) -> AsyncIterator[Sink[SourceChanged]]:
    """A running source: what it has posted."""
    clock, posts = virtual_clock(), Sink[SourceChanged]()
    process = program.process(clock, earlier=earlier)
    async with Supervisor("test") as tasks:
        tasks.start_root("process", process.run())
        tasks.start_root("source", ExtensionSource(process, ManifestRules("n"), posts, clock).run())
        yield posts


def shown(post: SourceChanged) -> tuple[list[str], list[str], bool, bool]:
    """Names, problems, whether the set is known, and whether it is awaited."""
    names = [pod.metadata.name for pod in post.pods]
    return names, [f"{p.field_path}: {p.reason}" for p in post.problems], post.known, post.awaited


async def test_the_whole_set_is_posted_and_its_pods_are_static() -> None:
    program = FakeProgram(("source",))
    async with source(program) as posts:
        channel = await program.started()
        channel.emit({"pods": [pod("a"), pod("b")]})
        await asyncio.sleep(1)
        channel.emit({"pods": [pod("b")]})
        await asyncio.sleep(1)
        assert [shown(post) for post in posts.events] == [(["a-n", "b-n"], [], True, True), (["b-n"], [], True, True)]
        (last,) = posts.events[-1].pods
        assert posts.events[-1].source == last.metadata.annotations[CONFIG_SOURCE] == "extension:ext"
        assert is_static(last)


@pytest.mark.parametrize(
    ("pods", "problem"),
    [
        ([{"metadata": {"name": "a"}}], "items[0].spec.containers: Required value"),
        ([pod("a"), pod("b", restartPolicy="Sometimes")], "items[1].spec.restartPolicy: Unsupported value"),
        ({"a": 1}, "items: expected a list, got an object"),
        (
            [pod("a", serviceAccountName="x", volumes=[{"name": "v", "configMap": {"name": "m"}}])],
            "items[0].spec: static",
        ),
    ],
)
async def test_a_wrong_set_is_a_problem_and_the_last_one_stays(pods: Any, problem: str) -> None:
    program = FakeProgram(("source",))
    async with source(program) as posts:
        channel = await program.started()
        channel.emit({"pods": [pod("good")]})
        await asyncio.sleep(1)
        channel.emit({"pods": pods})
        await asyncio.sleep(1)
        names, problems, known, _ = shown(posts.events[-1])
        assert (names, known) == (["good-n"], True)
        assert problems[0].startswith(problem)
        assert posts.events[-1].problems[0].origin == "extension:ext"


async def test_while_the_process_is_away_its_set_stays_with_the_reason() -> None:
    program = FakeProgram(("source",))
    async with source(program) as posts:
        (await program.started()).emit({"pods": [pod("a")]})
        await asyncio.sleep(1)
        program.runs[0].fail("it has ended: signal 9")
        await asyncio.sleep(0.5)
        assert shown(posts.events[-1]) == (["a-n"], [": it is away: it has ended: signal 9"], True, True)
        kept = posts.events[-1].pods
        (await program.started(2)).emit({"pods": [pod("a")]})
        await asyncio.sleep(1)
        assert shown(posts.events[-1]) == (["a-n"], [], True, True)
        assert posts.events[-1].pods is kept


async def test_the_same_wrong_set_after_a_restart_is_still_a_problem() -> None:
    program = FakeProgram(("source",))
    async with source(program) as posts:
        for number in (1, 2):
            (await program.started(number)).emit({"pods": [{}]})
            await asyncio.sleep(1)
            assert "metadata.name" in shown(posts.events[-1])[1][0]
            program.runs[-1].fail("it has ended")


async def test_a_process_that_never_answers_is_not_awaited() -> None:
    program = FakeProgram(None)
    async with source(program) as posts:
        await asyncio.sleep(HELLO_S - 1)
        assert posts.events == []
        await asyncio.sleep(2)
        assert shown(posts.events[-1]) == ([], [": it is away: it has not answered hello within 10 s"], False, False)
        second = await program.started(2)
        second.emit({"version": "1.0", "offers": ["source"]})
        second.emit({"pods": [pod("a")]})
        await asyncio.sleep(1)
        assert shown(posts.events[-1])[:3] == (["a-n"], [], True)


async def test_a_source_that_an_earlier_agent_knew_is_awaited_no_longer() -> None:
    program = FakeProgram()
    program.broken = "gone"
    async with source(program, KeptOffer(frozenset({Point.SOURCE}))) as posts:
        await asyncio.sleep(1)
        assert shown(posts.events[-1]) == ([], [": it is away: exec /opt/ext: gone"], False, False)


async def test_a_process_that_sends_no_set_is_not_awaited() -> None:
    program = FakeProgram(("source",))
    async with source(program) as posts:
        await asyncio.sleep(FIRST_SET_S - 1)
        assert posts.events == []
        await asyncio.sleep(2)
        assert shown(posts.events[-1]) == ([], [": it has not sent its pods yet"], False, False)


async def test_a_process_whose_first_set_is_wrong_is_not_awaited() -> None:
    program = FakeProgram(("source",))
    async with source(program) as posts:
        (await program.started()).emit({"pods": [{}]})
        await asyncio.sleep(FIRST_SET_S + 1)
        names, (problem,), known, awaited = shown(posts.events[-1])
        assert (names, known, awaited) == ([], False, False)
        assert problem.startswith("items[0].metadata.name")


async def test_a_process_that_is_no_source_has_an_empty_set() -> None:
    program = FakeProgram(("need",))
    async with source(program) as posts:
        await asyncio.sleep(60)
        assert [shown(post) for post in posts.events] == [([], [], True, True)]


async def test_sets_that_change_all_the_time_are_not_all_decoded() -> None:
    program = FakeProgram(("source",))
    async with source(program) as posts:
        channel = await program.started()
        for number in range(300):
            channel.emit({"pods": [pod(f"a{number}")]})
        await asyncio.sleep(60)
        assert shown(posts.events[-1])[0] == ["a299-n"]
        assert len(posts.events) < 300

"""Pods that a process extension prepares and releases: the pod workers with a double of the process, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from act.pods.node import WEB, Node, named, node
from act.pods.scenes import pod
from support.extension_process import FakeChannel, FakeProgram
from support.virtual_time import virtual_clock

from pykubelet.act.pods.need import PodNeed
from pykubelet.act.pods.need_extension import RELEASE_ALL_S, ExtensionNeed
from pykubelet.act.pods.needs import NEEDS
from pykubelet.act.pods.tools import PodTools
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.extension_process import Point
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.edges.plugins.extension_memory import KeptOffer
from pykubelet.edges.plugins.extension_process import HELLO_S, ExtensionProcess

pytestmark = pytest.mark.virtual_time
READY = {"ready": True}


@asynccontextmanager
async def extended(
    folder: Path, program: FakeProgram, earlier: KeptOffer | None = None
) -> AsyncIterator[tuple[Node, ExtensionProcess]]:
    process = program.process(virtual_clock(), earlier=earlier)
    nodes: list[Node] = []

    def make(tools: PodTools, ref: PodRef, /) -> PodNeed:
        return ExtensionNeed(process, nodes[0].lifecycles, tools, ref)

    async with Supervisor("test") as tasks, node(folder, needs=(*NEEDS, make)) as running:
        nodes.append(running)
        tasks.start_root("process", process.run())
        yield running, process


def waits(running: Node, name: str = "web") -> list[Wait]:
    life = running.life(name)
    assert life is not None
    return [wait for wait in running.known(life.ref.uid).waits if wait.what == "extension"]


async def wait_shown(running: Node, detail: str, name: str = "web") -> Wait:
    await running.wait_for(lambda: running.life(name) is not None)
    await running.wait_for(lambda: any(detail in wait.detail for wait in waits(running, name)))
    return next(wait for wait in waits(running, name) if detail in wait.detail)


async def release(channel: FakeChannel) -> None:
    channel.answer(await channel.asked("release"), {})


async def test_a_pod_is_prepared_before_its_containers_and_released_at_its_end(tmp_path: Path) -> None:
    program = FakeProgram()
    async with extended(tmp_path, program) as (running, _):
        running.want(WEB)
        channel = await program.started()
        asked = await channel.asked("prepare")
        assert asked["pod"]["metadata"]["name"] == "web"
        assert asked["pod"]["spec"]["containers"][0]["name"] == "app"
        assert running.sandboxes("web") and not running.running("web")
        channel.answer(asked, READY)
        await running.wait_running("web")
        running.unwant("web")
        asked = await channel.asked("release")
        assert asked["pod"] == {"metadata": {"namespace": "shop", "name": "web", "uid": "uid-web"}}
        assert running.groups.pods  # the cgroup is given back afterwards
        channel.answer(asked, {})
        await running.wait_gone("web")
        assert not [message for message in channel.got if "call" in message]


async def test_a_pod_waits_for_the_reason_that_the_process_gives(tmp_path: Path) -> None:
    program = FakeProgram()
    async with extended(tmp_path, program) as (running, _):
        running.want(WEB)
        channel = await program.started()
        channel.answer(await channel.asked("prepare"), {"wait": "40 % are there", "again_s": 5})
        wait = await wait_shown(running, "40 % are there")
        assert (wait.owner, wait.subject, wait.next_step) == (Owner.EXTENSION, "ext", "ask it again")
        assert wait.next_at is not None and wait.next_at - wait.since == pytest.approx(5, abs=0.5)
        channel.answer(await channel.asked("prepare"), READY)
        await running.wait_running("web")


async def test_an_error_is_shown_and_the_pod_is_tried_again(tmp_path: Path) -> None:
    program = FakeProgram()
    async with extended(tmp_path, program) as (running, _):
        running.want(WEB)
        channel = await program.started()
        channel.emit({"id": (await channel.asked("prepare"))["id"], "error": "no such cache"})

        def is_shown() -> bool:
            life = running.life("web")
            assert life is not None
            return any("no such cache" in wait.detail for wait in running.known(life.ref.uid).waits)

        await running.wait_for(is_shown)
        channel.answer(await channel.asked("prepare"), READY)
        await running.wait_running("web")


@pytest.mark.parametrize("result", [{}, {"ready": "yes"}, [], {"ready": False}])
async def test_a_malformed_result_is_an_error(tmp_path: Path, result: object) -> None:
    program = FakeProgram()
    async with extended(tmp_path, program) as (running, _):
        running.want(WEB)
        channel = await program.started()
        channel.answer(await channel.asked("prepare"), result)
        channel.answer(await channel.asked("prepare"), READY)
        await running.wait_running("web")


async def test_a_pod_waits_while_the_process_is_away_and_others_run(tmp_path: Path) -> None:
    program = FakeProgram(annotation="example.com/warm")
    warm = replace(
        named(WEB, "warm"), metadata=replace(named(WEB, "warm").metadata, annotations={"example.com/warm": ""})
    )
    async with extended(tmp_path, program) as (running, process):
        await process.state.wait_for(lambda state: state.is_running)
        program.broken = "no such file or directory"
        program.runs[0].fail("it has ended: signal 9")
        await process.state.wait_for(lambda state: not state.is_running)
        running.want(warm, WEB)
        await running.wait_running("web", within_s=5)
        wait = await wait_shown(running, "no such file", "warm")
        assert (wait.reason, wait.next_step) == ("ExtensionAway", "start the containers")
        assert not running.running("warm")
        program.broken = ""
        channel = await program.started(2)
        channel.answer(await channel.asked("prepare"), READY)
        await running.wait_running("warm")


async def test_a_process_that_ends_while_it_prepares_is_asked_again(tmp_path: Path) -> None:
    program = FakeProgram()
    async with extended(tmp_path, program) as (running, _):
        running.want(WEB)
        channel = await program.started()
        await channel.asked("prepare")
        channel.fail("it has ended: signal 9")
        channel = await program.started(2)
        channel.answer(await channel.asked("prepare"), READY)
        await running.wait_running("web")


async def test_a_process_that_never_answers_hello_holds_a_pod_up_for_ten_seconds(tmp_path: Path) -> None:
    program = FakeProgram(None)
    async with extended(tmp_path, program) as (running, _):
        began = running.clock.monotonic()
        running.want(WEB)
        await wait_shown(running, "it has not answered hello yet")
        await running.wait_running("web")
        assert running.clock.monotonic() - began == pytest.approx(HELLO_S, abs=0.5)
        running.unwant("web")
        await running.wait_gone("web", within_s=5)


async def test_a_process_that_an_earlier_agent_knew_is_waited_for(tmp_path: Path) -> None:
    program = FakeProgram(annotation="example.com/warm")
    program.broken = "no such file or directory"
    earlier = KeptOffer(frozenset({Point.NEED}), "example.com/warm")
    warm = named(WEB, "warm")
    warm = replace(warm, metadata=replace(warm.metadata, annotations={"example.com/warm": ""}))
    async with extended(tmp_path, program, earlier) as (running, process):
        running.want(warm, WEB)
        await running.wait_running("web", within_s=5)
        await process.state.wait_for(lambda state: state.run == 3)
        assert not running.running("warm")
        await wait_shown(running, "no such file", "warm")
        program.broken = ""
        channel = await program.started()
        channel.answer(await channel.asked("prepare"), READY)
        await running.wait_running("warm")


async def test_a_pod_that_waits_can_be_removed(tmp_path: Path) -> None:
    program = FakeProgram()
    async with extended(tmp_path, program) as (running, _):
        running.want(WEB)
        channel = await program.started()
        await channel.asked("prepare")
        running.unwant("web")
        await release(channel)
        await running.wait_gone("web")


async def test_a_process_without_the_point_holds_nothing_up(tmp_path: Path) -> None:
    program = FakeProgram(("observer",))
    async with extended(tmp_path, program) as (running, _):
        running.want(WEB)
        await running.wait_running("web", within_s=5)
        running.unwant("web")
        await running.wait_gone("web", within_s=5)
        assert [message for message in program.runs[0].got if "call" in message] == []


def restarting() -> Pod:
    return named(pod(restartPolicy="Always", terminationGracePeriodSeconds=1), "web")


async def test_a_restarted_container_is_prepared_again_only_by_a_restarted_process(tmp_path: Path) -> None:
    program = FakeProgram()
    async with extended(tmp_path, program) as (running, process):
        running.want(restarting())
        channel = await program.started()
        channel.answer(await channel.asked("prepare"), READY)
        await running.wait_running("web")
        (first,) = running.running("web")
        running.fake.state.end(first, 1)
        await running.wait_for(lambda: [c.id for c in running.running("web")] not in ([], [first.id]))
        assert not [message for message in channel.got if "call" in message]
        channel.fail("it has ended: signal 9")
        await process.state.wait_for(lambda state: state.is_running and state.run == 2)
        (second,) = running.running("web")
        running.fake.state.end(second, 1)
        channel = await program.started(2)
        channel.answer(await channel.asked("prepare"), READY)
        await running.wait_for(lambda: [c.id for c in running.running("web")] not in ([], [second.id]))


async def test_release_is_repeated_until_it_is_answered(tmp_path: Path) -> None:
    program = FakeProgram()
    async with extended(tmp_path, program) as (running, _):
        running.want(WEB)
        channel = await program.started()
        channel.answer(await channel.asked("prepare"), READY)
        await running.wait_running("web")
        running.unwant("web")
        channel.emit({"id": (await channel.asked("release"))["id"], "error": "busy"})
        await channel.asked("release")
        channel.fail("it has ended: signal 9")
        await release(await program.started(2))
        await running.wait_gone("web")


async def test_a_pod_ends_without_a_process_that_stays_away(tmp_path: Path) -> None:
    program = FakeProgram()
    async with extended(tmp_path, program) as (running, process):
        running.want(WEB)
        channel = await program.started()
        channel.answer(await channel.asked("prepare"), READY)
        await running.wait_running("web")
        program.broken = "gone"
        channel.fail("it has ended: signal 9")
        await process.state.wait_for(lambda state: not state.is_running)
        began = running.clock.monotonic()
        running.unwant("web")
        wait = await wait_shown(running, "it has ended")
        assert wait.next_step == "release volumes and cgroup"
        await running.wait_gone("web")
        assert running.clock.monotonic() - began == pytest.approx(RELEASE_ALL_S, abs=3)


async def test_a_pod_of_an_earlier_run_of_the_agent_is_released(tmp_path: Path) -> None:
    async with node(tmp_path) as earlier:
        earlier.want(WEB)
        await earlier.wait_running("web")
        fake = earlier.fake
        program = FakeProgram()
        process = program.process(virtual_clock())
        nodes: list[Node] = []

        def make(tools: PodTools, ref: PodRef, /) -> PodNeed:
            return ExtensionNeed(process, nodes[0].lifecycles, tools, ref)

        async with Supervisor("test") as tasks, node(tmp_path, fake=fake, needs=(*NEEDS, make)) as running:
            nodes.append(running)
            tasks.start_root("process", process.run())
            await release(await program.started())  # nothing wants the pod any more
            await running.wait_gone("web")

"""Probes that a process extension answers, with a double of the process in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.extension_process import FakeChannel, FakeProgram
from support.virtual_time import virtual_clock

from pykubelet.base.api import core
from pykubelet.base.api.codec import from_object
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID
from pykubelet.edges.probing.outcome import Outcome, ProbeVerdict, passed
from pykubelet.observe.probes.execute import ProbeRequest, extension_of
from pykubelet.observe.probes.extension import ExtensionProber

pytestmark = pytest.mark.virtual_time
REF = PodRef("shop", "web", PodUID("u"))


def ask(*command: str, timeout_s: float = 3.0, **container: Any) -> ProbeRequest:
    probe = from_object(core.Probe, {"exec": {"command": list(command)}})
    made = from_object(core.Container, {"name": "app", "image": "i", **container})
    return ProbeRequest(REF, made, probe, ContainerID("c1"), "10.0.0.7", timeout_s)


class Others:
    """Passes every probe."""

    async def probe(self, request: ProbeRequest) -> Outcome:
        return passed("by others")


@asynccontextmanager
async def prober(program: FakeProgram) -> AsyncIterator[tuple[ExtensionProber, FakeChannel]]:
    process = program.process(virtual_clock())
    async with Supervisor("test") as tasks:
        tasks.start_root("process", process.run())
        await process.state.wait_for(lambda state: state.is_running)
        yield ExtensionProber(Others(), {"ext": process}), program.runs[0]


async def probed(request: ProbeRequest, result: Any) -> tuple[dict[str, Any], Outcome]:
    """What the process was asked, and the outcome of its answer."""
    async with prober(FakeProgram(("probe",))) as (asking, channel), Supervisor("probe") as tasks:
        task = tasks.start_child("probe", asking.probe(request))
        asked = await channel.asked("probe")
        channel.answer(asked, result)
        return asked, await task


async def test_a_probe_is_answered_by_the_process() -> None:
    env = [{"name": "LEVEL", "value": "3"}]
    asked, outcome = await probed(
        ask("extension:ext", "deep", "$(LEVEL)", env=env), {"success": True, "message": "fine"}
    )
    assert outcome == passed("fine")
    del asked["id"]
    assert asked == {
        "call": "probe",
        "pod": {"metadata": {"namespace": "shop", "name": "web", "uid": "u"}, "status": {"podIP": "10.0.0.7"}},
        "container": {"name": "app", "containerID": "c1"},
        "args": ["deep", "3"],
        "timeout_s": 3.0,
    }


async def test_a_failure_has_the_message_of_the_process() -> None:
    _, outcome = await probed(ask("extension:ext"), {"success": False, "message": "queue is full"})
    assert (outcome.verdict, outcome.output) == (ProbeVerdict.FAILURE, "queue is full")


@pytest.mark.parametrize("result", [{}, [], {"success": "yes"}])
async def test_a_malformed_result_gives_no_information_about_the_container(result: Any) -> None:
    _, outcome = await probed(ask("extension:ext"), result)
    assert outcome.verdict is ProbeVerdict.UNKNOWN
    assert "the result of probe is malformed" in outcome.error


async def test_no_answer_in_time_is_a_failure_as_of_a_command() -> None:
    async with prober(FakeProgram(("probe",))) as (asking, _):
        outcome = await asking.probe(ask("extension:ext"))
        assert (outcome.verdict, outcome.timed_out) == (ProbeVerdict.FAILURE, True)
        assert outcome.output == "extension ext: no answer to probe within 3 s"


async def test_a_process_that_is_away_gives_no_information() -> None:
    async with prober(FakeProgram(("probe",))) as (asking, channel):
        channel.fail("it has ended: signal 9")
        await asyncio.sleep(0.5)
        outcome = await asking.probe(ask("extension:ext"))
        assert (outcome.verdict, outcome.is_final) == (ProbeVerdict.UNKNOWN, True)
        assert "it has ended: signal 9" in outcome.error


async def test_a_name_that_is_not_loaded_and_a_process_without_the_point() -> None:
    async with prober(FakeProgram(("need",))) as (asking, channel):
        assert "no process extension other is loaded" in (await asking.probe(ask("extension:other"))).error
        assert "extension ext answers no probes" in (await asking.probe(ask("extension:ext"))).error
        assert [message for message in channel.got if "call" in message] == []


async def test_other_probes_go_the_usual_way() -> None:
    async with prober(FakeProgram(("probe",))) as (asking, _):
        assert await asking.probe(ask("cat", "extension:ext")) == passed("by others")


@pytest.mark.parametrize(("command", "name"), [((), None), (("true",), None), (("extension:a-b", "x"), "a-b")])
def test_the_name_of_the_extension(command: tuple[str, ...], name: str | None) -> None:
    assert extension_of(ask(*command).probe) == name

"""A process extension: hello, calls, restarts and limits, with a double of the process under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from support.extension_process import FakeProgram
from support.virtual_time import virtual_clock

from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.extension_process import ExtensionProcessState, Point, ProcessPhase
from pykubelet.edges.plugins.extension_messages import LINE_BYTES
from pykubelet.edges.plugins.extension_process import (
    CALLS_AT_ONCE,
    HELLO_S,
    MAX_UNANSWERED,
    RESTART,
    UNITS_AT_ONCE,
    ExtensionCallError,
    ExtensionProcess,
)

pytestmark = pytest.mark.virtual_time
RESULT = {"id": 1, "result": {"ready": True}}


@asynccontextmanager
async def running(program: FakeProgram) -> AsyncIterator[ExtensionProcess]:
    process = program.process(virtual_clock(), {"layers": ["a"]})
    async with Supervisor("test") as tasks:
        tasks.start_root("process", process.run())
        yield process


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_hello_has_the_node_and_the_settings_and_its_answer_the_points() -> None:
    program = FakeProgram(("need", "source", "later"), annotation="cache.example.com/layers")
    async with running(program) as process:
        state = await process.state.wait_for(lambda state: state.is_running)
        assert (state.offers, state.annotation) == (frozenset((Point.NEED, Point.SOURCE)), "cache.example.com/layers")
        hello = {"version": "1.0", "node": "node-1", "settings": {"layers": ["a"]}}
        assert program.runs[0].got == [{"hello": hello}]


async def test_a_call_gets_its_own_result_whatever_the_order_of_the_answers() -> None:
    program = FakeProgram()
    async with running(program) as process, Supervisor("calls") as calls:
        await process.state.wait_for(lambda state: state.is_running)
        first, second = (calls.start_child(name, process.call(name, {"pod": {}}, 5.0)) for name in ("a", "b"))
        channel = program.runs[0]
        a, b = await channel.asked("a"), await channel.asked("b")
        channel.answer(b, "of b")
        channel.emit({"id": a["id"], "error": "no\ndisk \x1b[1m"})
        assert await second == b'"of b"'
        with pytest.raises(ExtensionCallError, match=r"^no disk \\x1b\[1m$"):
            await first


async def test_a_late_answer_is_dropped_and_calls_go_on() -> None:
    program = FakeProgram()
    async with running(program) as process, Supervisor("calls") as calls:
        await process.state.wait_for(lambda state: state.is_running)
        channel = program.runs[0]
        with pytest.raises(ExtensionCallError, match="no answer to prepare within 3 s") as caught:
            await process.call("prepare", {}, 3.0)
        assert caught.value.is_late
        channel.answer(await channel.asked("prepare"), "late")
        again = calls.start_child("again", process.call("prepare", {}, 3.0))
        channel.answer(await channel.asked("prepare"), "in time")
        assert await again == b'"in time"'


async def test_a_process_that_answers_nothing_is_started_again() -> None:
    program = FakeProgram()
    async with running(program) as process:
        await process.state.wait_for(lambda state: state.is_running)
        for _ in range(MAX_UNANSWERED):
            with pytest.raises(ExtensionCallError):
                await process.call("prepare", {}, 3.0)
        away = await process.state.wait_for(lambda state: state.phase is ProcessPhase.AWAY)
        assert away.error == "it has answered none of 5 calls for 15 s"
        assert program.runs[0].is_ended
        assert (await process.state.wait_for(lambda state: state.is_running)).run == 2


async def test_a_process_that_answers_late_is_left_running() -> None:
    program = FakeProgram()
    async with running(program) as process:
        await process.state.wait_for(lambda state: state.is_running)
        for _ in range(3 * MAX_UNANSWERED):
            with pytest.raises(ExtensionCallError):
                await process.call("prepare", {}, 3.0)
            program.runs[0].answer(await program.runs[0].asked("prepare"), {})
            await asyncio.sleep(0.1)
        assert process.state.get().run == 1


async def test_calls_fail_at_once_while_the_process_is_away_or_has_too_many() -> None:
    program = FakeProgram()
    async with running(program) as process, Supervisor("calls") as calls:
        with pytest.raises(ExtensionCallError) as caught:
            await process.call("prepare", {}, 5.0)
        assert caught.value.is_away
        await process.state.wait_for(lambda state: state.is_running)
        waiting = [calls.start_child(f"{i}", process.call("prepare", {}, 60.0)) for i in range(CALLS_AT_ONCE)]
        await asyncio.sleep(1)
        with pytest.raises(ExtensionCallError, match="calls of it are under way"):
            await process.call("prepare", {}, 5.0)
        program.runs[0].fail("it has ended: signal 9")
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert {str(error) for error in ended} == {"it has ended: signal 9"}
        assert all(isinstance(error, ExtensionCallError) and error.is_away for error in ended)


async def test_a_process_that_does_not_read_fails_calls_and_loses_notifications() -> None:
    program = FakeProgram()
    async with running(program) as process:
        await process.state.wait_for(lambda state: state.is_running)
        assert process.notify({"status": {}})
        program.runs[0].is_deaf = True
        assert not process.notify({"status": {}})
        with pytest.raises(ExtensionCallError, match="does not read"):
            await process.call("prepare", {}, 5.0)


async def test_a_request_longer_than_a_line_is_refused() -> None:
    program = FakeProgram()
    async with running(program) as process:
        await process.state.wait_for(lambda state: state.is_running)
        with pytest.raises(ExtensionCallError, match="a line has 1048576 at most"):
            await process.call("prepare", {"pod": "x" * LINE_BYTES}, 5.0)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"no JSON", "it has sent a line that is no JSON object"),
        (b"[1]", "it has sent a message of the wrong type"),
        (b'{"id": "1", "result": 1}', "it has sent a message of the wrong type"),
        (b"{}", 'it has sent a message without "id", "offers" or "pods"'),
        (b'{"id": 1}', 'it has sent an answer with neither "result" nor "error"'),
        (b'{"offers": [], "version": "1.0"}', "it has sent a second answer to hello"),
        (b'{"pods": []}', 'it has sent "pods", and does not offer "source"'),
        (b'{"result": ' + b"[" * 100_000, "it has sent a line that is no JSON object"),
    ],
)
async def test_what_is_no_message_ends_the_process(sent: bytes, why: str) -> None:
    program = FakeProgram()
    async with running(program) as process:
        await process.state.wait_for(lambda state: state.is_running)
        program.runs[0].emit(sent)
        away = await process.state.wait_for(lambda state: state.phase is ProcessPhase.AWAY)
        assert away.error.startswith(why)
        assert (away.known, away.missed) == (True, False)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"offers": [], "version": "2.0"}, "it has sent version 2.0 of the protocol; this agent has 1.0"),
        ({"offers": []}, 'it has sent an answer to hello without a "version"'),
        ({"offers": [], "version": "1.0", "annotation": "a b"}, 'it has sent an "annotation"'),
        (RESULT, "it has sent another message before its answer to hello"),
    ],
)
async def test_a_wrong_answer_to_hello_is_a_missed_one(answer: dict[str, Any], why: str) -> None:
    program = FakeProgram(None)
    async with running(program) as process:
        (await program.started()).emit(answer)
        away = await process.state.wait_for(lambda state: state.phase is ProcessPhase.AWAY)
        assert away.error.startswith(why)
        assert away.missed


async def test_a_silent_process_has_missed_its_hello_until_it_answers() -> None:
    program = FakeProgram(None)
    async with running(program) as process:
        began = now()
        away = await process.state.wait_for(lambda state: state.missed)
        assert away.error == "it has not answered hello within 10 s"
        assert now() - began == pytest.approx(HELLO_S, abs=0.1)
        (await program.started(2)).emit({"offers": [], "version": "1.3"})
        state = await process.state.wait_for(lambda state: state.is_running)
        assert (state.missed, state.error, state.version) == (False, "", "1.3")


def failed(run: int, state: ExtensionProcessState) -> bool:
    return state.run == run and state.restart_at is not None


async def test_a_program_that_ends_at_once_is_started_again_ever_more_rarely() -> None:
    program = FakeProgram()
    program.broken = "no such file or directory"
    async with running(program) as process:
        began, found = now(), []
        for run in range(1, 10):
            await process.state.wait_for(partial(failed, run))
            away = process.state.get()
            found.append(round(now() - began))
            assert away.error == "exec /opt/ext: no such file or directory"
        assert found == [0, 1, 3, 7, 15, 31, 63, 123, 183]
        program.broken = ""
        await process.state.wait_for(lambda state: state.is_running)
        await asyncio.sleep(3 * RESTART.cap_s)
        program.runs[0].fail("it has ended: exit status 0")
        await process.state.wait_for(lambda state: state.phase is ProcessPhase.AWAY)
        began = now()
        await process.state.wait_for(lambda state: state.is_running)
        assert now() - began == pytest.approx(RESTART.initial_s, abs=0.1)


async def test_a_program_that_was_mended_is_started_at_once_when_it_is_enabled() -> None:
    program = FakeProgram()
    program.broken = "no such file or directory"
    async with running(program) as process:
        await process.state.wait_for(partial(failed, 7))
        program.broken = ""
        began = now()
        process.enable()
        await process.state.wait_for(lambda state: state.is_running)
        assert now() - began < 0.1
        program.runs[0].fail("it has ended: exit status 1")
        await process.state.wait_for(lambda state: state.phase is ProcessPhase.AWAY)
        began = now()
        await process.state.wait_for(lambda state: state.is_running)
        assert now() - began == pytest.approx(RESTART.initial_s, abs=0.1)


async def test_endless_output_is_taken_at_a_limited_rate() -> None:
    """The rest waits in the pipe, and the agent has time for others."""
    program = FakeProgram(("source",))
    async with running(program) as process:
        await process.state.wait_for(lambda state: state.is_running)
        for number in range(3 * UNITS_AT_ONCE):
            program.runs[0].emit(b'{"pods": [%d]}' % number)
        await asyncio.sleep(0.5)
        first = process.pods.get().number
        await asyncio.sleep(1)
        assert process.pods.get().number - first <= 600
        await process.pods.wait_for(lambda pods: pods.number == 3 * UNITS_AT_ONCE)


async def test_the_same_set_of_pods_is_no_change() -> None:
    program = FakeProgram(("source",))
    async with running(program) as process:
        await process.state.wait_for(lambda state: state.is_running)
        for _ in range(3):
            program.runs[0].emit(b'{"pods": [{"a": 1}]}')
        await asyncio.sleep(1)
        assert (process.pods.get().number, process.pods.get().data) == (1, b'[{"a": 1}]')


async def test_the_end_of_the_agent_asks_the_process_to_end() -> None:
    program = FakeProgram()
    async with running(program) as process:
        await process.state.wait_for(lambda state: state.is_running)
    assert program.runs[0].is_ended

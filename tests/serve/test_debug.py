"""Profiles of the agent, its verbosity, and the documents of its pods."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
import uvloop
from serve.world import make_world
from support.logs import logging_restored

from pykubelet.base.kit.log import Log, set_up_logging
from pykubelet.config.kubelet import KubeletConfiguration
from pykubelet.config.shown import shown_safely
from pykubelet.net.http.server import Request, Response
from pykubelet.serve.endpoints.api_routes import configz_answer
from pykubelet.serve.endpoints.contention import MAX_STACKS, Contention
from pykubelet.serve.endpoints.debug import Profiles, explain_handler, set_verbosity
from pykubelet.serve.endpoints.known_pods import KnownPods
from pykubelet.serve.endpoints.profile import CpuSamples, sampling
from pykubelet.serve.explain.documents import ask_routes


async def ask(profiles: Profiles, profile: str, **query: list[str]) -> Response:
    answer = await profiles.answer(Request("GET", f"/debug/pprof/{profile}", urlencode(query, doseq=True)))
    assert isinstance(answer, Response)
    return answer


def work_hard(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


@pytest.mark.parametrize("where", ["the loop", "a thread"])
@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_profile_is_of_those_who_work_and_not_of_those_who_wait(
    where: str, factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(profile_of_work(where))


async def profile_of_work(where: str) -> None:
    """Samples are of CPU time, and how much of that a second brings is for the machine to say: no clock ends this one."""
    idle = threading.Event()
    waiting = threading.Thread(target=idle.wait, name="idle", daemon=True)
    waiting.start()
    loop = asyncio.get_running_loop()
    with sampling(CpuSamples()) as samples:
        for _ in range(100):
            if where == "a thread":
                await loop.run_in_executor(None, work_hard, 0.2)
            else:
                work_hard(0.2)
            counts = counts_of(samples)
            if sum(counts.values()) > 10:
                break
    idle.set()
    waiting.join()
    hard = sum(number for stack, number in counts.items() if "work_hard (test_debug.py" in stack)
    assert hard >= sum(counts.values()) / 2 > 5
    assert not [stack for stack in counts if stack.startswith("idle;")]


def counts_of(samples: CpuSamples) -> dict[str, int]:
    lines = samples.answer().body.decode().splitlines()
    return {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}


async def test_a_profile_of_some_seconds() -> None:
    async with asyncio.TaskGroup() as group:
        profile = group.create_task(ask(Profiles(), "profile", seconds=["1"]))
        await asyncio.sleep(0)
        work_hard(0.2)
    assert b"work_hard (test_debug.py" in profile.result().body


async def test_a_trace_is_for_programs_that_show_such() -> None:
    async with asyncio.TaskGroup() as group:
        trace = group.create_task(ask(Profiles(), "trace"))
        await asyncio.sleep(0)
        work_hard(0.2)
    events = json.loads(trace.result().body)["traceEvents"]
    assert {(event["ph"], event["dur"]) for event in events} == {("X", 10_000)}
    assert any("work_hard" in frame for event in events for frame in event["args"]["stack"])


def hold_up(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def test_the_block_profile_shows_what_holds_up_the_loop() -> None:
    contention = Contention()
    profiles = Profiles(contention)
    watching = asyncio.get_running_loop().create_task(contention.watch())
    await asyncio.sleep(0.02)
    async with asyncio.timeout(60):
        while b"hold_up" not in (found := (await ask(profiles, "block")).body):
            hold_up(0.1)
            await asyncio.sleep(0.01)
    watching.cancel()
    [line] = [line for line in found.decode().splitlines() if "hold_up" in line][:1]
    assert int(line.rpartition(" ")[2]) > 1000, "microseconds"
    for number in range(2 * MAX_STACKS):
        contention.add(f"stack-{number}", 0.001)
    assert len(contention.text().splitlines()) <= MAX_STACKS + 1
    assert (await ask(Profiles(), "block")).body == b""


async def test_one_profile_at_a_time() -> None:
    profiles = Profiles()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(ask(profiles, "profile", seconds=["1"]))
        await asyncio.sleep(0)
        assert (await ask(profiles, "trace")).status == 500
    assert first.result().status == 200


async def test_symbols_are_in_the_profiles_already() -> None:
    assert (await ask(Profiles(), "symbol")).body == b"num_symbols: 0\n"


async def test_debug_pods_answers_as_explain() -> None:
    world = make_world()
    inputs = world.inputs
    explained = ask_routes(inputs, world.clock)
    handler = explain_handler(explained, KnownPods(inputs.roster, inputs.lifecycles, inputs.observed, inputs.statuses))

    async def body(path: str) -> tuple[int, bytes]:
        answer = await handler(Request("GET", path))
        assert isinstance(answer, Response)
        return answer.status, answer.body

    for path, same in {
        "/debug/pods": "/pods",
        "/debug/pods/": "/pods",
        "/debug/pods/uid-1": "/pods/uid-1",
        "/debug/pods/default/web": "/pods/uid-1",
        "/debug/pods/default/db": "/pods/db-new",
        "/debug/node": "/node",
    }.items():
        assert await body(path) == (200, (await explained(Request("GET", same))).body)
    assert "start app" in [line["what"] for line in json.loads((await body("/debug/pods/default/web"))[1])["timeline"]]
    assert (await body("/debug/pods/default/missing"))[0] == (await body("/debug/pods/missing"))[0] == 404


async def test_the_verbosity_changes_while_the_agent_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_restored():
        set_up_logging(2)
        log = Log("test")
        log.at(6, "before")
        answer = await set_verbosity(Request("PUT", "/debug/flags/v", body=b"6"))
        log.at(6, "after")
    assert isinstance(answer, Response) and answer.body == b"successfully set klog.logging.verbosity to 6"
    logged = capsys.readouterr().err
    assert "after" in logged and "before" not in logged


@pytest.mark.parametrize("given", ["²", "9" * 5000, "-1", "4294967296", ""])
async def test_what_is_no_verbosity_is_refused(given: str) -> None:
    answer = await set_verbosity(Request("PUT", "/debug/flags/v", body=given.encode()))
    assert isinstance(answer, Response)
    assert answer.status == 400 and b"failed to set the verbosity" in answer.body and len(answer.body) < 200


@pytest.mark.parametrize("given", ["²", "0", "121", "9" * 5000])
async def test_what_is_no_time_for_a_profile_is_refused(given: str) -> None:
    assert (await ask(Profiles(), "profile", seconds=[given])).status == 400


def shown_at_configz(**fields: Any) -> dict[str, Any]:
    answer = configz_answer(shown_safely(KubeletConfiguration(**fields)))
    found: dict[str, Any] = json.loads(answer.body)["kubeletconfig"]
    return found


def test_configz_has_the_headers_of_the_manifest_url() -> None:
    """With their values: the kubelet shows them, and conformance tests compare them."""
    found = shown_at_configz(
        staticPodURLHeader={"custom-static-pod": ("X: 1", "Y: 2"), "Accept": ("application/yaml",)}
    )
    assert found["staticPodURLHeader"] == {"custom-static-pod": ["X: 1", "Y: 2"], "Accept": ["application/yaml"]}
    assert found["kind"] == "KubeletConfiguration"


def test_configz_has_no_credentials() -> None:
    headers = {"authorization": ("Bearer secret", "secret"), "X-Api-Key": ("secret",), "Cookie": ()}
    found = shown_at_configz(staticPodURL="https://user:secret@host/pods?x=a@b", staticPodURLHeader=headers, port=1)
    assert found["staticPodURL"] == "https://<masked>@host/pods?x=a@b"
    assert found["staticPodURLHeader"] == {
        "authorization": ["<masked>", "<masked>"],
        "X-Api-Key": ["<masked>"],
        "Cookie": [],
    }
    assert found["port"] == 1
    assert shown_at_configz(staticPodURL="http://host/a@b")["staticPodURL"] == "http://host/a@b"


def test_the_log_has_no_values_of_headers() -> None:
    config = KubeletConfiguration(staticPodURLHeader={"X": ("1", "2")}, staticPodURL="http://u:p@host/")
    found = shown_safely(config, without_headers=True)
    assert found["staticPodURLHeader"] == {"X": ["<masked>", "<masked>"]}
    assert found["staticPodURL"] == "http://<masked>@host/"

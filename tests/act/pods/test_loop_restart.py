"""Pods on a fake runtime over a restart of the agent: what runs is taken over, and nothing is started twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from act.pods.node import WEB, Node, named, node, static
from act.pods.scenes import IMAGE, container, pod, running_script
from act.pods.start_order import CREATE, REMOVE, START, Delays, TimedRuntime, timed
from support.runtimes import memory_runtime

from pykubelet.act.runtime.lifecycle.start import START_LIMIT_S
from pykubelet.base.api.core import Pod
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONTAINER_RESTART_COUNT
from pykubelet.base.model.roster import RosterPod, pod_ref
from pykubelet.base.model.sizing import SizeChange, size_of
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode
from pykubelet.testing.cri.fake_handles import RuntimeFault
from pykubelet.testing.cri.fake_state import FakeContainer
from pykubelet.testing.cri.in_memory import MemoryRuntime

pytestmark = pytest.mark.virtual_time

# Static pods of one name, orphans, and the restart of the agent


async def test_the_older_static_pod_of_a_name_goes_first(tmp_path: Path) -> None:
    old = static(running_script("trap '' TERM; sleep 1000"), "web", "uid-old")
    new = static(WEB, "web", "uid-new")
    async with node(tmp_path) as n:
        n.want(old)
        await n.wait_running("web")
        n.wanted.clear()
        n.want(new)
        await n.wait_for(lambda: PodUID("uid-new") in n.lifecycles.get().pods)
        waits = n.diagnostics.get().pods[PodUID("uid-new")].waits
        assert waits[0].what == "older pod of the same name"
        assert waits[0].detail == "the older pod web_shop(uid-old) must end first"
        assert set(n.sandboxes("web")) == {"uid-old"}
        await n.wait_for(lambda: {c.sandbox.config.metadata.uid for c in n.running("web")} == {"uid-new"})
        assert "uid-old" not in n.groups.pods


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[MemoryRuntime]:
    with memory_runtime(tmp_path, IMAGE) as fake:
        yield fake


async def test_a_restarted_agent_takes_over_what_runs(tmp_path: Path, runtime: MemoryRuntime) -> None:
    pods = [named(WEB, f"web-{number}") for number in range(4)]
    async with node(tmp_path, fake=runtime, wanted=pods) as n:
        for number in range(4):
            await n.wait_running(f"web-{number}")
    before = {c.id for c in runtime.state.containers.values()}
    runtime.calls.clear()
    async with node(tmp_path, fake=runtime, wanted=pods) as n:
        for number in range(4):
            await n.wait_known(f"web-{number}", lambda known: any("taken up" in line.what for line in known.timeline))
        await asyncio.sleep(60.0)
        assert {c.id for c in runtime.state.containers.values()} == before
        assert len(n.running("web-0")) == 1
    touching = {"RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox"}
    assert not touching & {call.method for call in runtime.calls}


async def test_a_post_start_hook_that_was_running_when_the_agent_ended_is_run_again(
    tmp_path: Path, runtime: MemoryRuntime
) -> None:
    hook = {"postStart": {"exec": {"command": ["sleep", "1000"]}}}
    web = named(pod(container(lifecycle=hook), container("b")), "web")
    (tmp_path / "root" / "pods" / web.metadata.uid).mkdir(parents=True)
    async with node(tmp_path, fake=runtime, wanted=[web]) as n:
        await n.wait_for(lambda: len(runtime.called("ExecSync")) == 1)
    [first] = runtime.state.containers.values()
    fault = runtime.inject(RuntimeFault("ExecSync", delay_s=0.3, code=CriCode.UNKNOWN, times=0))
    async with node(tmp_path, fake=runtime, wanted=[web]) as n:
        await n.wait_known("web", lambda known: any(w.what == "postStart hook" for w in known.waits))
        life = await n.wait_life("web", lambda life: True)
        assert dict(life.post_starting) == {"app": 0}, "it does not count as running before that"
        assert [call.request.container_id for call in runtime.called("ExecSync")] == [first.id] * 2
        assert set(runtime.state.containers) == {first.id}, "the next container waits for it"
    fault.times = None
    async with node(tmp_path, fake=runtime, wanted=[web]) as n:
        await n.wait_for(lambda: bool(n.messages("FailedPostStartHook")))
        await n.wait_for(lambda: first.state != pb.CONTAINER_RUNNING)
    runtime.withdraw(fault)
    runtime.exec_handler = answer_at_once
    async with node(tmp_path, fake=runtime, wanted=[web]) as n:
        await n.wait_running("web", "app", "b")
        await n.wait_for(lambda: not (tmp_path / "root" / "post_start_hooks").exists())
    runtime.calls.clear()
    async with node(tmp_path, fake=runtime, wanted=[web]) as n:
        await n.wait_known("web", lambda known: any("taken up" in line.what for line in known.timeline))
        await asyncio.sleep(60.0)
        assert not runtime.called("ExecSync"), "a hook that has ended is not run again"


async def answer_at_once(_container: FakeContainer, _command: list[str]) -> pb.ExecSyncResponse:
    return pb.ExecSyncResponse()


async def test_what_runs_and_is_not_desired_is_ended_within_a_second(tmp_path: Path, runtime: MemoryRuntime) -> None:
    async with node(tmp_path, fake=runtime, wanted=[WEB]) as n:
        await n.wait_running("web")
    async with node(tmp_path, fake=runtime) as n:
        await n.wait_for(lambda: not runtime.state.sandboxes)
        assert [call.request.timeout for call in runtime.called("StopContainer")] == [2], "the least a container gets"
        await n.wait_gone("web")
        [killing] = [event for event in n.recorder.events if event.reason == "Killing"]
        assert (killing.type, killing.message) == ("Normal", "Stopping container app")
        assert killing.pod == pod_ref(WEB) and killing.field_path == "spec.containers{app}"


async def test_what_is_not_desired_any_more_still_gets_its_pre_stop_hook(
    tmp_path: Path, runtime: MemoryRuntime
) -> None:
    hook = {"preStop": {"exec": {"command": ["say", "goodbye"]}}}
    web = named(pod(container(lifecycle=hook), terminationGracePeriodSeconds=1), "web")
    async with node(tmp_path, fake=runtime, wanted=[web]) as n:
        await n.wait_running("web")
    async with node(tmp_path, fake=runtime) as n:
        await n.wait_for(lambda: not runtime.state.sandboxes)
    asked = [call.request.cmd for call in runtime.called("ExecSync")]
    assert asked == [["say", "goodbye"]]
    order = [call.method for call in runtime.calls if call.method in ("ExecSync", "StopContainer")]
    assert order == ["ExecSync", "StopContainer"]


async def test_nothing_is_killed_before_all_sources_have_reported(tmp_path: Path, runtime: MemoryRuntime) -> None:
    async with node(tmp_path, fake=runtime, wanted=[WEB, named(WEB, "other")]) as n:
        await n.wait_running("web")
        await n.wait_running("other")
    async with node(tmp_path, fake=runtime, wanted=[WEB], sources_ready=False) as n:
        await n.wait_life("web", lambda life: True)
        await asyncio.sleep(60.0)
        assert len(n.running("other")) == 1
        n.unwant("web")
        await asyncio.sleep(60.0)
        assert len(n.running("web")) == 1
        n.want(WEB)
        n.sources_ready = True
        n.publish()
        await n.wait_gone("other")
        assert len(n.running("web")) == 1


async def test_a_manifest_changed_while_the_agent_was_down_replaces_the_old_pod(
    tmp_path: Path, runtime: MemoryRuntime
) -> None:
    old, new = static(WEB, "web", "uid-old"), static(WEB, "web", "uid-new")
    async with node(tmp_path, fake=runtime, wanted=[old]) as n:
        await n.wait_running("web")
    async with node(tmp_path, fake=runtime, wanted=[new]) as n:
        await n.wait_for(lambda: {c.sandbox.config.metadata.uid for c in n.running("web")} == {"uid-new"})
    made = [call for call in runtime.called("RunPodSandbox") if call.request.config.metadata.uid == "uid-new"]
    removed = next(i for i, call in enumerate(runtime.calls) if call.method == "StopContainer")
    assert runtime.calls.index(made[0]) > removed, "the old one was stopped before the new one was made"


async def test_a_pod_that_cannot_be_read_after_a_restart_is_not_made_again(
    tmp_path: Path, runtime: MemoryRuntime
) -> None:
    async with node(tmp_path, fake=runtime, wanted=[WEB]) as n:
        await n.wait_running("web")
    fault = runtime.inject(RuntimeFault("ContainerStatus", pod="web", code=CriCode.INTERNAL, message="boom"))
    async with node(tmp_path, fake=runtime, wanted=[WEB, named(WEB, "other")]) as n:
        await n.wait_running("other")
        known = await n.wait_known("web", lambda known: bool(known.waits))
        assert known.waits[0].detail == "what it has of the pod is not known yet"
        runtime.withdraw(fault)
        await n.wait_known("web", lambda known: any("taken up" in line.what for line in known.timeline))
        await asyncio.sleep(60.0)
        assert len(n.running("web")) == 1
    assert len([c for c in runtime.called("RunPodSandbox") if c.pod == "web"]) == 1


async def test_a_resize_that_was_under_way_goes_on_after_a_restart(tmp_path: Path, runtime: MemoryRuntime) -> None:
    def sized(cpu: str) -> Pod:
        return named(pod(container(resources={"requests": {"cpu": cpu}, "limits": {"cpu": cpu}})), "web")

    async with node(tmp_path, fake=runtime, wanted=[sized("200m")]) as n:
        await n.wait_running("web")
    runtime.calls.clear()
    async with node(tmp_path, fake=runtime, sources_ready=False) as n:
        change = SizeChange(size_of(sized("200m")), n.clock.wall())
        n.wanted[PodUID("uid-web")] = RosterPod(sized("400m"), "api", 1.0, change=change)
        n.sources_ready = True
        n.publish()
        await n.wait_for(lambda: bool(runtime.called("UpdateContainerResources")))
        assert [call.request.linux.cpu_quota for call in runtime.called("UpdateContainerResources")] == [40_000]
        await n.wait_life("web", lambda life: life.resize is None)
        assert len(n.containers("web")) == 1


async def test_a_crash_of_the_agent_at_any_moment_starts_nothing_twice(tmp_path: Path, runtime: MemoryRuntime) -> None:
    """Each agent comes a few iterations of the event loop further than the one before, until one has started all pods."""
    pods = [named(WEB, f"web-{number}") for number in range(5)]
    for iterations in range(0, 1000, 3):
        async with node(tmp_path, fake=runtime, wanted=pods) as n:
            for _ in range(iterations):
                await asyncio.sleep(0)
            if all(n.running(f"web-{number}") for number in range(5)):
                break
    async with node(tmp_path, fake=runtime, wanted=pods) as n:
        for number in range(5):
            await n.wait_running(f"web-{number}")
        await asyncio.sleep(60.0)
        assert [len(n.running(f"web-{number}")) for number in range(5)] == [1] * 5
        await asyncio.sleep(0)
        assert isinstance(n, Node)


# A start that is under way when the agent ends: the runtime may carry it out


async def restarted_while_starting(folder: Path, runtime: TimedRuntime, web: Pod) -> None:
    """End the agent, which waits a while for the start of a container, and start the next one while the runtime is still at it."""
    async with node(folder, fake=runtime, wanted=[web]) as n:
        await n.wait_for(lambda: bool(runtime.of(START)))
    async with node(folder, fake=runtime, wanted=[web]):
        await asyncio.sleep(60.0)


async def test_a_container_that_is_being_started_when_the_agent_ends_is_taken_over(tmp_path: Path) -> None:
    with timed(tmp_path, Delays(start_s=[START_LIMIT_S + 1])) as runtime:
        await restarted_while_starting(tmp_path, runtime, WEB)
        assert len(runtime.of(CREATE)) == len(runtime.of(START)) == 1
        [web] = runtime.state.containers.values()
        assert web.state == pb.CONTAINER_RUNNING


@pytest.mark.parametrize(("policy", "counts"), [("Always", ["0", "1"]), ("Never", ["0"])])
async def test_a_run_that_the_agent_has_not_seen_begin_counts(tmp_path: Path, policy: str, counts: list[str]) -> None:
    """Its process runs while the next agent wants to remove what looks as if it had never run."""
    fails = named(pod(container(command=["sh", "-c", "exit 3"]), restart=policy), "web")
    with timed(tmp_path, Delays(start_s=[START_LIMIT_S + 1, 100])) as runtime:
        await restarted_while_starting(tmp_path, runtime, fails)
        created = [call.request.config for call in runtime.called(CREATE)]
        assert [config.annotations[CONTAINER_RESTART_COUNT] for config in created] == counts


async def test_a_container_whose_start_the_runtime_has_lost_is_created_anew(
    tmp_path: Path, runtime: MemoryRuntime
) -> None:
    """Its successor is no restart."""
    runtime.inject(RuntimeFault(START, hang=True, times=1))
    async with node(tmp_path, fake=runtime, wanted=[WEB]) as n:
        await n.wait_for(lambda: bool(runtime.called(START)))
    async with node(tmp_path, fake=runtime, wanted=[WEB]) as n:
        await n.wait_running("web")
    assert len(runtime.called(REMOVE)) == 1
    created = [call.request.config for call in runtime.called(CREATE)]
    assert [config.annotations[CONTAINER_RESTART_COUNT] for config in created] == ["0", "0"]


async def test_a_restart_counts_for_the_back_off_although_its_hook_is_cut_off(
    tmp_path: Path, runtime: MemoryRuntime
) -> None:
    """The container ends with its sandbox, is started in it once more, and its first instance is removed as garbage."""
    hook = {"postStart": {"exec": {"command": ["sleep", "1000"]}}}
    is_over = asyncio.Event()

    def created() -> int:
        return len(runtime.called(CREATE))

    async def until_end(hooked: FakeContainer, _command: list[str]) -> pb.ExecSyncResponse:
        await hooked.ended.wait()
        if len(runtime.called("ExecSync")) == 2:
            await is_over.wait()  # it outlives the sandbox
        return pb.ExecSyncResponse(exit_code=137)

    runtime.exec_handler = until_end
    async with node(tmp_path, fake=runtime, wanted=[named(pod(container(lifecycle=hook)), "web")]) as n:
        await n.wait_for(lambda: len(runtime.called("ExecSync")) == 1)
        [first] = runtime.state.containers.values()
        runtime.state.end(first, 137)
        await n.wait_for(lambda: len(runtime.called("ExecSync")) == 2)
        runtime.state.remove(first)
        runtime.state.stop_sandbox(first.sandbox)
        await n.wait_for(lambda: len(runtime.called("ExecSync")) == 3)
        [third] = n.running("web")
        runtime.state.end(third, 1)
        await asyncio.sleep(9.0)
        assert created() == 3, "it is in back-off"
        await n.wait_for(lambda: len(n.running("web")) == 1)
        assert created() == 4
        is_over.set()
        runtime.state.end(n.running("web")[0], 1)
        await asyncio.sleep(1.0)

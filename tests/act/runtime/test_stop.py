"""Stopping: who ends before whom, how much of the grace period each has, and what counts as done."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from act.pods.scenes import REF, container, pod, sidecar
from act.runtime.hands import Hands, hands
from support.virtual_time import VirtualClock, VirtualLoop

from pykubelet.act.runtime.lifecycle.stop import StopTarget, restart_grace
from pykubelet.base.api.core import Container, Pod
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.waits import Wait
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.testing.cri.fake_handles import RuntimeFault
from pykubelet.testing.cri.fake_state import FakeContainer

pytestmark = pytest.mark.virtual_time

RUNNING = "cannot delete running task {}: failed precondition"
LONG = {"command": ["sh", "-c", "sleep 1000"]}
DEAF = {"command": ["sh", "-c", "trap '' TERM; sleep 1000"]}


def now() -> float:
    return asyncio.get_running_loop().time()


async def bring_up(h: Hands, of: Pod) -> dict[str, ContainerID]:
    home = await h.sandbox(of)
    every = (*of.spec.initContainers, *of.spec.containers)
    return {c.name: await h.started(of, c, home) for c in every}


def stops(h: Hands) -> list[tuple[str, int]]:
    """Calls of StopContainer: name and timeout."""
    calls = h.fake.called("StopContainer")
    return [(h.fake.state.need(c.request.container_id).config.metadata.name, c.request.timeout) for c in calls]


async def running(h: Hands) -> list[str]:
    """Names of the pod's containers that the runtime still runs."""
    every = h.fake.state.containers.values()
    return [c.config.metadata.name for c in every if c.state == pb.CONTAINER_RUNNING]


async def test_regular_containers_end_together_then_sidecars_from_the_last_to_the_first(tmp_path: Path) -> None:
    of = pod(container("a", **LONG), container("b", **LONG), init=(sidecar("s1", **LONG), sidecar("s2", **LONG)))
    async with hands(tmp_path) as h:
        await bring_up(h, of)
        await h.stopper.stop_pod(of, REF, 30, "")
        assert sorted(stops(h)[:2]) == [("a", 30), ("b", 30)]
        assert stops(h)[2:] == [("s2", 30), ("s1", 30)]
        assert [call.method for call in h.fake.calls][-1] == "StopPodSandbox"
        assert await running(h) == []


async def test_the_time_regular_containers_took_is_taken_from_the_sidecars(tmp_path: Path) -> None:
    of = pod(container("a", **LONG), init=(sidecar("s1", **LONG),))
    async with hands(tmp_path) as h:
        await bring_up(h, of)
        h.fake.inject(RuntimeFault("StopContainer", delay_s=1.1, times=1))
        await h.stopper.stop_pod(of, REF, 10, "")
        assert stops(h) == [("a", 10), ("s1", 9)], "whole seconds"


def with_hook(name: str, *command: str, of_sidecar: bool = False) -> Container:
    make = sidecar if of_sidecar else container
    return make(name, lifecycle={"preStop": {"exec": {"command": list(command)}}}, **LONG)


async def test_all_hooks_run_at_once_and_the_order_holds_for_the_signals(tmp_path: Path) -> None:
    inits = tuple(with_hook(name, "sleep", "0.2", of_sidecar=True) for name in ("s1", "s2"))
    of = pod(with_hook("a", "sleep", "0.2"), init=inits)
    async with hands(tmp_path) as h:
        await bring_up(h, of)
        await h.stopper.stop_pod(of, REF, 30, "")
        methods = [call.method for call in h.fake.calls if call.method in ("ExecSync", "StopContainer")]
        assert methods == ["ExecSync"] * 3 + ["StopContainer"] * 3
        assert [name for name, _ in stops(h)] == ["a", "s2", "s1"]


async def test_a_hook_that_hangs_costs_the_sidecars_their_order_but_not_their_end(tmp_path: Path) -> None:
    of = pod(with_hook("a", "sleep", "60"), init=(sidecar("s1", **LONG), sidecar("s2", **LONG)))
    async with hands(tmp_path) as h:
        await bring_up(h, of)
        began = now()
        await h.stopper.stop_pod(of, REF, 1, "")
        assert now() - began == pytest.approx(1.0, abs=0.01)
        assert sorted(stops(h)) == [("a", 2), ("s1", 2), ("s2", 2)]


async def test_no_container_gets_less_than_two_seconds(tmp_path: Path) -> None:
    of = pod(container("a", **LONG))
    async with hands(tmp_path) as h:
        await bring_up(h, of)
        await h.stopper.stop_pod(of, REF, 1, "")
        assert stops(h) == [("a", 2)]


async def test_each_end_is_reported(tmp_path: Path) -> None:
    of = pod(container("a", **LONG), init=(sidecar("s1", **LONG),))
    async with hands(tmp_path) as h:
        made = await bring_up(h, of)
        h.recorder.events.clear()
        target = StopTarget(of, REF, "a", made["a"])
        await h.stopper.stop_container(target, 5, "Container a failed liveness probe, will be restarted")
        await h.stopper.stop_pod(of, REF, 5, "")
        assert h.events() == [
            ("Killing", "Container a failed liveness probe, will be restarted", "spec.containers{a}"),
            ("Killing", "Stopping container s1", "spec.initContainers{s1}"),
        ]


async def test_what_has_ended_already_is_not_stopped_again(tmp_path: Path) -> None:
    of = pod(container("a", **LONG), container("b", **LONG))
    async with hands(tmp_path) as h:
        made = await bring_up(h, of)
        h.fake.state.end(h.fake.state.need(made["a"]), 0)
        await h.stopper.stop_pod(of, REF, 5, "")
        assert stops(h) == [("b", 5)]


async def test_what_is_gone_already_is_fine(tmp_path: Path) -> None:
    of = pod(container("a", **LONG))
    async with hands(tmp_path) as h:
        await bring_up(h, of)
        h.fake.inject(RuntimeFault("StopContainer", code=CriCode.NOT_FOUND, after=True))
        h.fake.inject(RuntimeFault("StopPodSandbox", code=CriCode.NOT_FOUND, after=True))
        await h.stopper.stop_pod(of, REF, 5, "")
        await h.stopper.remove_container(ContainerID("unknown"))
        await h.stopper.remove_pod(REF)
        assert not h.fake.state.sandboxes


async def test_a_container_that_cannot_be_stopped_is_an_error_but_the_others_are_stopped(tmp_path: Path) -> None:
    of = pod(container("a", **LONG), container("b", **LONG))
    async with hands(tmp_path) as h:
        await bring_up(h, of)
        h.fake.inject(RuntimeFault("StopContainer", code=CriCode.UNKNOWN, message="in use", times=1))
        with pytest.raises(CriError, match="in use"):
            await h.stopper.stop_pod(of, REF, 5, "")
        assert [call.method for call in h.fake.calls][-1] == "StopPodSandbox", "which ends what is left"
        assert await running(h) == []


async def test_all_that_could_not_be_stopped_is_reported_in_the_words_people_search_for(tmp_path: Path) -> None:
    of = pod(container("a", **LONG))
    async with hands(tmp_path) as h:
        await bring_up(h, of)
        h.fake.inject(RuntimeFault("StopPodSandbox", code=CriCode.UNKNOWN, message='no "cni"', times=2))
        with pytest.raises(CriError) as of_sandbox:
            await h.stopper.stop_pod(of, REF, 5, "")
        box = """failed to "KillPodSandbox" for "uid-1" with KillPodSandboxError: """
        box += r'"rpc error: code = Unknown desc = no \"cni\""'
        assert str(of_sandbox.value) == box
        h.fake.inject(RuntimeFault("StopContainer", code=CriCode.UNKNOWN, message="in use", times=1))
        await bring_up(h, of)
        with pytest.raises(CriError) as both:
            await h.stopper.stop_pod(of, REF, 5, "")
        app = 'failed to "KillContainer" for "a" with KillContainerError: "rpc error: code = Unknown desc = in use"'
        assert str(both.value) == f"[{app}, {box}]"


async def test_a_sidecar_waits_for_a_hanging_container_only_as_long_as_the_grace_period(tmp_path: Path) -> None:
    of = pod(container("a", **LONG), init=(sidecar("s1", **LONG),))
    async with hands(tmp_path) as h:
        await bring_up(h, of)
        h.fake.inject(RuntimeFault("StopContainer", delay_s=2.5, times=1))
        await h.stopper.stop_pod(of, REF, 1, "")
        assert stops(h) == [("a", 2), ("s1", 2)]
        assert [call.method for call in h.fake.calls][-1] == "StopPodSandbox"


@pytest.mark.parametrize("grace_s", [0, -5])
async def test_without_time_there_is_neither_hook_nor_order(grace_s: int, tmp_path: Path) -> None:
    hook = {"preStop": {"exec": {"command": ["true"]}}}
    of = pod(container("a", lifecycle=hook, **LONG), init=(sidecar("s1", **LONG),))
    async with hands(tmp_path) as h:
        await bring_up(h, of)
        await h.stopper.stop_pod(of, REF, grace_s, "")
        assert not h.fake.called("ExecSync")
        assert sorted(stops(h)) == [("a", 2), ("s1", 2)]


@pytest.mark.parametrize(
    ("own", "of_probe", "deletion", "expected"),
    [
        (30, None, None, 30),
        (30, 5, None, 5),
        (0, None, None, 0),
        (1, None, None, 1),
        (-3, None, None, -3),
        (None, 5, None, 2),
        (30, 5, 7, 7),
        (30, None, 0, 0),
    ],
)
def test_whose_grace_period_holds_for_one_container(
    own: int | None, of_probe: int | None, deletion: int | None, expected: int
) -> None:
    probe = {"exec": {"command": ["true"]}, "terminationGracePeriodSeconds": of_probe}
    of = pod(
        container("a", livenessProbe=probe),
        terminationGracePeriodSeconds=own,
        metadata={"deletionGracePeriodSeconds": deletion} if deletion is not None else None,
    )
    assert restart_grace(of, of.spec.containers[0].livenessProbe) == expected


async def test_removing_a_pod_takes_all_its_sandboxes_and_containers(tmp_path: Path) -> None:
    of = pod(container("a", **LONG))
    async with hands(tmp_path) as h:
        await bring_up(h, of)
        second = await h.sandboxes.create(of, 1, "/kubepods/x")
        assert len(h.fake.state.sandboxes) == 2, second
        await h.stopper.stop_pod(of, REF, 5, "")
        await h.stopper.remove_pod(REF)
        assert not h.fake.state.sandboxes
        assert not h.fake.state.containers


async def test_another_pod_is_left_alone(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        await bring_up(h, pod(container("a", **LONG)))
        other = pod(container("b", **LONG), metadata={"name": "other", "uid": "uid-2"})
        await bring_up(h, other)
        await h.stopper.stop_pod(pod(), REF, 5, "")
        await h.stopper.remove_pod(REF)
        assert [c.config.metadata.name for c in h.fake.state.containers.values()] == ["b"]
        assert h.fake.container("b").state == pb.CONTAINER_RUNNING


# preStop


def hooked(*command: str) -> Pod:
    return pod(container("a", lifecycle={"preStop": {"exec": {"command": list(command)}}}, **LONG))


async def test_the_hook_runs_before_the_stop_and_its_time_counts(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        of = hooked("sh", "-c", "sleep 1.1")
        await bring_up(h, of)
        await h.stopper.stop_pod(of, REF, 10, "")
        methods = [call.method for call in h.fake.calls if call.method in ("ExecSync", "StopContainer")]
        assert methods == ["ExecSync", "StopContainer"]
        assert stops(h) == [("a", 9)]
        assert "FailedPreStopHook" not in h.reasons()


async def test_a_hook_that_fails_is_reported_and_does_not_save_the_container(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        of = hooked("false")
        await bring_up(h, of)
        await h.stopper.stop_pod(of, REF, 10, "")
        assert ("FailedPreStopHook", "PreStopHook failed", "spec.containers{a}") in h.events()
        assert await running(h) == []


async def test_a_hook_that_hangs_is_ended_with_the_grace_period(tmp_path: Path) -> None:
    async def hang(_: FakeContainer, __: list[str]) -> pb.ExecSyncResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with hands(tmp_path) as h:
        of = hooked("hang")
        await bring_up(h, of)
        h.fake.exec_handler = hang
        began = now()
        await h.stopper.stop_pod(of, REF, 1, "")
        assert now() - began == pytest.approx(1.0, abs=0.01)
        assert "FailedPreStopHook" in h.reasons()
        assert stops(h) == [("a", 2)]


async def test_a_hook_that_hangs_goes_on_until_its_container_has_ended(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def hang(_: FakeContainer, __: list[str]) -> pb.ExecSyncResponse:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async with hands(tmp_path) as h:
        of = hooked("hang")
        await bring_up(h, of)
        h.fake.exec_handler = hang
        h.fake.inject(RuntimeFault("StopContainer", delay_s=0.3))
        _, took_s = await asyncio.gather(h.stopper.stop_pod(of, REF, 20, ""), _seconds_until(ended))
        assert took_s == pytest.approx(20.3, abs=0.01), "not at the end of its 20 s"


class SlowClock(VirtualClock):
    """Shows less than the time that has passed, as if each timer fired before its time."""

    def monotonic(self) -> float:
        return super().monotonic() / 2


def slow_clock() -> SlowClock:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return SlowClock(loop, loop.now)


async def test_a_hook_that_hangs_leaves_no_time_to_wait_for_other_containers(tmp_path: Path) -> None:
    of, recorded = pod(container("a", **LONG), init=(with_hook("s1", "sleep", "60", of_sidecar=True),)), WaitRecorder()
    async with hands(tmp_path, slow_clock()) as h:
        made = await bring_up(h, of)
        target = StopTarget(of, REF, "s1", made["s1"])
        await h.stopper.stop_container(target, 1, waits=recorded)
        assert stops(h) == [("s1", 2)]
        assert [wait.what for wait in recorded.waits] == ["preStop hook", "container to end"]


async def _seconds_until(event: asyncio.Event) -> float:
    began = now()
    await event.wait()
    return now() - began


async def test_without_grace_there_is_no_hook(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        of = hooked("true")
        made = await bring_up(h, of)
        await h.stopper.stop_container(StopTarget(of, REF, "a", made["a"]), 0)
        assert not h.fake.called("ExecSync")


async def test_a_container_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        of = pod(container("a", **DEAF))
        made = await bring_up(h, of)
        await h.stopper.stop_pod(of, REF, 1, "")
        assert h.fake.state.need(made["a"]).exit_code == 137


class WaitRecorder:
    """Keeps the waits that it gets."""

    def __init__(self) -> None:
        self.waits: list[Wait] = []

    def waiting(self, wait: Wait) -> AbstractContextManager[None]:
        self.waits.append(wait)
        return nullcontext()


async def test_a_process_that_the_runtime_takes_for_ended_is_ended_before_the_removal(tmp_path: Path) -> None:
    of, recorded = pod(container("a"), container("b"), container("c")), WaitRecorder()
    async with hands(tmp_path) as h:
        ids = await bring_up(h, of)
        remains = await h.stopper.stop_pod(of, REF, 0, "")
        for name in ("a", "b"):
            h.fake.container(name).task_left = True
        await h.stopper.remove_pod(REF, remains, recorded)
        assert h.fake.state.containers == {}
        assert h.fake.state.sandboxes == {}
        ended = [call.request.container_id for call in h.fake.called("Delete")]
        assert ended == [ids["a"], ids["b"]]
        assert [(w.what, w.subject, w.reason) for w in recorded.waits] == [
            ("process to end", ids[name], "FailedPrecondition") for name in ("a", "b")
        ]


async def test_a_process_that_cannot_be_ended_is_an_error(tmp_path: Path) -> None:
    of = pod(container("a"))
    async with hands(tmp_path) as h:
        ids = await bring_up(h, of)
        h.fake.container("a").task_left = True
        h.fake.inject(RuntimeFault("Delete", code=CriCode.UNKNOWN, message="no", times=1))
        with pytest.raises(CriError, match="no"):
            await h.stopper.remove_container(ids["a"])
        h.fake.inject(
            RuntimeFault("RemoveContainer", code=CriCode.FAILED_PRECONDITION, message=RUNNING.format(ids["a"]))
        )
        with pytest.raises(CriError, match="cannot delete running task"):
            await h.stopper.remove_container(ids["a"])
        assert len(h.fake.called("Delete")) == 2, "it is ended once, and not again and again"


CHANGING = 'failed to set removing state for container "a": container is '


@pytest.mark.parametrize("state", ["already in removing state", "still running, to stop first"])
async def test_a_container_that_another_call_removes_is_awaited(state: str, tmp_path: Path) -> None:
    """Its name and its log are in use until it is gone, and the next instance would count one restart too many."""
    of = pod(container("a"))
    async with hands(tmp_path) as h:
        ids = await bring_up(h, of)
        h.fake.inject(RuntimeFault("RemoveContainer", code=CriCode.UNKNOWN, message=CHANGING + state, times=3))
        await h.stopper.remove_container(ids["a"])
        assert ids["a"] not in h.fake.state.containers


async def test_a_removal_by_another_call_that_does_not_end_is_an_error(tmp_path: Path) -> None:
    of = pod(container("a"))
    async with hands(tmp_path) as h:
        ids = await bring_up(h, of)
        message = CHANGING + "already in removing state"
        h.fake.inject(RuntimeFault("RemoveContainer", code=CriCode.UNKNOWN, message=message))
        begun = now()
        with pytest.raises(CriError, match="already in removing state"):
            await h.stopper.remove_container(ids["a"])
        assert now() - begun < 5

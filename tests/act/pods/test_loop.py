"""Whole lives of pods on a fake runtime: they come, crash, change and go, and do not disturb each other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from act.pods.node import Node, named, node, static
from act.pods.scenes import IMAGE, container, pod, sidecar

from pykubelet.act.images.model import ImageError, ImageRequest
from pykubelet.act.resources.model import CgroupError
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONTAINER_RESTART_COUNT
from pykubelet.base.model.lifecycle import KillReason, PodLifecycle, Stage
from pykubelet.base.model.node import RuntimeReady
from pykubelet.base.model.roster import Rejection
from pykubelet.edges.cri.errors import CriCode
from pykubelet.edges.cri.fake import FakeRuntime, Fault

SANDBOX_CALL = "RunPodSandbox: network and pause container"
WEB = named(pod(terminationGracePeriodSeconds=1), "web")


def script(name: str, line: str) -> dict[str, object]:
    return {"name": name, "command": ["sh", "-c", line]}


def running_script(line: str, **spec: object) -> Pod:
    return pod(container("app", command=["sh", "-c", line]), terminationGracePeriodSeconds=1, **spec)


# Coming and going


async def test_a_pod_comes_up_and_goes_without_a_trace(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(WEB)
        await n.wait_running("web")
        assert n.groups.pods == {"uid-web"}
        assert n.logs(WEB)
        await n.wait_for(lambda: n.log_links() == ["web_shop_app"])
        n.unwant("web")
        await n.wait_gone("web")
        assert not n.fake.state.containers
        assert not n.groups.pods
        assert not n.logs(WEB)
        assert n.log_links() == []
        story = ["Created", "Started", "Killing"]
        assert [event.reason for event in n.happenings.events if event.reason in story] == story


async def test_a_pod_can_come_back_under_the_same_uid(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        for _ in range(3):
            n.want(WEB)
            await n.wait_running("web")
            n.unwant("web")
            await n.wait_gone("web")


async def test_a_pod_that_is_wanted_again_while_it_ends_is_restarted(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(WEB)
        await n.wait_running("web")
        first = n.running("web")[0].id
        n.unwant("web")
        await n.wait_life("web", lambda life: life.stage is not Stage.SYNCING)
        n.want(WEB)
        await n.wait_for(lambda: [c.id for c in n.running("web")] not in ([], [first]))
        life = await n.wait_life("web", lambda life: life.stage is Stage.SYNCING)
        assert life.kill_reason is None
        (again,) = n.running("web")
        assert again.config.annotations[CONTAINER_RESTART_COUNT] == "1", "its logs and its last end are still there"
        n.unwant("web")
        await n.wait_gone("web")


async def test_a_pod_that_never_restarts_begins_anew_when_it_is_wanted_again_while_it_ends(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        of = pod(container(command=["sh", "-c", "sleep 100"]), restart="Never")
        n.want(named(of, "job"))
        await n.wait_running("job")
        first = n.running("job")[0].id
        n.unwant("job")
        await n.wait_life("job", lambda life: life.stage is not Stage.SYNCING)
        n.want(named(of, "job"))
        await n.wait_for(lambda: [c.id for c in n.running("job")] not in ([], [first]))
        assert n.running("job")[0].config.annotations[CONTAINER_RESTART_COUNT] == "0"


async def test_init_containers_sidecars_and_regular_ones_start_in_order_and_end_in_reverse(tmp_path: Path) -> None:
    of = pod(
        container("app", command=["sh", "-c", "sleep 100"]),
        init=(container("i1", command=["sh", "-c", "true"]), sidecar("mesh"), sidecar("log")),
        terminationGracePeriodSeconds=5,
    )
    async with node(tmp_path) as n:
        n.want(named(of, "web"))
        await n.wait_running("web", "app", "mesh", "log")
        started = [n.fake.state.need(call.request.container_id) for call in n.fake.called("StartContainer")]
        assert [c.config.metadata.name for c in started] == ["i1", "mesh", "log", "app"]
        n.unwant("web")
        await n.wait_life("web", lambda life: life.stage in (Stage.TERMINATED, Stage.FINISHED))
        names = {c.id: c.config.metadata.name for c in started}
        stopped = [names[call.request.container_id] for call in n.fake.called("StopContainer")]
        assert stopped == ["app", "log", "mesh"]


async def test_a_pod_that_completes_keeps_its_containers_until_it_is_removed(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(named(running_script("sleep 0.1; exit 3", restart="Never"), "job"))
        life = await n.wait_life("job", lambda life: life.stage is Stage.FINISHED)
        assert (life.kill_reason, life.terminal) == (KillReason.COMPLETED, True)
        assert [c.exit_code for c in n.containers("job")] == [3]
        assert not n.groups.pods
        n.unwant("job")
        await n.wait_gone("job")
        assert not n.fake.state.containers


async def test_a_container_that_ends_is_started_again_first_at_once_then_after_a_pause(tmp_path: Path) -> None:
    async with node(tmp_path, crash=BackoffPolicy(0.5, 2.0)) as n:
        n.want(named(running_script("sleep 0.05; exit 1"), "web"))
        life = await n.wait_life("web", lambda life: "app" in life.start_errors)
        assert life.start_errors["app"].reason == "CrashLoopBackOff"
        assert (
            life.start_errors["app"].message == "back-off 500ms restarting failed container=app pod=web_shop(uid-web)"
        )
        assert len(n.containers("web")) == 2, "the first restart did not wait"
        await n.wait_for(lambda: len(n.containers("web")) == 3)
        assert n.said("BackOff") == ["Back-off restarting failed container app in pod web_shop(uid-web)"]
        counts = [c.config.annotations["io.kubernetes.container.restartCount"] for c in n.containers("web")]
        assert counts == ["0", "1", "2"]


class JumpingClock(SystemClock):
    """`jump_s`: what somebody has done to the wall clock."""

    jump_s = 0.0

    def wall(self) -> float:
        return super().wall() + self.jump_s


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
async def test_a_wall_clock_that_jumps_changes_no_back_off_deadline_or_grace(jump_s: float, tmp_path: Path) -> None:
    """The rooms at work: a crash loop, a deadline and a stop under way while the clock is set."""
    clock = JumpingClock()
    deaf = container("app", command=["sh", "-c", "trap '' TERM; sleep 1000"])
    async with node(tmp_path, crash=BackoffPolicy(1.0, 60.0), clock=clock) as n:
        n.want(named(running_script("sleep 0.05; exit 1"), "crash"))
        n.want(named(pod(container("app", command=["sh", "-c", "sleep 1000"]), activeDeadlineSeconds=3), "deadline"))
        n.want(named(pod(deaf, terminationGracePeriodSeconds=3), "deaf"))
        await n.wait_running("deadline", "app")
        await n.wait_running("deaf", "app")
        began = clock.monotonic()
        n.unwant("deaf")
        await n.wait_life("crash", lambda life: "app" in life.start_errors)
        held_at = clock.monotonic()
        clock.jump_s = jump_s
        await n.wait_for(lambda: len(n.containers("crash")) == 3)
        assert 0.5 < clock.monotonic() - held_at < 5
        assert "deadline" in {life.ref.name for life in n.lifecycles.get().pods.values() if life.kill_reason is None}
        await n.wait_life("deadline", lambda life: life.kill_reason is KillReason.DEADLINE)
        await n.wait_gone("deaf")
        assert 2.5 < clock.monotonic() - began < 15


async def test_a_dead_sandbox_is_replaced(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(WEB)
        await n.wait_running("web")
        await asyncio.sleep(0.1)
        n.fake.state.stop_sandbox(n.running("web")[0].sandbox)
        await n.wait_running("web")
        assert n.running("web")[0].sandbox.config.metadata.attempt == 1
        assert n.said("SandboxChanged") == ["Pod sandbox changed, it will be killed and re-created."]


async def test_a_rejected_pod_starts_nothing_and_says_why(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(WEB, rejection=Rejection("OutOfcpu", "Node didn't have enough resource: cpu"))
        life = await n.wait_life("web", lambda life: life.stage is Stage.FINISHED)
        assert life.override is not None
        assert (life.override.phase, life.override.reason) == ("Failed", "OutOfcpu")
        assert life.override.message == "Pod was rejected: Node didn't have enough resource: cpu"
        assert not n.fake.called("RunPodSandbox")
        n.unwant("web")
        await n.wait_gone("web")


async def test_a_pod_removed_in_the_middle_of_its_start_leaves_nothing(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.fake.inject(Fault("RunPodSandbox", delay_s=0.2, after=True))
        n.want(WEB)
        await n.wait_for(lambda: bool(n.fake.called("RunPodSandbox")))
        n.unwant("web")
        await n.wait_gone("web")
        await asyncio.sleep(0.4)
        assert not n.sandboxes("web")


async def test_a_directory_of_log_links_that_was_removed_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(WEB)
        await n.wait_running("web")
        n.remove_log_links()
        n.unwant("web")
        await n.wait_gone("web")


async def test_many_pods_come_and_go_at_once(tmp_path: Path) -> None:
    names = [f"web-{number}" for number in range(12)]
    async with node(tmp_path) as n:
        n.want(*(named(WEB, name) for name in names))
        for name in names:
            await n.wait_running(name)
        assert len(n.fake.called("RunPodSandbox")) == len(n.fake.called("StartContainer")) == 12
        n.unwant(*names)
        await n.wait_gone(*names)
        assert not n.fake.state.containers


# One pod does not hurt another


async def test_a_sandbox_that_hangs_for_one_pod_delays_no_other(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.fake.inject(Fault("RunPodSandbox", pod="stuck", hang=True))
        n.want(named(WEB, "stuck"), WEB)
        await n.wait_running("web", within_s=2.0)
        told = [("sandbox", "container runtime")]
        await n.wait_life("stuck", lambda life: [(wait.what, wait.owner) for wait in life.waits] == told)
        n.unwant("stuck")
        await n.wait_gone("stuck", within_s=3.0)


async def test_a_post_start_hook_that_hangs_is_named_and_its_container_is_told_as_starting(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.fake.inject(Fault("ExecSync", pod="slow", hang=True))
        hook = {"postStart": {"exec": {"command": ["wait", "long"]}}}
        n.want(named(pod(container(lifecycle=hook)), "slow"), WEB)
        await n.wait_running("web", within_s=2.0)
        life = await n.wait_life("slow", lambda life: any(w.what == "postStart hook" for w in life.waits))
        assert [(w.what, w.owner, w.subject, w.detail) for w in life.waits] == [
            ("postStart hook", "act/runtime", "app", "command: wait long")
        ]
        assert life.post_starting == {"app"}
        n.unwant("slow")
        await n.wait_gone("slow", within_s=3.0)


async def test_an_image_that_cannot_be_had_is_told_before_the_sandbox_is_there(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.fake.inject(Fault("RunPodSandbox", pod="web", hang=True))
        n.images.missing[IMAGE] = ImageError("ErrImagePull", "no such image", None)
        n.want(WEB)
        told = [("container start", "app", "ErrImagePull", "no such image"), ("sandbox", "", "", SANDBOX_CALL)]

        def all_told(life: PodLifecycle) -> bool:
            return [(w.what, w.subject, w.reason, w.detail) for w in life.waits] == told

        await n.wait_life("web", all_told)
        n.unwant("web")
        await n.wait_gone("web", within_s=3.0)


async def test_volumes_that_hang_for_one_pod_delay_no_other(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.volumes.stuck.add("stuck")
        n.want(named(WEB, "stuck"), WEB)
        await n.wait_running("web", within_s=2.0)
        await n.wait_life("stuck", lambda life: [wait.what for wait in life.waits] == ["volumes"])
        n.volumes.stuck.clear()
        n.volumes.look()
        await n.wait_running("stuck")


async def test_a_stop_that_hangs_for_one_pod_delays_no_other(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        fault = n.fake.inject(Fault("StopPodSandbox", pod="stuck", hang=True))
        n.want(named(WEB, "stuck"), WEB)
        await n.wait_running("stuck")
        await n.wait_running("web")
        n.unwant("stuck", "web")
        await n.wait_gone("web", within_s=3.0)
        assert n.life("stuck") is not None
        assert fault.met == 1


async def test_a_bug_in_one_pods_work_is_told_and_tried_again_while_others_go_on(tmp_path: Path) -> None:
    bugs = [RuntimeError("a bug")]

    def raises(request: ImageRequest) -> None:
        if request.pod.name == "buggy" and bugs:
            raise bugs.pop()

    async with node(tmp_path) as n:
        n.images.hook = raises
        n.want(named(WEB, "buggy"), WEB)
        await n.wait_running("web", within_s=2.0)
        await n.wait_running("buggy")
        assert n.said("FailedSync", "buggy") == ["internal error in sync: RuntimeError('a bug')"]
        assert not n.said("FailedSync", "web")


async def test_a_bug_while_a_pod_is_stopped_is_told_and_tried_again(tmp_path: Path) -> None:
    class Broken(set[PodUID]):
        def __contains__(self, uid: object) -> bool:
            self.clear()
            n.groups.busy = set()
            raise RuntimeError("a bug")

    async with node(tmp_path) as n:
        n.want(WEB)
        await n.wait_running("web")
        n.groups.busy = Broken()
        n.unwant("web")
        await n.wait_gone("web")
        assert n.said("FailedSync", "web") == ["internal error in clean-up: RuntimeError('a bug')"]


async def test_a_bug_in_a_pods_decisions_ends_its_actor_alone_and_the_pod_starts_afresh(tmp_path: Path) -> None:
    class Poison(dict[str, str]):
        """Annotations that cannot be looked into, once."""

        def get(self, *_: object) -> str:
            n.wanted[PodUID("uid-buggy")] = healthy
            raise RuntimeError("a bug")

    async with node(tmp_path) as n:
        n.want(WEB, named(WEB, "buggy"))
        await n.wait_running("web")
        await n.wait_running("buggy")
        healthy = n.wanted[PodUID("uid-buggy")]
        await asyncio.sleep(0.1)
        view = n.observed.get().pods[PodUID("uid-buggy")].containers[0]
        object.__setattr__(view, "annotations", Poison())
        n.want(WEB)
        n.want(named(pod(metadata={"labels": {"a": "b"}}), "buggy"))
        await n.wait_for(lambda: bool(n.said("FailedSync", "buggy")))
        assert n.said("FailedSync", "buggy") == ["internal error: RuntimeError('a bug')"]
        object.__setattr__(view, "annotations", {})
        await n.wait_life("buggy", lambda life: any("taken up" in line.what for line in life.story))
        assert len(n.running("buggy")) == 1
        assert len(n.fake.called("RunPodSandbox")) == 2


# Things that fail for a while


async def test_a_sandbox_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.fake.inject(Fault("RunPodSandbox", code=CriCode.UNKNOWN, message="no network", times=1))
        n.want(WEB)
        await n.wait_running("web")
        message = "Failed to create pod sandbox: rpc error: code = Unknown desc = no network"
        assert n.said("FailedCreatePodSandBox") == [message]
        assert not n.life("web").start_errors  # type: ignore[union-attr]


async def test_a_name_that_the_runtime_still_holds_is_passed_over(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.fake.inject(Fault("RunPodSandbox", code=CriCode.DEADLINE_EXCEEDED, after=True, times=1))
        n.fake.state.reserved["web_shop_uid-web_0"] = "half-made"
        n.want(WEB)
        await n.wait_running("web")
        running = n.running("web")
        assert len(running) == 1
        assert running[0].sandbox.config.metadata.attempt > 0


async def test_an_answer_that_was_lost_does_not_start_anything_twice(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        for method in ("RunPodSandbox", "StartContainer"):
            n.fake.inject(Fault(method, code=CriCode.DEADLINE_EXCEEDED, message="late", after=True, times=1))
        n.want(WEB)
        await n.wait_running("web")
        await n.wait_for(lambda: not n.life("web").start_errors)  # type: ignore[union-attr]
        assert len(n.running("web")) == 1
        assert [s.ready for s in n.fake.state.sandboxes.values()].count(True) == 1


async def test_an_image_that_cannot_be_had_holds_only_its_container(tmp_path: Path) -> None:
    of = pod(container("a"), container("b", image="nowhere:1"), terminationGracePeriodSeconds=1)
    async with node(tmp_path) as n:
        n.images.missing["nowhere:1"] = ImageError("ErrImagePull", "not found", None)
        n.want(named(of, "web"))
        await n.wait_running("web", "a")
        life = await n.wait_life("web", lambda life: "b" in life.start_errors)
        assert (life.start_errors["b"].reason, life.start_errors["b"].message) == ("ErrImagePull", "not found")
        assert [wait.subject for wait in life.waits] == ["b"]
        n.unwant("web")
        await n.wait_gone("web", within_s=3.0)


async def test_a_slow_image_is_asked_for_once_whatever_else_happens(tmp_path: Path) -> None:
    gate = asyncio.Event()
    of = pod(container("a"), container("b", image="slow:1"), terminationGracePeriodSeconds=1)
    async with node(tmp_path) as n:
        n.images.hook = lambda request: gate.wait() if request.image == "slow:1" else None
        n.want(named(of, "web"))
        await n.wait_running("web", "a")
        await n.wait_life("web", lambda life: [wait.subject for wait in life.waits] == ["b"])
        n.fake.state.end(n.running("web")[0], 1)
        await n.wait_for(lambda: len(n.containers("web")) == 2)  # a was started again meanwhile
        gate.set()
        await n.wait_running("web", "a", "b")
        assert n.images.asked.count("slow:1") == 1


async def test_a_cgroup_that_cannot_be_made_is_told_and_tried_again(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.groups.broken["web"] = CgroupError(PodUID("uid-web"), "read-only file system")
        n.want(WEB)
        await n.wait_for(lambda: bool(n.said("FailedCreatePodContainer")))
        assert n.said("FailedCreatePodContainer")[0] == "unable to ensure pod container exists: read-only file system"
        assert not n.fake.called("RunPodSandbox")
        n.groups.broken.clear()
        await n.wait_running("web")


async def test_a_cgroup_in_use_delays_the_end_of_the_pod(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(WEB)
        await n.wait_running("web")
        n.groups.busy.add(PodUID("uid-web"))
        n.unwant("web")
        busy = "the pod's cgroup is still in use"
        await n.wait_life("web", lambda life: busy in [wait.detail for wait in life.waits])
        n.groups.busy.clear()
        await n.wait_gone("web")


async def test_nothing_is_started_while_the_runtime_or_its_network_is_not_ready(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        well = n.runtime.get()
        n.runtime.publish(RuntimeReady(checked=True, runtime_error="", network_error="cni plugin not initialized"))
        n.want(WEB, named(pod(hostNetwork=True, terminationGracePeriodSeconds=1), "host"))
        await n.wait_running("host")
        assert not n.running("web")
        assert n.said("NetworkNotReady", "web") == ["network is not ready: cni plugin not initialized"]
        n.runtime.publish(well)
        await n.wait_running("web")


async def test_a_runtime_that_restarts_loses_no_pod_and_starts_nothing_twice(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(WEB)
        await n.wait_running("web")
        first = n.running("web")[0].id
        await n.fake.stop()
        n.want(named(WEB, "new"))
        await asyncio.sleep(0.3)
        await n.fake.start()
        await n.wait_running("new", within_s=15)
        assert [c.id for c in n.containers("web")] == [first]
        assert len(n.sandboxes("web")) == 1


# Static pods of one name, orphans, and the restart of the agent


async def test_the_older_static_pod_of_a_name_goes_first(tmp_path: Path) -> None:
    old = static(running_script("trap '' TERM; sleep 1000"), "web", "uid-old")
    new = static(WEB, "web", "uid-new")
    async with node(tmp_path) as n:
        n.want(old)
        await n.wait_running("web")
        n.wanted.clear()
        n.want(new)
        await n.wait_life("web", lambda life: life.ref.uid == "uid-new" and bool(life.waits))
        waits = n.lifecycles.get().pods[PodUID("uid-new")].waits
        assert waits[0].what == "older pod of the same name"
        assert waits[0].detail == "the older pod web_shop(uid-old) must end first"
        assert set(n.sandboxes("web")) == {"uid-old"}
        await n.wait_for(lambda: {c.sandbox.config.metadata.uid for c in n.running("web")} == {"uid-new"})
        assert "uid-old" not in n.groups.pods


@pytest.fixture
async def runtime(tmp_path: Path) -> object:
    fake = FakeRuntime(str(tmp_path / "cri.sock"))
    fake.add_image(IMAGE)
    await fake.start()
    yield fake
    await fake.stop()


async def test_a_restarted_agent_takes_over_what_runs(tmp_path: Path, runtime: FakeRuntime) -> None:
    pods = [named(WEB, f"web-{number}") for number in range(4)]
    async with node(tmp_path, fake=runtime, wanted=pods) as n:
        for number in range(4):
            await n.wait_running(f"web-{number}")
    before = {c.id for c in runtime.state.containers.values()}
    runtime.calls.clear()
    async with node(tmp_path, fake=runtime, wanted=pods) as n:
        for number in range(4):
            await n.wait_life(f"web-{number}", lambda life: any("taken up" in line.what for line in life.story))
        await asyncio.sleep(0.3)
        assert {c.id for c in runtime.state.containers.values()} == before
        assert len(n.running("web-0")) == 1
    touching = {"RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox"}
    assert not touching & {call.method for call in runtime.calls}


async def test_what_runs_and_nobody_wants_is_ended_within_a_second(tmp_path: Path, runtime: FakeRuntime) -> None:
    async with node(tmp_path, fake=runtime, wanted=[WEB]) as n:
        await n.wait_running("web")
    async with node(tmp_path, fake=runtime) as n:
        await n.wait_for(lambda: not runtime.state.sandboxes)
        assert [call.request.timeout for call in runtime.called("StopContainer")] == [2], "the least a container gets"
        await n.wait_gone("web")


async def test_nothing_is_killed_before_all_sources_have_reported(tmp_path: Path, runtime: FakeRuntime) -> None:
    async with node(tmp_path, fake=runtime, wanted=[WEB, named(WEB, "other")]) as n:
        await n.wait_running("web")
        await n.wait_running("other")
    async with node(tmp_path, fake=runtime, wanted=[WEB], sources_ready=False) as n:
        await n.wait_life("web", lambda life: True)
        await asyncio.sleep(0.3)
        assert len(n.running("other")) == 1
        n.unwant("web")
        await asyncio.sleep(0.2)
        assert len(n.running("web")) == 1
        n.want(WEB)
        n.sources_ready = True
        n.publish()
        await n.wait_gone("other")
        assert len(n.running("web")) == 1


async def test_a_manifest_changed_while_the_agent_was_down_replaces_the_old_pod(
    tmp_path: Path, runtime: FakeRuntime
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
    tmp_path: Path, runtime: FakeRuntime
) -> None:
    async with node(tmp_path, fake=runtime, wanted=[WEB]) as n:
        await n.wait_running("web")
    fault = runtime.inject(Fault("ContainerStatus", pod="web", code=CriCode.INTERNAL, message="boom"))
    async with node(tmp_path, fake=runtime, wanted=[WEB, named(WEB, "other")]) as n:
        await n.wait_running("other")
        life = await n.wait_life("web", lambda life: bool(life.waits))
        assert life.waits[0].detail == "what it has of the pod is not known yet"
        runtime.withdraw(fault)
        await n.wait_life("web", lambda life: any("taken up" in line.what for line in life.story))
        await asyncio.sleep(0.2)
        assert len(n.running("web")) == 1
    assert len([c for c in runtime.called("RunPodSandbox") if c.pod == "web"]) == 1


async def test_a_crash_of_the_agent_at_any_moment_starts_nothing_twice(tmp_path: Path, runtime: FakeRuntime) -> None:
    pods = [named(WEB, f"web-{number}") for number in range(5)]
    for pause in (0.0, 0.01, 0.02, 0.03, 0.05, 0.08):
        async with node(tmp_path, fake=runtime, wanted=pods):
            await asyncio.sleep(pause)
    async with node(tmp_path, fake=runtime, wanted=pods) as n:
        for number in range(5):
            await n.wait_running(f"web-{number}", within_s=20)
        await asyncio.sleep(0.5)
        assert [len(n.running(f"web-{number}")) for number in range(5)] == [1] * 5
        await asyncio.sleep(0)
        assert isinstance(n, Node)

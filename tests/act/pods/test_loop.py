"""Whole lives of pods on a fake runtime: they come, crash, change and go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from pathlib import Path

import pytest
from act.pods.node import WEB, Node, named, node, static
from act.pods.scenes import IMAGE, container, pod, running_script, sidecar
from support.file_calls import observed_file_calls
from support.tracing import recorded
from support.virtual_time import virtual_clock

from pykubelet.act.pods.metrics import RESTARTED, START_DURATIONS, WORK_DURATIONS
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Mailbox
from pykubelet.base.model.evictions import Evictions, NodeShutdown, PodEviction
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONTAINER_RESTART_COUNT
from pykubelet.base.model.lifecycle import KillReason, Stage
from pykubelet.base.model.observed import PodReadWanted, StopInProgress
from pykubelet.base.model.roster import Rejection, pod_ref
from pykubelet.edges.cri.errors import CriCode
from pykubelet.observe.pleg.decide import RelistPeriods
from pykubelet.testing.cri.fake_handles import RuntimeFault
from pykubelet.testing.cri.in_memory import MemoryRuntime

pytestmark = pytest.mark.virtual_time


def has_attempt(n: Node, name: str, attempt: int) -> bool:
    return [c.config.metadata.attempt for c in n.running(name)] == [attempt]


# Coming and going


async def test_a_pod_comes_up_and_goes_without_a_trace(tmp_path: Path) -> None:
    started, worked = START_DURATIONS.count(), WORK_DURATIONS.count("create")
    async with node(tmp_path) as n:
        n.want(WEB)
        await n.wait_running("web")
        await n.wait_for(lambda: START_DURATIONS.count() > started and WORK_DURATIONS.count("create") > worked)
        assert n.groups.pods == {"uid-web"}
        assert n.logs(WEB)
        await n.wait_for(lambda: n.log_links() == ["web_shop_app"])
        n.unwant("web")
        await n.wait_gone("web")
        assert not n.fake.state.containers
        assert not n.groups.pods
        assert not n.logs(WEB)
        assert n.log_links() == []
        timeline = ["Created", "Started", "Killing"]
        assert [event.reason for event in n.recorder.events if event.reason in timeline] == timeline


async def test_no_file_of_a_pod_is_touched_on_the_event_loop(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        with observed_file_calls() as calls:
            n.want(WEB)
            await n.wait_running("web")
            n.unwant("web")
            await n.wait_gone("web")
        logs = f"{tmp_path}/logs/shop_web_uid-web/app"  # where the double of the runtime writes
        assert [call for call in calls if logs not in call] == []


@pytest.mark.parametrize("source", [{"hostPath": {"path": "/etc"}}, {"emptyDir": {}}], ids=["hostPath", "emptyDir"])
async def test_a_pod_that_is_removed_waits_for_no_relist(source: dict[str, object], tmp_path: Path) -> None:
    """Its hostPath volume is in use until the runtime was read again, and there is nothing to unmount. The events of the
    ends come before the answers to the calls that end it, and so are no reason to read it."""
    volumes = [{"name": "data", **source}]
    of = static(pod(volumes=volumes, terminationGracePeriodSeconds=1), "web", "uid-1")
    async with node(tmp_path, periods=RelistPeriods(with_events_s=3600.0)) as n:
        # at the start, with the event stream, and a second later
        await n.wait_for(lambda: len(n.fake.called("ListPodSandbox")) == 3)
        n.want(of)
        await n.wait_running("web")
        n.fake.inject(RuntimeFault("StopContainer", after=True, delay_s=0.2))
        n.fake.inject(RuntimeFault("StopPodSandbox", after=True, delay_s=0.2))
        n.wanted.clear()
        n.want(static(of, "web", "uid-2"))
        await n.wait_for(lambda: {c.sandbox.config.metadata.uid for c in n.running("web")} == {"uid-2"})


async def test_a_pod_with_a_name_that_no_directory_can_have_goes_at_once(tmp_path: Path) -> None:
    name = "b" * 230
    async with node(tmp_path) as n:
        n.want(pod(metadata={"name": name, "uid": f"uid-{name}"}))
        await n.wait_for(lambda: any("file name too long" in event.message for event in n.recorder.events))
        n.unwant(name)
        await n.wait_gone(name)


async def test_the_spans_of_a_pod_contain_its_calls_to_the_runtime(tmp_path: Path) -> None:
    with recorded() as kept:
        async with node(tmp_path) as n:
            n.want(WEB)
            await n.wait_running("web")
            n.unwant("web")
            await n.wait_gone("web")
            calls = {call.method: call.traceparent for call in n.fake.calls}
    sync = kept.named("syncPod")[0]
    assert sync.attributes == {
        "k8s.pod": "shop/web",
        "k8s.pod.name": "web",
        "k8s.pod.uid": "uid-web",
        "k8s.namespace.name": "shop",
        "k8s.pod.update_type": "create",
    }
    parents = {
        "RunPodSandbox": sync,
        "StartContainer": sync,
        "StopContainer": kept.named("syncTerminatingPod")[0],
        "RemovePodSandbox": kept.named("syncTerminatedPod")[0],
    }
    for method, parent in parents.items():
        [called] = kept.named(f"runtime.v1.RuntimeService/{method}")
        assert (called.parent_id, called.context.trace_id) == (parent.context.span_id, parent.context.trace_id), method
        assert calls[method] == called.context.traceparent, "the runtime continues the trace"
        assert called.attributes["rpc.grpc.status_code"] == 0


async def test_a_failed_call_marks_its_span_and_that_of_the_pod(tmp_path: Path) -> None:
    with recorded() as kept:
        async with node(tmp_path) as n:
            n.fake.inject(RuntimeFault("CreateContainer", code=CriCode.INTERNAL, message="no disk", times=1))
            n.want(WEB)
            await n.wait_for(lambda: bool(kept.named("syncPod")))
    [call] = kept.named("runtime.v1.RuntimeService/CreateContainer")[:1]
    assert call.failure == "rpc error: code = Internal desc = no disk"
    assert call.attributes["rpc.grpc.status_code"] == 13
    assert "no disk" in (kept.named("syncPod")[0].failure or "")


async def test_a_pod_can_come_back_under_the_same_uid(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        for _ in range(3):
            n.want(WEB)
            await n.wait_running("web")
            n.unwant("web")
            await n.wait_gone("web")
        assert len(n.fake.called("RunPodSandbox")) == 3


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


class Touches(Mailbox[PodReadWanted | StopInProgress]):
    """Notes with each request to read a pod how many pods were restarted before, and the calls that the runtime had got."""

    def __init__(self, runtime: MemoryRuntime) -> None:
        super().__init__("pleg")
        self._runtime = runtime
        self.noted: list[tuple[float, int]] = []

    def post(self, item: PodReadWanted | StopInProgress) -> None:
        if isinstance(item, PodReadWanted):
            self.noted.append((RESTARTED.value(""), len(self._runtime.called("RunPodSandbox"))))
        super().post(item)


async def test_a_pod_that_is_wanted_again_is_read_after_the_end_of_its_worker(tmp_path: Path) -> None:
    """An earlier read would block it for good: its containers stay, so no relist shows a change."""
    runtime = MemoryRuntime(str(tmp_path / "cri.sock"), virtual_clock())
    runtime.add_image(IMAGE)
    runtime.start()
    touches, before = Touches(runtime), RESTARTED.value("")
    async with node(tmp_path, fake=runtime, touched=touches) as n:
        n.want(WEB)
        await n.wait_running("web")
        n.unwant("web")
        await n.wait_life("web", lambda life: life.stage is not Stage.SYNCING)
        n.want(WEB)
        await n.wait_for(lambda: len(runtime.called("RunPodSandbox")) == 2)
        assert (before + 1, 1) in touches.noted, "between the end of its worker and what the next one makes"


async def test_a_pod_that_was_away_before_it_was_read_is_restarted(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(static(pod(), "web", "web-1"))
        await n.wait_running("web")
        first = n.running("web")[0].id
        n.wanted.clear()
        restarted = RESTARTED.value("true")
        n.want(static(pod(), "web", "web-1"))  # the roster is published once, with both behind it
        await n.wait_for(lambda: [c.id for c in n.running("web")] not in ([], [first]))
        assert RESTARTED.value("true") == restarted + 1
        assert n.running("web")[0].config.annotations[CONTAINER_RESTART_COUNT] == "1"
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
    async with node(tmp_path, crash=BackoffPolicy(10.0, 300.0)) as n:
        n.want(named(running_script("sleep 0.05; exit 1"), "web"))
        life = await n.wait_life("web", lambda life: "app" in life.start_errors)
        assert life.start_errors["app"].reason == "CrashLoopBackOff"
        assert life.start_errors["app"].message == "back-off 10s restarting failed container=app pod=web_shop(uid-web)"
        assert len(n.containers("web")) == 2, "the first restart did not wait"
        began = n.clock.monotonic()
        await n.wait_for(lambda: len(n.containers("web")) == 3)
        assert n.clock.monotonic() - began == pytest.approx(10.0, abs=0.1)
        assert set(n.messages("BackOff")) == {"Back-off restarting failed container app in pod web_shop(uid-web)"}
        counts = [c.config.annotations["io.kubernetes.container.restartCount"] for c in n.containers("web")]
        assert counts == ["0", "1", "2"]


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
async def test_a_wall_clock_that_jumps_changes_no_back_off_deadline_or_grace(jump_s: float, tmp_path: Path) -> None:
    """The components at work: a crash loop, a deadline and a stop under way while the clock is set."""
    clock = virtual_clock()
    deaf = container("app", command=["sh", "-c", "trap '' TERM; sleep 1000"])
    async with node(tmp_path, crash=BackoffPolicy(60.0, 300.0), clock=clock) as n:

        async def took_s(waiting: Awaitable[object]) -> float:
            began = clock.monotonic()
            await waiting
            return clock.monotonic() - began

        n.want(named(running_script("sleep 0.05; exit 1"), "crash"))
        n.want(named(pod(container("app", command=["sh", "-c", "sleep 1000"]), activeDeadlineSeconds=30), "deadline"))
        n.want(named(pod(deaf, terminationGracePeriodSeconds=40), "deaf"))
        killed = n.wait_life("deadline", lambda life: life.kill_reason is KillReason.DEADLINE)
        async with asyncio.TaskGroup() as tasks:
            deadline = tasks.create_task(took_s(killed))
            await n.wait_running("deadline", "app")
            await n.wait_running("deaf", "app")
            n.unwant("deaf")
            deaf_gone = tasks.create_task(took_s(n.wait_gone("deaf")))
            await n.wait_life("crash", lambda life: "app" in life.start_errors)
            clock.jump_wall(jump_s)
            await n.wait_for(lambda: len(n.containers("crash")) == 3)
        _, second, third = sorted(n.containers("crash"), key=lambda c: c.created_at)[:3]
        pause_s = (third.created_at - second.finished_at) / 1e9
        assert pause_s == pytest.approx(60.0, abs=0.1), "the back-off, by the runtime's own clock"
        assert deadline.result() == pytest.approx(30.0, abs=0.1)
        assert deaf_gone.result() == pytest.approx(40.0, abs=0.1)


async def test_what_is_made_after_the_wall_clock_was_set_back_is_the_newest(tmp_path: Path) -> None:
    clock = virtual_clock()
    fake = MemoryRuntime(str(tmp_path / "cri.sock"), clock)
    fake.add_image(IMAGE)
    fake.start()
    async with node(tmp_path, fake=fake, clock=clock) as n:
        n.want(WEB, named(WEB, "other"))
        await n.wait_running("web")
        await n.wait_running("other")
        clock.jump_wall(-3600.0)
        fake.state.stop_sandbox(n.running("web")[0].sandbox)
        fake.state.end(n.running("other")[0], 1)
        for name in ("web", "other"):
            await n.wait_for(partial(has_attempt, n, name, 1))

        def made() -> list[int]:
            return [len(fake.called(method)) for method in ("RunPodSandbox", "CreateContainer")]

        # one more, never started, where the container's end is heard of before that of its sandbox
        before = made()
        assert before in ([3, 4], [3, 5])
        await asyncio.sleep(60.0)
        assert made() == before
    fake.stop()


async def test_a_dead_sandbox_is_replaced(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(WEB)
        await n.wait_running("web")
        await n.wait_seen("web")
        n.fake.state.stop_sandbox(n.running("web")[0].sandbox)
        await n.wait_running("web")
        assert n.running("web")[0].sandbox.config.metadata.attempt == 1
        assert n.messages("SandboxChanged") == ["Pod sandbox changed, it will be killed and re-created."]


async def test_a_rejected_pod_starts_nothing_and_reports_why(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(WEB, rejection=Rejection("OutOfcpu", "Node didn't have enough resource: cpu"))
        life = await n.wait_life("web", lambda life: life.stage is Stage.FINISHED)
        assert life.override is not None
        assert (life.override.phase, life.override.reason) == ("Failed", "OutOfcpu")
        assert life.override.message == "Pod was rejected: Node didn't have enough resource: cpu"
        assert not n.fake.called("RunPodSandbox")
        n.unwant("web")
        await n.wait_gone("web")


async def test_an_evicted_pod_ends_within_its_grace_and_fails_with_the_reason(tmp_path: Path) -> None:
    patient = named(pod(container("app"), terminationGracePeriodSeconds=600), "patient")
    async with node(tmp_path) as n:
        n.want(patient, WEB)
        await n.wait_running("patient")
        await n.wait_running("web")
        order = PodEviction(pod_ref(patient), "Evicted", "The node was low on resource: memory. ", 1)
        n.evictions.publish(Evictions({PodUID("uid-patient"): order}))
        life = await n.wait_life("patient", lambda life: life.stage is Stage.FINISHED)
        assert life.kill_reason is KillReason.EVICTED
        assert life.override is not None
        assert (life.override.phase, life.override.reason) == ("Failed", "Evicted")
        assert life.override.message == "The node was low on resource: memory. "
        assert [call.request.timeout for call in n.fake.called("StopContainer")] == [2], "the shortest there is"
        assert not n.running("patient") and n.running("web")


async def test_a_shutdown_ends_the_pods_that_it_names_and_those_that_start_meanwhile(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        order = PodEviction(pod_ref(WEB), "Terminated", "imminent node shutdown", 0, for_shutdown=True)
        n.shutdown.publish(NodeShutdown(active=True, pods={PodUID("uid-web"): order}))
        n.want(WEB)
        life = await n.wait_life("web", lambda life: life.stage is Stage.FINISHED)
        assert life.override is not None and life.override.reason == "Terminated"
        assert life.kill_reason is KillReason.SHUTDOWN
        assert not n.fake.called("RunPodSandbox")


async def test_a_pod_removed_in_the_middle_of_its_start_leaves_nothing(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.fake.inject(RuntimeFault("RunPodSandbox", delay_s=0.2, after=True))
        n.want(WEB)
        await n.wait_for(lambda: bool(n.fake.called("RunPodSandbox")))
        n.unwant("web")
        await n.wait_gone("web")
        await asyncio.sleep(60.0)
        assert not n.sandboxes("web")


async def test_nothing_is_listed_for_a_pod_that_starts_and_ends_as_it_should(tmp_path: Path) -> None:
    async with node(tmp_path, periods=RelistPeriods(300.0, 300.0, unknown_s=60.0)) as n:
        await n.wait_for(lambda: len(n.fake.called("ListContainers")) == 2)  # at first, and with events
        n.fake.inject(
            RuntimeFault("StopPodSandbox", delay_s=0.5)
        )  # longer than it takes to ask how the container has ended
        before = len(n.fake.calls)
        n.want(WEB)
        await n.wait_running("web")
        await n.wait_seen("web")
        await asyncio.sleep(0.2)
        n.unwant("web")
        await n.wait_gone("web")
        await asyncio.sleep(0.1)
        methods = [call.method for call in n.fake.calls[before:]]
        assert methods[-1] == "RemovePodSandbox"
        assert "ListContainers" not in methods
        assert methods.count("PodSandboxStatus") == 1
        n.want(WEB)
        await n.wait_running("web")


async def test_a_container_that_is_stopped_to_start_again_is_prepared_meanwhile(tmp_path: Path) -> None:
    async with node(tmp_path, wanted=[WEB]) as n:
        await n.wait_seen("web")
        n.fake.inject(RuntimeFault("StopContainer", delay_s=3.0))
        read = len(n.fake.called("ContainerStatus"))
        n.want(named(pod(container(image="next:1"), terminationGracePeriodSeconds=1), "web"))
        await n.wait_for(lambda: "next:1" in n.images.asked)
        assert has_attempt(n, "web", 0)
        assert [event.reason for event in n.recorder.events][-1] == "Killing"
        await n.wait_for(lambda: has_attempt(n, "web", 1))
        await n.wait_for(lambda: {c.attempt for c in n.observed.get().pods[PodUID("uid-web")].running} == {1})
        assert n.images.asked.count("next:1") == 1
        assert [event.reason for event in n.recorder.events][-4:] == ["Killing", "Pulled", "Created", "Started"]
        # the end of the old one and the start of the new one, and no list of the pod
        assert len(n.fake.called("ContainerStatus")) - read == 2
        assert not [call for call in n.fake.called("ListContainers") if call.request.filter.label_selector]


async def test_a_directory_of_log_links_that_was_removed_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(WEB)
        await n.wait_running("web")
        n.remove_log_links()
        n.unwant("web")
        await n.wait_gone("web")
        assert not n.groups.pods and not n.logs(WEB)


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


async def test_the_files_of_all_containers_are_made_while_the_sandbox_is(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.fake.inject(RuntimeFault("RunPodSandbox", delay_s=60.0))
        of = pod(container("first"), container("second"))
        n.want(of)
        ref, names = pod_ref(of), ("first", "second")
        logs = [Path(n.paths.container_logs(ref, name)) for name in names]
        messages = [Path(n.paths.container(ref.uid, name)) for name in names]
        await n.wait_for(
            lambda: all(f.is_dir() for f in logs) and all(f.is_dir() and any(f.iterdir()) for f in messages)
        )
        assert not n.fake.called("CreateContainer")
        assert not Path(n.paths.etc_hosts(ref.uid)).exists()  # the pod has no address yet

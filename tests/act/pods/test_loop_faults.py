"""Pods on a fake runtime that hangs, fails and forgets, and bugs of our own: one pod does not hurt another."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from act.pods.node import WEB, named, node
from act.pods.scenes import IMAGE, container, pod, sidecar
from msgspec.structs import force_setattr
from support.virtual_time import virtual_clock

from pykubelet.act.runtime.lifecycle.metrics import STARTED_USERNS, STARTED_USERNS_ERRORS
from pykubelet.base.api import core
from pykubelet.base.kit.cells import Mailbox
from pykubelet.base.kit.values import replace
from pykubelet.base.model.diagnostics import PodDiagnostics
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONTAINER_RESTART_COUNT
from pykubelet.base.model.node import HandlerFeatures, RuntimeReady
from pykubelet.base.model.observed import PodReadWanted, StopInProgress
from pykubelet.base.model.waits import Owner
from pykubelet.edges.cri.errors import CriCode
from pykubelet.observe.pleg.decide import RelistPeriods
from pykubelet.provide.cgroups.model import CgroupError
from pykubelet.provide.images.model import ImageError, ImageRequest
from pykubelet.testing.cri.fake_answers import FakeFeatures
from pykubelet.testing.cri.fake_handles import RuntimeFault
from pykubelet.testing.cri.in_memory import MemoryRuntime

pytestmark = pytest.mark.virtual_time

SANDBOX_CALL = "RunPodSandbox: network and pause container"


@pytest.mark.parametrize(
    "fault",
    [
        RuntimeFault("RunPodSandbox", pod="web", code=CriCode.UNKNOWN),
        RuntimeFault("CreateContainer", pod="web", code=CriCode.UNKNOWN),
        RuntimeFault("StartContainer", pod="web", code=CriCode.UNKNOWN),
        None,
    ],
)
async def test_any_failure_of_the_sync_that_made_a_user_namespace_is_counted(
    tmp_path: Path, fault: RuntimeFault | None
) -> None:
    async with node(tmp_path) as n:
        n.runtime.publish(
            RuntimeReady(checked=True, runtime_error="", handlers={"": HandlerFeatures(user_namespaces=True)})
        )
        if fault is not None:
            n.fake.inject(fault)
        before = STARTED_USERNS.value(), STARTED_USERNS_ERRORS.value()
        n.want(pod(hostUsers=False))
        if fault is None:
            await n.wait_running("web")
        else:
            await n.wait_known("web", lambda known: any(wait.next_step.endswith("again") for wait in known.waits))
        expected = (before[0] + 1, before[1] + (fault is not None))
        assert (STARTED_USERNS.value(), STARTED_USERNS_ERRORS.value()) == expected


# One pod does not hurt another


async def test_a_sandbox_that_hangs_for_one_pod_delays_no_other(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.fake.inject(RuntimeFault("RunPodSandbox", pod="stuck", hang=True))
        n.want(named(WEB, "stuck"), WEB)
        await n.wait_running("web")
        expected = [("sandbox", "container runtime")]
        await n.wait_known("stuck", lambda known: [(wait.what, wait.owner) for wait in known.waits] == expected)
        n.unwant("stuck")
        await n.wait_gone("stuck")
        assert len(n.running("web")) == 1


async def test_a_post_start_hook_that_hangs_is_named_and_its_container_is_shown_as_starting(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.fake.inject(RuntimeFault("ExecSync", pod="slow", hang=True))
        hook = {"postStart": {"exec": {"command": ["wait", "long"]}}}
        n.want(named(pod(container(lifecycle=hook)), "slow"), WEB)
        await n.wait_running("web")
        known = await n.wait_known("slow", lambda known: any(w.what == "postStart hook" for w in known.waits))
        assert [(w.what, w.owner, w.subject, w.detail) for w in known.waits] == [
            ("postStart hook", Owner.RUNTIME_MANAGER, "app", "command: wait long")
        ]
        assert set((await n.wait_life("slow", lambda life: True)).post_starting) == {"app"}
        n.unwant("slow")
        await n.wait_gone("slow")


@pytest.mark.parametrize("is_removed", [False, True])
@pytest.mark.parametrize("handler", [{"exec": {"command": ["wait", "long"]}}, {"sleep": {"seconds": 3600}}])
async def test_a_post_start_hook_does_not_keep_a_pod_in_a_sandbox_that_has_ended(
    handler: dict[str, Any], is_removed: bool, tmp_path: Path
) -> None:
    async with node(tmp_path) as n:
        fault = n.fake.inject(RuntimeFault("ExecSync", pod="web", hang=True))
        n.want(named(pod(container(lifecycle={"postStart": handler})), "web"))
        await n.wait_known("web", lambda known: any(w.what == "postStart hook" for w in known.waits))
        await n.wait_seen("web")
        n.fake.withdraw(fault)
        sandbox = n.running("web")[0].sandbox
        (n.fake.state.remove_sandbox if is_removed else n.fake.state.stop_sandbox)(sandbox)
        began = asyncio.get_running_loop().time()
        await n.wait_for(lambda: bool(n.running("web")))
        assert asyncio.get_running_loop().time() - began < 60
        assert n.running("web")[0].sandbox.id != sandbox.id
        n.unwant("web")
        await n.wait_gone("web")


async def test_a_post_start_hook_is_seen_through_when_a_container_to_debug_with_is_asked_for(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.fake.inject(RuntimeFault("ExecSync", pod="web", delay_s=0.5, code=CriCode.UNKNOWN, times=1))
        hooked = container(lifecycle={"postStart": {"exec": {"command": ["true"]}}})
        n.want(pod(hooked, container("b")))
        await n.wait_life("web", lambda life: bool(life.post_starting))
        n.want(pod(hooked, container("b"), ephemeralContainers=[{"name": "debug", "image": IMAGE}]))
        await n.wait_for(lambda: bool(n.messages("FailedPostStartHook")))
        await n.wait_running("web", "b", "debug")
        names = [call.request.config.metadata.name for call in n.fake.called("CreateContainer")]
        assert names[:2] == ["app", "debug"], "nothing more is started by the old manifest"


async def test_an_image_that_cannot_be_had_is_reported_before_the_sandbox_is_there(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.fake.inject(RuntimeFault("RunPodSandbox", pod="web", hang=True))
        n.images.missing[IMAGE] = ImageError("ErrImagePull", "no such image", None)
        n.want(WEB)
        expected = [("container start", "app", "ErrImagePull", "no such image"), ("sandbox", "", "", SANDBOX_CALL)]

        def all_shown(known: PodDiagnostics) -> bool:
            return sorted((w.what, w.subject, w.reason, w.detail) for w in known.waits) == expected

        await n.wait_known("web", all_shown)
        n.unwant("web")
        await n.wait_gone("web")
        assert not n.fake.called("CreateContainer")


async def test_volumes_that_hang_for_one_pod_delay_no_other(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.volumes.stuck.add("stuck")
        n.want(named(WEB, "stuck"), WEB)
        await n.wait_running("web")
        await n.wait_known("stuck", lambda known: [wait.what for wait in known.waits] == ["volumes"])
        assert not n.containers("stuck")
        n.volumes.stuck.clear()
        n.volumes.project()
        await n.wait_running("stuck")


async def test_a_stop_that_hangs_for_one_pod_delays_no_other(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        fault = n.fake.inject(RuntimeFault("StopPodSandbox", pod="stuck", hang=True))
        n.want(named(WEB, "stuck"), WEB)
        await n.wait_running("stuck")
        await n.wait_running("web")
        n.unwant("stuck", "web")
        await n.wait_gone("web")
        assert n.life("stuck") is not None
        assert fault.met == 1


class _Forgetful(Mailbox[PodReadWanted | StopInProgress]):
    """Loses the first touch."""

    def __init__(self) -> None:
        super().__init__("pleg")
        self.lost = 0

    def post(self, event: PodReadWanted | StopInProgress) -> None:
        if isinstance(event, PodReadWanted) and not self.lost:
            self.lost += 1
        else:
            super().post(event)


async def test_a_pod_whose_touch_was_lost_is_read_after_the_next_relist(tmp_path: Path) -> None:
    fake = MemoryRuntime(str(tmp_path / "cri.sock"), virtual_clock(), FakeFeatures(containerd_events=False))
    fake.add_image(IMAGE)
    fake.start()
    fake.inject(RuntimeFault("ExecSync", delay_s=0.4))  # meanwhile the sidecar is seen running
    touched, periods = _Forgetful(), RelistPeriods(without_events_s=0.1)
    hook = {"postStart": {"exec": {"command": ["true"]}}}
    try:
        async with node(tmp_path, fake=fake, touched=touched, periods=periods) as n:
            n.want(named(pod(container(), init=(sidecar(lifecycle=hook),)), "web"))
            await n.wait_for(lambda: touched.lost == 1)
            await n.wait_for(lambda: len(n.running("web")) == 2)
            assert touched.lost == 1, "the one that was lost did not come again"
    finally:
        fake.stop()


async def test_a_bug_in_one_pods_work_is_reported_and_tried_again_while_others_go_on(tmp_path: Path) -> None:
    bugs = [RuntimeError("a bug")]

    def raises(request: ImageRequest) -> None:
        if request.pod.name == "buggy" and bugs:
            raise bugs.pop()

    async with node(tmp_path) as n:
        n.images.hook = raises
        n.want(named(WEB, "buggy"), WEB)
        await n.wait_running("web")
        await n.wait_running("buggy")
        assert n.messages("FailedSync", "buggy") == ["internal error in sync: RuntimeError('a bug')"]
        assert not n.messages("FailedSync", "web")


async def test_a_bug_while_a_pod_is_stopped_is_reported_and_tried_again(tmp_path: Path) -> None:
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
        assert n.messages("FailedSync", "web") == ["internal error in clean-up: RuntimeError('a bug')"]


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
        await n.wait_seen("buggy")
        view = n.observed.get().pods[PodUID("uid-buggy")].containers[0]
        force_setattr(view, "annotations", Poison())
        n.want(WEB)
        n.want(named(pod(metadata={"labels": {"a": "b"}}), "buggy"))
        await n.wait_for(lambda: bool(n.messages("FailedSync", "buggy")))
        assert n.messages("FailedSync", "buggy") == ["internal error: RuntimeError('a bug')"]
        force_setattr(view, "annotations", {})
        await n.wait_known("buggy", lambda known: any("taken up" in line.what for line in known.timeline))
        assert len(n.running("buggy")) == 1
        assert len(n.fake.called("RunPodSandbox")) == 2


# Things that fail for a while


async def test_a_sandbox_that_fails_is_reported_and_tried_again(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.fake.inject(RuntimeFault("RunPodSandbox", code=CriCode.UNKNOWN, message="no network", times=1))
        n.want(WEB)
        await n.wait_running("web")
        message = "Failed to create pod sandbox: rpc error: code = Unknown desc = no network"
        assert n.messages("FailedCreatePodSandBox") == [message]
        assert not n.life("web").start_errors  # type: ignore[union-attr]


async def test_old_init_containers_that_cannot_be_removed_block_nothing(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.fake.inject(RuntimeFault("RemoveContainer", pod="web", code=CriCode.UNKNOWN, message="busy"))
        n.want(pod(init=(container("i1", command=["sh", "-c", "exit 1"]),)))
        await n.wait_for(lambda: len(n.containers("web")) == 4)
        assert not n.messages("FailedKillPod")
        assert len(n.fake.called("RemoveContainer")) < 10, "it is tried with each start, not all the time"


async def test_a_container_to_debug_with_is_not_made_without_the_one_it_targets(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        debug = {"name": "debug", "image": IMAGE, "targetContainerName": "app"}
        n.want(pod(init=(container("i1", command=["sh", "-c", "sleep 1000"]),), ephemeralContainers=[debug]))
        life = await n.wait_life("web", lambda life: "debug" in life.start_errors)
        error = life.start_errors["debug"]
        assert (error.reason, error.message) == ("CreateContainerConfigError", "unable to find target container app")
        assert n.messages("Failed") == ["Error: unable to find target container app"]
        assert not [call for call in n.fake.called("CreateContainer") if call.request.config.metadata.name == "debug"]


def _linked(folder: Path) -> list[str]:
    """The logs that are linked to; a link may be removed meanwhile."""
    found = []
    for link in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(link.readlink().name)
    return found


async def test_old_init_containers_go_with_their_logs(tmp_path: Path) -> None:
    def newest_has_its_log() -> bool:
        last = max(int(c.config.annotations[CONTAINER_RESTART_COUNT]) for c in n.containers("web"))
        return bool(list(tmp_path.glob(f"logs/*/i1/{last}.log")))

    async with node(tmp_path) as n:
        n.want(pod(init=(container("i1", command=["sh", "-c", "echo no; exit 1"]),)))
        await n.wait_for(lambda: len(n.fake.called("RemoveContainer")) >= 2)
        await n.wait_for(lambda: not list(tmp_path.glob("logs/*/i1/0.log")))
        await n.wait_for(newest_has_its_log)  # it goes on being made anew, and has its log once it has been started
        await n.wait_for(lambda: "0.log" not in _linked(Path(n.paths.log_links)))


async def test_a_name_that_the_runtime_still_holds_is_passed_over(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.fake.inject(RuntimeFault("RunPodSandbox", code=CriCode.DEADLINE_EXCEEDED, after=True, times=1))
        n.fake.state.reserved["web_shop_uid-web_0"] = "half-made"
        n.want(WEB)
        await n.wait_running("web")
        running = n.running("web")
        assert len(running) == 1
        assert running[0].sandbox.config.metadata.attempt > 0


async def test_an_answer_that_was_lost_does_not_start_anything_twice(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        for method in ("RunPodSandbox", "StartContainer"):
            n.fake.inject(RuntimeFault(method, code=CriCode.DEADLINE_EXCEEDED, message="late", after=True, times=1))
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
        await n.wait_known("web", lambda known: [wait.subject for wait in known.waits] == ["b"])
        n.unwant("web")
        await n.wait_gone("web")


async def test_a_slow_image_is_asked_for_once_whatever_else_happens(tmp_path: Path) -> None:
    gate = asyncio.Event()
    of = pod(container("a"), container("b", image="slow:1"), terminationGracePeriodSeconds=1)
    async with node(tmp_path) as n:
        n.images.hook = lambda request: gate.wait() if request.image == "slow:1" else None
        n.want(named(of, "web"))
        await n.wait_running("web", "a")
        await n.wait_known("web", lambda known: [wait.subject for wait in known.waits] == ["b"])
        n.fake.state.end(n.running("web")[0], 1)
        await n.wait_for(lambda: len(n.containers("web")) == 2)  # a was started again meanwhile
        gate.set()
        await n.wait_running("web", "a", "b")
        assert n.images.asked.count("slow:1") == 1


async def test_a_slow_image_of_a_volume_is_asked_for_once_and_not_after_the_end_of_the_pod(tmp_path: Path) -> None:
    """Others wait for its slot: images are pulled one at a time by default."""
    mount, cancelled = core.VolumeMount(name="data", mountPath="/data"), asyncio.Event()
    of = pod(
        container("a"),
        container("b", volumeMounts=(mount,)),
        volumes=[{"name": "data", "image": {"reference": "slow:1"}}],
        terminationGracePeriodSeconds=1,
    )

    async def pull() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with node(tmp_path) as n:
        n.images.hook = lambda request: pull() if request.image == "slow:1" else None
        n.want(named(of, "web"))
        await n.wait_running("web", "a")
        await n.wait_known("web", lambda known: [wait.subject for wait in known.waits] == ["data"])
        n.fake.state.end(n.running("web")[0], 1)
        await n.wait_for(lambda: len(n.containers("web")) == 2)  # a was started again meanwhile
        await n.wait_known("web", lambda known: [wait.subject for wait in known.waits] == ["data"])
        assert n.images.asked.count("slow:1") == 1
        assert not cancelled.is_set()
        n.unwant("web")
        await n.wait_gone("web")
        assert cancelled.is_set()


async def test_a_cgroup_that_cannot_be_made_is_reported_and_tried_again(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.groups.broken["web"] = CgroupError("read-only file system")
        n.want(WEB)
        await n.wait_for(lambda: bool(n.messages("FailedCreatePodContainer")))
        assert (
            n.messages("FailedCreatePodContainer")[0] == "unable to ensure pod container exists: read-only file system"
        )
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
        await n.wait_known("web", lambda known: busy in [wait.detail for wait in known.waits])
        assert n.groups.pods
        n.groups.busy.clear()
        await n.wait_gone("web")
        assert not n.groups.pods


async def test_nothing_is_started_while_the_runtime_or_its_network_is_not_ready(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        well = n.runtime.get()
        n.runtime.publish(RuntimeReady(checked=True, runtime_error="", network_error="cni plugin not initialized"))
        n.want(WEB, named(pod(hostNetwork=True, terminationGracePeriodSeconds=1), "host"))
        await n.wait_running("host")
        assert not n.running("web")
        assert n.messages("NetworkNotReady", "web") == ["network is not ready: cni plugin not initialized"]
        n.runtime.publish(well)
        await n.wait_running("web")


async def test_nothing_is_asked_of_a_runtime_that_is_away_and_all_is_done_at_its_return(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(named(WEB, "old"))
        await n.wait_running("old")
        well = n.runtime.get()
        n.fake.stop()
        n.runtime.publish(replace(well, away=True, answer_error="connection refused"))
        n.want(WEB)
        n.unwant("old")
        for name in ("web", "old"):
            known = await n.wait_known(name, lambda known: bool(known.waits))
            assert [(w.what, w.detail) for w in known.waits] == [("container runtime", "connection refused")]
        assert not (
            n.fake.called("StopContainer") or n.messages("FailedKillPod") or n.messages("FailedCreatePodSandBox")
        )
        n.fake.start()
        n.runtime.publish(replace(well, epoch=1))
        await n.wait_running("web")
        await n.wait_gone("old")


async def test_what_failed_as_the_runtime_went_is_tried_at_its_return(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.fake.inject(RuntimeFault("CreateContainer", pod="web", code=CriCode.UNAVAILABLE, times=1))
        n.want(WEB)
        await n.wait_life("web", lambda life: bool(life.start_errors))
        n.runtime.publish(replace(n.runtime.get(), epoch=1))
        await n.wait_running("web")


async def test_a_runtime_that_restarts_loses_no_pod_and_starts_nothing_twice(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(WEB)
        await n.wait_running("web")
        first = n.running("web")[0].id
        n.fake.stop()
        n.want(named(WEB, "new"))
        await asyncio.sleep(0.3)
        n.fake.start()
        await n.wait_running("new")
        assert [c.id for c in n.containers("web")] == [first]
        assert len(n.sandboxes("web")) == 1

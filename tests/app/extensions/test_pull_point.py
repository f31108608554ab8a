"""The point `pull`: what an extension gets, and when an image is pulled after its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from app.extensions.conftest import Host
from desired.roster.wants import make_pod
from provide.images.stand import FakeRuntime, Stand, request

from pykubelet.app.extensions.views import NodeNow, NodeViews, PodViews
from pykubelet.base.api import core
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.values import replace
from pykubelet.base.model.evictions import NodePressure
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.roster import Rejection, Roster, RosterPod, pod_ref
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.extension import Extension, Node, Pod, PullAnswer, PullAttempt, PullLater, PullNever, PullNow
from pykubelet.provide.images.model import ImageError, ImageReady, ImageRequest, ImageSettings

IMAGE = "app:1"
POD = core.Pod(metadata=core.ObjectMeta(name="web", namespace="default", uid="uid-web", labels={"a": "b"}))


class Pulls(Extension):
    name, api = "pulling", "1.0"

    def __init__(self, answer: Callable[[PullAttempt], Any]) -> None:
        super().__init__()
        self.answer = answer
        self.seen: list[PullAttempt] = []

    def pull(self, pull: PullAttempt, node: Node) -> PullAnswer:
        self.seen.append(pull)
        answer: PullAnswer = self.answer(pull)
        return answer


class Puller:
    """An image puller that asks the extension, over a fake runtime."""

    def __init__(self, tmp_path: Path, host: Host, **settings: Any) -> None:
        self.clock = ManualClock()
        self.runtime = FakeRuntime()
        made = ImageSettings(str(tmp_path / "records"), qps=0.0, ask_for_pull=host.points.pull, **settings)
        self.stand = Stand(self.runtime, self.clock, made)

    async def ensure(self, pod: core.Pod = POD, policy: str = "IfNotPresent") -> ImageReady | ImageError:
        return await self.stand.puller.ensure(replace(wanted(pod), policy=policy))

    async def fails(self, **given: Any) -> ImageError:
        outcome = await self.ensure(**given)
        assert isinstance(outcome, ImageError)
        return outcome


def wanted(pod: core.Pod, image: str = IMAGE) -> ImageRequest:
    return replace(request(image), full_pod=pod)


async def test_what_an_extension_gets_of_a_pull(tmp_path: Path, hosts: Callable[..., Host]) -> None:
    extension = Pulls(lambda pull: None)
    puller = Puller(tmp_path, hosts(extension))
    assert isinstance(await puller.ensure(), ImageReady)
    (seen,) = extension.seen
    assert (seen.image, seen.pod.name, seen.pod.labels, seen.container) == (IMAGE, "web", {"a": "b"}, "main")
    assert (seen.attempt, seen.policy, seen.is_present) == (1, "IfNotPresent", False)
    assert seen.waiting_since == pytest.approx(puller.clock.wall())
    await puller.ensure()
    assert len(extension.seen) == 1  # it is there, and not pulled
    await puller.ensure(policy="Always")
    assert (extension.seen[1].attempt, extension.seen[1].is_present) == (1, True)


async def test_attempts_are_counted_after_the_back_off(tmp_path: Path, hosts: Callable[..., Host]) -> None:
    extension = Pulls(lambda pull: None)
    puller = Puller(tmp_path, hosts(extension))
    puller.runtime.failures[IMAGE] = CriError(CriCode.UNKNOWN, "no", "PullImage")
    began = puller.clock.wall()
    await puller.ensure()
    await puller.ensure()
    assert len(extension.seen) == 1  # the built-in back-off comes first
    puller.clock.advance(11)
    await puller.ensure()
    assert [(seen.attempt, seen.waiting_since) for seen in extension.seen] == [(1, began), (2, began)]


async def test_a_pull_is_delayed_until_the_extension_lets_it_go(tmp_path: Path, hosts: Callable[..., Host]) -> None:
    answers: list[PullAnswer] = [PullNow(), PullLater(30, "until 22:00")]
    extension = Pulls(lambda pull: answers.pop())
    puller = Puller(tmp_path, hosts(extension))
    outcome = await puller.fails()
    assert (outcome.reason, outcome.extension) == ("ContainerCreating", "pulling")
    assert outcome.message == "extension pulling delays the pull: until 22:00"
    assert outcome.retry_at == puller.clock.monotonic() + 30
    puller.clock.advance(29)
    assert await puller.fails() == outcome and len(extension.seen) == 1  # not before its time, whatever wakes the pod
    assert puller.runtime.pulls == [] and puller.stand.events() == []  # a delay is no failure
    puller.clock.advance(1)
    assert isinstance(await puller.ensure(), ImageReady)
    assert extension.seen[1].attempt == 1 and extension.seen[1].waiting_since == puller.clock.wall() - 30


async def test_the_reason_of_a_delay_fits_the_pod(tmp_path: Path, hosts: Callable[..., Host]) -> None:
    extension = Pulls(lambda pull: PullLater(30))
    puller = Puller(tmp_path, hosts(extension))
    with_init = replace(POD, spec=core.PodSpec(initContainers=(core.Container(name="first"),)))
    assert (await puller.fails(pod=with_init)).reason == "PodInitializing"
    puller.stand.puller.forget(PodUID("uid-web"))
    extension.answer = lambda pull: None
    puller.runtime.failures[IMAGE] = CriError(CriCode.UNKNOWN, "no", "PullImage")
    await puller.ensure()
    puller.clock.advance(11)
    extension.answer = lambda pull: PullLater(30, "wait")
    outcome = await puller.fails()
    assert outcome.reason == "ImagePullBackOff"
    assert outcome.message == 'Back-off pulling image "app:1": extension pulling delays the pull: wait'


async def test_a_refused_pull_is_a_failure(tmp_path: Path, hosts: Callable[..., Host]) -> None:
    extension = Pulls(lambda pull: PullNever("not on this node"))
    puller = Puller(tmp_path, hosts(extension))
    outcome = await puller.fails()
    message = 'Container image "app:1" must not be pulled: not on this node (extension pulling)'
    assert (outcome.reason, outcome.message, outcome.extension) == ("ErrImageNeverPull", message, "")
    assert outcome.retry_at == puller.clock.monotonic() + 10
    assert puller.stand.events() == [f"Warning ErrImageNeverPull {message}", "Warning Failed Error: ErrImageNeverPull"]
    assert puller.runtime.pulls == []
    extension.answer = lambda pull: PullNow()  # such as after its settings have changed
    assert isinstance(await puller.ensure(), ImageReady)


async def test_one_pod_that_always_waits_delays_no_other(tmp_path: Path, hosts: Callable[..., Host]) -> None:
    extension = Pulls(lambda pull: PullLater(3600) if pull.pod.name == "web" else None)
    puller = Puller(tmp_path, hosts(extension), serialize=True)
    await puller.fails()
    other = replace(POD, metadata=core.ObjectMeta(name="other", namespace="default", uid="uid-other"))
    assert isinstance(await puller.stand.puller.ensure(replace(request(IMAGE, "other"), full_pod=other)), ImageReady)


WRONG: list[tuple[Any, str]] = [
    (PullNow(priority=1.5), "pull: `priority` must be an integer of at most 1000000: it is 1.5"),  # type: ignore[arg-type]
    (PullNow(priority=10**7), "pull: `priority` must be an integer"),
    (PullNow(priority=True), "pull: `priority` must be an integer"),
    (PullLater(0), "pull: `again_s` must be from 1 to 3600: it is 0"),
    (PullLater(float("nan")), "pull: `again_s` must be from 1 to 3600: it is nan"),
    (PullLater(1, "x" * 2000), "pull: `message` must be a text of at most 1024 characters"),
    (PullNever(None), "pull: `message` must be a text"),  # type: ignore[arg-type]
    ("now", "pull: the answer must be PullNow, PullLater, PullNever or None: it is str"),
]


@pytest.mark.parametrize(("answer", "problem"), WRONG)
async def test_after_a_wrong_answer_the_image_is_pulled(
    tmp_path: Path, hosts: Callable[..., Host], answer: Any, problem: str
) -> None:
    host = hosts(Pulls(lambda pull: answer))
    assert isinstance(await Puller(tmp_path, host).ensure(), ImageReady)
    assert host.state.error.startswith(problem)


class Gated(FakeRuntime):
    """A runtime of which no pull ends before `opened`."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = asyncio.Event()

    async def pull_image(self, image_spec: Any, auth: Any, sandbox_config: Any = None) -> str:
        self.pull_begun.set()
        await self.opened.wait()
        return await super().pull_image(image_spec, auth, sandbox_config)


async def test_waiting_pulls_go_by_priority(tmp_path: Path, hosts: Callable[..., Host]) -> None:
    priorities = {"b:1": 1, "c:1": -5, "d:1": 7, "e:1": 1}
    images, all_asked = ("a:1", "b:1", "c:1", "d:1", "e:1", "f:1"), asyncio.Event()

    def by_priority(pull: PullAttempt) -> PullAnswer:
        if pull.image == images[-1]:
            all_asked.set()
        return PullNow(priorities.get(pull.image, 0))

    extension = Pulls(by_priority)
    settings = ImageSettings(str(tmp_path / "records"), qps=0.0, ask_for_pull=hosts(extension).points.pull)
    runtime = Gated()
    stand = Stand(runtime, ManualClock(), settings)
    async with stand.puller:
        requests = [asyncio.ensure_future(stand.puller.ensure(wanted(POD, image))) for image in images]
        await runtime.pull_begun.wait()
        await all_asked.wait()
        runtime.opened.set()
        await asyncio.gather(*requests)
    assert [image for image, _ in runtime.pulls] == ["a:1", "d:1", "b:1", "e:1", "f:1", "c:1"]


async def test_the_node_as_it_is_now() -> None:
    running, rejected, over = (make_pod(name, cpu="500m", memory="64Mi") for name in ("a", "b", "c"))
    entries = {
        PodUID(running.metadata.uid): RosterPod(running, "file", 0.0),
        PodUID(rejected.metadata.uid): RosterPod(rejected, "file", 0.0, Rejection("No", "")),
        PodUID(over.metadata.uid): RosterPod(over, "file", 0.0),
    }
    ended = PodLifecycle(pod_ref(over), over, Stage.FINISHED, 0.0, 0.0)
    node = NodeView("node", "node", allocatable={"cpu": 4000, "memory": 1 << 30, "pods": 110}, labels={"price": "low"})
    clock = ManualClock()
    sources = NodeNow(
        make_cell("node", node)[0],
        make_cell("roster", Roster(entries))[0],
        make_cell("lifecycles", Lifecycles({PodUID(over.metadata.uid): ended}))[0],
        make_cell("pressure", NodePressure(disk=True))[0],
        clock,
    )
    seen = NodeViews(sources, PodViews()).now()
    assert seen.requested == {"cpu": 500, "memory": 64 << 20} and seen.pods == 1
    assert (seen.labels, seen.conditions, seen.time) == ({"price": "low"}, ("DiskPressure",), clock.wall())


class CountedViews(PodViews):
    """Counts the pods that are looked at."""

    looks = 0

    def of(self, pod: core.Pod) -> Pod:
        self.looks += 1
        return super().of(pod)


async def test_the_node_follows_its_pods_and_looks_at_those_alone_that_have_changed() -> None:
    pods = [make_pod(f"p{number}", cpu="100m") for number in range(50)]
    entries = {PodUID(pod.metadata.uid): RosterPod(pod, "file", 0.0) for pod in pods}
    node = NodeView("node", "node", allocatable={"cpu": 8000, "pods": 110})
    roster, put = make_cell("roster", Roster(entries))
    lifecycles, set_lifecycles = make_cell("lifecycles", Lifecycles())
    pressure = make_cell("pressure", NodePressure())[0]
    sources = NodeNow(make_cell("node", node)[0], roster, lifecycles, pressure, ManualClock())
    views = CountedViews()
    followed = NodeViews(sources, views)
    assert (followed.now().requested["cpu"], followed.now().pods, views.looks) == (5000, 50, 50)
    first, second, third, *_ = entries
    ended = PodLifecycle(pod_ref(pods[0]), pods[0], Stage.FINISHED, 0.0, 0.0)
    set_lifecycles.publish(Lifecycles({first: ended}))
    changed = {**entries, second: RosterPod(pods[1], "file", 0.0, Rejection("No", ""))}
    put.publish(Roster(changed))
    assert (followed.now().requested["cpu"], followed.now().pods) == (4800, 48)
    larger = make_pod("larger", cpu="2")
    changed = {uid: entry for uid, entry in changed.items() if uid != third}
    put.publish(Roster({**changed, PodUID(larger.metadata.uid): RosterPod(larger, "file", 0.0)}))
    assert (followed.now().requested["cpu"], followed.now().pods, views.looks) == (6700, 48, 51)
    assert followed.now() == NodeViews(sources, PodViews()).now()

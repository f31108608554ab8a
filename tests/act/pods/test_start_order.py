"""What has an order when the containers of a pod start, and what is done side by side (docs/start-order.md)."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from act.pods.node import named, node
from act.pods.scenes import IMAGE, container, pod
from act.pods.start_order import CREATE, HOOK, HOOK_CALL, START, Delays, TimedRuntime, events_of, inits, many, timed
from hypothesis import given, settings
from hypothesis import strategies as st
from support.virtual_time import VirtualLoop

from pykubelet.act.pods.ahead import MOST_OF_NODE, MOST_OF_POD
from pykubelet.base.kit.values import replace
from pykubelet.base.model.labels import CONTAINER_RESTART_COUNT
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode
from pykubelet.provide.images.model import ImageError, ImageRequest
from pykubelet.testing.cri.fake_handles import RuntimeFault

REPORTED = ["Pulled", "Created", "Started"]


def in_virtual_time(test: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="pyk") as folder, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test(Path(folder)))


def counts(runtime: TimedRuntime) -> dict[str, str]:
    """The restart counts of what runs, by container."""
    running = (c for c in runtime.state.containers.values() if c.state == pb.CONTAINER_RUNNING)
    return {c.config.metadata.name: c.config.annotations[CONTAINER_RESTART_COUNT] for c in running}


# Side by side


@pytest.mark.virtual_time
async def test_containers_are_created_side_by_side_and_started_in_order(tmp_path: Path) -> None:
    with timed(tmp_path, Delays(create_s=[0.1], start_s=[0.01])) as runtime:
        async with node(tmp_path, fake=runtime) as n:
            n.want(many(5))
            await n.wait_running("web", *(f"c{number}" for number in range(5)))
            events = events_of(n)
    assert runtime.names(START) == [f"c{number}" for number in range(5)]
    first_start = runtime.first(START, "c0")
    assert [span.name for span in runtime.of(CREATE) if span.began < first_start.began] == runtime.names(START)
    assert all(before.ended is not None and before.ended < after.began for before, after in pairwise(runtime.of(START)))
    assert events == [(f"c{number}", reason) for number in range(5) for reason in REPORTED]


@pytest.mark.virtual_time
async def test_the_start_of_a_container_does_not_wait_for_the_creation_of_later_ones(tmp_path: Path) -> None:
    with timed(tmp_path, Delays(create_s=[0.01, 5.0])) as runtime:
        async with node(tmp_path, fake=runtime) as n:
            n.want(many(2))
            await n.wait_running("web", "c0")
            assert runtime.first(CREATE, "c1").ended is None
            assert ("c1", "Created") not in events_of(n)
            await n.wait_running("web", "c1")


@pytest.mark.virtual_time
async def test_what_is_created_ahead_is_known_to_who_reports_it(tmp_path: Path) -> None:
    with timed(tmp_path, Delays(create_s=[0.01], start_s=[0.5])) as runtime:
        async with node(tmp_path, fake=runtime) as n:
            n.want(many(3))
            await n.wait_for(lambda: len([span for span in runtime.of(CREATE) if span.ended is not None]) == 3)
            life = await n.wait_life("web", lambda _: True)
            assert {"c1", "c2"} <= life.ahead
            await n.wait_running("web", "c0", "c1", "c2")
            await n.wait_life("web", lambda life: not life.ahead)


@pytest.mark.virtual_time
async def test_only_a_few_containers_of_a_pod_are_created_ahead(tmp_path: Path) -> None:
    with timed(tmp_path, Delays(create_s=[0.01], start_s=[0.3])) as runtime:
        async with node(tmp_path, fake=runtime) as n:
            n.want(many(40))
            await n.wait_running("web", *(f"c{number}" for number in range(40)))
    assert runtime.most_ahead() == MOST_OF_POD + 1


@pytest.mark.virtual_time
async def test_the_pods_of_a_node_share_the_slots_and_none_waits_for_one(tmp_path: Path) -> None:
    """Pods whose creations ahead hang hold all slots: the others create each container when it is next to start."""
    pods = MOST_OF_NODE // MOST_OF_POD
    with timed(tmp_path) as runtime:
        async with node(tmp_path, fake=runtime) as n:
            for number in range(pods):
                runtime.inject(RuntimeFault(CREATE, pod=f"stuck-{number}", hang=True))
                n.want(named(many(MOST_OF_POD + 2), f"stuck-{number}"))
            await n.wait_for(lambda: len(runtime.of(CREATE)) == MOST_OF_NODE + pods)
            n.want(many(5))
            await n.wait_running("web", *(f"c{number}" for number in range(5)))
            created = [span for span in runtime.of(CREATE) if span.ended is not None]
            assert len(created) == 5
            assert all(before.ended is not None and before.ended < after.began for before, after in pairwise(created))


# What others it waits for


@pytest.mark.virtual_time
async def test_nothing_is_created_while_a_container_before_it_waits_for_its_image(tmp_path: Path) -> None:
    """What was created waits for nothing but calls of the runtime."""
    there = asyncio.Event()

    def hook(request: ImageRequest) -> object:
        return there.wait() if request.image == "image-2:1" else None

    with timed(tmp_path) as runtime:
        async with node(tmp_path, fake=runtime) as n:
            n.images.hook = hook
            n.want(many(4))
            await n.wait_running("web", "c0", "c1")
            await asyncio.sleep(60)
            assert runtime.names(CREATE) == ["c0", "c1"]
            there.set()
            await n.wait_running("web", "c2", "c3")
            assert set(counts(runtime).values()) == {"0"}


@pytest.mark.virtual_time
async def test_a_container_without_an_image_keeps_none_of_the_others_from_starting(tmp_path: Path) -> None:
    with timed(tmp_path) as runtime:
        async with node(tmp_path, fake=runtime) as n:
            n.images.missing["image-0:1"] = ImageError("ErrImagePull", "no such image", None)
            n.want(many(3))
            await n.wait_running("web", "c1", "c2")
            life = await n.wait_life("web", lambda life: "c0" in life.start_errors)
            assert life.start_errors["c0"].reason == "ErrImagePull"


@pytest.mark.virtual_time
async def test_the_image_of_a_container_is_asked_for_once_though_it_was_prepared_ahead(tmp_path: Path) -> None:
    with timed(tmp_path) as runtime:
        async with node(tmp_path, fake=runtime) as n:
            n.want(many(3))
            await n.wait_running("web", "c0", "c1", "c2")
            assert sorted(n.images.asked) == ["image-0:1", "image-1:1", "image-2:1"]


@pytest.mark.virtual_time
async def test_nothing_after_a_container_with_a_hook_is_created_before_the_hook_has_ended(tmp_path: Path) -> None:
    with timed(tmp_path, Delays(hook_s=[60.0])) as runtime:
        async with node(tmp_path, fake=runtime) as n:
            n.want(many(4, hooked=[1]))
            await n.wait_for(lambda: bool(runtime.of(HOOK_CALL)))
            await asyncio.sleep(30)
            assert runtime.names(CREATE) == runtime.names(START) == ["c0", "c1"]
            assert ("c2", "Pulled") not in events_of(n)
            await n.wait_running("web", "c2", "c3")


# Failures


@pytest.mark.parametrize("method", [CREATE, START])
@pytest.mark.virtual_time
async def test_a_failure_is_reported_in_order_and_keeps_no_other_from_starting(method: str, tmp_path: Path) -> None:
    class Refusing(TimedRuntime):
        async def answer(self, called: str, request: Any, *rest: Any) -> Any:
            name = request.config.metadata.name if called == CREATE else ""
            name = self.state.need(request.container_id).config.metadata.name if called == START else name
            if called == method and name == "c1" and name not in self.names(method):
                self.inject(RuntimeFault(method, code=CriCode.UNKNOWN, message="no", times=1))
            return await super().answer(called, request, *rest)

    runtime = Refusing(
        str(tmp_path / "cri.sock"), Delays(create_s=[0.2, 0.01])
    )  # it fails before the first one is created
    runtime.add_image(IMAGE)
    runtime.start()
    async with node(tmp_path, fake=runtime) as n:
        n.want(many(3))
        await n.wait_running("web", "c0", "c2")
        failed = ["Pulled", "Failed"] if method == CREATE else ["Pulled", "Created", "Failed"]
        expected = {"c0": REPORTED, "c1": failed, "c2": REPORTED}
        assert events_of(n) == [(name, reason) for name, reasons in expected.items() for reason in reasons]
        await n.wait_running("web", "c1")
    runtime.stop()


# Interruptions


@pytest.mark.virtual_time
async def test_what_was_created_ahead_is_created_anew_after_an_interruption_and_is_no_restart(tmp_path: Path) -> None:
    with timed(tmp_path, Delays(create_s=[0.01], start_s=[0.5])) as runtime:
        async with node(tmp_path, fake=runtime) as n:
            of = many(4)
            n.want(of)
            await n.wait_for(lambda: len([c for c in runtime.of(CREATE) if c.ended is not None]) == 4)
            n.want(
                replace(of, spec=replace(of.spec, activeDeadlineSeconds=3600))
            )  # it is interrupted before the next start
            await n.wait_running("web", "c0", "c1", "c2", "c3")
            assert counts(runtime) == {"c0": "0", "c1": "0", "c2": "0", "c3": "0"}
            assert len(n.containers("web")) == 4, "the others were removed"
            assert runtime.names(START) == ["c0", "c1", "c2", "c3"]
            reasons = [reason for name, reason in events_of(n) if name == "c3"]
            assert [reason for reason in reasons if reason != "Pulled"] == ["Created", "Started"]


@pytest.mark.parametrize("moment", [CREATE, START])
@pytest.mark.virtual_time
async def test_a_deletion_ends_what_is_made_ahead(moment: str, tmp_path: Path) -> None:
    delays = {CREATE: Delays(create_s=[0.01, 5.0]), START: Delays(start_s=[5.0])}
    with timed(tmp_path, delays[moment]) as runtime:
        async with node(tmp_path, fake=runtime) as n:
            n.want(many(4))
            await n.wait_for(lambda: any(span.ended is None for span in runtime.of(moment)))
            n.unwant("web")
            await n.wait_gone("web")
            assert not [task for task in asyncio.all_tasks() if "ahead" in task.get_name()]
            await asyncio.sleep(60)
            assert not runtime.state.containers


@pytest.mark.virtual_time
async def test_an_agent_that_is_killed_between_creations_and_starts_counts_no_restart(tmp_path: Path) -> None:
    """Each agent lives a few milliseconds longer than the one before, until one has started all containers."""
    of = many(5, hooked=[2])
    with timed(tmp_path, Delays(hook_s=[0.01], is_late=True)) as runtime:
        for lived_ms in range(0, 400, 5):
            async with node(tmp_path, fake=runtime, wanted=[of]) as n:
                await asyncio.sleep(lived_ms / 1000)
                if len(n.running("web")) == 5:
                    break
        async with node(tmp_path, fake=runtime, wanted=[of]) as n:
            await n.wait_running("web", *(f"c{number}" for number in range(5)))
            await asyncio.sleep(60.0)
            assert len(n.running("web")) == 5
            assert set(counts(runtime).values()) == {"0"}


@pytest.mark.virtual_time
async def test_a_sandbox_that_ends_while_containers_are_made_ahead(tmp_path: Path) -> None:
    with timed(tmp_path, Delays(create_s=[0.01], start_s=[0.5])) as runtime:
        async with node(tmp_path, fake=runtime) as n:
            n.want(many(4))
            await n.wait_for(lambda: len([c for c in runtime.of(CREATE) if c.ended is not None]) == 4)
            first = n.containers("web")[0].sandbox
            runtime.state.stop_sandbox(first)
            await n.wait_for(lambda: len(n.running("web")) == 4)
            assert {c.sandbox.id for c in n.running("web")} != {first.id}
            assert {name: count for name, count in counts(runtime).items() if name != "c0"} == {
                "c1": "0",
                "c2": "0",
                "c3": "0",
            }


@pytest.mark.virtual_time
async def test_an_ephemeral_container_is_not_created_ahead(tmp_path: Path) -> None:
    """One that was created is never created again, so it must be started."""
    debug = [{"name": "debug", "image": IMAGE, "targetContainerName": "c0"}]
    with timed(tmp_path) as runtime:
        async with node(tmp_path, fake=runtime) as n:
            n.want(many(3))
            await n.wait_running("web", "c0", "c1", "c2")
            runtime.spans.clear()
            for name in ("c1", "c2"):
                runtime.state.end(runtime.container(name), 1)
            made = tuple(many(3, ephemeralContainers=debug).spec.ephemeralContainers)
            of = many(3)
            n.want(replace(of, spec=replace(of.spec, ephemeralContainers=made)))
            await n.wait_running("web", "c0", "c1", "c2", "debug")
            start = runtime.first(START, "debug")
            beside = [
                s.name for s in runtime.of(CREATE) if runtime.first(CREATE, "debug").began < s.began < start.began
            ]
            assert beside == []


# All orders, of random pods

SHORT = st.sampled_from([0.0, 0.01, 0.3])
PODS = st.fixed_dictionaries(
    {
        "init": st.lists(st.booleans(), max_size=3),
        "regular": st.lists(st.booleans(), min_size=1, max_size=8),  # True: with a postStart hook
        "pulls_s": st.lists(st.sampled_from([0.0, 0.0, 0.05, 4.0]), min_size=8, max_size=8),
        "create_s": st.lists(SHORT, min_size=3, max_size=5),
        "start_s": st.lists(SHORT, min_size=3, max_size=5),
    }
)


@settings(max_examples=40)
@given(PODS)
def test_every_promised_order_holds_for_any_pod(shape: dict[str, Any]) -> None:
    async def run(folder: Path) -> None:
        hooked = [n for n, has_hook in enumerate(shape["regular"]) if has_hook]
        init, names = inits(shape["init"]), [f"c{n}" for n in range(len(shape["regular"]))]
        pulls = {f"image-{n}:1": pull_s for n, pull_s in enumerate(shape["pulls_s"])}
        delays = Delays(shape["create_s"], shape["start_s"])
        with timed(folder, delays) as runtime:
            async with node(folder, fake=runtime) as n:
                n.images.hook = lambda request: asyncio.sleep(pulls.get(request.image, 0.0))
                n.want(many(len(names), hooked=hooked, init=init))
                await n.wait_running("web", *names)
                await n.wait_life("web", lambda life: not life.post_starting)
                events = events_of(n)
                assert set(counts(runtime).values()) == {"0"}
            _check(runtime, shape["init"], names, [f"c{n}" for n in hooked])
            assert _first_of_each(events) == [
                (c, reason) for c in [*(c.name for c in init), *names] for reason in REPORTED
            ]

    in_virtual_time(run)


def _check(runtime: TimedRuntime, init: Sequence[bool], names: Sequence[str], hooked: Sequence[str]) -> None:
    inits_named = [f"i{n}" for n in range(len(init))]
    # starts: one after the other, in the order of the spec, each once
    assert runtime.names(START) == [*inits_named, *names]
    assert all(before.ended is not None and before.ended < after.began for before, after in pairwise(runtime.of(START)))
    # an init container is created when the one before it has started (a sidecar) or ended; it ends after its start
    for name, after in pairwise([*inits_named, names[0]]):
        started = runtime.first(START, name).ended
        assert started is not None
        assert started < min(span.began for span in runtime.of(CREATE) if span.name == after)
    # a hook is a barrier: nothing is created or started beside it
    for name in hooked:
        hook = runtime.first(HOOK_CALL, name)
        assert hook.ended is not None
        beside = [s for s in runtime.spans if s.method in (CREATE, START) and hook.began < s.began < hook.ended]
        assert beside == []
        later = [runtime.first(CREATE, other) for other in names[names.index(name) + 1 :]]
        assert all(hook.ended < span.began for span in later)
    # each container is created before it is started, and few are created ahead
    for name in names:
        created = runtime.first(CREATE, name).ended
        assert created is not None
        assert created < runtime.first(START, name).began
    assert runtime.most_ahead() <= MOST_OF_POD + 1


def _first_of_each(events: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without repetitions: an interruption may report an image twice."""
    return list(dict.fromkeys(events))


@pytest.mark.virtual_time
async def test_the_hook_of_a_restarted_container_is_a_barrier_too(tmp_path: Path) -> None:
    hooked = container("a", lifecycle=HOOK)
    with timed(tmp_path) as runtime:
        async with node(tmp_path, fake=runtime) as n:
            n.want(named(pod(hooked, container("b"), terminationGracePeriodSeconds=1), "web"))
            await n.wait_running("web", "a", "b")
            await n.wait_life("web", lambda life: not life.post_starting)
            runtime.spans.clear()
            for name in ("a", "b"):
                runtime.state.end(runtime.container(name), 1)
            await n.wait_for(lambda: runtime.names(START) in (["a", "b"], ["b", "a"]))
            if runtime.names(START) == ["a", "b"]:  # both ends were seen before the first start
                hook_end = runtime.first(HOOK_CALL, "a").ended
                assert hook_end is not None
                assert hook_end < runtime.first(CREATE, "b").began

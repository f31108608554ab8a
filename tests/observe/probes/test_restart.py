"""What holds for containers that ran before the agent started, until there are results of its own."""

from __future__ import annotations

import asyncio

import pytest
from observe.probes.stand import TICK, Node, ScriptedProber, never, probed

from pykubelet.base.model.probes import ProbeKind, ProbeResult
from pykubelet.edges.probing.outcome import failed
from pykubelet.observe.probes.decide import EarlierResults

pytestmark = pytest.mark.looptime

SUCCESS, FAILURE, UNKNOWN = ProbeResult.SUCCESS, ProbeResult.FAILURE, ProbeResult.UNKNOWN
READINESS, LIVENESS, STARTUP = ProbeKind.READINESS, ProbeKind.LIVENESS, ProbeKind.STARTUP


async def test_what_was_ready_stays_ready_over_a_restart() -> None:
    node, prober = Node(), ScriptedProber({"app": failed("busy")})
    uid = node.pod("web", probed("app", "startup", "readiness", "liveness"))
    container = node.run(uid, "app", ago_s=300)
    remembered = {container: EarlierResults(startup=SUCCESS, readiness=SUCCESS)}
    async with node.probing(prober, remembered, fraction=0.5):
        assert node.result(container, STARTUP) is SUCCESS
        assert node.result(container, READINESS) is SUCCESS
        await asyncio.sleep(16)
        assert prober.times("app") == pytest.approx([5, 5, 15, 15], abs=TICK)
        assert node.result(container, READINESS) is SUCCESS
        await asyncio.sleep(10)
        assert node.result(container, READINESS) is FAILURE
        assert node.result(container, LIVENESS) is FAILURE


@pytest.mark.parametrize(("was_ready", "expected"), [(True, SUCCESS), (False, FAILURE)])
@pytest.mark.parametrize("ago_s", [3, 300])
async def test_what_another_agent_has_reported_holds_until_there_is_a_result(
    was_ready: bool, expected: ProbeResult, ago_s: float
) -> None:
    """It is known from the API server; otherwise, only the age of the container would count."""
    node, prober = Node(), ScriptedProber({"app": failed("busy")} if was_ready else {})
    uid = node.pod("web", probed("app", "readiness"))
    container = node.run(uid, "app", ago_s=ago_s)
    node.report(uid, "app", container, ready=was_ready)
    async with node.probing(prober, fraction=0.5):
        assert node.result(container, READINESS) is expected
        assert not node.results.get().assumed
        await asyncio.sleep(30)
        assert node.result(container, READINESS) is (FAILURE if was_ready else SUCCESS)


async def test_a_container_does_not_take_over_what_was_reported_of_its_predecessor() -> None:
    """It was made while the API server was away, and the agent that made it has left no record."""
    node, prober = Node(), ScriptedProber({"app": failed("booting")})
    uid = node.pod("web", probed("app", "startup", "readiness", "liveness", initialDelaySeconds=60))
    replaced, container = node.run(uid, "app"), node.run(uid, "app", attempt=1, ago_s=30)
    node.report(uid, "app", replaced, ready=True)
    async with node.probing(prober):
        await asyncio.sleep(TICK)
        assert node.result(container, READINESS) is FAILURE
        assert node.result(container, STARTUP) is UNKNOWN
        await asyncio.sleep(50)
        assert prober.times("app"), "the startup probe"
        assert node.result(container, READINESS) is FAILURE
        assert node.result(container, LIVENESS) is SUCCESS


async def test_before_pods_are_known_old_containers_count_as_before() -> None:
    node, prober = Node(), ScriptedProber()
    uid = node.pod("web", probed("app", "readiness"))
    settled, fresh = node.run(uid, "app", ago_s=60), node.run(uid, "other", ago_s=3)
    lifecycle = node.lifecycles.get().pods[uid]
    node.forget(uid)
    async with node.probing(prober):
        assert node.result(settled, READINESS) is SUCCESS
        assert node.result(fresh, READINESS) is None
        node.take_up(lifecycle)
        await asyncio.sleep(TICK)
        assert node.results.get().results == {(settled, READINESS): SUCCESS}


async def test_what_was_ready_stays_ready_though_the_runtime_reports_it_late() -> None:
    node, prober = Node(), ScriptedProber({"app": failed("busy"), "settled": failed("busy")})
    uid = node.pod("web", probed("app", "readiness"), probed("settled", "readiness"))
    container, settled = node.run(uid, "app", ago_s=3), node.run(uid, "settled", ago_s=60)
    show = node.hide(uid)
    async with node.probing(prober, {container: EarlierResults(readiness=SUCCESS)}, fraction=0.5):
        assert node.result(container, READINESS) is SUCCESS
        await asyncio.sleep(3)
        assert node.result(container, READINESS) is SUCCESS
        show()
        await asyncio.sleep(TICK)
        assert node.result(container, READINESS) is node.result(settled, READINESS) is SUCCESS
        await asyncio.sleep(16)
        assert node.result(container, READINESS) is node.result(settled, READINESS) is SUCCESS
        await asyncio.sleep(15)
        assert node.result(container, READINESS) is node.result(settled, READINESS) is FAILURE
        node.exit(uid, "app")
        await asyncio.sleep(TICK)
        assert node.results.get().results == {(settled, READINESS): FAILURE}


async def test_a_boot_that_spans_the_restart_is_not_cut_short_by_liveness() -> None:
    """Nothing is known of this container: it counts as started, yet only its startup probe may end it."""
    node, prober = Node(), ScriptedProber({"app": failed("booting")})
    uid = node.pod("web", probed("app", "startup", "liveness", failureThreshold=5))
    container = node.run(uid, "app", ago_s=60)
    async with node.probing(prober):
        await asyncio.sleep(35)
        assert len(prober.asked) == 4
        assert node.result(container, LIVENESS) is SUCCESS
        prober.answers.clear()
        await asyncio.sleep(20)
        assert node.result(container, STARTUP) is SUCCESS
        assert len(prober.asked) > 5


async def test_a_pod_that_is_taken_up_again_keeps_its_readiness() -> None:
    node, prober = Node(), ScriptedProber()
    async with node.probing(prober):
        uid = node.pod("web", probed("app", "readiness", "startup"))
        container = node.run(uid, "app")
        await asyncio.sleep(TICK)
        lifecycle = node.lifecycles.get().pods[uid]
        node.forget(uid)
        await asyncio.sleep(TICK)
        prober.answers["app"] = never
        node.take_up(lifecycle)
        await asyncio.sleep(5)
        assert node.result(container, READINESS) is SUCCESS
        assert node.result(container, STARTUP) is SUCCESS


async def test_the_gate_that_changes_statuses_on_a_restart_makes_all_containers_begin_anew() -> None:
    """ChangeContainerStatusOnKubeletRestart: as before 1.35, nothing is ready before it was asked."""
    node, prober = Node(), ScriptedProber()
    uid = node.pod("gated", probed("app", "startup", "readiness"))
    container = node.run(uid, "app", ago_s=300)
    async with node.probing(prober, fraction=0.5, keeps=False):
        assert node.result(container, STARTUP) is ProbeResult.UNKNOWN
        assert node.result(container, READINESS) is FAILURE
        await asyncio.sleep(11)
        assert node.result(container, STARTUP) is SUCCESS
        assert node.result(container, READINESS) is SUCCESS

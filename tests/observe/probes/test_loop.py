"""The probes' loop in virtual time: whole lives of containers, as their readers see them."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from observe.probes.stand import TICK, Node, ScriptedProber, never, probed
from support.logs import logging_restored

from pykubelet.base.kit.log import set_up_logging
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.probes import ProbeKind, ProbeResult
from pykubelet.edges.probing.outcome import Outcome, ProbeVerdict, errored, failed, passed
from pykubelet.observe.probes import metrics
from pykubelet.observe.probes.decide import IDLE_TICK_S
from pykubelet.observe.probes.execute import ProbeRequest
from pykubelet.observe.probes.limiter import ProbeLimits
from pykubelet.observe.probes.workers import LOGGED_AT_ONCE

pytestmark = pytest.mark.looptime

SUCCESS, FAILURE, UNKNOWN = ProbeResult.SUCCESS, ProbeResult.FAILURE, ProbeResult.UNKNOWN
READINESS, LIVENESS, STARTUP = ProbeKind.READINESS, ProbeKind.LIVENESS, ProbeKind.STARTUP
#: Extra probes of a container that is not ready, over the network with the default period.
EXTRA_IN_TEN_S = 7


def counted_times(prober: ScriptedProber) -> list[float]:
    """When the probes of the period were asked, where the first one began at 0."""
    return [at for at in prober.times("app") if at % 10 == 0]


async def quickly(_ask: ProbeRequest) -> Outcome:
    await asyncio.sleep(0.005)
    return passed()


async def test_readiness_from_start_to_end() -> None:
    node, prober = Node(), ScriptedProber()
    async with node.probing(prober):
        assert node.results.get().watched == frozenset(ProbeKind)
        uid = node.pod("web", probed("app", "readiness"))
        await asyncio.sleep(20)
        assert prober.asked == []
        container = node.run(uid, "app")
        await asyncio.sleep(TICK)
        assert node.result(container, READINESS) is SUCCESS
        prober.answers["app"] = failed("refused")
        await asyncio.sleep(10)
        assert node.result(container, READINESS) is SUCCESS
        await asyncio.sleep(20)
        assert node.result(container, READINESS) is FAILURE
        node.exit(uid, "app")
        await asyncio.sleep(TICK)
        assert node.result(container, READINESS) is None
        asked = len(prober.asked)
        await asyncio.sleep(60)
        assert len(prober.asked) == asked
    assert node.messages == ["Unhealthy spec.containers{app} Readiness probe failed: refused"] * 3


async def test_a_container_is_not_probed_before_its_post_start_hook_has_ended() -> None:
    node, prober = Node(), ScriptedProber()
    async with node.probing(prober):
        uid = node.pod("web", probed("app", "readiness"))
        node.post_starting(uid, "app")
        container = node.run(uid, "app")
        await asyncio.sleep(15)
        assert prober.asked == []
        assert node.result(container, READINESS) is None
        node.post_starting(uid)
        await asyncio.sleep(TICK)
        assert node.result(container, READINESS) is SUCCESS


async def test_the_address_is_the_pods_or_the_nodes() -> None:
    node, prober = Node(), ScriptedProber()
    async with node.probing(prober):
        node.run(node.pod("web", probed("app", "readiness")), "app")
        node.run(node.pod("net", probed("host", "readiness"), hostNetwork=True), "host")
        await asyncio.sleep(TICK)
    assert {ask.container.name: ask.pod_ip for ask in prober.asks} == {"app": "10.0.0.9", "host": "192.0.2.1"}


async def test_startup_goes_before_liveness_and_readiness() -> None:
    node, prober = Node(), ScriptedProber({"app": failed("booting")})
    async with node.probing(prober):
        uid = node.pod("web", probed("app", "startup", "liveness", "readiness", failureThreshold=5))
        container = node.run(uid, "app")
        await asyncio.sleep(25)
        assert counted_times(prober) == pytest.approx([0, 10, 20], abs=TICK)
        assert node.result(container, STARTUP) is UNKNOWN
        assert node.result(container, READINESS) is FAILURE
        prober.answers["app"] = quickly
        prober.asked.clear()
        await asyncio.sleep(5 + 2 * TICK)
        assert node.result(container, STARTUP) is SUCCESS
        assert node.result(container, READINESS) is SUCCESS
        assert prober.times("app") == pytest.approx([30, 30], abs=TICK), "startup, then readiness"
        await asyncio.sleep(10 + 2 * IDLE_TICK_S)
        assert len(prober.times("app")) == 4  # liveness has joined


@pytest.mark.parametrize("kind", ["readiness", "startup"])
async def test_a_server_that_comes_up_is_ready_long_before_the_period_has_passed(kind: str) -> None:
    node, prober = Node(), ScriptedProber({"app": failed("connection refused")})
    async with node.probing(prober):
        uid = node.pod("web", probed("app", kind, periodSeconds=300))
        container = node.run(uid, "app")
        await asyncio.sleep(0.3)
        prober.answers["app"] = quickly
        await asyncio.sleep(0.3)
        assert node.result(container, ProbeKind(kind)) is SUCCESS
        times = prober.times("app")
        await asyncio.sleep(299)
        assert prober.times("app") == times, "a probe that has passed waits for its period"
    where = "spec.containers{app}"
    assert node.messages == [f"Unhealthy {where} {kind.capitalize()} probe failed: connection refused"]


async def test_extra_probes_have_no_events_and_are_counted_in_the_metrics() -> None:
    node, prober = Node(), ScriptedProber({"app": failed("refused"), "lost": errored("no address")})
    async with node.probing(prober):
        uid = node.pod("extra", probed("app", "readiness"), probed("lost", "readiness"))
        node.run(uid, "app")
        node.run(uid, "lost")
        await asyncio.sleep(25)
        assert len(prober.times("app")) == len(prober.times("lost")) == 3 + EXTRA_IN_TEN_S
        labels = ("shop", "extra", uid, "Readiness")
        assert metrics.TOTAL.value("app", *labels, metrics.FAILED) == 3 + EXTRA_IN_TEN_S
        assert metrics.TOTAL.value("lost", *labels, metrics.UNKNOWN) == 3 + EXTRA_IN_TEN_S
    assert sorted(node.messages) == [
        *["Unhealthy spec.containers{app} Readiness probe failed: refused"] * 3,
        *["Unhealthy spec.containers{lost} Readiness probe errored and resulted in unknown state: no address"] * 3,
    ]


async def test_pods_that_are_never_ready_cost_a_few_extra_probes_each() -> None:
    node, prober = Node(), ScriptedProber()
    async with node.probing(prober):
        for n in range(100):
            prober.answers[f"c{n}"] = failed("refused")
            node.run(node.pod(f"p{n}", probed(f"c{n}", "readiness")), f"c{n}")
        await asyncio.sleep(9.9)
        assert len(prober.asked) == 100 * (1 + EXTRA_IN_TEN_S)
        await asyncio.sleep(100)
        assert len(prober.asked) == 100 * (11 + EXTRA_IN_TEN_S)


async def test_a_restarted_container_waits_for_its_startup_probe_before_the_others() -> None:
    node, prober = Node(), ScriptedProber()
    async with node.probing(prober):
        uid = node.pod("web", probed("app", "startup", "liveness", "readiness", periodSeconds=1, failureThreshold=1000))
        node.run(uid, "app")
        await asyncio.sleep(5)
        node.exit(uid, "app")
        prober.answers["app"] = failed("booting")
        again = node.run(uid, "app", attempt=1)
        await asyncio.sleep(30)
        assert [node.result(again, kind) for kind in (STARTUP, READINESS, LIVENESS)] == [UNKNOWN, FAILURE, SUCCESS]
        assert {message.split()[2] for message in node.messages} == {"Startup"}


async def test_a_failed_startup_probe_gives_up_and_a_new_container_begins_afresh() -> None:
    node, prober = Node(), ScriptedProber({"app": failed("dead")})
    async with node.probing(prober):
        uid = node.pod("web", probed("app", "startup", failureThreshold=2))
        first = node.run(uid, "app")
        await asyncio.sleep(10 + TICK)
        assert node.result(first, STARTUP) is FAILURE
        asked = len(prober.asked)
        await asyncio.sleep(60)
        assert len(prober.asked) == asked
        assert len(node.messages) == 2
        node.exit(uid, "app")
        second = node.run(uid, "app", 1)
        await asyncio.sleep(TICK)
        assert node.result(first, STARTUP) is None
        assert node.result(second, STARTUP) is UNKNOWN
        prober.answers["app"] = passed()
        await asyncio.sleep(10)
        assert node.result(second, STARTUP) is SUCCESS


async def test_liveness_failure_stands_until_the_container_is_replaced() -> None:
    node, prober = Node(), ScriptedProber({"app": failed("dead")})
    async with node.probing(prober):
        uid = node.pod("web", probed("app", "liveness", periodSeconds=1))
        first = node.run(uid, "app")
        await asyncio.sleep(2 + TICK)
        assert node.result(first, LIVENESS) is FAILURE
        await asyncio.sleep(30)
        assert node.result(first, LIVENESS) is FAILURE
        assert len(prober.asked) == 3
        second = node.run(uid, "app", 1)
        await asyncio.sleep(TICK)
        assert node.results.get().results == {(second, LIVENESS): SUCCESS}


async def test_sidecars_are_probed_and_other_init_containers_are_not() -> None:
    node, prober = Node(), ScriptedProber()
    async with node.probing(prober):
        init = (probed("mesh", "startup", sidecar=True), probed("setup", "readiness"))
        uid = node.pod("web", {"name": "app", "image": "i"}, init=init)
        mesh, setup = node.run(uid, "mesh"), node.run(uid, "setup")
        await asyncio.sleep(TICK)
        assert node.results.get().results == {(mesh, STARTUP): SUCCESS}
        assert node.result(setup, READINESS) is None
    assert node.messages == []


async def test_a_pod_that_is_ended_is_quiet() -> None:
    node, prober = Node(), ScriptedProber({"app": failed("dead")})
    async with node.probing(prober):
        uid = node.pod("web", probed("app", "startup", "liveness", failureThreshold=1))
        container = node.run(uid, "app")
        await asyncio.sleep(TICK)
        assert node.result(container, STARTUP) is FAILURE
        node.stage(uid, Stage.TERMINATING)
        await asyncio.sleep(TICK)
        assert node.result(container, STARTUP) is SUCCESS
        assert node.result(container, LIVENESS) is SUCCESS
        asked = len(prober.asked)
        await asyncio.sleep(60)
        assert len(prober.asked) == asked
        node.stage(uid, Stage.TERMINATED)
        node.gone(uid)
        await asyncio.sleep(TICK)
        assert node.results.get().results == {}
        assert node.waits == {}


async def test_the_readiness_of_a_pod_that_is_ended_goes_on() -> None:
    """Also of a command that runs while the stop begins: clients leave the pod when it is not ready any more."""

    async def slow(ask: ProbeRequest) -> Outcome:
        await asyncio.sleep(2)
        return passed()

    node, prober = Node(), ScriptedProber({"app": slow})
    async with node.probing(prober):
        container = {
            "name": "app",
            "image": "i",
            "readinessProbe": {"exec": {"command": ["ready"]}, "failureThreshold": 1},
        }
        uid = node.pod("web", container)
        instance = node.run(uid, "app")
        await asyncio.sleep(1)
        node.stage(uid, Stage.TERMINATING)
        await asyncio.sleep(1.1)
        assert node.result(instance, READINESS) is SUCCESS
        prober.answers["app"] = failed("draining")
        await asyncio.sleep(11)
        assert node.result(instance, READINESS) is FAILURE


async def test_a_probe_that_hangs_is_cancelled_with_its_container() -> None:
    ended: list[str] = []

    async def hangs(ask: ProbeRequest) -> Outcome:
        try:
            return await never(ask)
        finally:
            ended.append(ask.id)

    node, prober = Node(), ScriptedProber({"app": hangs})
    async with node.probing(prober):
        uid = node.pod("web", probed("app", "liveness"))
        first = node.run(uid, "app")
        await asyncio.sleep(40)
        assert (len(prober.asked), ended) == (1, [])
        node.exit(uid, "app")
        prober.answers.clear()
        second = node.run(uid, "app", 1)
        await asyncio.sleep(10)
        assert ended == [first]
        assert prober.asked[-1][2] == second
        node.forget(uid)
        await asyncio.sleep(TICK)
        assert not any(container == first for container, _ in node.results.get().results)


async def test_one_that_hangs_delays_no_other() -> None:
    node, prober = Node(), ScriptedProber()
    async with node.probing(prober, limits=ProbeLimits(exec_at_once=2, network_at_once=2, hold_s=0.25)):
        for n in range(8):
            prober.answers[f"bad{n}"] = never
            node.run(node.pod(f"bad{n}", probed(f"bad{n}", "readiness", periodSeconds=1)), f"bad{n}")
        good = node.run(node.pod("good", probed("good", "readiness", periodSeconds=1)), "good")
        await asyncio.sleep(1 + TICK)  # eight hold two places for a quarter of a second each
        assert node.result(good, READINESS) is SUCCESS
        await asyncio.sleep(60)
        times = prober.times("good")
        assert max(after - before for before, after in itertools.pairwise(times)) <= 1.02


async def test_a_probe_that_waits_in_the_queue_has_not_begun() -> None:
    async def takes_a_second(_ask: ProbeRequest) -> Outcome:
        await asyncio.sleep(1.0)
        return passed()

    node, prober = Node(), ScriptedProber()
    async with node.probing(prober, limits=ProbeLimits(network_at_once=1, hold_s=10.0)):
        made = []
        for n in range(50):
            prober.answers[f"c{n}"] = takes_a_second
            container = probed(f"c{n}", "liveness", periodSeconds=1, failureThreshold=1)
            made.append(node.run(node.pod(f"p{n}", container), f"c{n}"))
        await asyncio.sleep(200)
        assert all(node.result(container, LIVENESS) is SUCCESS for container in made)
    assert node.messages == []
    first_round = [name for _, name, _ in prober.asked[:50]]
    assert sorted(first_round) == sorted(f"c{n}" for n in range(50)), "first come, first served"


async def test_errors_are_reported_and_change_nothing() -> None:
    node, prober = Node(), ScriptedProber({"app": errored("rpc error: away")})
    async with node.probing(prober):
        uid = node.pod("web", probed("app", "liveness", failureThreshold=1))
        container = node.run(uid, "app")
        await asyncio.sleep(20 + TICK)
        assert node.result(container, LIVENESS) is SUCCESS
        prober.answers["app"] = Outcome(ProbeVerdict.WARNING, "Probe terminated redirects, Response body: x")
        await asyncio.sleep(10)
    where = "spec.containers{app}"
    error = f"Unhealthy {where} Liveness probe errored and resulted in unknown state: rpc error: away"
    warning = f"ProbeWarning {where} Liveness probe warning: Probe terminated redirects, Response body: x"
    assert node.messages == [error] * 3 + [warning]


async def test_a_bug_in_a_prober_is_one_bad_try() -> None:
    async def buggy(_ask: ProbeRequest) -> Outcome:
        raise ZeroDivisionError("oops")

    node, prober = Node(), ScriptedProber({"app": buggy})
    async with node.probing(prober):
        container = node.run(node.pod("web", probed("app", "readiness")), "app")
        await asyncio.sleep(TICK)
        prober.answers.clear()
        await asyncio.sleep(10)
        assert node.result(container, READINESS) is SUCCESS
    assert "internal error: ZeroDivisionError('oops')" in node.messages[0]


async def test_results_are_published_only_when_they_change() -> None:
    node, prober = Node(), ScriptedProber()
    async with node.probing(prober):
        for n in range(20):
            node.run(node.pod(f"p{n}", probed("app", "readiness", "liveness", periodSeconds=1)), "app")
        await asyncio.sleep(5)
        reported = node.results.version
        await asyncio.sleep(60)
        assert node.results.version == reported
    assert len(prober.asked) > 2000


async def test_results_of_one_pass_are_published_together() -> None:
    node, prober = Node(), ScriptedProber()
    async with node.probing(prober):
        pods = [node.pod(f"p{n}", probed("app", "readiness")) for n in range(50)]
        await asyncio.sleep(TICK)
        reported = node.results.version
        for uid in pods:
            node.run(uid, "app")
        await asyncio.sleep(TICK)
        assert set(node.results.get().results.values()) == {SUCCESS}
        assert node.results.version - reported <= 4


async def test_the_wall_clock_may_jump() -> None:
    node, prober = Node(), ScriptedProber()
    async with node.probing(prober):
        uid = node.pod("web", probed("app", "readiness", "liveness", initialDelaySeconds=30))
        node.run(uid, "app")
        await asyncio.sleep(5)
        node.clock.jump_s = 3600.0
        await asyncio.sleep(5)
        other = node.pod("other", probed("late", "readiness", initialDelaySeconds=10))
        node.run(other, "late")
        node.clock.jump_s = -3600.0
        await asyncio.sleep(41)
    assert prober.times("app") == pytest.approx([30, 30, 40, 40, 50, 50], abs=TICK)
    assert prober.times("late") == pytest.approx([20, 30, 40, 50], abs=0.02)


async def test_probes_are_counted() -> None:
    node, prober = Node(), ScriptedProber()
    async with node.probing(prober):
        uid = node.pod("counted", probed("app", "readiness"))
        node.run(uid, "app")

        def counted(result: str) -> float:
            return metrics.TOTAL.value("app", "shop", "counted", uid, "Readiness", result)

        await asyncio.sleep(25)
        prober.answers["app"] = failed("no")
        await asyncio.sleep(20)
        prober.answers["app"] = errored("away")
        await asyncio.sleep(10)
        assert (counted(metrics.SUCCESSFUL), counted(metrics.FAILED), counted(metrics.UNKNOWN)) == (3, 2, 1)
        assert metrics.DURATION.count("app", "shop", "counted", "Readiness") == 3
        node.forget(uid)
        await asyncio.sleep(TICK)
        assert counted(metrics.SUCCESSFUL) == 0
        assert metrics.DURATION.count("app", "shop", "counted", "Readiness") == 0


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
async def test_a_wall_clock_that_jumps_as_a_container_starts_moves_no_probe(jump: float) -> None:
    node, prober = Node(), ScriptedProber()
    async with node.probing(prober):
        uid = node.pod("web", probed("app", "readiness", initialDelaySeconds=7, periodSeconds=1))
        await asyncio.sleep(20)
        node.list_pods()
        await asyncio.sleep(TICK)
        node.clock.jump_s -= jump  # so that the container's date lies an hour away from the clock's
        node.run(uid, "app")
        node.clock.jump_s += jump
        await asyncio.sleep(9.5)
    assert prober.times("app")[:2] == pytest.approx([27.0, 28.0], abs=IDLE_TICK_S + TICK)


@pytest.mark.parametrize(("verbosity", "expected"), [(0, LOGGED_AT_ONCE + 9), (4, 300)])
async def test_a_result_that_changes_all_the_time_does_not_fill_the_log(
    verbosity: int, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    flips = itertools.cycle((passed(), failed("refused")))

    async def flapping(_ask: ProbeRequest) -> Outcome:
        return next(flips)

    node, prober = Node(), ScriptedProber({"app": flapping})
    with logging_restored():
        set_up_logging(verbosity)
        async with node.probing(prober):
            node.run(node.pod("web", probed("app", "readiness", periodSeconds=1, failureThreshold=1)), "app")
            await asyncio.sleep(600)
    lines = capsys.readouterr().err.count("a probe result changed")
    assert lines >= expected
    assert verbosity or lines <= expected + 1

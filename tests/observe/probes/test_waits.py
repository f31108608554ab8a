"""Waits for probes: what `pykubelet explain` shows of probes that fail, do not end, or wait in the queue."""

from __future__ import annotations

import asyncio

import pytest
from observe.probes.stand import TICK, Node, ScriptedProber, never, probed

from pykubelet.base.model.ids import PodUID
from pykubelet.edges.probing.outcome import Outcome, failed, passed
from pykubelet.observe.probes.execute import ProbeRequest
from pykubelet.observe.probes.limiter import ProbeLimits

pytestmark = pytest.mark.looptime


def waits(node: Node, uid: PodUID) -> list[tuple[str, str, str]]:
    return [(w.what, w.detail, w.next_step) for w in node.waits.get(uid, ())]


async def test_waits_say_what_is_wrong_and_what_comes_next() -> None:
    node, prober = Node(), ScriptedProber({"app": failed("connection refused")})
    async with node.probing(prober):
        uid = node.pod("web", probed("app", "startup", "readiness", failureThreshold=9, initialDelaySeconds=15))
        node.run(uid, "app")
        await asyncio.sleep(TICK)
        assert waits(node, uid) == [
            ("startup probe", "not probed yet", "probe"),
            ("readiness probe", "waits for the startup probe", "probe once the container has started"),
        ]
        next_at = node.waits[uid][0].next_at
        assert next_at == pytest.approx(node.clock.wall() - TICK + 15.1, abs=0.01)
        await asyncio.sleep(16)
        assert waits(node, uid)[0] == ("startup probe", "connection refused", "probe again"), "none has counted yet"
        await asyncio.sleep(14)
        assert waits(node, uid)[0] == (
            "startup probe",
            "connection refused (2 of 9 failures in a row)",
            "probe again",
        )
        prober.answers.clear()
        await asyncio.sleep(15)
        assert node.waits == {}


async def test_a_probe_that_does_not_end_is_named() -> None:
    node, prober = Node(), ScriptedProber({"app": never})
    async with node.probing(prober):
        container = probed("app", "liveness")
        container["livenessProbe"]["exec"] = {"command": ["sleep", "inf"]}
        uid = node.pod("web", container)
        node.run(uid, "app")
        await asyncio.sleep(3)
        assert node.waits == {}
        await asyncio.sleep(2)
        [(what, detail, step)] = waits(node, uid)
        assert (what, step) == ("liveness probe", "give the try up")
        assert detail.startswith("the probe due 5s ago has not ended: the runtime or the command does not answer")
        [wait] = node.waits[uid]
        assert (
            wait.next_at is not None and wait.next_at > wait.since + 100
        )  # the runtime has two minutes for its answer


async def test_a_command_that_waits_long_in_the_queue_is_a_wait() -> None:
    async def takes_six_seconds(_ask: ProbeRequest) -> Outcome:
        await asyncio.sleep(6)
        return passed()

    node, prober = Node(), ScriptedProber({"first": takes_six_seconds})
    async with node.probing(prober, limits=ProbeLimits(exec_at_once=1, hold_s=10.0)):
        made = {}
        for name in ("first", "second"):
            container = probed(name, "liveness", timeoutSeconds=2)
            container["livenessProbe"]["exec"] = {"command": ["true"]}
            made[name] = node.pod(name, container)
            node.run(made[name], name)
        await asyncio.sleep(3)
        [(what, detail, step)] = waits(node, made["second"])
        assert (what, step) == ("liveness probe", "probe")
        assert detail.startswith(
            "the probe due 3s ago waits in the queue: there are more commands to be run than the node"
        )
        [wait] = node.waits[made["second"]]
        assert wait.next_at is not None and wait.next_at > wait.since
        await asyncio.sleep(4)
        assert waits(node, made["second"]) == []


async def test_the_next_step_of_a_command_is_never_in_the_past() -> None:
    """Whether it runs, waits in the queue, waits longer because the queue is slow, or does not come back."""

    async def slow(_ask: ProbeRequest) -> Outcome:
        await asyncio.sleep(7)
        return failed("no")

    names = ("a", "b", "c")
    node, prober = Node(), ScriptedProber(dict.fromkeys(names, slow))
    async with node.probing(prober, limits=ProbeLimits(exec_at_once=1, hold_s=2.0)):
        for name in names:
            container = probed(name, "readiness", timeoutSeconds=1, periodSeconds=3)
            container["readinessProbe"]["exec"] = {"command": ["true"]}
            node.run(node.pod(name, container), name)
        await asyncio.sleep(0.5)
        observed = 0
        for _ in range(400):
            await asyncio.sleep(0.1)
            for pod, (wait,) in node.waits.items():
                assert wait.next_at is not None and wait.next_at >= node.clock.wall(), (pod, wait)
                observed += 1
        assert observed == 3 * 400

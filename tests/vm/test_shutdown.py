"""Graceful node shutdown with the machine's logind: the lock, the delay, the order of ends, a cancellation."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from support.agent import Json, container_status, make_container, make_pod
from support.unit import LONG_S, UnitAgent, systemctl

pytestmark = pytest.mark.vm

MakeUnit = Callable[..., UnitAgent]
LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
GROUPS = [
    {"priority": 0, "shutdownGracePeriodSeconds": 300},
    {"priority": 1000, "shutdownGracePeriodSeconds": 120},
    {"priority": 100_000, "shutdownGracePeriodSeconds": 60},
]


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=300).stdout


def announce(active: bool) -> None:
    """As the upstream tests do: any program may send the signal."""
    _, path, interface = LOGIND
    run("busctl", "--system", "emit", path, interface, "PrepareForShutdown", "b", str(active).lower())


def locks() -> list[str]:
    shown = run("systemd-inhibit", "--list", "--no-legend", "--no-pager")
    return [line for line in shown.splitlines() if line.split()[0] == "kubelet"]


def stubborn(name: str, **spec: Any) -> Json:
    """A pod that needs its whole grace period."""
    script = 'trap "" TERM; while :; do sleep 1; done'
    return make_pod(name, make_container(script=script), terminationGracePeriodSeconds=600, **spec)


def has_stopped(pod: Json) -> bool:
    return "terminated" in container_status(pod)["state"]


async def test_pods_end_by_priority_until_the_shutdown_is_cancelled(make_unit: MakeUnit) -> None:
    agent = make_unit(shutdownGracePeriodByPodPriority=GROUPS).start()
    await agent.wait_for("the lock is taken", lambda: len(locks()) == 1, LONG_S)
    assert locks()[0].split()[-1] == "delay" and "shutdown" in locks()[0].split()
    delay = run("busctl", "--system", "get-property", *LOGIND, "InhibitDelayMaxUSec").split()
    assert int(delay[1]) == 480 * 10**6
    agent.put(make_pod("quick", priority=5), stubborn("stubborn", priority=1000), make_pod("last", priority=200_000))
    await agent.wait_running("quick", "stubborn", "last", within=LONG_S)

    announce(active=True)
    ended = await agent.wait_phase("quick", "Failed", within=LONG_S)
    assert ended["status"]["reason"] == "Terminated"
    assert ended["status"]["message"] == "Pod was terminated in response to imminent node shutdown."
    conditions = {condition["type"]: condition for condition in ended["status"]["conditions"]}
    assert conditions["DisruptionTarget"]["reason"] == "TerminationByKubelet"
    assert conditions["Ready"]["status"] == "False"
    await agent.wait_for("the next group", lambda: agent.explain("stubborn")["kill_reason"] == "shutdown", LONG_S)
    agent.put(make_pod("late"))
    late = await agent.wait_phase("late", "Failed", within=LONG_S)
    assert late["status"]["reason"] == "NodeShutdown"
    assert "last-node/main" in (await agent.look()).running_ids(), "the group before has not ended"

    announce(active=False)
    await agent.wait_for("logind's lock is taken anew", lambda: len(locks()) == 1, LONG_S)
    agent.put(make_pod("after"))
    await agent.wait_running("after", "last", within=LONG_S)
    stopped = await agent.wait_pod("stubborn", "stopped", has_stopped, LONG_S)
    assert container_status(stopped)["state"]["terminated"]["exitCode"] == 137
    ended = await agent.wait_phase("stubborn", "Failed", within=LONG_S)
    assert ended["status"]["reason"] == "Terminated"
    assert "last-node/main" in (await agent.look()).running_ids(), "no group begins after the cancellation"
    await agent.remove_all(LONG_S)
    assert agent.stop() == 0
    await agent.wait_for("the lock goes with the agent", lambda: locks() == [], LONG_S)
    systemctl("restart", "systemd-logind.service")

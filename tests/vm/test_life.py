"""Pods under a service of systemd on cgroup v2: started, untouched by a kill of the agent, ended gracefully, nothing left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.agent import Json, container_status, make_container, make_pod
from support.unit import LONG_S, UNIT, UnitAgent, pod_units, show

pytestmark = pytest.mark.vm

MakeUnit = Callable[..., UnitAgent]
GOODBYE = 'trap "echo ended > /out/$POD; exit 0" TERM; touch /out/$POD.runs; while :; do sleep 3600 & wait $!; done'


def make_one(name: str, out: Path, resources: Json) -> Json:
    """A pod whose container writes a file into `out` when SIGTERM ends it."""
    container = make_container(
        script=GOODBYE,
        env=[{"name": "POD", "value": name}],
        resources=resources,
        volumeMounts=[{"name": "out", "mountPath": "/out"}],
    )
    return make_pod(
        name, container, volumes=[{"name": "out", "hostPath": {"path": str(out)}}], terminationGracePeriodSeconds=60
    )


def ended(out: Path) -> set[str]:
    """The pods whose containers were ended by SIGTERM."""
    return {path.name for path in out.iterdir() if not path.suffix}


async def test_pods_outlive_a_killed_agent_and_end_gracefully(make_unit: MakeUnit, tmp_path: Path) -> None:
    agent = make_unit().start()
    assert show(UNIT, "ActiveState", "Type", "WatchdogUSec") == {
        "ActiveState": "active",
        "Type": "notify",
        "WatchdogUSec": "2min",
    }
    size = {"cpu": "1", "memory": "64Mi"}  # emulated, runc needs minutes with less
    pods = {
        "guaranteed": {"requests": size, "limits": size},
        "burstable": {"requests": {"cpu": "50m", "memory": "32Mi"}},
        "besteffort": {},
    }
    agent.put(*(make_one(name, tmp_path, resources) for name, resources in pods.items()))
    await agent.wait_running(*pods, within=LONG_S)
    await agent.wait_for("traps set", lambda: len(list(tmp_path.glob("*.runs"))) == len(pods), LONG_S)
    before = (await agent.look()).running_ids()
    assert len(before) == len(pods)
    assert len([unit for unit in pod_units() if unit.endswith(".slice")]) == len(pods)

    old = agent.main_pid()
    agent.kill9()
    agent.wait_restarted(old)
    for pod in await agent.wait_running(*pods, within=LONG_S):
        assert container_status(pod)["restartCount"] == 0
    assert (await agent.look()).running_ids() == before
    assert not ended(tmp_path)

    agent.remove(*pods)
    await agent.wait_gone(*pods, within=LONG_S)
    assert ended(tmp_path) == set(pods)
    await agent.wait_nothing_left(within=LONG_S)
    await agent.wait_for("no slice or scope of a pod left", lambda: not pod_units(), LONG_S)
    assert agent.stop() == 0

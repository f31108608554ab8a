"""Pods come, stay and go while systemd reads its units again, and executes itself again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.agent import container_status, make_container, make_pod
from support.unit import CGROUP_MOUNT, LONG_S, UnitAgent, pod_units, show, systemctl

pytestmark = pytest.mark.vm

MakeUnit = Callable[..., UnitAgent]


async def test_pods_come_and_go_through_reload_and_reexec_of_systemd(make_unit: MakeUnit) -> None:
    agent = make_unit().start()
    size = {"cpu": "1", "memory": "64Mi"}  # emulated, runc needs minutes with less
    sized = make_container(resources={"requests": size, "limits": size})
    agent.put(make_pod("steady", sized), make_pod("besteffort"))
    await agent.wait_running("steady", "besteffort", within=LONG_S)
    before = (await agent.look()).running_ids()
    slices = {unit: values(unit) for unit in pod_units() if unit.endswith(".slice")}
    assert len(slices) == 2

    for number, word in enumerate(("daemon-reload", "daemon-reexec")):
        new = f"new-{number}"
        agent.put(make_pod(new, sized))  # it is made while systemd is busy with itself
        systemctl(word)
        for pod in await agent.wait_running("steady", "besteffort", new, within=LONG_S):
            assert container_status(pod)["restartCount"] == 0
        assert {unit: values(unit) for unit in slices} == slices
        assert before.items() <= (await agent.look()).running_ids().items()
        agent.remove(new)
        await agent.wait_gone(new, within=LONG_S)

    await agent.remove_all(LONG_S)
    await agent.wait_for("no slice or scope of a pod left", lambda: not pod_units(), LONG_S)
    assert agent.stop() == 0


def values(unit: str) -> dict[str, str]:
    """What the kernel holds a slice to, and what systemd believes."""
    folder = CGROUP_MOUNT / show(unit, "ControlGroup")["ControlGroup"].strip("/")
    kernel = {name: (folder / name).read_text().strip() for name in ("memory.max", "cpu.max", "cpu.weight", "pids.max")}
    return kernel | show(unit, "MemoryMax", "CPUWeight", "CPUQuotaPerSecUSec", "TasksMax")

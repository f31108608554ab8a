"""Second half of a reboot: the agent is back by itself, and so are its pods, each as it should be."""

from __future__ import annotations

from support.agent import container_status
from support.unit import LONG_S, SystemContainerd, UnitAgent, pod_units
from vm import reboots


async def test_pods_are_back_after_the_reboot(runtime: SystemContainerd) -> None:
    before = reboots.read_notes()
    assert reboots.BOOT_ID.read_text() != before["boot"]
    agent = UnitAgent(runtime, reboots.FOLDER)
    try:
        agent.wait_healthy()  # its unit is enabled: systemd starts it
        web, helped, _ = await agent.wait_running("web", "helped", "critical", within=LONG_S)
        job = await agent.wait_phase("job", "Succeeded", within=120)
        uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in (web, helped)}
        assert uids.items() <= before["uids"].items()
        after = (await agent.look()).running_ids()
        assert set(after) == set(before["ids"])
        assert not set(after.values()) & set(before["ids"].values()), "a container cannot have lived on"
        assert [container_status(pod)["restartCount"] for pod in (web, helped)] == [1, 1]
        assert container_status(helped, "sidecar")["restartCount"] == 1
        assert container_status(job)["state"]["terminated"]["exitCode"] == 0
        lines = {path.name: path.read_text().split() for path in reboots.OUT.iterdir()}
        assert lines.pop("order") == ["ending", "web", "critical"], "the groups have ended one after the other"
        assert lines == {"web": ["started", "started"], "helped": ["setup", "setup"], "job": ["ran"]}
        assert set(reboots.shutdown_times()) == {"startTime", "endTime"}
        await agent.remove_all(LONG_S)
        await agent.wait_for("no slice or scope of a pod left", lambda: not pod_units(), LONG_S)
        assert agent.stop() == 0
    finally:
        await agent.clear()

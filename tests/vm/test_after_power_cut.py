"""Second half of a power cut: the API and the agent are back by themselves, with all objects and the pod."""

from __future__ import annotations

import json
from pathlib import Path

from support.unit import LONG_S, SystemContainerd, UnitAgent
from vm import power_cut


def uptime() -> float:
    """Seconds since the machine was started."""
    return float(Path("/proc/uptime").read_text().split()[0])


async def test_objects_and_pods_are_back_after_the_power_cut(runtime: SystemContainerd) -> None:
    before = json.loads(power_cut.NOTES.read_text())
    assert power_cut.BOOT_ID.read_text() != before["boot"]
    agent = UnitAgent(runtime, power_cut.FOLDER / "agent")
    agent.flags = power_cut.FLAGS
    try:
        assert (await power_cut.wait_for(f"{power_cut.MAPS}/last", lambda status, _: status == 200, LONG_S))["metadata"]
        answered_s = uptime()
        pod = await power_cut.wait_for(
            f"{power_cut.PODS}/web",
            lambda status, found: (
                power_cut.is_running(status, found) and found["status"]["containerStatuses"][0]["restartCount"] == 1
            ),
            LONG_S,
        )
        print(f"seconds after the boot: the API answers by {answered_s:.0f}, the pod runs by {uptime():.0f}")
        assert pod["metadata"]["uid"] == before["uid"]
        lines = (power_cut.OUT / "web").read_text().split("\n")[:-1]
        assert [line.split()[0] for line in lines] == ["green", "green"]
        assert all(int(line.split()[1]) > 500 for line in lines), "each start had a token"
        assert power_cut.ask("DELETE", f"{power_cut.PODS}/web")[0] == 200
        await power_cut.wait_for(f"{power_cut.PODS}/web", lambda status, _: status == 404, LONG_S)
    finally:
        power_cut.remove_api()
        await agent.clear()

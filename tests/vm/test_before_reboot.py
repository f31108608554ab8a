"""First half of a reboot: pods run, and stay when the tests end. The second is in `test_after_reboot.py`."""

from __future__ import annotations

import os

from support.unit import LONG_S, SystemContainerd, UnitAgent, clear_machine
from vm import reboots


async def test_pods_run_before_the_reboot(runtime: SystemContainerd) -> None:
    await clear_machine(runtime)
    reboots.OUT.mkdir(parents=True)
    runtime.set_driver("systemd")
    agent = UnitAgent(runtime, reboots.FOLDER, reboots.SETTINGS)
    agent.put(*reboots.make_pods())
    agent.start()
    running = await agent.wait_running("web", "helped", "critical", within=LONG_S)
    await agent.wait_for("the lock of logind is taken", reboots.is_inhibited, LONG_S)
    done = await agent.wait_phase("job", "Succeeded", within=LONG_S)
    reboots.write_notes(
        {
            "boot": reboots.BOOT_ID.read_text(),
            "uids": {p["metadata"]["name"]: p["metadata"]["uid"] for p in [*running, done]},
            "ids": (await agent.look()).running_ids(),
        }
    )
    os.sync()

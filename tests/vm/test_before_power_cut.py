"""First half of a power cut: a pod of the local API runs, and stays when the tests end. The second is in `test_after_power_cut.py`."""

from __future__ import annotations

import json
import shutil

from support.unit import LONG_S, SystemContainerd, UnitAgent, clear_machine
from vm import power_cut


async def test_a_pod_of_the_local_api_runs_before_the_power_cut(runtime: SystemContainerd) -> None:
    await clear_machine(runtime)
    shutil.rmtree(power_cut.FOLDER, ignore_errors=True)  # of a test run that was cut short
    power_cut.OUT.mkdir(parents=True)
    runtime.set_driver("systemd")
    power_cut.start_api()
    await power_cut.wait_for(
        "/api/v1/namespaces/default/serviceaccounts/default", lambda status, _: status == 200, LONG_S
    )
    agent = UnitAgent(runtime, power_cut.FOLDER / "agent")
    agent.flags = power_cut.FLAGS
    agent.start()
    assert power_cut.ask("POST", power_cut.MAPS, {"metadata": {"name": "colors"}, "data": {"color": "green"}})[0] == 201
    assert power_cut.ask("POST", power_cut.PODS, power_cut.make_pod_of_api())[0] == 201
    pod = await power_cut.wait_for(f"{power_cut.PODS}/web", power_cut.is_running, LONG_S)
    power_cut.NOTES.write_text(json.dumps({"boot": power_cut.BOOT_ID.read_text(), "uid": pod["metadata"]["uid"]}))
    # the last write before the cut: it was answered, so it must be there
    assert power_cut.ask("POST", power_cut.MAPS, {"metadata": {"name": "last"}})[0] == 201

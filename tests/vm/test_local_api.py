"""The local API as a service of the Debian package, from its installation to a pod with a claim, and restarts of the services.

The node stays when the tests end; `test_local_api_after.py` looks at it after a reboot and after a power cut.
"""

from __future__ import annotations

import json
from pathlib import Path

from support.guides import blocks
from support.typed import run
from support.unit import UNIT, SystemContainerd, clear_machine, show, systemctl
from testvm.builds import BUILT, NOW
from vm import local_api_node as node


async def test_a_node_of_services_runs_a_pod_and_keeps_it_over_their_restarts(runtime: SystemContainerd) -> None:
    node.remove()  # of a test run that was cut short
    await clear_machine(runtime)
    runtime.set_driver("cgroupfs")  # as the package has it
    node.FOLDER.mkdir(parents=True)
    node.name_image()
    [package] = (BUILT / NOW).glob("pykubelet_*.deb")
    run("env", "DEBIAN_FRONTEND=noninteractive", "dpkg", "--install", package)
    assert show(node.API_UNIT, "ActiveState", "UnitFileState") == {
        "ActiveState": "inactive",
        "UnitFileState": "disabled",
    }
    [switch] = blocks("local-api.md", "sh", "As a service")[:1]
    switched = switch.splitlines()[0]
    assert switched == "systemctl enable --now pykubelet-local-api"
    run("bash", "-ec", switched)
    await node.wait_for(node.NODES, node.is_ready)
    assert Path(node.DATA, "admin.kubeconfig").stat().st_mode & 0o077 == 0

    node.start_driver()
    await node.wait_for(f"{node.DEFAULT}/serviceaccounts/default")
    for path, body in node.objects():
        status, answer = node.ask("POST", path, body)
        assert status == 201, answer
    pod = await node.wait_for(node.POD, lambda found: node.has_restarted(found, 0))
    assert len(node.starts(pod)) == 1
    assert node.token_user(pod) == "system:serviceaccount:default:default"

    for unit in (node.API_UNIT, UNIT, node.CSI_UNIT):
        old = show(unit, "MainPID")["MainPID"]
        systemctl("restart", unit)
        assert show(unit, "MainPID")["MainPID"] not in (old, "0")
        await node.wait_renewed()
        await node.wait_for(node.NODES, node.is_ready)
        found = await node.wait_for(node.POD)
        assert found["status"]["containerStatuses"] == pod["status"]["containerStatuses"], (
            f"{unit} restarted a container"
        )
    assert len(node.starts(pod)) == 1
    notes = {"boots": [node.BOOT_ID.read_text()], "uid": pod["metadata"]["uid"]}
    node.NOTES.write_text(json.dumps(notes))

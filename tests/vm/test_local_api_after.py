"""After a reboot, and then after a power cut: the services, the objects, the pod, its data and its token are back by themselves."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from support.agent import Json
from support.typed import run
from support.unit import SystemContainerd, clear_machine, show
from vm import local_api_node as node

LAST = f"{node.DEFAULT}/configmaps/last"


def times(pod: Json) -> str:
    """When the API and the pod ran, after the start of the machine."""
    api_s = int(show(node.API_UNIT, "ActiveEnterTimestampMonotonic")["ActiveEnterTimestampMonotonic"]) / 1e6
    started = datetime.fromisoformat(pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])
    booted = next(
        int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime")
    )
    return f"seconds after the boot: the API serves at {api_s:.0f}, the pod runs at {started.timestamp() - booted:.0f}"


async def test_the_node_is_back_by_itself(runtime: SystemContainerd) -> None:
    notes = json.loads(node.NOTES.read_text())
    boots: list[str] = notes["boots"]
    is_power_cut = len(boots) == 2
    assert node.BOOT_ID.read_text() not in boots

    if is_power_cut:
        await node.wait_for(LAST)
    pod = await node.wait_for(node.POD, lambda found: node.has_restarted(found, len(boots)))
    print(times(pod))
    assert pod["metadata"]["uid"] == notes["uid"]
    await node.wait_for(node.NODES, node.is_ready)
    lines = node.starts(pod)
    assert len(lines) == len(boots) + 1, "the volume has what each start has written"
    assert all(line.split()[0] == "green" and int(line.split()[1]) > 500 for line in lines)
    assert node.token_user(pod) == "system:serviceaccount:default:default"

    if not is_power_cut:
        node.NOTES.write_text(json.dumps({**notes, "boots": [*boots, node.BOOT_ID.read_text()]}))
        run("sync")
        # the last write before the cut: it was answered, so it must be there
        assert node.ask("POST", f"{node.DEFAULT}/configmaps", {"metadata": {"name": "last"}})[0] == 201
        return
    try:
        for path in (node.POD, f"{node.DEFAULT}/persistentvolumeclaims/data"):
            assert node.ask("DELETE", path)[0] == 200
        await node.wait_for(f"{node.DEFAULT}/pods", lambda found: found["items"] == [])
        await node.wait_for("/api/v1/persistentvolumes", lambda found: found["items"] == [])
    finally:
        node.remove()
        await clear_machine(runtime)

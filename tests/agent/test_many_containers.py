"""Pods of several containers and volumes on a real runtime: what is created side by side starts in the order of the spec."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from support.agent import Agent, Json, make_container, make_pod, runtime_client

from pykubelet.edges.cri.client import CriClient

pytestmark = pytest.mark.integration

SETTINGS: dict[str, object] = {}
STAY = 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
NAMES = [f"c{number}" for number in range(5)]


async def test_five_containers_with_five_volumes_start_in_order_and_once(agent: Agent, tmp_path: Path) -> None:
    """The third one has a postStart hook, which waits until the first three run."""
    fields = {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}
    sources: list[Json] = [
        {"emptyDir": {}},
        {"emptyDir": {"medium": "Memory"}},
        {"hostPath": {"path": str(tmp_path)}},
        {"downwardAPI": fields},
        {"projected": {"sources": [{"downwardAPI": fields}]}},
    ]
    volumes: list[Json] = [{"name": f"v{number}", **source} for number, source in enumerate(sources)]
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    note = "cat /v3/name >> /v2/$NAME && echo $NAME >> /v2/started"
    waits = "while [ $(wc -l < /v2/started) -lt 3 ]; do sleep 0.1; done; sleep 0.5; echo hook >> /v2/started"
    hook: Json = {"postStart": {"exec": {"command": ["/bin/sh", "-c", waits]}}}
    containers = [
        make_container(
            name,
            f"{note}; {STAY}",
            volumeMounts=mounts,
            env=[{"name": "NAME", "value": name}],
            **({"lifecycle": hook} if name == "c2" else {}),
        )
        for name in NAMES
    ]
    agent.put(make_pod("many", *containers, volumes=volumes))
    pod = (await agent.wait_running("many"))[0]
    assert {s["name"]: s["restartCount"] for s in pod["status"]["containerStatuses"]} == dict.fromkeys(NAMES, 0)
    async with runtime_client(agent.testbed) as client:
        started = await _started(client, pod["metadata"]["uid"])
    assert list(started) == NAMES
    assert all(before < after for before, after in pairwise(started.values()))

    def is_noted() -> bool:
        return (tmp_path / "started").exists() and len((tmp_path / "started").read_text().split()) == 6

    await agent.wait_for("all have noted that they run", is_noted)
    lines = (tmp_path / "started").read_text().split()
    at = lines.index("hook")
    assert sorted(lines[:at]) == NAMES[:3]
    assert sorted(lines[at + 1 :]) == NAMES[3:]
    assert all((tmp_path / name).read_text() == pod["metadata"]["name"] for name in NAMES)


async def _started(client: CriClient, uid: str) -> dict[str, int]:
    """When each container of a pod has started, in that order."""
    statuses = [(await client.container_status(c.id)).status for c in await client.list_containers(uid=uid)]
    return {s.metadata.name: s.started_at for s in sorted(statuses, key=lambda status: status.started_at)}

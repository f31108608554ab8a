"""Pods with `hostUsers: false`: mapped where the runtime can do it, refused in the reference's words where it cannot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.agent import Agent, Json, container_status, make_container, make_pod
from testbed.private_runtime import Testbed

from pykubelet.edges.cri.client import CriClient

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]
IDS = 131072
FIRST = "cat /proc/self/uid_map /proc/self/gid_map; echo kept >> /d/file; ls -n /d/file; [ -e /d/once ] || { touch /d/once; exit 3; }"
STAY = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"


async def runtime_maps_users(testbed: Testbed) -> bool:
    client = CriClient(testbed.endpoint, timeout_s=10)
    try:
        handlers = (await client.status()).runtime_handlers
    finally:
        await client.close()
    return any(not handler.name and handler.features.user_namespaces for handler in handlers)


def user_pod(name: str, script: str = "") -> Json:
    mounts = [{"name": "d", "mountPath": "/d"}]
    volumes = [{"name": "d", "emptyDir": {}}]
    return make_pod(name, make_container(script=script, volumeMounts=mounts), volumes=volumes, hostUsers=False)


def mapped(agent: Agent, pod: str, restart: int = 0) -> tuple[int, int]:
    """First host id of users and of groups, as the container sees its map."""
    lines = agent.output(pod, "main", restart).splitlines()
    own = [line for line in lines if not line.startswith("time=")]  # runc 1.3 warns here of what CRI-O asks it for
    users, groups = (line.split() for line in own[:2])
    assert (users[0], users[2]) == (groups[0], groups[2]) == ("0", str(IDS))
    return int(users[1]), int(groups[1])


def files(agent: Agent) -> dict[int, Path]:
    """The mapping files by the first host id that they report."""
    found = [path / "userns" for path in agent.pod_dirs()]
    reported = {path: json.loads(path.read_text()) for path in found if path.exists()}
    assert all(namespace["uidMappings"] == namespace["gidMappings"] for namespace in reported.values())
    return {namespace["uidMappings"][0]["hostId"]: path for path, namespace in reported.items()}


async def test_users_are_mapped_or_the_pod_is_refused(make_agent: MakeAgent, testbed: Testbed) -> None:
    agent = make_agent(userNamespaces={"idsPerPod": IDS}).start()
    agent.put(user_pod("mapped", f"{FIRST}; {STAY}"), make_pod("plain"))
    await agent.wait_running("plain")
    if not await runtime_maps_users(testbed):
        text = "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
        await agent.wait_for("the refusal", lambda: text in agent.ask("explain", "mapped-node").stdout)
        assert not files(agent)
        await agent.remove_all()
        return

    await agent.wait_pod("mapped", "started twice", lambda pod: container_status(pod)["restartCount"] == 1)
    await agent.wait_running("mapped")
    await agent.wait_for("all is printed", lambda: len(agent.output("mapped", "main", 1).splitlines()) > 2)
    before = mapped(agent, "mapped")
    assert before[0] == before[1] >= IDS and before[0] % IDS == 0
    assert mapped(agent, "mapped", 1) == before
    assert " 0 " in agent.output("mapped", "main", 1).splitlines()[2], "its files are its own"

    ids = (await agent.look()).running_ids()
    agent.kill9()
    (written,) = files(agent).values()
    good = written.read_bytes()
    written.write_bytes(good[:20])
    agent.start()
    agent.put(user_pod("second", f"cat /proc/self/uid_map /proc/self/gid_map; {STAY}"))
    await agent.wait_running("mapped", "plain", "second")
    await agent.wait_for("its map is printed", lambda: len(agent.output("second", "main").splitlines()) > 1)
    assert mapped(agent, "second") != before
    assert written.read_bytes() == good, "restored from the runtime"
    now = (await agent.look()).running_ids()
    assert {name: now.get(name) for name in ids} == ids
    assert set(files(agent)) == {before[0], mapped(agent, "second")[0]}

    agent.remove("mapped")
    await agent.wait_gone("mapped")
    await agent.wait_for("its range is given back", lambda: before[0] not in files(agent))
    agent.put(user_pod("third", f"cat /proc/self/uid_map /proc/self/gid_map; {STAY}"))
    await agent.wait_running("third")
    await agent.wait_for("its map is printed", lambda: len(agent.output("third", "main").splitlines()) > 1)
    assert mapped(agent, "third") == before, "the first free range again"
    await agent.remove_all()

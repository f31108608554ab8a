"""Block devices in containers on a real runtime: passed as they are, and mounted, through restarts of the agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent.test_static_volumes import WAITS, claim, volume
from support.agent import Agent, Json, make_container, make_pod
from support.block import block_device

from pykubelet.edges.host.devices.block_devices import is_device_in_use
from pykubelet.edges.host.fs import mounts

pytestmark = pytest.mark.integration
TERMS = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node"]}]}]
ON_NODE = {"required": {"nodeSelectorTerms": TERMS}}


@pytest.fixture
def device() -> Iterator[str]:
    """Made before the agent and detached after its end."""
    with block_device() as path:
        yield path


def claiming(name: str, script: str, *, read_only: bool = False, is_block: bool = True) -> Json:
    use: Json = {"volumeDevices": [{"name": "disk", "devicePath": "/dev/disk"}]}
    if not is_block:
        use = {"volumeMounts": [{"name": "disk", "mountPath": "/disk"}]}
    source = {"claimName": "data", "readOnly": read_only}
    return make_pod(
        name,
        make_container(script=f"{script}; {WAITS}", **use),
        volumes=[{"name": "disk", "persistentVolumeClaim": source}],
    )


async def test_a_device_is_written_in_one_pod_and_read_in_another(device: str, agent: Agent) -> None:
    mode = {"volumeMode": "Block"}
    agent.put(volume("disk", Path(device), kind="local", nodeAffinity=ON_NODE, **mode), claim("data", **mode))
    agent.put(claiming("writer", "printf written > /dev/disk; sync"))
    await agent.wait_running("writer")
    await agent.wait_for("the data", lambda: Path(device).read_bytes()[:7] == b"written")
    agent.kill9()
    agent.start()
    refused = "head -c7 /dev/disk; if printf x > /dev/disk; then echo ' changed'; else echo ' kept'; fi"
    agent.put(claiming("reader", refused, read_only=True))
    await agent.wait_running("reader")
    await agent.wait_for("the reader's output", lambda: "written kept" in agent.output("reader", "main"))
    agent.remove("writer", "reader")
    await agent.wait_gone("writer")
    await agent.wait_gone("reader")
    maps = agent.root / "plugins/kubernetes.io~local-volume/volumeDevices/disk"
    await agent.wait_for("the map is removed", lambda: not maps.exists())
    assert not is_device_in_use(device) and Path(device).read_bytes()[:7] == b"written"


async def test_the_file_system_of_a_device_outlives_pods(device: str, agent: Agent) -> None:
    agent.put(volume("disk", Path(device), kind="local", nodeAffinity=ON_NODE), claim("data"))
    agent.put(claiming("writer", "echo written > /disk/file", is_block=False))
    await agent.wait_running("writer")
    agent.remove("writer")
    await agent.wait_gone("writer")
    top = agent.root / "plugins/kubernetes.io/local-volume/mounts/disk"
    await agent.wait_for("the device is unmounted", lambda: not top.exists())
    agent.put(claiming("reader", "cat /disk/file", is_block=False))
    await agent.wait_for("the reader's output", lambda: "written" in agent.output("reader", "main"))
    assert mounts.is_mount_point(str(top))
    agent.remove("reader")
    await agent.wait_gone("reader")
    await agent.wait_for("the device is unmounted", lambda: not top.exists())
    assert not is_device_in_use(device)

"""The statistics of a pod that a real Docker Engine runs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from testbed import images
from testbed.private_runtime import Testbed

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError

pytestmark = pytest.mark.integration
MIB = 1 << 20
SCRIPT = "dd if=/dev/zero of=/large bs=1M count=3 2>/dev/null; while [ ! -e /end ]; do :; done"


@pytest.fixture
async def client(docker_testbed: Testbed) -> AsyncIterator[CriClient]:
    made = CriClient(docker_testbed.endpoint, timeout_s=60)
    yield made
    await made.close()


@pytest.fixture
async def pod(docker_testbed: Testbed, client: CriClient, tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """The IDs of a sandbox and of its container, which writes 3 MiB and then uses a CPU."""
    uid = f"stats-{secrets.token_hex(4)}"
    sandbox = pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name="busy", uid=uid, namespace="default"), log_directory=str(tmp_path)
    )
    sandbox.linux.cgroup_parent = f"/{docker_testbed.name}/{uid}"
    config = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name="main"),
        image=pb.ImageSpec(image=images.BUSYBOX),
        command=["sh", "-c", SCRIPT],
        log_path="main.log",
    )
    config.linux.resources.memory_limit_in_bytes = 64 * MIB
    sandbox_id = await client.run_pod_sandbox(sandbox)
    container_id = await client.create_container(sandbox_id, config, sandbox)
    await client.start_container(container_id)
    yield sandbox_id, container_id
    await client.stop_pod_sandbox(sandbox_id)
    await client.remove_pod_sandbox(sandbox_id)


async def test_a_pod_that_works(client: CriClient, pod: tuple[str, str]) -> None:
    sandbox_id, container_id = pod
    async with asyncio.timeout(60):
        while True:
            stats = await client.pod_sandbox_stats(sandbox_id)
            (inside,) = stats.linux.containers
            if inside.writable_layer.used_bytes.value >= 3 * MIB and inside.cpu.usage_nano_cores.value:
                break
            await asyncio.sleep(0.5)
    whole = stats.linux
    assert inside.attributes.id == container_id and inside.writable_layer.inodes_used.value >= 2
    assert whole.cpu.usage_core_nano_seconds.value >= inside.cpu.usage_core_nano_seconds.value // 2 > 0
    assert whole.cpu.usage_nano_cores.value
    assert 0 < inside.memory.working_set_bytes.value <= inside.memory.usage_bytes.value <= 64 * MIB
    available = 64 * MIB - inside.memory.working_set_bytes.value
    assert inside.memory.available_bytes.value == available
    assert whole.process.process_count.value == 1
    assert whole.network.default_interface.name == "eth0"
    listed = await client.list_container_stats(sandbox_id=sandbox_id)
    assert [each.attributes.id for each in listed] == [container_id]


async def test_what_has_ended_is_in_no_list(client: CriClient, pod: tuple[str, str]) -> None:
    sandbox_id, container_id = pod
    await client.stop_container(container_id, 0)
    assert await client.list_container_stats(sandbox_id=sandbox_id) == []
    assert not (await client.pod_sandbox_stats(sandbox_id)).linux.containers
    with pytest.raises(CriError, match="is not running"):
        await client.container_stats(container_id)
    await client.stop_pod_sandbox(sandbox_id)
    assert await client.list_pod_sandbox_stats(sandbox_id=sandbox_id) == []
    with pytest.raises(CriError, match="is not ready"):
        await client.pod_sandbox_stats(sandbox_id)

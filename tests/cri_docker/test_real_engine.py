"""What a real Docker Engine makes of limits, mounts, CDI devices, logs, foreign containers and a killed sandbox.

Also its statistics, and its own socket.

One file: each worker that has a test on Docker Engine starts one.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from edges.cri.test_contract import Runtime
from support.processes import wait_end
from testbed import docker, images
from testbed.containerd import describe_devices
from testbed.private_runtime import Testbed

from pykubelet.base.kit.clock import SystemClock
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.mounts import mounts_below
from pykubelet_cri_docker import labels
from pykubelet_cri_docker.engine import messages as engine_messages
from pykubelet_cri_docker.engine.client import Engine

pytestmark = pytest.mark.integration
MIB = 1 << 20
BUSY = "dd if=/dev/zero of=/large bs=1M count=3 2>/dev/null; while [ ! -e /end ]; do :; done"


@pytest.fixture
async def runtime(docker_testbed: Testbed, tmp_path: Path) -> AsyncIterator[Runtime]:
    async def restart() -> None:
        raise AssertionError("it is not restarted here")

    client = CriClient(docker_testbed.endpoint, timeout_s=60)
    made = Runtime(client, restart, tmp_path, SystemClock(), cgroup=f"/{docker_testbed.name}")
    yield made
    await made.clear()
    await client.close()


def limits(memory: int, shares: int, quota: int) -> pb.LinuxContainerResources:
    """As the agent sends them on cgroup v1."""
    return pb.LinuxContainerResources(
        memory_limit_in_bytes=memory,
        memory_swap_limit_in_bytes=memory,
        cpu_shares=shares,
        cpu_period=100_000,
        cpu_quota=quota,
        hugepage_limits=[pb.HugepageLimit(page_size="2MB", limit=0)],
    )


async def test_limits_are_raised_and_lowered(runtime: Runtime) -> None:
    _, container = await runtime.run("sleep 1000")
    read = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max"
    for wanted in (limits(128 * MIB, 1024, 50_000), limits(32 * MIB, 2, 10_000), limits(96 * MIB, 512, -1)):
        await runtime.client.update_container_resources(container, wanted)
        shown = (await runtime.client.container_status(container)).status.resources.linux
        assert (shown.memory_limit_in_bytes, shown.memory_swap_limit_in_bytes) == (wanted.memory_limit_in_bytes,) * 2
        assert (shown.cpu_shares, shown.cpu_period, shown.cpu_quota) == (wanted.cpu_shares, 100_000, wanted.cpu_quota)
        result = await runtime.client.exec_sync(container, ["sh", "-c", read], 10)
        assert int(result.stdout) == wanted.memory_limit_in_bytes, "the kernel has it"
    await runtime.client.update_container_resources(container, pb.LinuxContainerResources(cpuset_cpus="0"))
    shown = (await runtime.client.container_status(container)).status.resources.linux
    assert (shown.cpuset_cpus, shown.memory_limit_in_bytes, shown.cpu_shares) == ("0", 96 * MIB, 512)


async def test_a_cdi_device_is_in_the_container(runtime: Runtime, docker_testbed: Testbed) -> None:
    describe_devices(docker_testbed, "test.example/card", ["a", "b"])
    pod = runtime.pod()
    sandbox = await runtime.client.run_pod_sandbox(pod)
    config = runtime.container("echo device $DEVICE; sleep 1000")
    config.CDI_devices.add(name="test.example/card=b")
    container = await runtime.client.create_container(sandbox, config, pod)
    await runtime.client.start_container(container)
    await runtime.wait_output(container, b"device b")

    unknown = runtime.container("true", "unknown")
    unknown.CDI_devices.add(name="test.example/card=c")
    with pytest.raises(CriError, match=r"unresolvable CDI devices test\.example/card=c"):
        await runtime.client.create_container(sandbox, unknown, pod)


async def test_a_mount_that_is_relabeled_is_read_only_and_shared_as_it_is_asked(
    runtime: Runtime, tmp_path: Path
) -> None:
    """This machine has no SELinux; there, Docker mounts as it does otherwise."""
    (tmp_path / "hello").write_text("hello")
    pod = runtime.pod()
    sandbox = await runtime.client.run_pod_sandbox(pod)
    config = runtime.container("cat /data/hello; touch /data/x || echo kept; touch /more/x; sleep 1000")
    for target, readonly in (("/data", True), ("/more", False)):
        config.mounts.add(host_path=str(tmp_path), container_path=target, readonly=readonly, selinux_relabel=True)
    container = await runtime.client.create_container(sandbox, config, pod)
    await runtime.client.start_container(container)
    await runtime.wait_output(container, b"hello")
    await runtime.wait_output(container, b"kept")
    assert {path.name for path in tmp_path.iterdir()} >= {"hello", "x"}


async def test_the_root_of_the_machine_can_be_mounted(runtime: Runtime, docker_testbed: Testbed) -> None:
    """It contains Docker's own directory, which Docker does not mount with the propagation `rprivate`."""
    pod = runtime.pod()
    sandbox = await runtime.client.run_pod_sandbox(pod)
    config = runtime.container(f"ls /host{docker_testbed.root}; sleep 1000")
    config.mounts.add(host_path="/", container_path="/host", readonly=True)
    container = await runtime.client.create_container(sandbox, config, pod)
    await runtime.client.start_container(container)
    await runtime.wait_output(container, b"daemon.json")


async def test_a_log_has_what_docker_has_of_it_when_the_status_is_answered(
    runtime: Runtime, docker_testbed: Testbed, tmp_path: Path
) -> None:
    """Also of a container that writes all the time, which is copied with pauses."""
    pod = runtime.pod()
    sandbox = await runtime.client.run_pod_sandbox(pod)
    config = runtime.container(
        "while :; do echo busy; mv /data/word /data/old 2>/dev/null && cat /data/old; usleep 1000; done"
    )
    config.mounts.add(host_path=str(tmp_path), container_path="/data")
    container = await runtime.client.create_container(sandbox, config, pod)
    await runtime.client.start_container(container)
    engine = Engine(str(docker.engine_socket(docker_testbed)))
    source = Path((await engine.inspect(container)).log_path)
    engine.close()
    for number in range(30):
        word = f"word {number}.\n"
        (tmp_path / "new").write_text(word)
        (tmp_path / "new").rename(tmp_path / "word")
        async with asyncio.timeout(60):
            while word.strip().encode() not in source.read_bytes():  # noqa: ASYNC110 - the file is Docker's
                await asyncio.sleep(0.0005)
        log = Path((await runtime.client.container_status(container)).status.log_path)
        assert word.encode() in log.read_bytes()


async def test_a_sandbox_that_was_killed_leaves_no_rules(runtime: Runtime, docker_testbed: Testbed) -> None:
    """Its network namespace would be gone with its process, and with it what the plugins find their rules by."""
    sandbox, _ = await runtime.run("sleep 1000")
    info = json.loads((await runtime.client.pod_sandbox_status(sandbox, verbose=True)).info["info"])
    assert sandbox in nat_rules() and mounts_below(str(docker_testbed.root / "netns"))
    os.kill(info["pid"], signal.SIGKILL)
    await asyncio.to_thread(wait_end, info["pid"])
    await runtime.clear()
    assert sandbox not in nat_rules()
    assert not mounts_below(str(docker_testbed.root / "netns"))


def nat_rules() -> str:
    return subprocess.run(["iptables-save", "-t", "nat"], check=True, capture_output=True, text=True).stdout


async def test_a_container_whose_image_has_the_labels_of_a_pods_is_not_touched(
    runtime: Runtime, docker_testbed: Testbed
) -> None:
    """Docker gives a container the labels of its image, and an image that is made from a container has those."""
    _, container = await runtime.run("sleep 1000")
    status, made = await asyncio.to_thread(docker.call, docker_testbed, "POST", f"/v1.41/commit?container={container}")
    assert status == 201
    engine, image = Engine(str(docker.engine_socket(docker_testbed))), json.loads(made)["Id"]
    host = engine_messages.HostConfig(network_mode="none", log_config=engine_messages.LogConfig("none"))
    other = await engine.create("of_a_person", engine_messages.NewContainer(image=image, host_config=host))
    try:
        await engine.start(other)
        assert await engine.find(other, labels.OF_CONTAINER) is not None, "it has the labels"
        assert [each.id for each in await runtime.client.list_containers()] == [container]
        await runtime.client.stop_container(other, 0)
        await runtime.client.remove_container(other)
        with pytest.raises(CriError, match="No such container"):
            await runtime.client.container_status(other)
        assert (await engine.inspect(other)).state.status == "running"
    finally:
        await engine.remove(other)
        await runtime.clear()
        await engine.remove_image(image)
        engine.close()


async def test_the_daemons_own_socket_is_answered_with_the_program_to_start(docker_testbed: Testbed) -> None:
    argv = docker.arguments(docker_testbed)
    socket = argv[argv.index("--docker-socket") + 1]
    for _ in range(10):
        client = CriClient(f"unix://{socket}")
        with pytest.raises(CriError, match=f"{socket} does not serve the CRI: .* start `pykubelet cri-docker`"):
            await client.version()
        await client.close()


@pytest.fixture
async def busy_pod(docker_testbed: Testbed, runtime: Runtime, tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """The IDs of a sandbox and of its container, which writes 3 MiB and then uses a CPU."""
    client = runtime.client
    uid = f"stats-{secrets.token_hex(4)}"
    sandbox = pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name="busy", uid=uid, namespace="default"), log_directory=str(tmp_path)
    )
    sandbox.linux.cgroup_parent = f"/{docker_testbed.name}/{uid}"
    config = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name="main"),
        image=pb.ImageSpec(image=images.BUSYBOX),
        command=["sh", "-c", BUSY],
        log_path="main.log",
    )
    config.linux.resources.memory_limit_in_bytes = 64 * MIB
    sandbox_id = await client.run_pod_sandbox(sandbox)
    container_id = await client.create_container(sandbox_id, config, sandbox)
    await client.start_container(container_id)
    yield sandbox_id, container_id
    await client.stop_pod_sandbox(sandbox_id)
    await client.remove_pod_sandbox(sandbox_id)


async def test_a_pod_that_works(runtime: Runtime, busy_pod: tuple[str, str]) -> None:
    client, (sandbox_id, container_id) = runtime.client, busy_pod
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


async def test_what_has_ended_is_in_no_list(runtime: Runtime, busy_pod: tuple[str, str]) -> None:
    client, (sandbox_id, container_id) = runtime.client, busy_pod
    await client.stop_container(container_id, 0)
    assert await client.list_container_stats(sandbox_id=sandbox_id) == []
    assert not (await client.pod_sandbox_stats(sandbox_id)).linux.containers
    with pytest.raises(CriError, match="is not running"):
        await client.container_stats(container_id)
    await client.stop_pod_sandbox(sandbox_id)
    assert await client.list_pod_sandbox_stats(sandbox_id=sandbox_id) == []
    with pytest.raises(CriError, match="is not ready"):
        await client.pod_sandbox_stats(sandbox_id)

"""The private containerd: runs real pods, is found again, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.traces import traces
from testbed import containerd, cri, host, images, node, places
from testbed.private_runtime import Testbed

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient

# distinguished from other testbeds' by its length
NAP = ("sleep", str(100_000 + os.getpid()))
pytestmark = pytest.mark.integration


@pytest.fixture
def folder() -> Iterator[Path]:
    path = places.run_folder("own")
    try:
        yield path
    finally:
        found = containerd.load(path)
        containerd.down(path, [f"/{found.name}-pods"] if found else [])


def sandbox_config(testbed: Testbed, name: str, host_port: int = 0) -> pb.PodSandboxConfig:
    return pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name=name, namespace="default", uid=f"uid-{name}", attempt=0),
        hostname=name,
        log_directory=f"{testbed.folder}/logs/{name}",
        port_mappings=[pb.PortMapping(container_port=8080, host_port=host_port)] if host_port else [],
        linux=pb.LinuxPodSandboxConfig(cgroup_parent=f"/{testbed.name}-pods/{name}"),
    )


async def run_pod(
    client: CriClient, config: pb.PodSandboxConfig, *command: str, image: str = images.BUSYBOX, handler: str = ""
) -> tuple[str, str]:
    """Start a sandbox and one container in it; returns their ids."""
    host.make_cgroup(config.linux.cgroup_parent)
    os.makedirs(config.log_directory, exist_ok=True)
    sandbox = await client.run_pod_sandbox(config, handler)
    spec = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name="main", attempt=0),
        image=pb.ImageSpec(image=image, user_specified_image=image),
        command=command,
        log_path="main.log",
    )
    container = await client.create_container(sandbox, spec, config)
    await client.start_container(container)
    return sandbox, container


async def test_pods_run_and_down_leaves_nothing(folder: Path) -> None:
    testbed = containerd.up(folder)
    client = CriClient(testbed.endpoint)
    port = host.free_port(0)
    command = ("sh", "-c", "echo served > /tmp/index.html; exec httpd -f -p 8080 -h /tmp")
    _, container = await run_pod(client, sandbox_config(testbed, "one", port), *command)
    await run_pod(client, sandbox_config(testbed, "two"), *NAP, handler="test-handler")

    served = "until wget -q -O - http://127.0.0.1:8080/index.html; do sleep 0.1; done"  # as soon as it listens
    result = await client.exec_sync(container, ["sh", "-c", served], 60)
    assert result.stdout == b"served\n"
    if testbed.maps_host_ports:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(b"GET /index.html HTTP/1.0\r\n\r\n")
            assert b"200 OK" in connection.recv(100)
    sleeping = napping()
    await client.close()
    shims = shim_sockets(testbed)
    assert testbed.is_crio or (len(shims) >= 2 and all(path.exists() for path in shims))

    link = host.CONTAINER_LOG_LINKS / f"one_default_main-{container}.log"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"{testbed.folder}/logs/one/main.log")  # as an agent makes it
    containerd.down(folder, [f"/{testbed.name}-pods"])
    assert traces(testbed) == []
    assert not [p for p in sleeping if host.read_process(p.pid) == p]
    assert not [path for path in shims if path.exists()]


def napping() -> list[host.Process]:
    """As soon as there is one: the container's process may not have its command line yet."""
    assert host.wait_until(lambda: any(p.argv == NAP for p in host.processes()), 30)
    return [p for p in host.processes() if p.argv == NAP]


def shim_sockets(testbed: Testbed) -> set[Path]:
    """Those of the testbed's own: others' come and go."""
    bundles = testbed.bundles
    named = [bundle / name for bundle in bundles for name in ("address", "bootstrap.json") if (bundle / name).exists()]
    return {Path(found) for file in named for found in re.findall(r"/run/containerd/s/[0-9a-f]{64}", file.read_text())}


async def test_a_killed_containerd_is_started_again_and_finds_its_containers(folder: Path) -> None:
    testbed = containerd.up(folder)
    client = CriClient(testbed.endpoint)
    _, container = await run_pod(client, sandbox_config(testbed, "kept"), *NAP)
    before = napping()
    await client.close()

    containerd.kill(testbed)
    assert testbed.pid() is None
    assert containerd.up(folder) == testbed

    client = CriClient(testbed.endpoint)
    status = (await client.container_status(container)).status
    await client.close()
    assert status.state == pb.CONTAINER_RUNNING
    assert napping() == before
    containerd.kill(testbed)  # `down` must also cope with what a crash leaves
    containerd.down(folder, [f"/{testbed.name}-pods"])
    assert traces(testbed) == []


def test_up_twice_is_one_containerd(folder: Path) -> None:
    testbed = containerd.up(folder)
    pid = testbed.pid()
    assert containerd.up(folder) == testbed
    assert testbed.pid() == pid
    containerd.down(folder)
    containerd.down(folder)
    assert traces(testbed) == []


def test_the_log_is_shown_when_containerd_cannot_start(folder: Path) -> None:
    broken = folder / "bin" / "containerd"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\necho cannot open the state >&2; exit 1\n")
    broken.chmod(0o755)
    with pytest.raises(host.TestbedError, match="cannot open the state"):
        containerd.up(folder, bin_dir=str(broken.parent))


def test_a_folder_too_deep_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(host.TestbedError, match="shorter path"):
        containerd.up(tmp_path / ("x" * 100))


async def test_the_shell_pause_holds_a_sandbox_and_ends_on_sigterm(testbed: Testbed) -> None:
    """Machines without a compiler get this one."""
    archive = Path(testbed.folder, "images", "shell-pause.tar")
    name = "localhost/shell-pause:1"
    images.build_image(name, *images.pause_parts(None), archive)
    containerd.import_image(testbed, name, archive)
    client = CriClient(testbed.endpoint)
    config = sandbox_config(testbed, "shell-pause")
    sandbox = await client.run_pod_sandbox(config)
    image = pb.ImageSpec(image=name, user_specified_image=name)
    spec = pb.ContainerConfig(metadata=pb.ContainerMetadata(name="pause"), image=image)
    container = await client.create_container(sandbox, spec, config)
    await client.start_container(container)
    # an orphan whose parent ends at once is adopted by pid 1, which must reap it
    await client.exec_sync(container, ["/bin/sh", "-c", "(sleep 0.1 &) ; exit 0"])
    await asyncio.sleep(0.3)
    for _ in range(100):
        listed = await client.exec_sync(container, ["/bin/sh", "-c", "cat /proc/[0-9]*/stat"])
        if b") Z " not in listed.stdout:
            break
        await asyncio.sleep(0.1)
    assert b"(pause" in listed.stdout or b"(sh) " in listed.stdout
    assert b") Z " not in listed.stdout
    await client.stop_container(container, 10)
    status = (await client.container_status(container)).status
    await client.stop_pod_sandbox(sandbox)
    await client.remove_pod_sandbox(sandbox)
    await client.close()
    host.remove_cgroup(f"/{testbed.name}-pods")
    assert status.exit_code == 0


def test_cri_without_grpc_reports_when_nothing_answers(tmp_path: Path) -> None:
    assert not cri.is_ready(tmp_path / "none.sock")
    assert not cri.has_image(tmp_path / "none.sock", "a", "sha256:b")


def test_cri_without_grpc_distinguishes_images(testbed: Testbed) -> None:
    assert cri.is_ready(testbed.socket)
    assert not cri.has_image(testbed.socket, images.BUSYBOX, "sha256:" + "0" * 64)
    assert not cri.has_image(testbed.socket, "localhost/none:1", "sha256:" + "0" * 64)
    assert cri.call(testbed.socket, "runtime.v1.RuntimeService/NoSuchMethod") is None


def test_a_killed_test_run_is_swept_by_the_next_one() -> None:
    with subprocess.Popen(["sleep", "1000"]) as run:  # alive as long as its testbed is being made: others sweep, too
        testbed = containerd.up(places.run_folder("swept", run.pid))
        run.kill()
    with ThreadPoolExecutor(3) as pool:  # as the processes of one test run do
        for swept in [pool.submit(node.sweep_dead_runs) for _ in range(3)]:
            swept.result()
    assert traces(testbed) == []

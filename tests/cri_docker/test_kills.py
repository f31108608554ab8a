"""The adapter, and Docker Engine, are killed at each request of a pod's life: nothing is left behind, and no other container notices."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.engine_proxy import EngineProxy
from testbed import containerd, cri, docker, host, images, places, runtimes
from testbed.private_runtime import Testbed

from pykubelet.base.model import labels
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError

pytestmark = pytest.mark.integration
_numbers = itertools.count()
#: The short form looks at each request of this distance.
STEP = 29


class Node:
    """A private Docker Engine, the adapter behind a proxy, and a pod that must not notice anything."""

    def __init__(self, bed: Testbed, proxy: EngineProxy, folder: Path) -> None:
        self.bed = bed
        self.proxy = proxy
        self._folder = folder
        self._adapter: int | None = None
        self.client = CriClient(bed.endpoint, timeout_s=60)

    async def start(self) -> None:
        """Start what does not run, and wait until the CRI is served."""
        await asyncio.to_thread(docker.start_daemon, self.bed)
        if self._adapter is None:
            self.bed.socket.unlink(missing_ok=True)
            argv = docker.arguments(self.bed, self._folder / "proxy.sock")
            self._adapter = await asyncio.to_thread(host.spawn, argv, self._folder / "adapter.log", self.bed.env)
        assert await asyncio.to_thread(host.wait_until, lambda: cri.is_ready(self.bed.socket), 30)
        await self.client.wait_connected(30)

    def kill_adapter(self) -> None:
        if self._adapter is not None:
            host.kill_all([self._adapter])
            self._adapter = None

    def kill_daemon(self) -> None:
        host.kill_all(docker.daemons(self.bed))

    def pod(self, name: str) -> pb.PodSandboxConfig:
        uid = f"{name}-{next(_numbers)}"
        config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=name, uid=uid, namespace="default"),
            hostname=name,
            log_directory=str(self._folder / uid),
            labels={labels.POD_UID: uid},
        )
        config.linux.cgroup_parent = f"/{self.bed.name}-pods"
        return config

    async def begin(self, config: pb.PodSandboxConfig, script: str) -> tuple[str, str]:
        """A sandbox and a container in it that runs."""
        Path(config.log_directory).mkdir(exist_ok=True)
        sandbox = await self.client.run_pod_sandbox(config)
        spec = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name="main"),
            image=pb.ImageSpec(image=images.BUSYBOX, user_specified_image=images.BUSYBOX),
            command=["sh", "-c", script],
            labels=dict(config.labels),
            log_path="main.log",
        )
        container = await self.client.create_container(sandbox, spec, config)
        await self.client.start_container(container)
        return sandbox, container

    async def live(self, config: pb.PodSandboxConfig) -> None:
        """The life of a pod, from its sandbox to the end of it."""
        sandbox, container = await self.begin(config, "echo begun; exec sleep 1000")
        await self.client.exec_sync(container, ["true"], 20)
        await self.client.stop_container(container, 0)
        await self.client.remove_container(container)
        await self.client.stop_pod_sandbox(sandbox)
        await self.client.remove_pod_sandbox(sandbox)

    async def remove(self, config: pb.PodSandboxConfig) -> None:
        """Remove what is shown of the pod, as the agent does it."""
        uid = config.metadata.uid
        for container in await self.client.list_containers(uid):
            await self.client.stop_container(container.id, 0)
            await self.client.remove_container(container.id)
        for sandbox in await self.client.list_pod_sandboxes(uid):
            await self.client.stop_pod_sandbox(sandbox.id)
            await self.client.remove_pod_sandbox(sandbox.id)

    def left(self) -> list[str]:
        """What there is on the machine of containers, networks and positions in logs."""
        status, answer = docker.call(self.bed, "GET", "/v1.41/containers/json?all=1")
        assert status == 200
        found = [name for container in json.loads(answer) for name in container["Names"]]
        places_ = (self.bed.root / "networks", self.bed.root / "ipam", self.bed.root / "adapter")
        found += [
            str(path) for place in places_ for path in place.rglob("*") if path.is_file() and path.suffix != ".lock"
        ]
        found += [link.name for link in Path(f"/sys/class/net/{self.bed.name}/brif").glob("*")]
        return sorted(path for path in found if not path.endswith(("/lock", "/last_reserved_ip.0")))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    folder = places.run_folder("kills")
    try:
        bed = containerd.up(folder, (images.BUSYBOX,), str(runtimes.docker_bin()))
        adapter = bed.pid()
        assert adapter is not None
        host.end_process(adapter, 10)
        proxy = EngineProxy(docker.engine_socket(bed))
        async with proxy.serving(tmp_path / "proxy.sock"):
            made = Node(bed, proxy, tmp_path)
            await made.start()
            yield made
            await made.client.close()
            made.kill_adapter()
    finally:
        containerd.down(folder, [f"/{bed.name}-pods"])


async def kill_at_each_request(node: Node, kill: Callable[[], None], first: int, step: int) -> None:
    """Kill at each `step`-th request of a pod's life, once before and once after it was answered; then remove the pod and look."""
    bystander = node.pod("bystander")
    _, container = await node.begin(bystander, "n=0; while :; do echo $n; n=$((n+1)); sleep 0.02; done")
    began = (await node.client.container_status(container)).status.started_at
    quiet = node.left()
    node.proxy.arm(-1, kill, after_answer=False)
    await node.live(node.pod("counted"))
    assert await settled(node, quiet) == []
    count = len(node.proxy.requests)
    assert count > 20
    for at, after_answer in itertools.product(range(first, count, step), (False, True)):
        config = node.pod("victim")
        node.proxy.arm(at, kill, after_answer=after_answer)
        try:
            await node.live(config)
        except CriError:
            pass
        where = f"request {at} {node.proxy.requests[at : at + 1]}, {after_answer=}"
        node.proxy.arm(-1, kill, after_answer=False)
        await node.start()
        await node.remove(config)
        assert await settled(node, quiet) == [], where
        await node.live(config)  # the same names can be used again
        assert await settled(node, quiet) == [], where
    status = (await node.client.container_status(container)).status
    assert (status.state, status.started_at) == (pb.CONTAINER_RUNNING, began)
    await node.remove(bystander)
    lines = [line.split()[3] for line in Path(status.log_path).read_bytes().splitlines()]
    assert lines == [str(number).encode() for number in range(len(lines))]
    assert await settled(node, []) == []


async def settled(node: Node, expected: list[str]) -> list[str]:
    """What is left beyond what is expected; waits for what is removed later."""
    for _ in range(100):
        if (found := await asyncio.to_thread(node.left)) == expected:
            return []
        await asyncio.sleep(0.1)
    return [path for path in found if path not in expected] or [
        f"missing: {path}" for path in expected if path not in found
    ]


@pytest.mark.parametrize("step", [STEP, pytest.param(1, marks=pytest.mark.crash)])
async def test_a_killed_adapter_leaves_nothing(node: Node, step: int) -> None:
    await kill_at_each_request(node, node.kill_adapter, 0, step)


@pytest.mark.crash
async def test_a_killed_engine_leaves_nothing(node: Node) -> None:
    await kill_at_each_request(node, node.kill_daemon, 0, 1)

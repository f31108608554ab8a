"""Probes of containers in a real containerd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from observe.probes.stand import Node
from testbed import images
from testbed.private_runtime import Testbed

from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.values import replace
from pykubelet.base.model import labels
from pykubelet.base.model.ids import ContainerID, PodUID
from pykubelet.base.model.observed import Observed, PodView
from pykubelet.base.model.probes import ProbeKind, ProbeResult
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.observe.probes.execute import ContainerProber
from pykubelet.observe.probes.limiter import ProbeLimits
from pykubelet.observe.probes.metrics import SUCCESSFUL, TOTAL

pytestmark = pytest.mark.integration

SUCCESS, FAILURE = ProbeResult.SUCCESS, ProbeResult.FAILURE
READINESS, LIVENESS = ProbeKind.READINESS, ProbeKind.LIVENESS


class RealClock(SystemClock):
    jump_s = 0.0


@dataclass
class Machine:
    """A pod in containerd, and a node of cells that shows it."""

    client: CriClient
    folder: Path
    cgroup: str
    uids: list[str]

    async def pod(self, script: str, ports: bool = False) -> tuple[ContainerID, str]:
        """The id of a started container, and its address."""
        uid = f"probes-{id(self)}-{len(self.uids)}"
        self.uids.append(uid)
        config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name="web", uid=uid, namespace="shop"),
            hostname="web",
            log_directory=str(self.folder / uid),
            labels={labels.POD_UID: uid, labels.POD_NAME: "web"},
        )
        config.linux.cgroup_parent = self.cgroup
        sandbox = await self.client.run_pod_sandbox(config)
        spec = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name="app"),
            image=pb.ImageSpec(image=images.BUSYBOX, user_specified_image=images.BUSYBOX),
            command=["sh", "-c", script],
            labels={labels.POD_UID: uid, labels.CONTAINER_NAME: "app"},
            log_path="app/0.log",
        )
        (self.folder / uid / "app").mkdir(parents=True)  # CRI-O does not make it
        made = await self.client.create_container(sandbox, spec, config)
        await self.client.start_container(made)
        status = (await self.client.pod_sandbox_status(sandbox)).status
        return made, status.network.ip

    async def clear(self) -> None:
        for uid in self.uids:
            for container in await self.client.list_containers(uid):
                await self.client.stop_container(container.id, 0)  # with its sandbox, CRI-O is patient
            for sandbox in await self.client.list_pod_sandboxes(uid):
                await self.client.stop_pod_sandbox(sandbox.id)
                await self.client.remove_pod_sandbox(sandbox.id)


@pytest.fixture
async def machine(testbed: Testbed, tmp_path: Path) -> AsyncIterator[Machine]:
    client = CriClient(testbed.endpoint, timeout_s=60)
    await client.wait_connected(30)
    made = Machine(client, tmp_path, f"/{testbed.name}", [])
    try:
        yield made
    finally:
        await made.clear()
        await client.close()


def real_node() -> Node:
    return Node(clock=RealClock())  # type: ignore[arg-type]


def show(node: Node, uid: PodUID, name: str, container: ContainerID, ip: str = "") -> None:
    """Put a real container's id and address into the cells."""
    made = node.run(uid, name)
    view: PodView = node.observed.get().pods[uid]
    containers = tuple(replace(c, id=container) if c.id == made else c for c in view.containers)
    sandboxes = tuple(replace(s, ips=(ip,)) if ip else s for s in view.sandboxes)
    pods = {**node.observed.get().pods, uid: replace(view, containers=containers, sandboxes=sandboxes)}
    node._observed.publish(Observed(pods, listed_at=0.0))


def with_exec(kind: str, command: str, **terms: Any) -> dict[str, Any]:
    probe = {"exec": {"command": ["sh", "-c", command]}, "periodSeconds": 1, "timeoutSeconds": 1, **terms}
    return {"name": "app", "image": "i", f"{kind}Probe": probe}


#: A busy machine may take more than a second for a command that is well.
PATIENT = {"timeoutSeconds": 10}


async def becomes(holds: Callable[[], bool]) -> None:
    for _ in range(600):
        if holds():
            return
        await asyncio.sleep(0.1)
    pytest.fail("it does not become so within a minute")


async def until(node: Node, container: ContainerID, kind: ProbeKind, result: ProbeResult) -> None:
    wanted = node.results.wait_for(lambda found: found.get(container, kind) is result)
    await asyncio.wait_for(wanted, 60)


async def test_commands_in_containers(machine: Machine) -> None:
    node = real_node()
    container, _ = await machine.pod("touch /tmp/healthy; sleep 1000")
    async with node.probing(ContainerProber(machine.client)):
        uid = node.pod("web", with_exec("readiness", "cat /tmp/healthy || { echo away >&2; exit 3; }", **PATIENT))
        show(node, uid, "app", container)
        await until(node, container, READINESS, SUCCESS)
        await machine.client.exec_sync(container, ["rm", "/tmp/healthy"], 10)
        await until(node, container, READINESS, FAILURE)
        await machine.client.exec_sync(container, ["touch", "/tmp/healthy"], 10)
        await until(node, container, READINESS, SUCCESS)
    assert "Readiness probe failed: cat: can't open '/tmp/healthy'" in node.messages[0]
    assert node.messages[0].endswith("away\n")


async def test_a_command_that_takes_too_long_fails(machine: Machine) -> None:
    node = real_node()
    container, _ = await machine.pod("sleep 1000")
    async with node.probing(ContainerProber(machine.client)):
        uid = node.pod("web", with_exec("liveness", "exec sleep 1000", failureThreshold=2))
        show(node, uid, "app", container)
        await until(node, container, LIVENESS, FAILURE)
    timed_out = "Unhealthy spec.containers{app} Liveness probe failed: command timed out"
    assert node.messages in (
        [f'{timed_out}: "sh -c exec sleep 1000" timed out after 1s'] * 2,
        [timed_out] * 2,  # CRI-O answers in time, with this output and an exit code
    )


async def test_an_exec_that_the_runtime_never_answers_is_named_and_delays_no_other(machine: Machine) -> None:
    """A child of the command keeps its output open, and containerd waits for it beyond the time-out."""
    node = real_node()
    stuck, _ = await machine.pod("sleep 1000")
    fine, _ = await machine.pod("sleep 1000")
    limits = ProbeLimits(exec_at_once=1)
    async with node.probing(ContainerProber(machine.client), limits=limits):
        bad = node.pod("bad", with_exec("liveness", "trap '' TERM; while :; do sleep 1000; done"))
        good = node.pod("good", with_exec("readiness", "true", failureThreshold=1, **PATIENT))
        show(node, bad, "app", stuck)
        show(node, good, "app", fine)
        stuck_text = "has not ended: the runtime or the command does not answer"
        await becomes(lambda: bool(node.messages) or any(stuck_text in wait.detail for wait in node.waits.get(bad, ())))
        if "command timed out" in "".join(node.messages):
            pytest.skip("this runtime ends a command at its time-out with all its children")
        before = TOTAL.value("app", "shop", "good", good, "Readiness", SUCCESSFUL)
        await becomes(lambda: TOTAL.value("app", "shop", "good", good, "Readiness", SUCCESSFUL) >= before + 3)
        [wait] = node.waits[bad]
        assert stuck_text in wait.detail
    assert node.messages == []


async def test_http_and_tcp_in_the_pods_network(machine: Machine) -> None:
    node = real_node()
    script = "mkdir /www; echo hi > /www/index.html; httpd -f -p 8080 -h /www"
    container, ip = await machine.pod(script)
    async with node.probing(ContainerProber(machine.client)):
        terms = {"periodSeconds": 1, "failureThreshold": 1, **PATIENT}
        spec = {
            "name": "app",
            "image": "i",
            "readinessProbe": {"httpGet": {"port": 8080, "path": "/index.html"}, **terms},
            "livenessProbe": {"tcpSocket": {"port": 8080}, **terms, "failureThreshold": 60},
        }
        show(node, node.pod("web", spec), "app", container, ip)
        await until(node, container, READINESS, SUCCESS)
        await machine.client.exec_sync(container, ["rm", "/www/index.html"], 10)
        await until(node, container, READINESS, FAILURE)
        assert node.messages[-1].endswith("Readiness probe failed: HTTP probe failed with statuscode: 404")
        assert node.result(container, LIVENESS) is SUCCESS

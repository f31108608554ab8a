"""What clients see of an agent that is a kubelet 1.36, and of one that is the newest: differences without a feature gate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.agent import Agent, Json, make_pod
from support.api_server import FakeApiServer
from support.world import PODS, World, kubeconfig

from pykubelet.base.api.quantity import Format, parse

SYSCTL = {"sysctls": [{"name": "net.ipv4.tcp_notsent_lowat", "value": "4096"}]}


@pytest.mark.parametrize("release", ["1.36", "1.37"])
async def test_the_node_and_its_pods_are_those_of_the_release(
    make_agent: Callable[..., Agent], tmp_path: Path, release: str
) -> None:
    is_old = release == "1.36"
    async with FakeApiServer() as server:
        flags = ("--kubeconfig", str(kubeconfig(server, tmp_path / "kubeconfig")), "--emulated-version", release)
        world = World(server, make_agent(flags).start())
        world.run(make_pod("tuned", securityContext=SYSCTL, imagePullSecrets=[{"name": "nowhere"}]))

        def is_decided(pod: Json) -> bool:
            return pod["status"].get("phase") in ("Running", "Failed")

        pod = await world.wait("tuned", "it is admitted or not", is_decided)
        assert pod["status"].get("reason", "") == ("SysctlForbidden" if is_old else "")

        world.run(make_pod("plain", imagePullSecrets=[{"name": "nowhere"}]))
        await world.wait_ready("plain")
        await world.agent.wait_for(
            "the Events of its start", lambda: world.events("Started")
        )  # later than that about secrets
        assert bool(world.events("FailedToRetrieveImagePullSecret")) is is_old
        first = [c for sent in world.reported("plain") for c in sent.body["status"].get("conditions", ())]
        unready = [c for c in first if c["type"] == "PodReadyToStartContainers" and c.get("status") == "False"]
        assert {c.get("reason", "") for c in unready} <= {"" if is_old else "PodSandboxNotReady"}

        node = world.node()
        assert node is not None and node["status"]["nodeInfo"]["kubeletVersion"].startswith(f"v{release}.")
        storage = parse(node["status"]["capacity"]["ephemeral-storage"])
        assert storage.format is (Format.BINARY_SI if is_old and storage.value() % 1024 == 0 else Format.DECIMAL_SI)
        for name in ("tuned", "plain"):
            server.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 1})
        await world.wait_gone("tuned", "plain")
        world.agent.stop()

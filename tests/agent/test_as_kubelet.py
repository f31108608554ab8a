"""The program under the name `kubelet`, started as the upstream node suite starts it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.agent import PROGRAM, Agent, make_pod
from testbed.private_runtime import Testbed

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]


@pytest.fixture
def drop_ins(testbed: Testbed) -> Path:
    """A folder of drop-ins, as the conformance suite gives one."""
    folder = Path(testbed.folder, "drop-ins")
    folder.mkdir(exist_ok=True)
    header = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    (folder / "10-sync.conf").write_text(json.dumps({**header, "syncFrequency": "10s"}))
    return folder


async def test_without_a_read_only_port_and_with_the_flags_of_the_conformance_suite(
    make_agent: MakeAgent, testbed: Testbed, drop_ins: Path
) -> None:
    """The node suite calls a program named `kubelet`, with these flags; standalone there is no --kubeconfig."""
    flags = (
        *("--v", "4", "--config-dir", str(drop_ins), "--runtime-cgroups=/containerd"),
        *("--container-runtime-endpoint", testbed.endpoint, "--feature-gates", "EnvFiles=true"),
    )
    agent = make_agent(flags=flags, readOnlyPort=None, containerRuntimeEndpoint=None)
    agent.program = PROGRAM.with_name("kubelet")
    agent.start()
    assert agent.get("/healthz", agent.health_port) == (200, "ok")
    assert agent.health_port in agent.listening() and 10255 not in agent.listening()
    agent.put(make_pod("web"))
    await agent.wait_runtime("the pod runs", lambda view: view.running_names() == ["web-node/main"])
    await agent.wait_for("reported", lambda: [pod["status"] for pod in agent.ask_json("pods")["pods"]] == ["Running"])
    assert agent.stop() == 0
    await agent.wait_runtime("it runs on", lambda view: view.running_names() == ["web-node/main"])

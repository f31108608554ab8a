"""What `make run-cluster` starts: the example Deployment comes up, outlives Ctrl-C, and `make down` leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent import PROGRAM
from support.traces import traces
from testbed import containerd, controlplane, host, node, places

TOOLS = Path(node.__file__).parents[1]
EXAMPLES = TOOLS.parent / "examples" / "cluster"
UP_S = 300.0


@pytest.fixture
def folder() -> Iterator[Path]:
    path = places.run_folder("run")
    try:
        yield path
    finally:
        node.down(path)


def start_run(folder: Path) -> subprocess.Popen[str]:
    """`cluster.run` in a process of its own, as make starts it; returns when it shows the node."""
    script = (
        "import pathlib, signal, sys; from testbed import cluster; P = pathlib.Path; "
        # whoever runs the tests in the background has it ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"sys.exit(cluster.run(P({str(PROGRAM)!r}), P({str(folder)!r}), P({str(EXAMPLES)!r})))"
    )
    env = os.environ | {"PYTHONPATH": str(TOOLS), "PYTHONUNBUFFERED": "1"}
    run = subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    if not any("healthz" in line for line in run.stdout):
        run.stdout.close()
        pytest.fail(f"it ended without showing the node, with exit code {run.wait(60)}")
    return run


def ctrl_c(run: subprocess.Popen[str]) -> int:
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=120)
    return run.returncode


def kubectl(folder: Path, *words: str) -> str:
    """Its output; nothing when it fails."""
    plane = controlplane.load(folder)
    assert plane is not None
    argv = [plane.programs.kubectl, "--kubeconfig", str(plane.admin), *words]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60).stdout


def is_up(folder: Path) -> bool:
    """All replicas of the example are ready."""
    status = json.loads(kubectl(folder, "get", "deployment", "web", "-o", "json") or "{}").get("status", {})
    return bool(status.get("readyReplicas") == status.get("replicas") == 2)


def servers(folder: Path) -> dict[str, Any]:
    """Address of each pod of the example, by name and container."""
    items = json.loads(kubectl(folder, "get", "pods", "-l", "app=web", "-o", "json") or '{"items": []}')["items"]
    return {
        f"{pod['metadata']['name']} {pod['status']['containerStatuses'][0]['containerID']}": pod["status"]["podIP"]
        for pod in items
    }


def page(address: str) -> str:
    """What it serves; nothing while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{address}:8080/", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def test_the_example_runs_outlives_the_agent_and_leaves_nothing(folder: Path) -> None:
    run = start_run(folder)
    try:
        assert host.wait_until(lambda: is_up(folder), UP_S, 0.2), kubectl(folder, "get", "pods", "-o", "yaml")
        testbed = containerd.load(folder)
        assert testbed is not None
        before = servers(folder)
        hello = {"hello from a cluster of one\n"}
        assert host.wait_until(lambda: {page(address) for address in before.values()} == hello, UP_S, 0.1)
    finally:
        code = ctrl_c(run)
    assert code == 0 and node.agent_pid(folder) is None
    assert host.cgroup_pids(node.pods_cgroup(testbed)), "Ctrl-C leaves the containers alone"

    run = start_run(folder)
    try:
        assert host.wait_until(lambda: is_up(folder), UP_S, 0.2), kubectl(folder, "get", "pods", "-o", "yaml")
        assert servers(folder) == before, "the same containers as before"
        kubectl(folder, "patch", "configmap", "page", "-p", '{"data": {"index.html": "another page"}}')
        assert host.wait_until(lambda: {page(address) for address in before.values()} == {"another page"}, UP_S, 0.1)
    finally:
        code = ctrl_c(run)
    assert code == 0
    node.down(folder)
    assert traces(testbed) == []

"""`make run` and `make down` around a stand-in for the agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.agent import PROGRAM, Json
from support.traces import traces
from testbed import containerd, host, node, places

TOOLS = Path(node.__file__).parents[1]
#: The examples that stay up, with their containers that do.
SERVICES = {
    "web": {"httpd"},
    "settings": {"greeter"},
    "guaranteed": {"reader"},
    "host-network": {"interfaces"},
    "sidecar": {"shipper", "app"},
}
AGENT = """#!{python}
import json, pathlib, signal, sys
if sys.argv[1] == "pods":
    print(json.dumps({{"pods": [{{"namespace": "default", "name": "web-local", "ready": "1/1", "status": "Running",
                                  "restarts": 0, "created": None, "waits": []}}]}}))
    sys.exit(0)
print("agent up", flush=True)
signal.signal(signal.SIGTERM, lambda *_: (print("agent asked to end", flush=True), sys.exit(0)))
signal.pause()
"""


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    program = tmp_path / "pykubelet"
    program.write_text(AGENT.format(python=sys.executable))
    program.chmod(0o755)
    return program


@pytest.fixture
def folder() -> Iterator[Path]:
    path = places.run_folder("node")
    try:
        yield path
    finally:
        node.down(path)


def start_run(agent: Path, folder: Path) -> subprocess.Popen[str]:
    """`node.run` in a process of its own, as make starts it."""
    script = (
        "import pathlib, signal, sys; from testbed import node; P = pathlib.Path; "
        # whoever runs the tests in the background has it ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"sys.exit(node.run(P({str(agent)!r}), P({str(folder)!r}), P('examples')))"
    )
    env = os.environ | {"PYTHONPATH": str(TOOLS), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True)


def read_until(run: subprocess.Popen[str], text: str) -> None:
    assert run.stdout is not None
    for line in run.stdout:
        if text in line:
            return
    pytest.fail(f"ended without saying {text!r}")


def finish(run: subprocess.Popen[str]) -> int:
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=90)
    return run.returncode


@pytest.mark.integration
def test_run_ctrl_c_run_again_down(agent: Path, folder: Path) -> None:
    run = start_run(agent, folder)
    read_until(run, "default/web-local Running ready 1/1")
    pid = node.agent_pid(folder)
    testbed = containerd.load(folder)
    assert pid is not None
    assert testbed is not None
    runtime = testbed.pid()
    config = json.loads((folder / "kubelet.yaml").read_text())
    assert config["cgroupRoot"] == f"/{testbed.name}-pods"
    assert config["staticPodPath"] == os.path.realpath("examples")

    view = start_run(agent, folder)  # beside the first: a view only
    read_until(view, "default/web-local")
    assert finish(view) == 0
    assert node.agent_pid(folder) == pid

    assert finish(run) == 0
    assert node.agent_pid(folder) is None
    assert host.read_process(pid) is None
    assert "agent asked to end" in (folder / "agent.log").read_text()
    assert testbed.pid() == runtime, "Ctrl-C must leave the runtime and its containers alone"

    run = start_run(agent, folder)
    read_until(run, "default/web-local")
    assert testbed.pid() == runtime
    assert finish(run) == 0
    node.down(folder)
    assert testbed.pid() is None
    assert not folder.exists()
    node.down(folder)


def pods_of(folder: Path) -> dict[str, Json]:
    """The statuses that the agent reports, by pod; nothing while it does not answer."""
    port = json.loads((folder / "kubelet.yaml").read_text())["readOnlyPort"]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/pods", timeout=30) as answer:
            items = json.load(answer)["items"]
    except OSError:
        return {}
    return {pod["metadata"]["name"].removesuffix(f"-{node.NODE_NAME}"): pod["status"] for pod in items}


def up_containers(status: Json) -> dict[str, str]:
    """The running containers of a pod, by name: their ids."""
    all_of_it = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return {c["name"]: c["containerID"] for c in all_of_it if "running" in c["state"]}


def are_up(pods: dict[str, Json]) -> bool:
    """Whether the examples do what their first lines say."""
    if not pods.keys() >= {*SERVICES, "job", "crash-loop"}:
        return False
    services = all(up_containers(pods[name]).keys() == names for name, names in SERVICES.items())
    crashes = sum(c["restartCount"] for c in pods["crash-loop"].get("containerStatuses", ()))
    return services and pods["job"]["phase"] == "Succeeded" and crashes > 0


@pytest.mark.integration
def test_the_examples_run_outlive_the_agent_and_leave_nothing(folder: Path) -> None:
    """The program that `make run` starts, on what `make run` shows."""
    run = start_run(PROGRAM, folder)
    try:
        read_until(run, "healthz")
        testbed = containerd.load(folder)
        assert testbed is not None
        assert host.wait_until(lambda: are_up(pods_of(folder)), 180, 0.2), pods_of(folder)
        before = {name: up_containers(pods_of(folder)[name]) for name in SERVICES}
        assert len(host.links_into(folder)) >= sum(map(len, before.values()))
    finally:
        code = finish(run)
    assert code == 0 and node.agent_pid(folder) is None
    assert host.cgroup_pids(node.pods_cgroup(testbed)), "Ctrl-C leaves the containers alone"

    run = start_run(PROGRAM, folder)
    try:
        read_until(run, "healthz")
        assert host.wait_until(lambda: are_up(pods_of(folder)), 180, 0.2), pods_of(folder)
        assert {name: up_containers(pods_of(folder)[name]) for name in SERVICES} == before
    finally:
        code = finish(run)
    assert code == 0
    node.down(folder)
    assert traces(testbed) == []


@pytest.mark.integration
def test_an_agent_that_ends_by_itself_is_reported_with_its_log(agent: Path, folder: Path) -> None:
    agent.write_text(f"#!{sys.executable}\nimport sys, time\ntime.sleep(0.5)\nsys.exit('bad configuration')\n")
    run = start_run(agent, folder)
    output, _ = run.communicate(timeout=90)
    assert run.returncode == 1
    assert "the agent has ended" in output
    assert "bad configuration" in output


def test_a_taken_port_is_replaced() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert host.free_port(port) not in (0, port)


def test_down_of_nothing_is_fine(tmp_path: Path) -> None:
    node.down(tmp_path / "never")

"""A node of an ordinary user: containerd and the agent in a user namespace, started by the script of docs/rootless.md."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent import make_container, make_pod
from support.rootless import FIRST_SUBID, RootlessNode, obstacle
from testbed import places

pytestmark = pytest.mark.integration


@pytest.fixture
def node() -> Iterator[RootlessNode]:
    """A node (not started) without pods."""
    bin_dir = os.environ.get("TESTBED_BIN", "")
    if reason := obstacle(bin_dir):
        pytest.skip(f"no rootless node: {reason}")
    folder = places.run_folder("rootless")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o711)
    made = RootlessNode(folder, bin_dir)
    yield made
    made.stop()


def state(pod: dict[str, Any] | None) -> dict[str, Any]:
    """The status of the pod's only container; empty while there is none."""
    statuses = (pod or {}).get("status", {}).get("containerStatuses") or [{}]
    return dict(statuses[0])


def test_a_node_of_an_ordinary_user_runs_pods(node: RootlessNode) -> None:
    volumes = [{"name": "memory", "emptyDir": {"medium": "Memory"}}, {"name": "disk", "emptyDir": {}}]
    mounts = [
        {"name": "memory", "mountPath": "/memory"},
        {"name": "disk", "mountPath": "/disk", "subPath": "a/b"},
    ]
    script = (
        'id -u > /disk/uid; grep -q "^tmpfs /memory" /proc/mounts && touch /memory/ready; while :; do sleep 1; done'
    )
    ready = {"exec": {"command": ["test", "-e", "/memory/ready"]}, "periodSeconds": 1}
    container = make_container(script=script, volumeMounts=mounts, readinessProbe=ready)
    node.put(
        make_pod("writer", container, volumes=volumes, securityContext={"runAsUser": 1000, "fsGroup": 2000}),
        make_pod("hosted", make_container(script="while :; do sleep 1; done"), hostNetwork=True),
    )
    node.start()
    node.wait(lambda: state(node.pod("writer")).get("ready") and state(node.pod("hosted")).get("ready"), "pods run")
    writer = node.pod("writer")
    assert writer is not None and writer["status"]["podIP"]
    # on the machine, the pod's user is one of the ordinary user's subordinate IDs
    (written,) = Path(node.node, "kubelet/pods").glob("*/volumes/kubernetes.io~empty-dir/disk/a/b/uid")
    assert written.read_text() == "1000\n" and written.stat().st_uid == FIRST_SUBID + 1000 - 1
    # refused and only reported: an OOM score below 0, the number of open files, the kernel's log
    log = node.log()
    assert "/proc/self/oom_score_adj: permission denied" in log and "/dev/kmsg: operation not permitted" in log
    assert "writer-rootless" in node.ask("pods")  # by the user, outside of the node
    assert node.get("/stats/summary")["node"]["memory"]["workingSetBytes"] > 0

    before = {name: state(node.pod(name))["containerID"] for name in ("writer", "hosted")}
    pid = node.agent_pid()
    os.kill(pid, signal.SIGKILL)
    node.wait(lambda: node.pods() is not None and node.agent_pid() != pid, "the agent is back")
    node.wait(lambda: state(node.pod("writer")).get("ready"), "the pod is ready again")
    assert {name: state(node.pod(name))["containerID"] for name in before} == before

    uid = writer["metadata"]["uid"]
    node.remove("writer")
    node.wait(lambda: not Path(node.node, "kubelet/pods", uid).exists(), "nothing is left of the pod")


def test_pods_in_cgroups_need_a_delegated_group(node: RootlessNode) -> None:
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        pytest.skip("on cgroup v2 the ordinary user may have a group of its own")
    node.configure(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\n"
        "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\nfailSwapOn: false\n"
        "authentication: {webhook: {enabled: false}}\nauthorization: {mode: AlwaysAllow}\n"
    )
    node.launch()
    assert node.wait_ended() == 1
    assert re.search(r"mkdir .*permission denied \(if no cgroup is delegated.*cgroupsPerQOS: false", node.log())

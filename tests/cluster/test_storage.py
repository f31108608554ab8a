"""What `make run-storage` starts: a StatefulSet with claims for volumes of `pykubelet csi-local`. Its data outlive its pods."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.test_run_cluster import ctrl_c, kubectl
from support.agent import PROGRAM
from support.traces import traces
from testbed import containerd, controlplane, host, node, places

pytestmark = pytest.mark.scheduler
TOOLS = Path(node.__file__).parents[1]
EXAMPLES = TOOLS.parent / "examples" / "storage"
UP_S = 300.0
NOW = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: now}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: local-now
  resources: {requests: {storage: 1Mi}}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    path = places.run_folder("store")
    try:
        yield path
    finally:
        node.down(path)


def start_run(folder: Path) -> subprocess.Popen[str]:
    """`make run-storage` without make; returns when it shows the node."""
    script = (
        "import pathlib, signal, sys; from testbed import cluster; P = pathlib.Path; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"sys.exit(cluster.run(P({str(PROGRAM)!r}), P({str(folder)!r}), P({str(EXAMPLES)!r}), has_storage=True))"
    )
    paths = os.pathsep.join((str(TOOLS), str(TOOLS.parent / "src")))
    env = os.environ | {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
    run = subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    if not any("healthz" in line for line in run.stdout):
        run.stdout.close()
        pytest.fail(f"it ended without showing the node, with exit code {run.wait(60)}")
    return run


def ready(folder: Path) -> int:
    """The replicas that are ready."""
    return int(
        json.loads(kubectl(folder, "get", "statefulset", "counter", "-o", "json") or "{}")
        .get("status", {})
        .get("readyReplicas", 0)
    )


def uid(folder: Path, pod: str) -> str:
    return kubectl(folder, "get", "pod", pod, "-o", "jsonpath={.metadata.uid}")


def starts(folder: Path, pod: str) -> list[str]:
    return kubectl(folder, "exec", pod, "--", "cat", "/data/starts").splitlines()


def objects(folder: Path, kind: str) -> list[dict[str, Any]]:
    return list(json.loads(kubectl(folder, "get", kind, "-o", "json") or '{"items": []}')["items"])


def capacities(folder: Path) -> list[str]:
    return [claim["status"]["capacity"]["storage"] for claim in objects(folder, "pvc")]


def on_disk(folder: Path) -> int:
    return len(list((folder / "volumes" / "volumes").glob("*/volume.json")))


def test_the_data_of_a_stateful_set_outlive_its_pods_and_the_driver(folder: Path) -> None:
    run = start_run(folder)
    try:
        assert host.wait_until(lambda: ready(folder) == 2, UP_S, 0.2), kubectl(folder, "describe", "pods,pvc")
        assert host.wait_until(lambda: len(starts(folder, "counter-0")) == 1, 30, 0.2)
        assert {claim["status"]["phase"] for claim in objects(folder, "pvc")} == {"Bound"}
        assert on_disk(folder) == 2
        more = '{"spec": {"resources": {"requests": {"storage": "32Mi"}}}}'
        kubectl(folder, "patch", "pvc", "data-counter-0", "-p", more)
        assert host.wait_until(lambda: capacities(folder) == ["32Mi", "16Mi"], 60, 0.2)
        before = uid(folder, "counter-0")
        kubectl(folder, "delete", "pod", "counter-0")
        again = host.wait_until(lambda: uid(folder, "counter-0") not in ("", before) and ready(folder) == 2, UP_S, 0.2)
        assert again, kubectl(folder, "describe", "pods,pvc")
        assert host.wait_until(lambda: len(starts(folder, "counter-0")) == 2, 30, 0.2)
        assert len(starts(folder, "counter-1")) == 1, "each has its own volume"

        subprocess.run(
            [*_kubectl(folder), "apply", "-f", "-"], input=NOW, text=True, check=True, capture_output=True, timeout=60
        )
        assert host.wait_until(lambda: on_disk(folder) == 3, 60, 0.2), "a claim that is served at once"
        kubectl(folder, "delete", "pvc", "now")
        assert host.wait_until(lambda: on_disk(folder) == 2, 120, 0.2)

        driver = node.driver_pid(folder)
        assert driver is not None
        os.kill(driver, signal.SIGKILL)
        assert len(starts(folder, "counter-0")) == 2, "a volume does not need its driver"
    finally:
        code = ctrl_c(run)
    assert code == 0 and node.driver_pid(folder) is None

    run = start_run(folder)
    try:
        kubectl(folder, "delete", "pod", "counter-1")
        assert host.wait_until(lambda: ready(folder) == 2 and len(starts(folder, "counter-1")) == 2, UP_S, 0.2)
        kubectl(folder, "delete", "statefulset", "counter")
        kubectl(folder, "delete", "pvc", "--all")
        assert host.wait_until(lambda: on_disk(folder) == 0 and objects(folder, "pv") == [], UP_S, 0.2)
    finally:
        code = ctrl_c(run)
    assert code == 0
    testbed = containerd.load(folder)
    assert testbed is not None
    node.down(folder)
    assert traces(testbed) == []


def _kubectl(folder: Path) -> list[str]:
    plane = controlplane.load(folder)
    assert plane is not None
    return [plane.programs.kubectl, "--kubeconfig", str(plane.admin)]

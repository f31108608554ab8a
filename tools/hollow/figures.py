"""What hollow nodes cost, and whether they are on time: of their processes, and of the API server as it counts itself.

Asks with kubectl, so that any kubeconfig works. Changes nothing in the cluster but a Deployment of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from testbed.host import processes

DEPLOYMENT = "hollow-figures"
_SAMPLE = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_LOOK_S = 5.0
_PATIENCE_S = 900.0


class FiguresError(Exception):
    """Something does not answer, or does not become what it should be in time."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of all processes with hollow nodes: CPU seconds, bytes in memory of their own, threads."""

    cpu_s: float
    memory: int
    threads: int
    count: int


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with a kubeconfig."""

    program: str
    kubeconfig: str

    def __call__(self, *words: str, stdin: str = "") -> str:
        """Its output. Raises FiguresError."""
        argv = [self.program, "--kubeconfig", self.kubeconfig, *words]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode != 0:
            raise FiguresError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def raw(self, path: str) -> Any:
        """The object at a path."""
        return json.loads(self("get", "--raw", path))


def read_cost() -> Cost:
    """Of the processes of this machine that run hollow nodes."""
    cpu, memory, threads, count = 0.0, 0, 0, 0
    for process in processes():
        if "hollow" not in process.argv or "--here" not in process.argv:
            continue
        folder = Path("/proc", str(process.pid))
        fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
        cpu += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        threads += int(fields[17])
        found = re.search(r"^Pss:\s+(\d+) kB", (folder / "smaps_rollup").read_text(), re.MULTILINE)
        memory += int(found[1]) * 1024 if found else 0
        count += 1
    if not count:
        raise FiguresError("no process of this machine runs hollow nodes")
    return Cost(cpu, memory, threads, count)


def requests_of(text: str) -> Counter[tuple[str, str]]:
    """Verb and resource of the requests that an API server has answered, from its /metrics. Pure."""
    found: Counter[tuple[str, str]] = Counter()
    for labels, number in _SAMPLE.findall(text):
        by_name = dict(_LABEL.findall(labels))
        resource = by_name.get("resource", "") or "none"
        if by_name.get("subresource"):
            resource += f"/{by_name['subresource']}"
        found[by_name.get("verb", ""), resource] += int(float(number))
    return found


def lease_ages(leases: Any, now: float) -> list[float]:
    """The seconds since each Lease was renewed. Pure."""
    times = (item["spec"].get("renewTime") for item in leases["items"])
    return [now - datetime.fromisoformat(text).timestamp() for text in times if text]


def unready(nodes: Any) -> list[str]:
    """The names of nodes that are not Ready. Pure."""
    ready = {"type": "Ready", "status": "True"}
    return [
        node["metadata"]["name"]
        for node in nodes["items"]
        if not any(ready.items() <= condition.items() for condition in node["status"].get("conditions", ()))
    ]


class Figures:
    """Measures one period after the other and prints each."""

    def __init__(self, kubectl: Kubectl, show: Callable[[str], None] = print) -> None:
        self._kubectl = kubectl
        self._show = show
        self._nodes = 0

    def run(self, pods: int, seconds: float) -> None:
        """Idle nodes; then a Deployment comes, rests, and goes. `pods` 0: only idle nodes."""
        self._nodes = len(self._kubectl.raw("/api/v1/nodes")["items"])
        with self._period("idle nodes"):
            self._watch_heartbeats(seconds)
        if not pods:
            return
        self._kubectl("apply", "-f", "-", stdin=json.dumps(deployment(pods)))
        try:
            with self._period(f"a Deployment of {pods} pods until all are ready"):
                self._wait(lambda: self._ready() == pods, f"{pods} pods are ready")
            with self._period(f"at rest with {pods} pods"):
                self._watch_heartbeats(seconds)
        finally:
            self._kubectl("delete", "deployment", DEPLOYMENT, "--wait=false")
        with self._period("all pods gone"):
            self._wait(lambda: not self._left(), "no pod is left")

    @contextmanager
    def _period(self, what: str) -> Iterator[None]:
        began, cost, asked = time.monotonic(), read_cost(), self._requests()
        yield
        took, after, answered = time.monotonic() - began, read_cost(), self._requests() - asked
        cpu, nodes = after.cpu_s - cost.cpu_s, self._nodes
        self._show(f"{what}: {took:.0f} s")
        self._show(
            f"  {nodes} nodes in {after.count} processes: {after.memory / 2**20:.0f} MiB ({after.memory / nodes / 2**20:.2f} MiB a "
            f"node), {after.threads / nodes:.1f} threads a node, {cpu:.1f} s of CPU ({1000 * cpu / took / nodes:.2f} ms a second "
            "and node)"
        )
        self._show(f"  the API server answered {answered.total() / took:.1f} requests a second, of them")
        for (verb, resource), number in answered.most_common(8):
            self._show(f"    {number / took:8.2f}  {verb} {resource}")

    def _requests(self) -> Counter[tuple[str, str]]:
        return requests_of(self._kubectl("get", "--raw", "/metrics"))

    def _watch_heartbeats(self, seconds: float) -> None:
        oldest, late, end = 0.0, 0, time.monotonic() + seconds
        while time.monotonic() < end:
            leases = self._kubectl.raw("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
            oldest = max([oldest, *lease_ages(leases, time.time())])
            late = max(late, len(unready(self._kubectl.raw("/api/v1/nodes"))))
            time.sleep(min(_LOOK_S, max(0.0, end - time.monotonic())))
        self._show(f"heartbeats: the oldest Lease was {oldest:.1f} s old; nodes that were not Ready: {late}")

    def _ready(self) -> int:
        found = self._kubectl.raw(f"/apis/apps/v1/namespaces/default/deployments/{DEPLOYMENT}")
        return int(found["status"].get("readyReplicas", 0))

    def _left(self) -> int:
        pods = self._kubectl.raw(f"/api/v1/namespaces/default/pods?labelSelector=app%3D{DEPLOYMENT}&limit=1")
        return len(pods["items"])

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise FiguresError(f"not within {_PATIENCE_S:.0f} s: {what}")
            time.sleep(0.5)


def deployment(pods: int) -> dict[str, Any]:
    """Pods without a token, so that each has no volume. Pure."""
    container = {"name": "main", "image": "registry.example/app:1", "resources": {"requests": {"cpu": "10m"}}}
    spec = {"containers": [container], "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1}
    labels = {"app": DEPLOYMENT}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": DEPLOYMENT, "namespace": "default"},
        "spec": {
            "replicas": pods,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }

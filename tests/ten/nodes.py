"""Ten nodes on one machine, each in a network namespace of its own, and one control plane that they reach over a bridge.

Some have a containerd of their own; the containers of the others are entries in a table of a process beside the agent
(`python -m hollow runtime`). Every agent is a process of its own, with cgroups, files and ports as in production.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.agent import PROGRAM, Json, RuntimeView, look
from support.cluster import WITHIN_S, Cluster
from testbed import containerd as runtimes
from testbed import cri, host, images, node
from testbed.controlplane import ControlPlane, node_kubeconfig
from testbed.private_runtime import Testbed
from testbed.segment import Segment

from pykubelet.edges.cri.client import CriClient

HEALTH, READ_ONLY, MAIN = 10248, 10255, 10250
CHECKOUT = Path(__file__).parents[2]
KIND = "runtime.example.com/kind"
REAL, DOUBLE = "containerd", "double"


@dataclass
class Node:
    """A node of the cluster; number 1 is `ten-1`."""

    number: int
    kind: str
    net: Segment
    folder: Path
    plane: ControlPlane
    testbed: Testbed | None = None
    agent: int | None = None
    runtime: int | None = None
    static_pods: list[Json] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = f"ten-{self.number}"
        self.ip = self.net.address_of(self.number)
        self.cgroup = f"{self.net.cgroup}/{self.name}"
        self.agents = f"{self.net.cgroup}/agents"
        self.manifests = self.folder / "manifests"
        self.log = self.folder / "agent.log"

    # Its processes

    def start_runtime(self) -> None:
        """Start the container runtime; a containerd finds what it had."""
        if self.kind == REAL:
            self.testbed = runtimes.up(self.folder, (images.BUSYBOX,), launcher=self.net.enter(self.number))
            return
        self.testbed = Testbed(str(self.folder), self.name, "", "")
        socket = self.testbed.socket
        socket.parent.mkdir(parents=True, exist_ok=True)
        env = os.environ | {"PYTHONPATH": str(CHECKOUT / "tools")}
        argv = [sys.executable, "-m", "hollow", "runtime", str(socket), "--image", images.BUSYBOX]
        self.runtime = host.spawn(argv, self.folder / "runtime.log", env, self.agents)
        assert host.wait_until(lambda: cri.is_ready(socket), WITHIN_S), (self.folder / "runtime.log").read_text()

    def start_agent(self) -> None:
        """Start the agent as a process on the node's network."""
        assert self.testbed is not None
        self.manifests.mkdir(parents=True, exist_ok=True)
        host.make_cgroup(self.cgroup)
        joined = node.Joined(node_kubeconfig(self.plane, self.name), self.plane.authority)
        config = node.render_config(self.testbed, self.manifests, (HEALTH, READ_ONLY, MAIN)) | joined.settings()
        config |= {"cgroupRoot": self.cgroup, "healthzBindAddress": self.ip}
        config["runtimeRequestTimeout"] = f"{2 * host.SLOWNESS}m"
        (self.folder / "kubelet.yaml").write_text(json.dumps(config, indent=2))
        root = self.folder / "kubelet"
        argv = [*self.net.enter(self.number), str(PROGRAM), "--config", str(self.folder / "kubelet.yaml")]
        argv += ["--root-dir", str(root), "--cert-dir", str(root / "pki"), "--hostname-override", self.name]
        argv += ["--kubeconfig", str(joined.kubeconfig), "--node-labels", f"{KIND}={self.kind}", "-v", "2"]
        self.agent = host.spawn(argv, self.log, os.environ | {"PATH": self.testbed.env["PATH"]}, self.agents)

    def kill(self) -> None:
        """SIGKILL to everything that runs on the node, as when the machine loses its power."""
        pids = {pid for pid in (self.agent, self.runtime) if pid is not None}
        if self.kind == REAL and self.testbed is not None:
            pids |= {pid} if (pid := self.testbed.pid()) is not None else set()
            pids |= host.cgroup_pids(self.testbed.cgroup)  # the shims: they would clean up after their containers
        host.kill_all(pids)
        host.kill_all(host.cgroup_pids(self.cgroup))
        self.agent = self.runtime = None

    # Its network

    def unplug(self) -> None:
        """From now on nothing passes between the node and the others."""
        self.net.unplug(self.number)

    def plug_in(self) -> None:
        """Undo `unplug`."""
        self.net.plug_in_again(self.number)

    # What is on it

    def put_static_pod(self, pod: Json) -> None:
        """Put a manifest into the node's folder."""
        self.manifests.mkdir(parents=True, exist_ok=True)
        part = self.folder / "part.json"
        part.write_text(json.dumps(pod))
        part.replace(self.manifests / f"{pod['metadata']['name']}.json")

    def look(self) -> RuntimeView:
        """The lists of the node's runtime, now."""
        assert self.testbed is not None
        endpoint = self.testbed.endpoint

        async def asked() -> RuntimeView:
            client = CriClient(endpoint, timeout_s=30 * host.SLOWNESS)
            try:
                return await look(client)
            finally:
                await client.close()

        return asyncio.run(asked())

    def running(self) -> dict[str, str]:
        """The UID of the pod of each running container, by the container's id."""
        return {c.id: c.labels["io.kubernetes.pod.uid"] for c in self.look().running}

    def is_healthy(self) -> bool:
        """Whether /healthz answers ok."""
        connection = http.client.HTTPConnection(self.ip, HEALTH, timeout=5 * host.SLOWNESS)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def log_tail(self, lines: int = 40) -> str:
        """The end of the agent's log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join([f"the end of the log of {self.name}:", *text.splitlines()[-lines:]])


@dataclass
class Ten:
    """The cluster; `shared`: a folder that containers of every node can mount."""

    cluster: Cluster
    nodes: list[Node]
    shared: Path

    def node(self, number: int) -> Node:
        """Node `ten-<number>`."""
        return self.nodes[number - 1]

    def start(self) -> None:
        """All runtimes and agents; returns when every node is Ready."""
        for member in self.nodes:
            member.start_runtime()
            member.start_agent()
        for member in self.nodes:
            self.cluster.wait_node_ready(member.name, 2 * WITHIN_S)

    def running(self) -> dict[str, str]:
        """As `Node.running`, of all nodes."""
        return {container: uid for member in self.nodes for container, uid in member.running().items()}

    @contextmanager
    def explained(self, *numbers: int) -> Iterator[None]:
        """A failure in the block has the logs of these nodes."""
        try:
            yield
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *(self.node(n).log_tail() for n in numbers)])) from error


def make_nodes(folder: Path, net: Segment, plane: ControlPlane, count: int, real: int) -> list[Node]:
    """The nodes of a segment, plugged in and not started. The first `real` ones have a containerd."""
    made = []
    for number in range(1, count + 1):
        net.plug_in(number)
        kind = REAL if number <= real else DOUBLE
        made.append(Node(number, kind, net, folder / f"n{number}", plane))
    return made

"""What must be so at checkpoints, at the API server, at the runtime and on the disk. What is not is kept in words."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from longlife.cluster import Cluster
from longlife.machine import NODE_NAME, READ_ONLY_PORT, Node

from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.cpuset import parse_cpuset
from pykubelet.edges.cri import cri_pb2 as pb

Json = dict[str, Any]
SOON_S = 900.0
STEP_S = 5.0


class Checks:
    """`problems`: one line each, with the day."""

    def __init__(self, node: Node, cluster: Cluster) -> None:
        self._node = node
        self._cluster = cluster
        self.problems: list[str] = []

    def expect(self, holds: object, what: str) -> None:
        if not holds:
            self.problems.append(f"day {self._node.day + 1:.2f}: not so: {what}")

    async def soon(self, what: str, holds: Callable[[], object], within_s: float = SOON_S) -> None:
        """Wait until it holds, in virtual seconds."""
        end = self._node.loop.now + within_s
        while not holds() and self._node.loop.now < end:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(STEP_S)
        self.expect(holds(), f"{what}, within {within_s:g} s")

    async def answers(self, path: str) -> None:
        """The read-only port, with 200 and something."""
        reader, writer = await asyncio.open_connection("127.0.0.1", READ_ONLY_PORT)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n".encode())
            answer = await asyncio.wait_for(reader.read(), 60)
        finally:
            writer.close()
            await writer.wait_closed()
        self.expect(
            answer.startswith(b"HTTP/1.1 200") and len(answer) > 100, f"{path} is answered, not {answer[:80]!r}"
        )

    # Pods

    def status(self, name: str) -> Json:
        found = self._cluster.pod(name)
        return dict((found or {}).get("status", {}))

    def phase(self, name: str) -> str:
        return str(self.status(name).get("phase", ""))

    def condition(self, name: str, kind: str) -> str:
        return next(
            (
                str(condition["status"])
                for condition in self.status(name).get("conditions", ())
                if condition["type"] == kind
            ),
            "",
        )

    def is_ready(self, name: str) -> bool:
        return self.phase(name) == "Running" and self.condition(name, "Ready") == "True"

    def waiting(self, name: str, index: int = 0) -> str:
        statuses = self.status(name).get("containerStatuses") or [{}] * (index + 1)
        return str(statuses[index].get("state", {}).get("waiting", {}).get("reason", ""))

    def restarts(self, name: str) -> int:
        return sum(container["restartCount"] for container in self.status(name).get("containerStatuses", ()))

    async def busy(self, done: str, fails: str, crash: str, ill: str, lost: str, waits: str) -> None:
        self.expect(self.phase(done) == "Succeeded", f"{done} has succeeded, not {self.phase(done)!r}")
        self.expect(self.restarts(fails) >= 2, f"{fails} was restarted, not {self.restarts(fails)} times")
        await self.soon(f"{crash} backs off", lambda: self.waiting(crash) == "CrashLoopBackOff")
        self.expect(4 <= self.restarts(crash) <= 9, f"{crash} was restarted some times, not {self.restarts(crash)}")
        self.expect(self.restarts(ill) >= 2, f"{ill} was killed by its probe, not {self.restarts(ill)} times")
        await self.soon(f"{lost} backs off", lambda: self.waiting(lost) in ("ImagePullBackOff", "ErrImagePull"))
        reason = self.waiting(waits)
        self.expect(reason == "CreateContainerConfigError", f"{waits} waits for its ConfigMap, not for {reason!r}")

    def is_gone(self, *names: str) -> bool:
        state = self._node.runtime.state
        there = {sandbox.config.metadata.name for sandbox in state.sandboxes.values()}
        return not any(name in there or self._cluster.pod(name) for name in names)

    async def at_rest(self, expected: set[str], *, api_away: bool) -> None:
        """Only these pods are there, ready, everywhere."""
        await self.soon(f"the runtime has only {expected}", lambda: self.pods_at_runtime() == expected)
        found = self.pods_at_runtime()
        self.expect(found == expected, f"the runtime has the pods {expected}, not {found}")
        uids = {sandbox.config.metadata.uid for sandbox in self._node.runtime.state.sandboxes.values()}
        self._on_disk(uids)
        await self.soon("all CPUs are shared", self._shares_all_cpus)
        if api_away:
            return
        await self.soon("all are ready", lambda: all(self.is_ready(name) for name in expected))
        for name in self._cluster.pods():
            self.expect(name in expected, f"the API server has no pod {name}")
        self._node_is_well()
        self._certificates_hold()
        self.tokens_hold()

    def pods_at_runtime(self) -> set[str]:
        state = self._node.runtime.state
        running = {c.sandbox.id for c in state.containers.values() if c.state == pb.CONTAINER_RUNNING}
        return {sandbox.config.metadata.name for sandbox in state.sandboxes.values() if sandbox.id in running}

    def has_own_cpu(self, name: str) -> bool:
        """Whether the pod has a CPU that no running container of another pod may use."""
        found = self._cluster.pod(name)
        entries = self._cpu_state().get("entries", {})
        if found is None or found["metadata"]["uid"] not in entries:
            return False
        own = parse_cpuset(entries[found["metadata"]["uid"]]["app"])
        return bool(own) and not any(own & cpus for pod, cpus in self._cpusets() if pod != name)

    def _shares_all_cpus(self) -> bool:
        state = self._cpu_state()
        every = parse_cpuset(state["defaultCpuSet"])
        return "entries" not in state and all(cpus == every for _, cpus in self._cpusets())

    def _cpu_state(self) -> Json:
        found: Json = json.loads((self._node.folder / "root" / "cpu_manager_state").read_text())
        return found

    def _cpusets(self) -> Iterator[tuple[str, frozenset[int]]]:
        """The pod and the CPUs of each running container."""
        for container in self._node.runtime.state.containers.values():
            if container.state == pb.CONTAINER_RUNNING:
                yield container.sandbox.config.metadata.name, parse_cpuset(container.resources.cpuset_cpus)

    def _on_disk(self, uids: set[str]) -> None:
        root = self._node.folder / "root"
        folders = {entry.name for entry in os.scandir(root / "pods")}
        self.expect(folders == uids, f"the pods' folders are {uids}, not {folders}")
        logs = {entry.name.split("_")[-1] for entry in os.scandir(self._node.folder / "logs")}
        self.expect(logs == uids, f"the pods' log folders are {uids}, not {logs}")
        groups = {uid for uid in uids if any(f"/pod{uid}" in group for group in self._node.cgroups.groups)}
        pods = [group for group in self._node.cgroups.groups if group.rpartition("/")[2].startswith("pod")]
        self.expect(groups == uids and len(pods) == len(uids), f"{len(uids)} pods have cgroups, not {pods}")

    def _node_is_well(self) -> None:
        node = self._node.api.get(f"/api/v1/nodes/{NODE_NAME}")
        ready = next(condition for condition in node["status"]["conditions"] if condition["type"] == "Ready")
        self.expect(ready["status"] == "True", f"the node is ready, not {ready}")
        wall = self._node.clock.wall()
        beat = wall - parse_time(ready["lastHeartbeatTime"])
        self.expect(-60 <= beat <= 1000, f"the node's status is fresh, not {beat:.0f} s old")
        age = self.lease_age()
        self.expect(-1 <= age <= 1200, f"the lease is renewed, not {age:.0f} s old")

    def lease_age(self) -> float:
        lease = self._node.api.get(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE_NAME}")
        return self._node.clock.wall() - parse_time(lease["spec"]["renewTime"])

    def _certificates_hold(self) -> None:
        assert self._node.agent is not None
        found = self._node.agent.cells.credentials.cell.get().certificates
        for name in ("client", "serving"):
            left = (found[name].expires_at or 0.0) - self._node.clock.wall() if name in found else -1.0
            self.expect(left > 0, f"the {name} certificate holds, not for {left:.0f} s")

    def tokens_hold(self) -> None:
        for name in ("web", "db"):
            text = self._volume_file(name, "kubernetes.io~projected/access/token")
            try:
                age, life = self._token_age(text)
            except (ValueError, KeyError, TypeError):
                self.expect(False, f"{name} has a token, not {text[:40]!r}")
                continue
            self.expect(age < life, f"the token of {name} is fresh, not {age:.0f} s old")

    def _token_age(self, text: str) -> tuple[float, float]:
        _, _, spec, made_at = json.loads(base64.urlsafe_b64decode(text))
        return self._node.loop.now - made_at, float(spec["expirationSeconds"])

    # What changes

    def has_content(self, name: str, day: int) -> bool:
        color = self._volume_file(name, "kubernetes.io~projected/access/color")
        return color == f"color-{day}" and self._volume_file(name, "kubernetes.io~secret/keys/key") == f"key-{day}"

    def _volume_file(self, name: str, path: str) -> str:
        found = self._cluster.pod(name)
        if found is None:
            return ""
        try:
            uid = str(found["metadata"]["uid"])
            return (self._node.folder / "root/pods" / uid / "volumes" / path).read_text()
        except OSError:
            return ""

    def is_resized(self, name: str, cpu: str) -> bool:
        container = self._node.runtime.find("app", name)
        reported = (self.status(name).get("containerStatuses") or [{}])[0].get("resources", {})
        quota = int(cpu.removesuffix("m")) * 100
        if container is None or container.resources.cpu_quota != quota:
            return False
        return bool(reported.get("limits", {}).get("cpu") == cpu)

    def runs_anew(self, container: str, name: str, before: str) -> bool:
        found = self._node.runtime.find(container, name)
        return found is not None and found.id != before and found.state == pb.CONTAINER_RUNNING

    def logs_rotated(self) -> None:
        found = self._node.runtime.find("app", "web")
        assert found is not None
        folder = os.path.dirname(found.log_file)
        sizes = [entry.stat().st_size for entry in os.scandir(folder)]
        self.expect(len(sizes) <= 3 + found.config.metadata.attempt, f"three log files are left, not {len(sizes)}")
        self.expect(sum(sizes) < 400_000, f"the logs stay small, not {sum(sizes)} bytes")

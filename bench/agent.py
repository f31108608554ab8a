"""The agent under measurement: its process, configuration, cost, and manifests.

Owns: the agent's process, in a cgroup of its own, so that its CPU time is exact and includes its children.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed import host, images, node
from testbed.certificates import issue, make_authority
from testbed.private_runtime import Testbed

from bench import CHECKOUT
from bench.runtime import BenchError

PROGRAM = CHECKOUT / ".venv" / "bin" / "pykubelet"
NODE_NAME = "bench"
_STOP_S = 15.0
_QUIET_STEP_S = 0.25
_ON_V1 = Path("/sys/fs/cgroup/cpuacct")


def manifest(name: str, **spec: Any) -> dict[str, Any]:
    """A pod with one container that ends at once on SIGTERM."""
    container = {"name": "main", "image": images.PAUSE, "imagePullPolicy": "IfNotPresent"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "bench"}},
        "spec": {"containers": [container], **spec},
    }


class Agent:
    """Everything is below `folder`. Pods are named as their manifests; the node's name follows."""

    def __init__(
        self, testbed: Testbed, folder: Path, program: Path = PROGRAM, joined: node.Joined | None = None
    ) -> None:
        self.folder = folder
        self.manifests = folder / "manifests"
        self.log = folder / "agent.log"
        self._staging = folder / "staging"
        self._root = folder / "kubelet"
        self._testbed = testbed
        self.program = program
        self._joined = joined
        self._pid: int | None = None
        self._cgroup = f"/{testbed.name}-agent"
        self._ports = (0, 0, 0)
        #: A directory in which the agent looks for programs first.
        self.programs: Path | None = None
        #: Further flags.
        self.flags: Sequence[str] = ()
        #: The KubeletConfiguration, as it is in the file.
        self.settings: dict[str, object] = {}

    @property
    def cgroups(self) -> tuple[str, str]:
        """Cgroups to remove in the end: the agent's and its pods'."""
        return self._cgroup, node.pods_cgroup(self._testbed)

    @property
    def pid(self) -> int:
        if self._pid is None or host.is_gone(self._pid):
            raise BenchError(f"the agent does not run; the end of {self.log}:\n{self._log_end()}")
        return self._pid

    def _log_end(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:]) if self.log.exists() else ""

    def trouble(self) -> str:
        """What to add to a failure: the end of the log of an agent that has ended."""
        ended = self._pid is not None and host.is_gone(self._pid)
        return f"; the agent has ended:\n{self._log_end()}" if ended else ""

    # Process

    def configure(self) -> None:
        """Write the configuration and make the folders, once."""
        for folder in (self.manifests, self._staging):
            folder.mkdir(parents=True, exist_ok=True)
        for cgroup in self.cgroups:
            host.make_cgroup(cgroup)
        self._ports = (host.free_port(0), host.free_port(0), host.free_port(0))
        config = node.render_config(self._testbed, self.manifests, self._ports)
        config |= self._joined.settings() if self._joined else self._own_clients()
        config |= {"containerLogMaxSize": "1Gi"}
        self.set_config(**config)

    def set_config(self, **fields: object) -> None:
        """Change fields of the KubeletConfiguration, for the next start."""
        self.settings |= fields
        (self.folder / "kubelet.yaml").write_text(json.dumps(self.settings, indent=2) + "\n")

    def _own_clients(self) -> dict[str, object]:
        """Without a cluster: the authenticated port is for who has `client_certificate`."""
        authority = make_authority(self.folder / "clients")
        issue(self.folder / "clients", "bench", "bench")
        x509 = {"clientCAFile": str(authority)}
        return {"authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}, "x509": x509}}

    @property
    def client_certificate(self) -> tuple[str, str]:
        """Certificate and key of a client that the authenticated port lets in."""
        path = self.folder / "clients" / "bench"
        return f"{path}.crt", f"{path}.key"

    @property
    def port(self) -> int:
        """The authenticated port."""
        return self._ports[2]

    def spawn(self) -> int:
        """Start the process; the wall clock in nanoseconds at which that began."""
        argv = [str(self.program), "--config", str(self.folder / "kubelet.yaml")]
        argv += ["--root-dir", str(self._root), "--cert-dir", str(self._root / "pki"), "--hostname-override", NODE_NAME]
        argv += ["--kubeconfig", str(self._joined.kubeconfig)] if self._joined else []
        argv += self.flags
        # an installed agent has its bytecode; the first start writes it
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env["PATH"] = ":".join((*([str(self.programs)] if self.programs else []), self._testbed.env["PATH"]))
        began = time.time_ns()
        self._pid = host.spawn(argv, self.log, env, self._cgroup)
        return began

    async def start(self) -> None:
        """Start it and wait until it is well and at rest."""
        self.spawn()
        await self.wait_healthy()
        await self.wait_quiet()

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        host.kill_all([self.pid])
        self._pid = None

    def stop(self) -> None:
        if self._pid is not None:
            host.end_process(self._pid, _STOP_S)
            self._pid = None

    def forget(self) -> None:
        """Remove the root directory of an agent that does not run."""
        if self._root.exists():
            host.unmount_below(self._root)
            shutil.rmtree(self._root)

    @contextlib.contextmanager
    def frozen(self) -> Any:
        """While the block runs the agent does nothing at all."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    # Questions

    async def wait_healthy(self, timeout_s: float = 30.0) -> int:
        """The wall clock in nanoseconds when /healthz first answered ok."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if (await self._get(self._ports[0], "/healthz")) is not None:
                return time.time_ns()
            _ = self.pid
            await asyncio.sleep(0.005)
        raise BenchError(f"/healthz is not ok within {timeout_s:.0f} s; the end of its log:\n{self._log_end()}")

    async def ready_pods(self) -> dict[str, tuple[str, ...]] | None:
        """The ids of the containers of each pod that the agent reports as Running and Ready, by pod name."""
        body = await self._get(self._ports[1], "/pods")
        if body is None:
            return None
        return {pod["metadata"]["name"]: ids for pod in json.loads(body)["items"] or () if (ids := _ready_ids(pod))}

    async def summary(self) -> dict[str, Any]:
        """The answer of the Summary API. Raises BenchError if there is none."""
        body = await self._get(self._ports[1], "/stats/summary")
        if body is None:
            raise BenchError("/stats/summary is not answered with 200 within 10 s")
        found: dict[str, Any] = json.loads(body)
        return found

    async def probe_seconds(self, pod: str) -> tuple[float, int]:
        """By its own metrics: the sum of seconds, and the number of successful readiness probes of this pod."""
        body = await self._get(self._ports[1], "/metrics/probes")
        total, count = 0.0, 0
        for line in (body or b"").decode().splitlines():
            if f'pod="{pod}"' not in line:
                continue
            if line.startswith("prober_probe_duration_seconds_sum"):
                total = float(line.split()[-1])
            elif line.startswith("prober_probe_duration_seconds_count"):
                count = int(float(line.split()[-1]))
        return total, count

    async def syncs(self) -> float | None:
        """By its own metrics: how often it has called fsync; None for an agent that does not count that."""
        body = await self._get(self._ports[1], "/metrics")
        if body is None:
            raise BenchError("/metrics is not answered with 200 within 10 s")
        found = (line for line in body.decode().splitlines() if line.startswith("pykubelet_file_syncs_total "))
        return next((float(line.split()[-1]) for line in found), None)

    @staticmethod
    async def _get(port: int, path: str) -> bytes | None:
        """The body, or None unless the answer is 200."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return None
        try:
            writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            answer = await asyncio.wait_for(reader.read(-1), 10)
        except (OSError, TimeoutError):
            return None
        finally:
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return body if head.split(b" ")[1:2] == [b"200"] else None

    # Cost

    def cpu_s(self) -> float:
        """CPU seconds that the agent and all its children, of every start, have used."""
        if _ON_V1.exists():
            used = int((_ON_V1 / self._cgroup.strip("/") / "cpuacct.usage").read_text()) / 1e9
        else:
            stat = (host.CGROUP_MOUNT / self._cgroup.strip("/") / "cpu.stat").read_text().split()
            used = int(stat[stat.index("usage_usec") + 1]) / 1e6
        return checked(used, "the CPU time of the agent's cgroup")

    def written_bytes(self) -> int:
        """The bytes that it has given to write(2): files, its log among them, control files and pipes. Sockets are written otherwise."""
        lines = Path(f"/proc/{self.pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))

    def peak_rss_mib(self) -> float:
        """The agent's own peak since it was started."""
        return checked(status_kib(self.pid, "VmHWM") / 1024, "the agent's memory")

    def tree_rss_mib(self) -> float:
        """Now, with its children."""
        found = sum(status_kib(pid, "VmRSS") for pid in host.cgroup_pids(self._cgroup)) / 1024
        return checked(found, "the memory of the agent's cgroup")

    async def wait_quiet(self, timeout_s: float = 10.0, rate: float = 0.04) -> None:
        """Until it uses less than `rate` CPU seconds per second; or `timeout_s`, when it never rests."""
        deadline, used = time.monotonic() + timeout_s, self.cpu_s()
        while time.monotonic() < deadline:
            await asyncio.sleep(_QUIET_STEP_S)
            now = self.cpu_s()
            if now - used < rate * _QUIET_STEP_S:
                return
            used = now

    # Manifests

    def place(self, pods: Iterable[Mapping[str, Any]]) -> int:
        """Move the manifests into the directory, one rename each; the wall clock just before the first."""
        names = []
        for pod in pods:
            names.append(f"{pod['metadata']['name']}.json")
            (self._staging / names[-1]).write_text(json.dumps(pod))
        began = time.time_ns()
        for name in names:
            os.rename(self._staging / name, self.manifests / name)
        return began

    def withdraw(self, names: Iterable[str]) -> int:
        """Remove the manifests of the pods; the wall clock just before the first."""
        began = time.time_ns()
        for name in names:
            os.unlink(self.manifests / f"{name}.json")
        return began


def runtime_name(name: str) -> str:
    """The name that a pod of a manifest has in the runtime."""
    return f"{name}-{NODE_NAME}"


def status_kib(pid: int, field: str) -> int:
    """0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), 0)


def checked(found: float, what: str) -> float:
    """A measured amount, which is never nothing. Raises BenchError where it is: a row could not fail with it."""
    if found <= 0:
        raise BenchError(f"{what} reads as {found}: it is not measured")
    return found


def _ready_ids(pod: Mapping[str, Any]) -> tuple[str, ...]:
    status = pod.get("status", {})
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
    if status.get("phase") != "Running" or not ready:
        return ()
    return tuple(sorted(c["containerID"] for c in status["containerStatuses"]))

"""The whole agent as a process on a private containerd, for tests: configured, started, killed, asked, cleaned up.

Owns one agent's folder below its testbed's. Looks from outside only: manifests in, HTTP, the question socket by the
program itself, and the runtime by raw CRI. Never inside the process.
"""

from __future__ import annotations

import asyncio
import http.client
import inspect
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from testbed import host, images
from testbed.node import render_config
from testbed.private_runtime import Testbed

from pykubelet.act.runtime.lifecycle.removal import remove_sandbox
from pykubelet.base.model.ids import ContainerID, SandboxID
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError

PROGRAM = Path(__file__).parents[2] / ".venv" / "bin" / "pykubelet"
NODE_NAME = "node"
#: Long enough for what a test waits for.
WAIT_S = 60.0 * host.SLOWNESS
TCP_LISTEN = "0A"  # in /proc/net/tcp
#: Of the agents of this process.
_NUMBERS = itertools.count(1)

Json = dict[str, Any]


class NotYet(AssertionError):
    """What was waited for did not come; the message has the agent's own account."""


@dataclass(frozen=True, slots=True)
class RuntimeView:
    """What the runtime has, asked of it directly. Names are `pod/container`."""

    sandboxes: tuple[pb.PodSandbox, ...]
    containers: tuple[pb.Container, ...]

    def of(self, pod: str) -> RuntimeView:
        """Only what belongs to the pods of this name."""
        return RuntimeView(
            tuple(s for s in self.sandboxes if s.metadata.name == pod),
            tuple(c for c in self.containers if c.labels["io.kubernetes.pod.name"] == pod),
        )

    @property
    def ready(self) -> tuple[pb.PodSandbox, ...]:
        return tuple(s for s in self.sandboxes if s.state == pb.SANDBOX_READY)

    @property
    def running(self) -> tuple[pb.Container, ...]:
        return tuple(c for c in self.containers if c.state == pb.CONTAINER_RUNNING)

    def running_names(self) -> list[str]:
        """Sorted, one entry for each running container."""
        labels = [c.labels for c in self.running]
        return sorted(f"{at['io.kubernetes.pod.name']}/{at['io.kubernetes.container.name']}" for at in labels)

    def running_ids(self) -> dict[str, str]:
        """The id of each running container by `pod/container`: the newest, as the runtime may report an end after its event."""
        return {
            f"{c.labels['io.kubernetes.pod.name']}/{c.labels['io.kubernetes.container.name']}": c.id
            for c in sorted(self.running, key=lambda container: container.created_at)
        }


@dataclass
class Agent:
    """One agent below `folder`. `settings` are laid over the KubeletConfiguration; `flags` are added to the command.

    `environment`: variables for the process alone.
    """

    testbed: Testbed
    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    program: Path = PROGRAM
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    #: Seconds between two looks at what a test waits for.
    step_s: ClassVar[float] = 0.05

    def __post_init__(self) -> None:
        self.root = self.folder / "root"
        self.manifests = self.folder / "manifests"
        self.logs = self.folder / "logs"
        self.log_file = self.folder / "agent.log"
        self.config_file = self.folder / "kubelet.yaml"
        self.cgroup = f"/{self.testbed.name}/{self.folder.name}"
        self.manifests.mkdir(parents=True)
        host.make_cgroup(self.cgroup)
        self.health_port, self.read_only_port, self.port = (host.free_port(0) for _ in range(3))
        config = render_config(self.testbed, self.manifests, (self.health_port, self.read_only_port, self.port))
        config |= {"podLogsDir": str(self.logs), "cgroupRoot": self.cgroup, **self.settings}
        config = {key: value for key, value in config.items() if value is not None}
        self.config_file.write_text(json.dumps(config, indent=2))

    # The process

    def command(self, *more: str) -> list[str]:
        base = [str(self.program), "--config", str(self.config_file), "--root-dir", str(self.root)]
        base += ["--cert-dir", str(self.root / "pki")]
        return [*base, "--hostname-override", NODE_NAME, "-v", "4", *self.flags, *more]

    @property
    def env(self) -> dict[str, str]:
        return os.environ | {"PATH": self.testbed.env["PATH"]} | self.environment

    def start(self, wait: bool = True) -> Agent:
        """Start it; with `wait`, return when /healthz answers ok."""
        assert self.process is None, "the agent runs already"
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env, start_new_session=True
            )
        if wait:
            self.wait_healthy()
        return self

    def wait_healthy(self) -> None:
        deadline = time.monotonic() + WAIT_S
        while self.get("/healthz", self.health_port) != (200, "ok"):
            code = self.process.poll() if self.process is not None else None
            if code is not None or time.monotonic() > deadline:
                raise NotYet(f"the agent is not healthy (exit code {code})\n{self.log_tail()}")
            time.sleep(0.02)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.terminate()
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            raise NotYet(f"the agent does not end on SIGTERM\n{self.log_tail()}") from None
        finally:
            self.kill9()

    def kill9(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def run_once(self, timeout_s: float = 120) -> tuple[int, str]:
        """`--runonce`, to its end: exit code and standard output."""
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                self.command("--runonce"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=self.env
            )
        with self.process:
            try:
                output, _ = self.process.communicate(timeout=timeout_s)
                return self.process.returncode, output.decode()
            except subprocess.TimeoutExpired:
                raise NotYet(f"--runonce does not end\n{self.log_tail()}") from None
            finally:
                self.kill9()

    def connections(self, port: int) -> set[int]:
        """The process's own ports of its connections to a port of this machine."""
        return {ours for ours, theirs, _ in self._sockets("tcp") if theirs == port}

    def listening(self) -> set[int]:
        """The TCP ports at which the process itself listens, whoever else does at others."""
        return {ours for ours, _, state in (*self._sockets("tcp"), *self._sockets("tcp6")) if state == TCP_LISTEN}

    def _sockets(self, kind: str) -> Iterator[tuple[int, int, str]]:
        """Of the process: its own port, the other's, and the state as the kernel writes it."""
        assert self.process is not None
        folder = Path(f"/proc/{self.process.pid}")
        sockets = {_target(link) for link in (folder / "fd").iterdir()}
        for line in (folder / "net" / kind).read_text().splitlines()[1:]:
            _, ours, theirs, state, *rest = line.split()
            if f"socket:[{rest[5]}]" in sockets:
                yield int(ours.rpartition(":")[2], 16), int(theirs.rpartition(":")[2], 16), state

    def log_text(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(["the end of the agent's log:", *self.log_text().splitlines()[-lines:]])

    # Manifests

    def put(self, *pods: Json) -> None:
        """Write or replace manifests, each atomically, named after its pod."""
        for pod in pods:
            self.put_text(pod["metadata"]["name"] + ".json", json.dumps(pod))

    def put_text(self, name: str, text: str | bytes) -> None:
        part = self.folder / f"part-{name}"
        part.write_bytes(text.encode() if isinstance(text, str) else text)
        part.replace(self.manifests / name)

    def remove(self, *names: str) -> None:
        """Remove the manifests of the pods of these names."""
        for name in names:
            (self.manifests / f"{name}.json").unlink()

    # Questions

    def get(self, path: str, port: int) -> tuple[int, str]:
        """Status and body of a GET on loopback; (0, why not) when nothing answers."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return 0, repr(error)
        finally:
            connection.close()

    def pods(self) -> dict[str, Json]:
        """The pods as the read-only port shows them, by name without the node's; empty while nothing answers."""
        code, body = self.get("/pods", self.read_only_port)
        if code != 200:
            return {}
        items = json.loads(body).get("items") or []
        return {str(pod["metadata"]["name"]).removesuffix(f"-{NODE_NAME}"): pod for pod in items}

    def ask(self, *words: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """`pykubelet pods`, `pykubelet explain` and their like, as a person asks."""
        argv = [str(self.program), *words, "--root-dir", str(self.root)]
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s)

    def ask_json(self, *words: str) -> Any:
        answer = self.ask(*words, "-o", "json")
        assert answer.returncode == 0, f"{words}: {answer.stderr}\n{self.log_tail()}"
        return json.loads(answer.stdout)

    def explain(self, pod: str) -> Any:
        """What `pykubelet explain` shows about a pod, by the name in its manifest, as soon as the agent knows the pod."""
        deadline = time.monotonic() + WAIT_S
        while self.ask("explain", f"{pod}-{NODE_NAME}").returncode == 1 and time.monotonic() < deadline:
            time.sleep(self.step_s)
        return self.ask_json("explain", f"{pod}-{NODE_NAME}")

    def log_lines(self, pod: str, container: str, restart: int = 0) -> list[str]:
        """The lines of a container's CRI log, with their dates and tags; none when there is no log."""
        found = sorted(self.logs.glob(f"*_{pod}-{NODE_NAME}_*/{container}/{restart}.log"))
        with suppress(FileNotFoundError):  # its pod has just gone
            return found[-1].read_text(errors="replace").splitlines() if found else []
        return []

    def output(self, pod: str, container: str, restart: int = 0) -> str:
        """What a container wrote, from its CRI log; empty when there is none."""
        return "".join(
            text + ("\n" if tag.startswith("F") else "")
            for line in self.log_lines(pod, container, restart)
            for _, _, tag, text in [(line.split(" ", 3) + [""])[:4]]
        )

    # Waiting

    async def wait_for(self, what: str, condition: Callable[[], Any], within: float = WAIT_S) -> Any:
        """The first true result of `condition`; NotYet with the agent's account when it does not come.

        One that `ask`s gives it to a thread, and is awaited, where the agent waits for what the test itself serves meanwhile.
        """
        deadline = time.monotonic() + within
        while not (result := await _result(condition)):
            if time.monotonic() > deadline:
                raise NotYet(f"not within {within} s: {what}\n{self._account()}\n{self.log_tail()}")
            await asyncio.sleep(self.step_s)
        return result

    async def wait_pod(self, name: str, what: str, condition: Callable[[Json], Any], within: float = WAIT_S) -> Json:
        """The pod as soon as `condition` holds of it."""
        result: dict[str, Json] = {}

        def holds() -> bool:
            pod = self.pods().get(name)
            if pod is None or not condition(pod):
                return False
            result["pod"] = pod
            return True

        try:
            await self.wait_for(f"{name}: {what}", holds, within)
        except NotYet as error:
            last = json.dumps((self.pods().get(name) or {}).get("status"), indent=1)
            raise NotYet(
                f"{error}\nlast status of {name}: {last}\n{self.ask('explain', f'{name}-{NODE_NAME}').stdout}"
            ) from None
        return result["pod"]

    async def wait_running(self, *names: str, within: float = WAIT_S) -> list[Json]:
        """All containers of these pods run and are ready."""
        return [await self.wait_pod(name, "running and ready", is_ready, within) for name in names]

    async def wait_phase(self, name: str, phase: str, within: float = WAIT_S) -> Json:
        return await self.wait_pod(name, phase, lambda pod: pod["status"].get("phase") == phase, within)

    async def wait_gone(self, *names: str, within: float = WAIT_S) -> None:
        """Neither the node nor the runtime knows these pods any more."""
        await self.wait_for(f"{names} not desired", lambda: not set(names) & set(self.pods()), within)
        full = {f"{name}-{NODE_NAME}" for name in names}

        def gone(view: RuntimeView) -> bool:
            return not any(view.of(name).sandboxes or view.of(name).containers for name in full)

        await self.wait_runtime(f"{names} gone", gone, within)

    def _account(self) -> str:
        try:
            answer = self.ask("pods")
        except subprocess.TimeoutExpired:
            return "the agent does not answer"
        return answer.stdout + answer.stderr

    async def look(self) -> RuntimeView:
        """The runtime's own lists, now."""
        async with runtime_client(self.testbed) as client:
            view = await look(client)
        return RuntimeView(tuple(s for s in view.sandboxes if s.labels), tuple(c for c in view.containers if c.labels))

    async def finished_at(self, container: str) -> float:
        """When a container ended, as the runtime has it; seconds since the epoch."""
        async with runtime_client(self.testbed) as client:
            return float((await client.container_status(ContainerID(container))).status.finished_at / 1e9)

    async def kill_container(self, container: str) -> bool:
        """SIGKILL to its first process, as the kernel would. False: it has ended already."""
        async with runtime_client(self.testbed) as client:
            answer = await client.container_status(ContainerID(container), verbose=True)
            pid = int(json.loads(answer.info["info"])["pid"])
            if not pid:  # that signal would go to our own process group
                return False
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return False
            return True

    async def kill_sandbox(self, sandbox: str) -> None:
        """SIGKILL to its process. A sandbox without one, as CRI-O makes them, is stopped behind the agent's back."""
        async with runtime_client(self.testbed, WAIT_S / 2) as client:
            answer = await client.pod_sandbox_status(SandboxID(sandbox), verbose=True)
            pid = json.loads(answer.info["info"]).get("pid")
            if pid:
                os.kill(int(pid), signal.SIGKILL)
            else:
                await client.stop_pod_sandbox(SandboxID(sandbox))

    async def wait_runtime(
        self, what: str, condition: Callable[[RuntimeView], Any], within: float = WAIT_S
    ) -> RuntimeView:
        """The runtime's lists as soon as `condition` holds of them."""
        deadline = time.monotonic() + within
        async with runtime_client(self.testbed) as client:
            while True:
                try:
                    view = await look(client)
                except CriError:
                    view = None
                if view is not None and condition(view):
                    return view
                if time.monotonic() > deadline:
                    seen = view.running_names() if view else "nothing: it does not answer"
                    raise NotYet(
                        f"not within {within} s: {what}\nrunning: {seen}\n{self._account()}\n{self.log_tail()}"
                    )
                await asyncio.sleep(self.step_s)

    # The end

    async def remove_all(self, within: float = 2 * WAIT_S) -> None:
        """Remove every manifest and assert that nothing of any pod is left: runtime, cgroups, mounts, files."""
        for path in self.manifests.iterdir():
            path.unlink()
        await self.wait_for("all pods gone", lambda: not self.pods(), within)
        await self.wait_runtime("no sandbox left", lambda view: not view.sandboxes and not view.containers, within)
        await self.wait_nothing_left(within)

    async def wait_nothing_left(self, within: float = WAIT_S) -> None:
        """No file, mount or cgroup of a pod; what is left at the end is reported."""
        try:
            await self.wait_for("nothing left", lambda: not self.leftovers(), within)
        except NotYet as error:
            raise NotYet(f"{error}\nleft: {self.leftovers()}") from None

    def leftovers(self) -> list[str]:
        """What a removed pod may not leave."""
        links = Path("/var/log/containers")
        own = [link for link in links.iterdir() if str(self.logs) in _target(link)] if links.exists() else []
        found = [*self.pod_dirs(), *self.logs.glob("*"), *own, *self.pod_cgroups()]
        return [str(path) for path in found] + host.mounts_below(self.root / "pods")

    def pod_dirs(self) -> list[Path]:
        return list((self.root / "pods").glob("*"))

    def cgroups(self, is_wanted: Callable[[str], bool]) -> list[Path]:
        """The cgroups below this agent's, in all hierarchies, by their names."""
        found = []
        for root in host.hierarchies():
            # groups come and go while we look: os.walk passes over what has vanished, Path.glob raises
            for folder, names, _ in os.walk(f"{root}{self.cgroup}"):
                found += [Path(folder, name) for name in names if is_wanted(name)]
        return found

    def pod_cgroups(self) -> list[Path]:
        """The cgroups of pods."""
        return self.cgroups(lambda name: name.startswith("pod") and name != "pods")

    async def clear(self) -> None:
        """For the end of a test that may have failed: agent, pods, files and cgroups away, whatever their state."""
        self.kill9()
        await sweep(self.testbed)
        host.unmount_below(self.root) if self.root.exists() else None
        host.remove_cgroup(self.cgroup)


async def _result(condition: Callable[[], Any]) -> Any:
    found = condition()
    return await found if inspect.isawaitable(found) else found


@asynccontextmanager
async def runtime_client(testbed: Testbed, timeout_s: float = WAIT_S / 6) -> AsyncIterator[CriClient]:
    """A client of the test bed's runtime, closed at the end."""
    client = CriClient(testbed.endpoint, timeout_s=timeout_s)
    try:
        yield client
    finally:
        await client.close()


async def look(client: CriClient) -> RuntimeView:
    """All sandboxes and containers. Raises CriError."""
    sandboxes = await client.list_pod_sandboxes()
    return RuntimeView(tuple(sandboxes), tuple(await client.list_containers()))


def new_agent(testbed: Testbed, settings: Mapping[str, Any], flags: tuple[str, ...]) -> Agent:
    """An agent in a folder of its own below the testbed's."""
    return Agent(testbed, Path(testbed.folder) / f"agent-{next(_NUMBERS)}", settings, flags)


async def sweep(testbed: Testbed) -> None:
    """Remove every sandbox of the runtime."""
    async with runtime_client(testbed, WAIT_S / 2) as client:
        for container in await client.list_containers(state=pb.CONTAINER_RUNNING):
            await client.stop_container(ContainerID(container.id), 0)  # with its sandbox, CRI-O is patient
        for sandbox in await client.list_pod_sandboxes():
            await _stop_and_remove(client, SandboxID(sandbox.id))


async def _stop_and_remove(client: CriClient, sandbox: SandboxID) -> None:
    """A container that an agent was starting when it was killed is removed when the runtime has started it."""
    deadline = time.monotonic() + WAIT_S / 2
    while True:
        await client.stop_pod_sandbox(sandbox)
        try:
            return await remove_sandbox(client, sandbox)
        except CriError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)


def _target(link: Path) -> str:
    """Where a link points; nowhere once it is gone."""
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


# Manifests


def make_container(name: str = "main", script: str = "", **spec: Any) -> Json:
    """A busybox container; `script` runs in its shell. Without one it sleeps, and ends on SIGTERM."""
    script = script or 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
    return {
        "name": name,
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        **spec,
    }


def make_polite(name: str = "main") -> Json:
    """One that is ready only when SIGTERM ends it well, with code 0: before it listens, signals pass it by."""
    listens = {"exec": {"command": ["test", "-e", "/tmp/listens"]}, "periodSeconds": 1, "timeoutSeconds": 10}
    script = 'trap "exit 0" TERM; touch /tmp/listens; while :; do sleep 3600 & wait $!; done'
    return make_container(name, script, readinessProbe=listens)


def make_pod(name: str, *containers: Json, annotations: Mapping[str, str] | None = None, **spec: Any) -> Json:
    """A pod manifest; without containers it has one that sleeps. Grace period 2 s unless given."""
    metadata = {"name": name, "annotations": dict(annotations)} if annotations else {"name": name}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "terminationGracePeriodSeconds": 2,
            "containers": list(containers) or [make_container()],
            **spec,
        },
    }


# What a status reports


def is_ready(pod: Json) -> bool:
    """Phase Running, and every container running and ready."""
    status = pod["status"]
    statuses = status.get("containerStatuses", [])
    names = {container["name"] for container in pod["spec"]["containers"]}
    ready = {entry["name"] for entry in statuses if entry.get("ready") and "running" in entry["state"]}
    return status.get("phase") == "Running" and ready == names


def container_status(pod: Json, name: str = "main") -> Json:
    """The status of a container of any kind; an empty one before there is any."""
    status = pod["status"]
    entries = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return next((entry for entry in entries if entry["name"] == name), {"state": {}, "restartCount": 0})


def condition(pod: Json, kind: str) -> str:
    """The status of a condition; empty when it is not there."""
    return next((c["status"] for c in pod["status"].get("conditions", []) if c["type"] == kind), "")


def waiting_reason(pod: Json, name: str = "main") -> str:
    return str(container_status(pod, name)["state"].get("waiting", {}).get("reason", ""))

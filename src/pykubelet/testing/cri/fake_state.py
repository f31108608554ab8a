"""The state of the fake runtime: sandboxes, containers and images, with containerd's rules and messages.

Owns: names and their reservations, life cycles, exit codes, log files. Contains no gRPC; `fake.py` serves it.
Failures are `Refused`, with the codes and messages of containerd 1.6 and later.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Network

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode
from pykubelet.edges.cri.events import HintKind
from pykubelet.testing.cri.fake_script import Script, parse_script


class Refused(Exception):
    """The runtime refuses a call."""

    def __init__(self, code: CriCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class FakeImage(Value):
    """An image in the registry or in the store. `user`: a number or a name; empty means root."""

    name: str
    size: int = 1_000_000
    user: str = ""
    pinned: bool = False

    @property
    def id(self) -> str:
        """The image id, `sha256:` and the digest of the name."""
        return "sha256:" + hashlib.sha256(self.name.encode()).hexdigest()

    @property
    def digest(self) -> str:
        """The image reference with a digest: `<repository>@sha256:<digest>`."""
        return self.name.rpartition(":")[0] + "@sha256:" + hashlib.sha256(b"manifest " + self.name.encode()).hexdigest()

    def message(self) -> pb.Image:
        """The image in the format of the image service's answers."""
        image = pb.Image(
            id=self.id, repo_tags=[self.name], repo_digests=[self.digest], size=self.size, pinned=self.pinned
        )
        if self.user.isdigit() or not self.user:
            image.uid.value = int(self.user or "0")
        else:
            image.username = self.user
        return image


@dataclass(slots=True)
class FakeSandbox:
    id: str
    name: str
    config: pb.PodSandboxConfig
    runtime_handler: str
    created_at: int
    ready: bool = True
    ip: str = ""


@dataclass(slots=True)
class FakeContainer:
    id: str
    name: str
    sandbox: FakeSandbox
    config: pb.ContainerConfig
    script: Script
    image: FakeImage
    created_at: int
    state: pb.ContainerState = pb.CONTAINER_CREATED
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    reason: str = ""
    resources: pb.LinuxContainerResources = field(default_factory=pb.LinuxContainerResources)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None
    #: A process is there, whatever `state` is, and holds up the removal (as containerd 1.6 may have it).
    task_left: bool = False

    @property
    def log_file(self) -> str:
        """The path of the log on the host; empty if the request names none."""
        directory = self.sandbox.config.log_directory
        return os.path.join(directory, self.config.log_path) if directory and self.config.log_path else ""


Notify = Callable[[HintKind, str, FakeSandbox], None]


class FakeState:
    """The whole state of the fake runtime. `notify`: is called for every event, after the state has changed.

    `network`: pods get their addresses from it, one after the other.
    """

    def __init__(self, clock: Clock, notify: Notify) -> None:
        self.sandboxes: dict[str, FakeSandbox] = {}
        self.containers: dict[str, FakeContainer] = {}
        self.images: dict[str, FakeImage] = {}
        self.reserved: dict[str, str] = {}
        self.network = IPv4Network("10.88.0.0/16")
        self._clock = clock
        self._notify = notify
        self._made = 0
        self._last_ns = 0

    # Sandboxes

    def run_sandbox(self, config: pb.PodSandboxConfig, runtime_handler: str) -> FakeSandbox:
        """Create a ready sandbox, as RunPodSandbox does. Raises `Refused` if its name is taken."""
        meta = config.metadata
        name = f"{meta.name}_{meta.namespace}_{meta.uid}_{meta.attempt}"
        made = self._new_id(name)
        self._reserve("sandbox", name, made)
        sandbox = FakeSandbox(made, name, config, runtime_handler, self._now_ns())
        options = config.linux.security_context.namespace_options
        if options.network != pb.NODE:
            sandbox.ip = str(self.network[2 + self._made % (self.network.num_addresses - 3)])
        self.sandboxes[made] = sandbox
        self._notify(HintKind.CREATED, made, sandbox)
        self._notify(HintKind.STARTED, made, sandbox)
        return sandbox

    def stop_sandbox(self, sandbox: FakeSandbox) -> None:
        """Stop a sandbox and kill its containers at once."""
        for container in self.containers_of(sandbox):
            self.end(container, 137)
        if sandbox.ready:
            sandbox.ready, sandbox.ip = False, ""
            self._notify(HintKind.STOPPED, sandbox.id, sandbox)

    def remove_sandbox(self, sandbox: FakeSandbox) -> None:
        """Stop and remove a sandbox with its containers. Does nothing if it was removed already."""
        self.stop_sandbox(sandbox)
        for container in self.containers_of(sandbox):
            self.remove(container)
        self.sandboxes.pop(sandbox.id, None)
        self.reserved.pop(sandbox.name, None)
        self._notify(HintKind.DELETED, sandbox.id, sandbox)

    def containers_of(self, sandbox: FakeSandbox) -> list[FakeContainer]:
        """All containers of a sandbox, including dead ones."""
        return [container for container in self.containers.values() if container.sandbox is sandbox]

    def need_sandbox(self, sandbox_id: str) -> FakeSandbox:
        """The sandbox with this id. Raises `Refused` (NOT_FOUND) with containerd's message."""
        sandbox = self.sandboxes.get(sandbox_id)
        if sandbox is None:
            message = f'an error occurred when try to find sandbox "{sandbox_id}": not found'
            raise Refused(CriCode.NOT_FOUND, message)
        return sandbox

    # Containers

    def create(self, sandbox_id: str, config: pb.ContainerConfig) -> FakeContainer:
        """Create a container in a ready sandbox. Raises `Refused` with containerd's messages."""
        sandbox = self.need_sandbox(sandbox_id)
        if not sandbox.ready:
            message = (
                f"failed to get sandbox container task: no running task found: task {sandbox_id} not found: not found"
            )
            raise Refused(CriCode.NOT_FOUND, message)
        meta, pod = config.metadata, sandbox.config.metadata
        name = f"{meta.name}_{pod.name}_{pod.namespace}_{pod.uid}_{meta.attempt}"
        made = self._new_id(name)
        self._reserve("container", name, made)
        image = self.find_image(config.image.image)
        if image is None:
            del self.reserved[name]
            message = f'failed to resolve image "{config.image.image}": not found'
            raise Refused(CriCode.NOT_FOUND, message)
        script = parse_script([*config.command, *config.args])
        # a part of a message keeps the memory of the whole, and the request has the configuration of the sandbox too
        own = pb.ContainerConfig()
        own.CopyFrom(config)
        container = FakeContainer(
            made, name, sandbox, own, script, image, self._now_ns(), resources=own.linux.resources
        )
        self.containers[made] = container
        self._notify(HintKind.CREATED, made, sandbox)
        return container

    def start(self, container: FakeContainer) -> None:
        """Start a created container. Raises `Refused` if it was started before or its sandbox is not ready."""
        if container.state != pb.CONTAINER_CREATED:
            state = pb.ContainerState.Name(container.state)
            message = (
                f'failed to set starting state for container "{container.id}": container is already in {state} state'
            )
            raise Refused(CriCode.UNKNOWN, message)
        if not container.sandbox.ready:
            raise Refused(CriCode.UNKNOWN, f'sandbox container "{container.sandbox.id}" is not running')
        container.state, container.started_at = pb.CONTAINER_RUNNING, self._now_ns()
        self.write_log(container, container.script.output)
        self._notify(HintKind.STARTED, container.id, container.sandbox)
        if container.script.runs_s is not None:
            loop = asyncio.get_running_loop()
            code = container.script.exit_code
            container.timer = loop.call_later(container.script.runs_s, self.end, container, code)

    def end(self, container: FakeContainer, exit_code: int, reason: str = "") -> None:
        """End the container's process. Does nothing if it does not run."""
        if container.state != pb.CONTAINER_RUNNING:
            return
        if container.timer is not None:
            container.timer.cancel()
        container.state, container.finished_at = pb.CONTAINER_EXITED, self._now_ns()
        container.exit_code = exit_code
        container.reason = reason or ("Completed" if exit_code == 0 else "Error")
        container.ended.set()
        if reason == "OOMKilled":
            self._notify(HintKind.OOM, container.id, container.sandbox)
        self._notify(HintKind.STOPPED, container.id, container.sandbox)

    async def stop(self, container: FakeContainer, grace_s: int) -> None:
        """Send SIGTERM, then SIGKILL after `grace_s`; a `grace_s` of 0 means SIGKILL at once."""
        if container.state != pb.CONTAINER_RUNNING:
            return
        term = container.script.term_exit_code
        if grace_s > 0 and term is not None:
            self.end(container, term)
        elif grace_s > 0:
            try:
                await asyncio.wait_for(container.ended.wait(), grace_s)
            except TimeoutError:
                self.end(container, 137)
        else:
            self.end(container, 137)

    def remove(self, container: FakeContainer) -> None:
        """Remove a container; if it runs, kill it first. Raises `Refused` while its task cannot be deleted."""
        if container.task_left:
            words = f"cannot delete running task {container.id}: failed precondition"
            raise Refused(
                CriCode.FAILED_PRECONDITION, f'failed to delete containerd container "{container.id}": {words}'
            )
        self.end(container, 137)
        self.containers.pop(container.id, None)
        self.reserved.pop(container.name, None)
        self._notify(HintKind.DELETED, container.id, container.sandbox)

    def need(self, container_id: str) -> FakeContainer:
        """The container with this id. Raises `Refused` (NOT_FOUND) with containerd's message."""
        container = self.containers.get(container_id)
        if container is None:
            message = f'an error occurred when try to find container "{container_id}": not found'
            raise Refused(CriCode.NOT_FOUND, message)
        return container

    def write_log(self, container: FakeContainer, output: bytes) -> None:
        """Append to the container's log in CRI format. The first write creates the file, even if it is empty."""
        if not container.log_file:
            return
        os.makedirs(os.path.dirname(container.log_file), exist_ok=True)
        stamp = datetime.fromtimestamp(self._clock.wall(), UTC).isoformat().replace("+00:00", "Z")
        with open(container.log_file, "ab") as log:
            for line in output.splitlines():
                log.write(f"{stamp} stdout F ".encode() + line + b"\n")

    # Images

    def find_image(self, reference: str) -> FakeImage | None:
        """Find an image by name, id, id without `sha256:`, or digest."""
        for image in self.images.values():
            if reference in (image.name, image.id, image.id.removeprefix("sha256:"), image.digest):
                return image
        return None

    # Names and numbers

    def _reserve(self, kind: str, name: str, holder: str) -> None:
        other = self.reserved.get(name)
        if other is not None:
            message = f'failed to reserve {kind} name "{name}": name "{name}" is reserved for "{other}"'
            raise Refused(CriCode.UNKNOWN, message)
        self.reserved[name] = holder

    def _new_id(self, name: str) -> str:
        self._made += 1
        return hashlib.sha256(f"{self._made} {name}".encode()).hexdigest()

    def _now_ns(self) -> int:
        """The current time in nanoseconds. It never repeats, unless the clock is set back."""
        now = int(self._clock.wall() * 1e9)
        self._last_ns = self._last_ns + 1 if now <= self._last_ns < now + 1_000_000_000 else now
        return self._last_ns


def sandbox_status(sandbox: FakeSandbox) -> pb.PodSandboxStatus:
    """The answer of PodSandboxStatus."""
    config = sandbox.config
    namespaces = pb.Namespace(options=config.linux.security_context.namespace_options)
    return pb.PodSandboxStatus(
        id=sandbox.id,
        metadata=config.metadata,
        state=pb.SANDBOX_READY if sandbox.ready else pb.SANDBOX_NOTREADY,
        created_at=sandbox.created_at,
        network=pb.PodSandboxNetworkStatus(ip=sandbox.ip),
        linux=pb.LinuxPodSandboxStatus(namespaces=namespaces),
        labels=config.labels,
        annotations=config.annotations,
        runtime_handler=sandbox.runtime_handler,
    )


def sandbox_item(sandbox: FakeSandbox) -> pb.PodSandbox:
    """The entry in the answer of ListPodSandbox."""
    return pb.PodSandbox(
        id=sandbox.id,
        metadata=sandbox.config.metadata,
        state=pb.SANDBOX_READY if sandbox.ready else pb.SANDBOX_NOTREADY,
        created_at=sandbox.created_at,
        labels=sandbox.config.labels,
        annotations=sandbox.config.annotations,
        runtime_handler=sandbox.runtime_handler,
    )


def container_status(container: FakeContainer) -> pb.ContainerStatus:
    """The answer of ContainerStatus."""
    config = container.config
    return pb.ContainerStatus(
        id=container.id,
        metadata=config.metadata,
        state=container.state,
        created_at=container.created_at,
        started_at=container.started_at,
        finished_at=container.finished_at,
        exit_code=container.exit_code,
        image=pb.ImageSpec(image=container.image.name),
        image_ref=container.image.digest,
        image_id=container.image.id,
        reason=container.reason,
        labels=config.labels,
        annotations=config.annotations,
        mounts=config.mounts,
        log_path=container.log_file,
        resources=pb.ContainerResources(linux=container.resources),
        stop_signal=config.stop_signal,
    )


def container_item(container: FakeContainer) -> pb.Container:
    """The entry in the answer of ListContainers."""
    return pb.Container(
        id=container.id,
        pod_sandbox_id=container.sandbox.id,
        metadata=container.config.metadata,
        image=container.config.image,
        image_ref=container.image.digest,
        image_id=container.image.id,
        state=container.state,
        created_at=container.created_at,
        labels=container.config.labels,
        annotations=container.config.annotations,
    )

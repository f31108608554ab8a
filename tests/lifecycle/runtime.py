"""The runtime double, with events and statuses that arrive in any order, and calls that take their time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from lifecycle.truth import Box, By, Instance, PodTruth, Probed, Truth

from pykubelet.base.kit.clock import Clock
from pykubelet.base.model.labels import CONTAINER_RESTART_COUNT
from pykubelet.edges.cri import containerd_events_pb2 as events_pb2
from pykubelet.edges.cri import containerd_task_events_pb2 as task_pb2
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode
from pykubelet.edges.cri.events import HintKind
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet.testing.cri.fake_answers import FakeFeatures
from pykubelet.testing.cri.fake_state import FakeContainer, FakeSandbox, Refused
from pykubelet.testing.cri.in_memory import MemoryChannel, MemoryCriClient, MemoryRuntime, Serve

#: How long an event, a changed status, a call or its answer may be under way: seconds.
LAGS = (0.0, 0.0, 0.01, 0.03, 0.08, 0.2)
#: containerd's messages for a container whose start it has ended because its caller was gone.
CUT_OFF = (
    "failed to create containerd task: failed to create shim task: context canceled: unknown",
    'failed to start containerd task "a": context canceled: unknown',
)
#: Calls that change something.
EFFECTS = frozenset(
    {
        "RunPodSandbox",
        "StopPodSandbox",
        "RemovePodSandbox",
        "CreateContainer",
        "StartContainer",
        "StopContainer",
        "RemoveContainer",
    }
)


class OrderedRuntime(MemoryRuntime):
    """A MemoryRuntime that records what happens in `truth`, and delays what others get to know of it, in an order of `random`.

    `on_create`, `on_stop`: called before a container is created, and when the agent asks for the end of one that runs.
    """

    def __init__(self, path: str, clock: Clock, features: FakeFeatures, truth: Truth, random: Random) -> None:
        self._random = random
        self._truth = truth
        self._unseen: dict[str, asyncio.Event] = {}
        self._shown_at: dict[str, float] = {}
        self._by: dict[str, By] = {}
        self.on_pod: Callable[[pb.PodSandboxMetadata], PodTruth | None] = lambda meta: None
        self.on_create: Callable[[PodTruth, str], None] = lambda pod, name: None
        self.on_stop: Callable[[PodTruth, Instance], None] = lambda pod, instance: None
        self.power_cuts = 0
        self._starting = set[str]()
        self._cut_off: dict[str, str] = {}
        self.gates: dict[str, asyncio.Future[int]] = {}
        self.answers: dict[tuple[str, str, str], bool] = {}
        super().__init__(path, clock, features)
        self.exec_handler = self._run_command

    def connect(self, timeout_s: float = 0.0) -> MortalCriClient:
        for _, instance in self._truth.instances.values():
            if instance.started_at is None:
                instance.tried = False  # this run of the agent does not know of it
        self._client = MortalCriClient(self)
        return self._client

    def start_is_tried(self, container_id: str) -> None:
        """The agent asks for the start of a container."""
        if (found := self._truth.instances.get(container_id)) is not None:
            found[1].tried = True

    def _start_is_cut_off(self, container_id: str) -> None:
        """The agent that asked for it has ended. The runtime has not begun, or ends the start."""
        container, message = self.state.containers.get(container_id), self._random.choice(("", *CUT_OFF))
        if not message or container is None or container.state != pb.CONTAINER_CREATED or not container.sandbox.ready:
            return
        self._cut_off[container_id] = message
        container.state, container.exit_code, container.reason = pb.CONTAINER_EXITED, 128, "StartError"
        container.finished_at = int(self.clock.wall() * 1e9)

    def kill_client(self) -> None:
        """The agent is killed: nothing that it still calls arrives."""
        self._client.channel.die()

    @property
    def _now(self) -> float:
        return self.clock.monotonic()

    # What a test does

    def container_ends(self, container: FakeContainer, code: int, *, oom: bool = False, by: By = By.ITSELF) -> None:
        """The process of a container ends."""
        self._by[container.id] = by
        self.state.end(container, code, "OOMKilled" if oom else "")

    async def sandbox_ends(self, sandbox: FakeSandbox, *, removes: bool) -> None:
        """As `crictl stopp` or `crictl rmp` does it: containers first, one after the other, the sandbox last."""
        alive, cuts = [c for c in self.state.containers_of(sandbox) if c.state == pb.CONTAINER_RUNNING], self.power_cuts
        self._random.shuffle(alive)
        for container in alive:
            self.container_ends(container, 137, by=By.OUTSIDE)
            await asyncio.sleep(self._random.choice((0.0, 0.05, 0.1, 0.4)))
            if self.power_cuts > cuts:
                return
        found = self._truth.boxes.get(sandbox.id)
        if found is not None and found[1].ended_at is None:
            found[1].by = By.OUTSIDE
        for container in self.state.containers_of(sandbox):
            self._by.setdefault(container.id, By.OUTSIDE)
            self._note_taken(container, removes)
        if removes:
            self.state.remove_sandbox(sandbox)
        else:
            self.state.stop_sandbox(sandbox)

    def container_is_removed(self, container: FakeContainer) -> None:
        """As `crictl rm -f` does it."""
        self._by[container.id] = By.OUTSIDE
        self._note_taken(container, True)
        self.state.remove(container)

    def _note_taken(self, container: FakeContainer, is_taken: bool) -> None:
        if container.id in self._truth.instances:
            self._truth.instances[container.id][1].taken = is_taken

    def power_ends(self) -> None:
        """All processes are gone, also crictl's; containers and sandboxes are there, ended in a way that the runtime does not know."""
        self.power_cuts += 1
        for container in self.state.containers.values():
            if container.state == pb.CONTAINER_RUNNING:
                self._by[container.id] = By.POWER
                self.state.end(container, 255, "Unknown")
        for sandbox in self.state.sandboxes.values():
            found = self._truth.boxes.get(sandbox.id)
            if found is not None and found[1].ended_at is None:
                found[1].by = By.POWER
            self.state.stop_sandbox(sandbox)
        for event in self._unseen.values():
            event.set()
        self._unseen.clear()
        for gate in self.gates.values():
            gate.cancel()
        self.gates.clear()

    def hook_ends(self, container: FakeContainer, code: int) -> None:
        """The postStart hook of a container, which is running, ends."""
        self.gates.pop(container.id).set_result(code)

    # Recording

    def _notify(self, kind: HintKind, object_id: str, sandbox: FakeSandbox) -> None:
        self._record(kind, object_id, sandbox)
        for number, (topic, message) in enumerate(self._events(kind, object_id, sandbox)):
            envelope = events_pb2.Envelope(namespace="k8s.io", topic=topic)
            envelope.event.type_url = message.DESCRIPTOR.full_name
            envelope.event.value = message.SerializeToString()
            delay = self._random.choice(LAGS) + 0.02 * number
            asyncio.get_running_loop().call_later(delay, self._send, envelope.SerializeToString())

    def _send(self, data: bytes) -> None:
        for channel in self.channels:
            for stream in channel.streams:
                stream.put(data)

    def _events(self, kind: HintKind, object_id: str, sandbox: FakeSandbox) -> list[tuple[str, Any]]:
        match kind:
            case HintKind.STARTED:
                return [("/tasks/start", task_pb2.TaskStart(container_id=object_id))]
            case HintKind.OOM:
                return [("/tasks/oom", task_pb2.TaskOOM(container_id=object_id))]
            case HintKind.STOPPED:
                ended = task_pb2.TaskExit(container_id=object_id, id=object_id)
                container = self.state.containers.get(object_id)
                ended.exited_at.FromNanoseconds(container.finished_at if container else int(self.clock.wall() * 1e9))
                ended.exit_status = container.exit_code if container else 137
                return [("/tasks/exit", ended), ("/tasks/delete", task_pb2.TaskDelete(container_id=object_id))]
            case _:
                return []

    def _record(self, kind: HintKind, object_id: str, sandbox: FakeSandbox) -> None:
        now, meta = self._now, sandbox.config.metadata
        pod = self._truth.pods.get(meta.uid)
        is_new = kind is HintKind.CREATED and object_id == sandbox.id
        if is_new and (pod is None or pod.begins_anew(self._truth.lives[-1])):
            pod = self.on_pod(meta)
        if pod is None:
            return
        if object_id == sandbox.id:
            self._record_box(kind, pod, sandbox, now)
            return
        container = self.state.containers.get(object_id)
        if kind is HintKind.CREATED and container is not None:
            count = int(container.config.annotations.get(CONTAINER_RESTART_COUNT, "0"))
            name, attempt = container.config.metadata.name, container.config.metadata.attempt
            made = Instance(object_id, name, sandbox.id, attempt, count, now)
            pod.instances.append(made)
            self._truth.instances[object_id] = (pod, made)
        elif object_id in self._truth.instances:
            instance = self._truth.instances[object_id][1]
            if kind is HintKind.STARTED:
                instance.started_at = now
            elif kind is HintKind.STOPPED and container is not None:
                instance.ended_at, instance.code, instance.reason = now, container.exit_code, container.reason
                instance.by = self._by.get(object_id, By.AGENT)
                self._hide(object_id)
            elif kind is HintKind.DELETED:
                instance.removed_at = now

    def _record_box(self, kind: HintKind, pod: PodTruth, sandbox: FakeSandbox, now: float) -> None:
        if kind is HintKind.CREATED:
            box = Box(sandbox.id, sandbox.config.metadata.attempt, now)
            pod.boxes.append(box)
            self._truth.boxes[sandbox.id] = (pod, box)
            return
        found = self._truth.boxes.get(sandbox.id)
        if found is None:
            return
        if kind is HintKind.STOPPED:
            found[1].ended_at = now
            ends = [self._shown_at[c.id] for c in self.state.containers_of(sandbox) if c.id in self._shown_at]
            self._hide(sandbox.id, max(ends, default=now))  # the runtime gets to know of them in their order
        elif kind is HintKind.DELETED:
            found[1].ended_at = found[1].ended_at or now
            found[1].removed_at = now

    # What CRI shows

    def _hide(self, object_id: str, not_before: float = 0.0) -> None:
        """The end of a container or sandbox is in its CRI status a moment later than it is true."""
        lag = max(self._random.choice(LAGS), not_before - self._now)
        self._shown_at[object_id] = self._now + lag
        if lag > 0 and self.is_up:
            self._unseen[object_id] = seen = asyncio.Event()
            asyncio.get_running_loop().call_later(lag, self._show, object_id, seen)

    def _show(self, object_id: str, seen: asyncio.Event) -> None:
        seen.set()
        if self._unseen.get(object_id) is seen:
            del self._unseen[object_id]

    async def _seen(self, *objects: str) -> None:
        for object_id in objects:
            if (event := self._unseen.get(object_id)) is not None:
                await event.wait()

    async def _list_containers(self, request: pb.ListContainersRequest) -> pb.ListContainersResponse:
        answer = await super()._list_containers(request)
        for item in answer.containers:
            if item.id in self._unseen:
                item.state = pb.CONTAINER_RUNNING
        return answer

    async def _container_status(self, request: pb.ContainerStatusRequest) -> pb.ContainerStatusResponse:
        answer = await super()._container_status(request)
        answer.status.message = self._cut_off.get(request.container_id, "")
        if request.container_id in self._unseen:
            status = answer.status
            status.state, status.exit_code, status.finished_at, status.reason = pb.CONTAINER_RUNNING, 0, 0, ""
        return answer

    async def _list_pod_sandbox(self, request: pb.ListPodSandboxRequest) -> pb.ListPodSandboxResponse:
        answer = await super()._list_pod_sandbox(request)
        for item in answer.items:
            if item.id in self._unseen:
                item.state = pb.SANDBOX_READY
        return answer

    async def _pod_sandbox_status(self, request: pb.PodSandboxStatusRequest) -> pb.PodSandboxStatusResponse:
        answer = await super()._pod_sandbox_status(request)
        if request.pod_sandbox_id in self._unseen:
            answer.status.state = pb.SANDBOX_READY
        return answer

    # Calls

    async def _create_container(self, request: pb.CreateContainerRequest) -> pb.CreateContainerResponse:
        found = self._truth.boxes.get(request.pod_sandbox_id)
        if found is not None and found[1].ended_at is None:
            self.on_create(found[0], request.config.metadata.name)
        return await super()._create_container(request)

    async def _stop_container(self, request: pb.StopContainerRequest) -> pb.StopContainerResponse:
        found = self._truth.instances.get(request.container_id)
        if found is not None and found[1].runs:
            found[1].stop_at = self._now
            self.on_stop(*found)
        answer = await super()._stop_container(request)
        await self._seen(request.container_id)
        return answer

    async def _stop_pod_sandbox(self, request: pb.StopPodSandboxRequest) -> pb.StopPodSandboxResponse:
        answer = await super()._stop_pod_sandbox(request)
        inside = [c.id for c in self.state.containers.values() if c.sandbox.id == request.pod_sandbox_id]
        await self._seen(request.pod_sandbox_id, *inside)
        return answer

    def _serve(self, name: str, request: type[Any], answer: Callable[[Any], Awaitable[Any]]) -> Serve:
        if name not in EFFECTS:
            return super()._serve(name, request, answer)

        async def slowly(message: Any) -> Any:
            caller = len(self._truth.lives)
            await asyncio.sleep(self._random.choice(LAGS))
            life = self._truth.lives[caller - 1]
            if life.ended_at is not None and self._random.random() < 0.5:
                raise Refused(CriCode.CANCELED, "context canceled")
            result = await answer(message)
            await asyncio.sleep(self._random.choice(LAGS))
            return result

        async def start(message: pb.StartContainerRequest) -> Any:
            self._starting.add(message.container_id)
            try:
                return await slowly(message)
            except Refused as error:
                if error.code is CriCode.CANCELED:
                    self._start_is_cut_off(message.container_id)
                raise
            finally:
                self._starting.discard(message.container_id)

        async def remove(message: pb.RemoveContainerRequest) -> Any:
            if message.container_id in self._starting:
                words = f'failed to set removing state for container "{message.container_id}"'
                raise Refused(CriCode.UNKNOWN, f"{words}: container is in starting state, can't be removed")
            return await slowly(message)

        special: dict[str, Callable[[Any], Awaitable[Any]]] = {"StartContainer": start, "RemoveContainer": remove}
        return super()._serve(name, request, special.get(name, slowly))

    async def _run_command(self, container: FakeContainer, command: list[str]) -> pb.ExecSyncResponse:
        """`hook`: runs until `hook_ends`. `probe KIND`: answers as `answers` has it, a success by default."""
        pod, instance = self._truth.instances[container.id]
        if command[0] == "hook":
            instance.hooks.append(self._now)
            instance.hooked = instance.hooked_at = (
                None  # if it runs again, the agent was ended before it learned of the end
            )
            gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self.gates[container.id] = gate
            try:
                code = await self._until_ended(gate, container)
            finally:
                if self.gates.get(container.id) is gate:
                    del self.gates[container.id]
            instance.hooked, instance.hooked_at = code == 0, self._now
            return pb.ExecSyncResponse(exit_code=code)
        is_ok = self.answers.get((pod.name, instance.name, command[1]), True)
        instance.probed.append(Probed(command[1], self._now, is_ok))
        return pb.ExecSyncResponse(exit_code=0 if is_ok else 1, stdout=b"" if is_ok else b"not well")

    async def _until_ended(self, gate: asyncio.Future[int], container: FakeContainer) -> int:
        ended = asyncio.ensure_future(container.ended.wait())
        try:
            await asyncio.wait((gate, ended), return_when=asyncio.FIRST_COMPLETED)
            if gate.done():
                return gate.result()
            raise Refused(CriCode.UNKNOWN, "the container has ended")
        finally:
            ended.cancel()


class MortalChannel(MemoryChannel):
    """The way of one life of the agent to the runtime. After `die` nothing passes."""

    is_dead = False

    def __init__(self, runtime: OrderedRuntime) -> None:
        super().__init__(runtime)
        self._mortal = runtime

    def _connected(self, method: bytes) -> Serve:
        if self.is_dead:
            raise RpcError(Code.UNAVAILABLE, "the agent is dead")
        return super()._connected(method)

    async def unary(self, method: bytes, message: bytes, timeout_s: float | None, fields: bytes = b"") -> bytes:
        if method == b"StartContainer" and not self.is_dead:
            self._mortal.start_is_tried(pb.StartContainerRequest.FromString(message).container_id)
        return await super().unary(method, message, timeout_s, fields)

    def die(self) -> None:
        self.is_dead = True
        self.close()


class MortalCriClient(MemoryCriClient):
    """The client of one life of the agent."""

    def __init__(self, runtime: OrderedRuntime) -> None:
        super().__init__(runtime)
        self.channel = MortalChannel(runtime)
        self._wire.channel = self.channel  # type: ignore[assignment]

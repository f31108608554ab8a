"""The client of the container runtime: a typed method with a deadline for every call that the agent makes.

Owns: `CriClient`. Requests and responses are the messages of `cri_pb2`; every failure is a `CriError`. It does not retry or
cache; its users are act/runtime, provide/images, observe/pleg and observe/stats. Deadlines follow the reference:
`runtimeRequestTimeout` for a call, twice that to start a sandbox, none for pulls and execs without a time-out.

Source: the CRI API page of the Kubernetes documentation and `runtimeRequestTimeout` of KubeletConfiguration v1beta1.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence

from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import ContainerID, SandboxID
from pykubelet.base.model.labels import POD_UID
from pykubelet.edges.cri import containerd_events_pb2 as events_pb2
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.calls import ContainerdCalls, ImageCalls, RuntimeCalls
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.edges.cri.wire import SANDBOX_DURATIONS, SANDBOX_ERRORS, OpenStream, Wire, socket_path

_RECONNECT_PAUSE_S = 0.1
#: An exec that is cut off while it begins can hang containerd's shim, and with it every container of the pod
#: (docs/runtimes.md). So much time it has to begin, also if its caller was cancelled.
EXEC_BEGINS_S = 10.0
#: For the same reason the connection stays open for so long while execs run: most of them end.
EXEC_CLOSE_S = 1.0


class ContainerdApi(Value):
    """containerd's own API. `endpoint`: empty if it is on the socket of CRI. `namespace`: the one with the pods."""

    endpoint: str = ""
    namespace: str = "k8s.io"


class CriClient:
    """A connection to the runtime service and, if that has its own endpoint, the image service.

    Create it inside the running event loop. It connects on the first call, and reconnects by itself after a restart of the
    runtime. `timeout_s` is `runtimeRequestTimeout`. Methods raise only CriError. Cancelling a call stops the waiting; the
    runtime may still carry it out.
    """

    def __init__(
        self,
        endpoint: str,
        image_endpoint: str = "",
        timeout_s: float = 120.0,
        containerd: ContainerdApi | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._containerd_api = containerd or ContainerdApi()
        self._timeout_s = timeout_s
        self._wire = Wire(endpoint)
        shared = not image_endpoint or socket_path(image_endpoint) == self._wire.path
        self._image_wire = self._wire if shared else Wire(image_endpoint)
        self._runtime = RuntimeCalls(self._wire)
        self._images = ImageCalls(self._image_wire)
        own = self._containerd_api.endpoint
        self._containerd_wire = self._wire if not own or socket_path(own) == self._wire.path else Wire(own)
        self._containerd = ContainerdCalls(self._containerd_wire, self._containerd_api.namespace)
        self._execs = Supervisor("exec-sync")

    async def close(self) -> None:
        """Close the connections. Calls in flight fail with code Canceled. Containers are left alone."""
        await self._execs.wait_ended(EXEC_CLOSE_S)
        self._wire.close()
        if self._image_wire is not self._wire:
            self._image_wire.close()
        if self._containerd_wire is not self._wire:
            self._containerd_wire.close()

    # The runtime itself

    async def version(self, timeout_s: float | None = None) -> pb.VersionResponse:
        """The runtime's name and version."""
        return await self._runtime.version(pb.VersionRequest(version="0.1.0"), timeout_s or self._timeout_s)

    async def wait_connected(self, timeout_s: float) -> pb.VersionResponse:
        """Wait until the runtime answers, and return its version.

        Raises the last CriError if the runtime cannot be reached for `timeout_s`, or if it answers with another error.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while True:
            try:
                return await self.version(max(0.1, end - loop.time()))
            except CriError as error:
                if not error.is_unavailable or loop.time() >= end:
                    raise
            await asyncio.sleep(_RECONNECT_PAUSE_S)

    async def wait_disconnected(self) -> None:
        """Wait until the connection to the runtime is lost, as when it stops. Only one task may await this at a time."""
        await self._wire.wait_lost()

    async def status(self, verbose: bool = False) -> pb.StatusResponse:
        """Conditions (RuntimeReady, NetworkReady), handlers and features. `verbose` fills `info`."""
        answer = await self._runtime.status(pb.StatusRequest(verbose=verbose), self._timeout_s)
        if len(answer.status.conditions) < 2:
            raise _malformed("RuntimeReady or NetworkReady condition are not set", "Status")
        return answer

    async def runtime_config(self) -> pb.RuntimeConfigResponse:
        """The cgroup driver of the runtime. Fails with code Unimplemented on runtimes without the call."""
        return await self._runtime.runtime_config(pb.RuntimeConfigRequest(), self._timeout_s)

    async def update_runtime_config(self, pod_cidr: str) -> None:
        """Send the runtime the node's pod CIDR."""
        network = pb.NetworkConfig(pod_cidr=pod_cidr)
        request = pb.UpdateRuntimeConfigRequest(runtime_config=pb.RuntimeConfig(network_config=network))
        await self._runtime.update_runtime_config(request, self._timeout_s)

    # Sandboxes

    async def run_pod_sandbox(self, config: pb.PodSandboxConfig, runtime_handler: str = "") -> SandboxID:
        """Create and start a sandbox, and return its id. Has twice the usual deadline, because its network may be slow."""
        request = pb.RunPodSandboxRequest(config=config, runtime_handler=runtime_handler)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            answer = await self._runtime.run_pod_sandbox(request, self._timeout_s * 2)
        except CriError:
            SANDBOX_ERRORS.inc(runtime_handler)
            raise
        finally:
            SANDBOX_DURATIONS.observe(loop.time() - began, runtime_handler)
        if not answer.pod_sandbox_id:
            raise _malformed(f'PodSandboxId is not set for sandbox "{config.metadata.name}"', "RunPodSandbox")
        return SandboxID(answer.pod_sandbox_id)

    async def stop_pod_sandbox(self, sandbox_id: str) -> None:
        """Kill the sandbox's containers and release its network. Idempotent."""
        with _gone_is_done():
            await self._runtime.stop_pod_sandbox(pb.StopPodSandboxRequest(pod_sandbox_id=sandbox_id), self._timeout_s)

    async def remove_pod_sandbox(self, sandbox_id: str) -> None:
        """Remove the sandbox and its containers. Idempotent."""
        with _gone_is_done():
            await self._runtime.remove_pod_sandbox(
                pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id), self._timeout_s
            )

    async def list_pod_sandboxes(
        self,
        uid: str | None = None,
        *,
        state: pb.PodSandboxState | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Sequence[pb.PodSandbox]:
        """The sandboxes that match all given conditions. `uid`: the pod's."""
        selector = _selector(uid, labels)
        wanted = None if state is None else pb.PodSandboxStateValue(state=state)
        request = pb.ListPodSandboxRequest(filter=pb.PodSandboxFilter(state=wanted, label_selector=selector))
        return (await self._runtime.list_pod_sandbox(request, self._timeout_s)).items

    async def pod_sandbox_status(self, sandbox_id: str, verbose: bool = False) -> pb.PodSandboxStatusResponse:
        """State, network and namespaces. Fails with code NotFound if the sandbox is gone."""
        request = pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=verbose)
        answer = await self._runtime.pod_sandbox_status(request, self._timeout_s)
        _check_status(answer.status, "PodSandboxStatus")
        return answer

    async def update_pod_sandbox_resources(
        self, sandbox_id: str, overhead: pb.LinuxContainerResources, resources: pb.LinuxContainerResources
    ) -> None:
        """Send the runtime the pod's new resources after a resize. Fails with code Unimplemented on older runtimes."""
        request = pb.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox_id, overhead=overhead, resources=resources)
        await self._runtime.update_pod_sandbox_resources(request, self._timeout_s)

    # Containers

    async def create_container(
        self, sandbox_id: str, config: pb.ContainerConfig, sandbox_config: pb.PodSandboxConfig
    ) -> ContainerID:
        """Create a container without starting it, and return its id."""
        request = pb.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox_config)
        answer = await self._runtime.create_container(request, self._timeout_s)
        if not answer.container_id:
            raise _malformed(f'ContainerId is not set for container "{config.metadata.name}"', "CreateContainer")
        return ContainerID(answer.container_id)

    async def start_container(self, container_id: str) -> None:
        """Start a created container; returns when the runtime has started its process."""
        await self._runtime.start_container(pb.StartContainerRequest(container_id=container_id), self._timeout_s)

    async def stop_container(self, container_id: str, grace_s: int) -> None:
        """Send the stop signal, then SIGKILL after `grace_s` seconds. Idempotent. The deadline is `grace_s` plus the usual one."""
        request = pb.StopContainerRequest(container_id=container_id, timeout=grace_s)
        with _gone_is_done():
            await self._runtime.stop_container(request, self._timeout_s + max(0, grace_s))

    async def remove_container(self, container_id: str) -> None:
        """Remove the container; kill it first if it runs. Idempotent."""
        with _gone_is_done():
            await self._runtime.remove_container(pb.RemoveContainerRequest(container_id=container_id), self._timeout_s)

    async def end_task(self, container_id: str) -> None:
        """Kill the process of a container that containerd believes has ended (`CriError.running_task`). Idempotent."""
        from pykubelet.edges.cri.tasks import end_task  # rarely needed

        await end_task(self._containerd_wire, container_id, self._timeout_s, self._containerd_api.namespace)

    async def list_containers(
        self,
        uid: str | None = None,
        *,
        sandbox_id: str = "",
        state: pb.ContainerState | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Sequence[pb.Container]:
        """The containers that match all given conditions. `uid`: the pod's."""
        selector = _selector(uid, labels)
        wanted = None if state is None else pb.ContainerStateValue(state=state)
        request = pb.ListContainersRequest(
            filter=pb.ContainerFilter(pod_sandbox_id=sandbox_id, state=wanted, label_selector=selector)
        )
        return (await self._runtime.list_containers(request, self._timeout_s)).containers

    async def container_status(self, container_id: str, verbose: bool = False) -> pb.ContainerStatusResponse:
        """State, times and exit code. Fails with code NotFound if the container is gone."""
        request = pb.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        answer = await self._runtime.container_status(request, self._timeout_s)
        _check_status(answer.status, "ContainerStatus")
        return answer

    async def update_container_resources(self, container_id: str, resources: pb.LinuxContainerResources) -> None:
        """Change the limits of a running container."""
        request = pb.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
        await self._runtime.update_container_resources(request, self._timeout_s)

    async def reopen_container_log(self, container_id: str) -> None:
        """Make the runtime write to a new log file after a rotation."""
        request = pb.ReopenContainerLogRequest(container_id=container_id)
        await self._runtime.reopen_container_log(request, self._timeout_s)

    async def checkpoint_container(self, container_id: str, location: str, timeout_s: int = 0) -> None:
        """Write a checkpoint archive to `location`. `timeout_s` 0 means the usual deadline."""
        request = pb.CheckpointContainerRequest(container_id=container_id, location=location, timeout=timeout_s)
        await self._runtime.checkpoint_container(request, timeout_s or self._timeout_s)

    # Commands and streams in containers

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_s: int = 0) -> pb.ExecSyncResponse:
        """Run a command and return its stdout, stderr and exit code. `timeout_s` 0 means no limit.

        When `timeout_s` passes, the error's `is_deadline` is true, whether the runtime or the client noticed it.
        Cancelling the caller cancels the call, but not before it has had `EXEC_BEGINS_S`.
        """
        request = pb.ExecSyncRequest(container_id=container_id, cmd=command, timeout=timeout_s)
        deadline_s = self._timeout_s + timeout_s if timeout_s > 0 else None
        return await self._execs.outlive("exec-sync", self._runtime.exec_sync(request, deadline_s), EXEC_BEGINS_S)

    async def exec_url(self, request: pb.ExecRequest) -> str:
        """The URL of the runtime's streaming server for this exec."""
        return _url((await self._runtime.exec(request, self._timeout_s)).url, "Exec")

    async def attach_url(self, request: pb.AttachRequest) -> str:
        """The URL of the runtime's streaming server for this attach."""
        return _url((await self._runtime.attach(request, self._timeout_s)).url, "Attach")

    async def port_forward_url(self, sandbox_id: str, ports: Sequence[int] = ()) -> str:
        """The URL of the runtime's streaming server for this port-forward."""
        request = pb.PortForwardRequest(pod_sandbox_id=sandbox_id, port=ports)
        return _url((await self._runtime.port_forward(request, self._timeout_s)).url, "PortForward")

    # Usage

    async def container_stats(self, container_id: str) -> pb.ContainerStats:
        """CPU, memory and writable layer of one container. Fails with code NotFound if the container is gone."""
        request = pb.ContainerStatsRequest(container_id=container_id)
        return (await self._runtime.container_stats(request, self._timeout_s)).stats

    async def list_container_stats(
        self, uid: str | None = None, *, sandbox_id: str = ""
    ) -> Sequence[pb.ContainerStats]:
        """Usage of the running containers that match all given conditions."""
        wanted = pb.ContainerStatsFilter(pod_sandbox_id=sandbox_id, label_selector=_selector(uid, None))
        request = pb.ListContainerStatsRequest(filter=wanted)
        return (await self._runtime.list_container_stats(request, self._timeout_s)).stats

    async def pod_sandbox_stats(self, sandbox_id: str) -> pb.PodSandboxStats:
        """Usage of one sandbox and its containers. Fails with code NotFound if the sandbox is gone."""
        request = pb.PodSandboxStatsRequest(pod_sandbox_id=sandbox_id)
        return (await self._runtime.pod_sandbox_stats(request, self._timeout_s)).stats

    async def list_pod_sandbox_stats(
        self, uid: str | None = None, *, sandbox_id: str = ""
    ) -> Sequence[pb.PodSandboxStats]:
        """Usage of the ready sandboxes, including that of each of their containers."""
        wanted = pb.PodSandboxStatsFilter(id=sandbox_id, label_selector=_selector(uid, None))
        request = pb.ListPodSandboxStatsRequest(filter=wanted)
        return (await self._runtime.list_pod_sandbox_stats(request, self._timeout_s)).stats

    # Events; edges/cri/events.py translates both streams to hints

    async def open_container_events(self) -> OpenStream[pb.ContainerEventResponse]:
        """CRI's own event stream; its events contain statuses."""
        return await self._runtime.get_container_events.open(pb.GetEventsRequest())

    async def open_containerd_events(self, filters: Sequence[str]) -> OpenStream[events_pb2.Envelope]:
        """The stream of containerd's event service. `filters`: in its filter language; an event must match one of them."""
        return await self._containerd.subscribe.open(events_pb2.SubscribeRequest(filters=filters))

    # Images

    async def list_images(self) -> Sequence[pb.Image]:
        """All images. CRI's filter is not offered: containerd ignores it."""
        return (await self._images.list_images(pb.ListImagesRequest(), self._timeout_s)).images

    async def image_status(self, image: pb.ImageSpec) -> pb.Image | None:
        """The image, or None if it is not present."""
        answer = await self._images.image_status(pb.ImageStatusRequest(image=image), self._timeout_s)
        if not answer.HasField("image"):
            return None
        if not answer.image.id or not answer.image.size:
            raise _malformed(f'Id or size of image "{image.image}" is not set', "ImageStatus")
        return answer.image

    async def pull_image(
        self, image: pb.ImageSpec, auth: pb.AuthConfig | None, sandbox_config: pb.PodSandboxConfig | None = None
    ) -> str:
        """Pull an image and return its reference in the runtime. No deadline; if cancelled, the runtime stops pulling."""
        request = pb.PullImageRequest(image=image, auth=auth, sandbox_config=sandbox_config)
        answer = await self._images.pull_image(request, None)
        if not answer.image_ref:
            raise _malformed(f'imageRef of image "{image.image}" is not set', "PullImage")
        return answer.image_ref

    async def remove_image(self, image: pb.ImageSpec) -> None:
        """Remove an image and all its tags. Idempotent."""
        with _gone_is_done():
            await self._images.remove_image(pb.RemoveImageRequest(image=image), self._timeout_s)

    async def image_fs_info(self) -> pb.ImageFsInfoResponse:
        """Usage of the file systems that hold images and, if different, containers."""
        return await self._images.image_fs_info(pb.ImageFsInfoRequest(), self._timeout_s)


def _selector(uid: str | None, labels: Mapping[str, str] | None) -> dict[str, str]:
    selector = dict(labels or {})
    if uid is not None:
        selector[POD_UID] = uid
    return selector


@contextlib.contextmanager
def _gone_is_done() -> Iterator[None]:
    """Suppress NotFound. CRI demands that stopping and removing a missing object succeeds; containerd 1.6 fails in some cases."""
    try:
        yield
    except CriError as error:
        if not error.is_not_found:
            raise


def _url(url: str, call: str) -> str:
    if not url:
        raise _malformed("URL is not set", call)
    return url


def _check_status(status: pb.PodSandboxStatus | pb.ContainerStatus, call: str) -> None:
    """Raise CriError if a status lacks a field without which decisions based on it would be wrong."""
    if not status.id:
        raise _malformed("status.Id is not set", call)
    if not status.HasField("metadata") or not status.metadata.name:
        raise _malformed("status.Metadata is not set", call)
    if not status.created_at:
        raise _malformed("status.CreatedAt is not set", call)


def _malformed(problem: str, call: str) -> CriError:
    return CriError(CriCode.INTERNAL, problem, call)

"""The client of the container runtime: every call a node agent makes, typed, with its deadline.

Owns: `CriClient`. Requests and answers are the messages of `cri_pb2`; every failure is a `CriError`. It does not retry,
cache or decide; its readers are act/runtime, act/images, observe/pleg and observe/stats. Deadlines follow the
reference: `runtimeRequestTimeout` for a call, twice that to make a sandbox, none for pulls and endless execs.

Source: the CRI API page of the Kubernetes documentation and `runtimeRequestTimeout` of KubeletConfiguration v1beta1.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence

from pykubelet.base.model.ids import ContainerID, SandboxID
from pykubelet.base.model.labels import POD_UID
from pykubelet.edges.cri import containerd_events_pb2 as events_pb2
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.calls import ContainerdCalls, ImageCalls, RuntimeCalls
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.edges.cri.metrics import SANDBOX_DURATIONS, SANDBOX_ERRORS
from pykubelet.edges.cri.wire import OpenStream, Wire, socket_path

_RECONNECT_PAUSE_S = 0.1


class CriClient:
    """A connection to the runtime service and, where it lives elsewhere, the image service.

    Make it inside the running event loop; it connects on the first call and again by itself after a runtime restart.
    `timeout_s` is `runtimeRequestTimeout`. All methods raise CriError and nothing else. Cancelling a call stops the
    waiting; the runtime may still carry it out.
    """

    def __init__(self, endpoint: str, image_endpoint: str = "", timeout_s: float = 120.0) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._wire = Wire(endpoint)
        shared = not image_endpoint or socket_path(image_endpoint) == self._wire.path
        self._image_wire = self._wire if shared else Wire(image_endpoint)
        self._runtime = RuntimeCalls(self._wire)
        self._images = ImageCalls(self._image_wire)
        self._containerd = ContainerdCalls(self._wire)

    async def close(self) -> None:
        """Close the connections; calls in flight fail with code Canceled. Containers are not touched."""
        self._wire.close()
        if self._image_wire is not self._wire:
            self._image_wire.close()

    # The runtime itself

    async def version(self, timeout_s: float | None = None) -> pb.VersionResponse:
        """The runtime's name and version."""
        return await self._runtime.version(pb.VersionRequest(version="0.1.0"), timeout_s or self._timeout_s)

    async def wait_connected(self, timeout_s: float) -> pb.VersionResponse:
        """The version, as soon as the runtime answers; raises the last CriError when it stays away `timeout_s`."""
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
        """Until the connection to the runtime is lost, as when it ends. To be awaited by one task, again and again."""
        await self._wire.wait_lost()

    async def status(self, verbose: bool = False) -> pb.StatusResponse:
        """Conditions (RuntimeReady, NetworkReady), handlers and features; `info` is filled when verbose."""
        answer = await self._runtime.status(pb.StatusRequest(verbose=verbose), self._timeout_s)
        if len(answer.status.conditions) < 2:
            raise _malformed("RuntimeReady or NetworkReady condition are not set", "Status")
        return answer

    async def runtime_config(self) -> pb.RuntimeConfigResponse:
        """The cgroup driver the runtime uses; code Unimplemented on runtimes that cannot tell."""
        return await self._runtime.runtime_config(pb.RuntimeConfigRequest(), self._timeout_s)

    async def update_runtime_config(self, pod_cidr: str) -> None:
        """Tell the runtime the node's pod CIDR."""
        network = pb.NetworkConfig(pod_cidr=pod_cidr)
        request = pb.UpdateRuntimeConfigRequest(runtime_config=pb.RuntimeConfig(network_config=network))
        await self._runtime.update_runtime_config(request, self._timeout_s)

    # Sandboxes

    async def run_pod_sandbox(self, config: pb.PodSandboxConfig, runtime_handler: str = "") -> SandboxID:
        """Make and start a sandbox; its id. Has twice the usual deadline, for slow networks."""
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
        """Kill what runs in it and release its network; idempotent."""
        with _gone_is_done():
            await self._runtime.stop_pod_sandbox(pb.StopPodSandboxRequest(pod_sandbox_id=sandbox_id), self._timeout_s)

    async def remove_pod_sandbox(self, sandbox_id: str) -> None:
        """Remove it and its containers; idempotent."""
        with _gone_is_done():
            await self._runtime.remove_pod_sandbox(
                pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id), self._timeout_s
            )

    async def list_pod_sandboxes(
        self,
        uid: str | None = None,
        *,
        sandbox_id: str = "",
        state: pb.PodSandboxState | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Sequence[pb.PodSandbox]:
        """Sandboxes that match all given conditions; `uid` is the pod's."""
        selector = _selector(uid, labels)
        wanted = None if state is None else pb.PodSandboxStateValue(state=state)
        request = pb.ListPodSandboxRequest(
            filter=pb.PodSandboxFilter(id=sandbox_id, state=wanted, label_selector=selector)
        )
        return (await self._runtime.list_pod_sandbox(request, self._timeout_s)).items

    async def pod_sandbox_status(self, sandbox_id: str, verbose: bool = False) -> pb.PodSandboxStatusResponse:
        """State, network and namespaces; code NotFound when it is gone."""
        request = pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=verbose)
        answer = await self._runtime.pod_sandbox_status(request, self._timeout_s)
        _check_status(answer.status, "PodSandboxStatus")
        return answer

    async def update_pod_sandbox_resources(
        self, sandbox_id: str, overhead: pb.LinuxContainerResources, resources: pb.LinuxContainerResources
    ) -> None:
        """Tell the runtime the pod's new resources after a resize; code Unimplemented on older runtimes."""
        request = pb.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox_id, overhead=overhead, resources=resources)
        await self._runtime.update_pod_sandbox_resources(request, self._timeout_s)

    # Containers

    async def create_container(
        self, sandbox_id: str, config: pb.ContainerConfig, sandbox_config: pb.PodSandboxConfig
    ) -> ContainerID:
        """Make a container, not started; its id."""
        request = pb.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox_config)
        answer = await self._runtime.create_container(request, self._timeout_s)
        if not answer.container_id:
            raise _malformed(f'ContainerId is not set for container "{config.metadata.name}"', "CreateContainer")
        return ContainerID(answer.container_id)

    async def start_container(self, container_id: str) -> None:
        await self._runtime.start_container(pb.StartContainerRequest(container_id=container_id), self._timeout_s)

    async def stop_container(self, container_id: str, grace_s: int) -> None:
        """Stop signal, then SIGKILL after `grace_s` seconds; idempotent. The deadline is the grace plus the usual."""
        request = pb.StopContainerRequest(container_id=container_id, timeout=grace_s)
        with _gone_is_done():
            await self._runtime.stop_container(request, self._timeout_s + max(0, grace_s))

    async def remove_container(self, container_id: str) -> None:
        """Remove it, killing it first if it runs; idempotent."""
        with _gone_is_done():
            await self._runtime.remove_container(pb.RemoveContainerRequest(container_id=container_id), self._timeout_s)

    async def end_task(self, container_id: str) -> None:
        """End the process of a container that containerd takes for ended (`CriError.running_task`); idempotent."""
        from pykubelet.edges.cri.tasks import end_task  # hardly ever needed

        await end_task(self._wire, container_id, self._timeout_s)

    async def list_containers(
        self,
        uid: str | None = None,
        *,
        container_id: str = "",
        sandbox_id: str = "",
        state: pb.ContainerState | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Sequence[pb.Container]:
        """Containers that match all given conditions; `uid` is the pod's."""
        selector = _selector(uid, labels)
        wanted = None if state is None else pb.ContainerStateValue(state=state)
        request = pb.ListContainersRequest(
            filter=pb.ContainerFilter(id=container_id, pod_sandbox_id=sandbox_id, state=wanted, label_selector=selector)
        )
        return (await self._runtime.list_containers(request, self._timeout_s)).containers

    async def container_status(self, container_id: str, verbose: bool = False) -> pb.ContainerStatusResponse:
        """State, times, exit code; code NotFound when it is gone."""
        request = pb.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        answer = await self._runtime.container_status(request, self._timeout_s)
        _check_status(answer.status, "ContainerStatus")
        return answer

    async def update_container_resources(
        self,
        container_id: str,
        resources: pb.LinuxContainerResources,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Change the limits of a running container."""
        request = pb.UpdateContainerResourcesRequest(
            container_id=container_id, linux=resources, annotations=annotations or {}
        )
        await self._runtime.update_container_resources(request, self._timeout_s)

    async def reopen_container_log(self, container_id: str) -> None:
        """Make the runtime write to a new log file after a rotation."""
        request = pb.ReopenContainerLogRequest(container_id=container_id)
        await self._runtime.reopen_container_log(request, self._timeout_s)

    async def checkpoint_container(self, container_id: str, location: str, timeout_s: int = 0) -> None:
        """Write a checkpoint archive to `location`; `timeout_s` 0 means the usual deadline."""
        request = pb.CheckpointContainerRequest(container_id=container_id, location=location, timeout=timeout_s)
        await self._runtime.checkpoint_container(request, timeout_s or self._timeout_s)

    # Running things in containers

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_s: int = 0) -> pb.ExecSyncResponse:
        """Run a command and wait; stdout, stderr and exit code. 0 means no limit.

        When `timeout_s` passes, the error's `is_deadline` is true, whoever noticed.
        """
        request = pb.ExecSyncRequest(container_id=container_id, cmd=command, timeout=timeout_s)
        deadline_s = self._timeout_s + timeout_s if timeout_s > 0 else None
        return await self._runtime.exec_sync(request, deadline_s)

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
        request = pb.ContainerStatsRequest(container_id=container_id)
        return (await self._runtime.container_stats(request, self._timeout_s)).stats

    async def list_container_stats(
        self, uid: str | None = None, *, container_id: str = "", sandbox_id: str = ""
    ) -> Sequence[pb.ContainerStats]:
        """Usage of the running containers that match all given conditions."""
        wanted = pb.ContainerStatsFilter(
            id=container_id, pod_sandbox_id=sandbox_id, label_selector=_selector(uid, None)
        )
        request = pb.ListContainerStatsRequest(filter=wanted)
        return (await self._runtime.list_container_stats(request, self._timeout_s)).stats

    async def pod_sandbox_stats(self, sandbox_id: str) -> pb.PodSandboxStats:
        request = pb.PodSandboxStatsRequest(pod_sandbox_id=sandbox_id)
        return (await self._runtime.pod_sandbox_stats(request, self._timeout_s)).stats

    async def list_pod_sandbox_stats(
        self, uid: str | None = None, *, sandbox_id: str = ""
    ) -> Sequence[pb.PodSandboxStats]:
        """Usage of the ready sandboxes, with their containers inside."""
        wanted = pb.PodSandboxStatsFilter(id=sandbox_id, label_selector=_selector(uid, None))
        request = pb.ListPodSandboxStatsRequest(filter=wanted)
        return (await self._runtime.list_pod_sandbox_stats(request, self._timeout_s)).stats

    async def list_metric_descriptors(self) -> Sequence[pb.MetricDescriptor]:
        answer = await self._runtime.list_metric_descriptors(pb.ListMetricDescriptorsRequest(), self._timeout_s)
        return answer.descriptors

    async def list_pod_sandbox_metrics(self) -> Sequence[pb.PodSandboxMetrics]:
        answer = await self._runtime.list_pod_sandbox_metrics(pb.ListPodSandboxMetricsRequest(), self._timeout_s)
        return answer.pod_metrics

    # Events; edges/cri/events.py turns both streams into hints

    async def open_container_events(self) -> OpenStream[pb.ContainerEventResponse]:
        """CRI's own event stream, with statuses inside."""
        return await self._runtime.get_container_events.open(pb.GetEventsRequest())

    async def open_containerd_events(self, filters: Sequence[str]) -> OpenStream[events_pb2.Envelope]:
        """containerd's event service; `filters` are in its filter language, any of them may match."""
        return await self._containerd.subscribe.open(events_pb2.SubscribeRequest(filters=filters))

    # Images

    async def list_images(self) -> Sequence[pb.Image]:
        """All images. CRI's filter is not offered: containerd ignores it."""
        return (await self._images.list_images(pb.ListImagesRequest(), self._timeout_s)).images

    async def image_status(self, image: pb.ImageSpec) -> pb.Image | None:
        """The image, or None when it is not present."""
        answer = await self._images.image_status(pb.ImageStatusRequest(image=image), self._timeout_s)
        if not answer.HasField("image"):
            return None
        if not answer.image.id or not answer.image.size:
            raise _malformed(f'Id or size of image "{image.image}" is not set', "ImageStatus")
        return answer.image

    async def pull_image(
        self, image: pb.ImageSpec, auth: pb.AuthConfig | None, sandbox_config: pb.PodSandboxConfig | None = None
    ) -> str:
        """Pull; the image's reference in the runtime. No deadline: cancel it, and the runtime stops pulling."""
        request = pb.PullImageRequest(image=image, auth=auth, sandbox_config=sandbox_config)
        answer = await self._images.pull_image(request, None)
        if not answer.image_ref:
            raise _malformed(f'imageRef of image "{image.image}" is not set', "PullImage")
        return answer.image_ref

    async def remove_image(self, image: pb.ImageSpec) -> None:
        """Remove an image and all its tags; idempotent."""
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
    """Stopping and removing what is gone succeeds, as CRI demands; containerd 1.6 answers NotFound to some of it."""
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
    """A status without these cannot be used; better a failed read than a wrong decision."""
    if not status.id:
        raise _malformed("status.Id is not set", call)
    if not status.HasField("metadata") or not status.metadata.name:
        raise _malformed("status.Metadata is not set", call)
    if not status.created_at:
        raise _malformed("status.CreatedAt is not set", call)


def _malformed(problem: str, call: str) -> CriError:
    return CriError(CriCode.INTERNAL, problem, call)

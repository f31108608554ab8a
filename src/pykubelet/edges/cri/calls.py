"""The method tables of the gRPC services: one `Unary` or `ServerStreaming` for each method, under the method's name.

Owns: the request and response type of each method path. `client.py` adds arguments and deadlines.
"""

from __future__ import annotations

from typing import ClassVar

from pykubelet.edges.cri import containerd_events_pb2 as events_pb2
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.wire import Metadata, Q, ServerStreaming, Unary, Wire
from pykubelet.net.grpc.call import R


class _Calls:
    """The methods of one service."""

    service: ClassVar[str]

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def _unary(self, name: str, request: type[Q], response: type[R]) -> Unary[Q, R]:
        return Unary(self._wire, f"/{self.service}/{name}", request, response)

    def _stream(self, name: str, request: type[Q], response: type[R], metadata: Metadata = ()) -> ServerStreaming[Q, R]:
        return ServerStreaming(self._wire, f"/{self.service}/{name}", request, response, metadata)


class RuntimeCalls(_Calls):
    """runtime.v1.RuntimeService."""

    service = "runtime.v1.RuntimeService"

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self.version = self._unary("Version", pb.VersionRequest, pb.VersionResponse)
        self.status = self._unary("Status", pb.StatusRequest, pb.StatusResponse)
        self.runtime_config = self._unary("RuntimeConfig", pb.RuntimeConfigRequest, pb.RuntimeConfigResponse)
        self.update_runtime_config = self._unary(
            "UpdateRuntimeConfig", pb.UpdateRuntimeConfigRequest, pb.UpdateRuntimeConfigResponse
        )
        self.run_pod_sandbox = self._unary("RunPodSandbox", pb.RunPodSandboxRequest, pb.RunPodSandboxResponse)
        self.stop_pod_sandbox = self._unary("StopPodSandbox", pb.StopPodSandboxRequest, pb.StopPodSandboxResponse)
        self.remove_pod_sandbox = self._unary(
            "RemovePodSandbox", pb.RemovePodSandboxRequest, pb.RemovePodSandboxResponse
        )
        self.pod_sandbox_status = self._unary(
            "PodSandboxStatus", pb.PodSandboxStatusRequest, pb.PodSandboxStatusResponse
        )
        self.list_pod_sandbox = self._unary("ListPodSandbox", pb.ListPodSandboxRequest, pb.ListPodSandboxResponse)
        self.update_pod_sandbox_resources = self._unary(
            "UpdatePodSandboxResources", pb.UpdatePodSandboxResourcesRequest, pb.UpdatePodSandboxResourcesResponse
        )
        self.create_container = self._unary("CreateContainer", pb.CreateContainerRequest, pb.CreateContainerResponse)
        self.start_container = self._unary("StartContainer", pb.StartContainerRequest, pb.StartContainerResponse)
        self.stop_container = self._unary("StopContainer", pb.StopContainerRequest, pb.StopContainerResponse)
        self.remove_container = self._unary("RemoveContainer", pb.RemoveContainerRequest, pb.RemoveContainerResponse)
        self.list_containers = self._unary("ListContainers", pb.ListContainersRequest, pb.ListContainersResponse)
        self.container_status = self._unary("ContainerStatus", pb.ContainerStatusRequest, pb.ContainerStatusResponse)
        self.update_container_resources = self._unary(
            "UpdateContainerResources", pb.UpdateContainerResourcesRequest, pb.UpdateContainerResourcesResponse
        )
        self.reopen_container_log = self._unary(
            "ReopenContainerLog", pb.ReopenContainerLogRequest, pb.ReopenContainerLogResponse
        )
        self.checkpoint_container = self._unary(
            "CheckpointContainer", pb.CheckpointContainerRequest, pb.CheckpointContainerResponse
        )
        self.exec_sync = self._unary("ExecSync", pb.ExecSyncRequest, pb.ExecSyncResponse)
        self.exec = self._unary("Exec", pb.ExecRequest, pb.ExecResponse)
        self.attach = self._unary("Attach", pb.AttachRequest, pb.AttachResponse)
        self.port_forward = self._unary("PortForward", pb.PortForwardRequest, pb.PortForwardResponse)
        self.container_stats = self._unary("ContainerStats", pb.ContainerStatsRequest, pb.ContainerStatsResponse)
        self.list_container_stats = self._unary(
            "ListContainerStats", pb.ListContainerStatsRequest, pb.ListContainerStatsResponse
        )
        self.pod_sandbox_stats = self._unary("PodSandboxStats", pb.PodSandboxStatsRequest, pb.PodSandboxStatsResponse)
        self.list_pod_sandbox_stats = self._unary(
            "ListPodSandboxStats", pb.ListPodSandboxStatsRequest, pb.ListPodSandboxStatsResponse
        )
        self.get_container_events = self._stream("GetContainerEvents", pb.GetEventsRequest, pb.ContainerEventResponse)


class ImageCalls(_Calls):
    """runtime.v1.ImageService."""

    service = "runtime.v1.ImageService"

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self.list_images = self._unary("ListImages", pb.ListImagesRequest, pb.ListImagesResponse)
        self.image_status = self._unary("ImageStatus", pb.ImageStatusRequest, pb.ImageStatusResponse)
        self.pull_image = self._unary("PullImage", pb.PullImageRequest, pb.PullImageResponse)
        self.remove_image = self._unary("RemoveImage", pb.RemoveImageRequest, pb.RemoveImageResponse)
        self.image_fs_info = self._unary("ImageFsInfo", pb.ImageFsInfoRequest, pb.ImageFsInfoResponse)


class ContainerdCalls(_Calls):
    """containerd.services.events.v1.Events, which containerd offers on the CRI socket too."""

    service = "containerd.services.events.v1.Events"

    def __init__(self, wire: Wire, namespace: str) -> None:
        super().__init__(wire)
        in_namespace = (("containerd-namespace", namespace),)
        self.subscribe = self._stream("Subscribe", events_pb2.SubscribeRequest, events_pb2.Envelope, in_namespace)

"""The method tables: one `Unary` or `Stream` per method of the services we speak to, by the methods' own names.

Owns: which request and answer belong to which method path. `client.py` gives them arguments and deadlines.
"""

from __future__ import annotations

from pykubelet.edges.cri import containerd_events_pb2 as events_pb2
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.wire import Stream, Unary, Wire

_RUNTIME = "runtime.v1.RuntimeService"
_IMAGES = "runtime.v1.ImageService"
_CONTAINERD_EVENTS = "containerd.services.events.v1.Events"


class RuntimeCalls:
    """runtime.v1.RuntimeService."""

    def __init__(self, wire: Wire) -> None:
        self.version = Unary(wire, _RUNTIME, "Version", pb.VersionRequest, pb.VersionResponse)
        self.status = Unary(wire, _RUNTIME, "Status", pb.StatusRequest, pb.StatusResponse)
        self.runtime_config = Unary(wire, _RUNTIME, "RuntimeConfig", pb.RuntimeConfigRequest, pb.RuntimeConfigResponse)
        self.update_runtime_config = Unary(
            wire, _RUNTIME, "UpdateRuntimeConfig", pb.UpdateRuntimeConfigRequest, pb.UpdateRuntimeConfigResponse
        )
        self.run_pod_sandbox = Unary(wire, _RUNTIME, "RunPodSandbox", pb.RunPodSandboxRequest, pb.RunPodSandboxResponse)
        self.stop_pod_sandbox = Unary(
            wire, _RUNTIME, "StopPodSandbox", pb.StopPodSandboxRequest, pb.StopPodSandboxResponse
        )
        self.remove_pod_sandbox = Unary(
            wire, _RUNTIME, "RemovePodSandbox", pb.RemovePodSandboxRequest, pb.RemovePodSandboxResponse
        )
        self.pod_sandbox_status = Unary(
            wire, _RUNTIME, "PodSandboxStatus", pb.PodSandboxStatusRequest, pb.PodSandboxStatusResponse
        )
        self.list_pod_sandbox = Unary(
            wire, _RUNTIME, "ListPodSandbox", pb.ListPodSandboxRequest, pb.ListPodSandboxResponse
        )
        self.update_pod_sandbox_resources = Unary(
            wire,
            _RUNTIME,
            "UpdatePodSandboxResources",
            pb.UpdatePodSandboxResourcesRequest,
            pb.UpdatePodSandboxResourcesResponse,
        )
        self.create_container = Unary(
            wire, _RUNTIME, "CreateContainer", pb.CreateContainerRequest, pb.CreateContainerResponse
        )
        self.start_container = Unary(
            wire, _RUNTIME, "StartContainer", pb.StartContainerRequest, pb.StartContainerResponse
        )
        self.stop_container = Unary(wire, _RUNTIME, "StopContainer", pb.StopContainerRequest, pb.StopContainerResponse)
        self.remove_container = Unary(
            wire, _RUNTIME, "RemoveContainer", pb.RemoveContainerRequest, pb.RemoveContainerResponse
        )
        self.list_containers = Unary(
            wire, _RUNTIME, "ListContainers", pb.ListContainersRequest, pb.ListContainersResponse
        )
        self.container_status = Unary(
            wire, _RUNTIME, "ContainerStatus", pb.ContainerStatusRequest, pb.ContainerStatusResponse
        )
        self.update_container_resources = Unary(
            wire,
            _RUNTIME,
            "UpdateContainerResources",
            pb.UpdateContainerResourcesRequest,
            pb.UpdateContainerResourcesResponse,
        )
        self.reopen_container_log = Unary(
            wire, _RUNTIME, "ReopenContainerLog", pb.ReopenContainerLogRequest, pb.ReopenContainerLogResponse
        )
        self.checkpoint_container = Unary(
            wire, _RUNTIME, "CheckpointContainer", pb.CheckpointContainerRequest, pb.CheckpointContainerResponse
        )
        self.exec_sync = Unary(wire, _RUNTIME, "ExecSync", pb.ExecSyncRequest, pb.ExecSyncResponse)
        self.exec = Unary(wire, _RUNTIME, "Exec", pb.ExecRequest, pb.ExecResponse)
        self.attach = Unary(wire, _RUNTIME, "Attach", pb.AttachRequest, pb.AttachResponse)
        self.port_forward = Unary(wire, _RUNTIME, "PortForward", pb.PortForwardRequest, pb.PortForwardResponse)
        self.container_stats = Unary(
            wire, _RUNTIME, "ContainerStats", pb.ContainerStatsRequest, pb.ContainerStatsResponse
        )
        self.list_container_stats = Unary(
            wire, _RUNTIME, "ListContainerStats", pb.ListContainerStatsRequest, pb.ListContainerStatsResponse
        )
        self.pod_sandbox_stats = Unary(
            wire, _RUNTIME, "PodSandboxStats", pb.PodSandboxStatsRequest, pb.PodSandboxStatsResponse
        )
        self.list_pod_sandbox_stats = Unary(
            wire, _RUNTIME, "ListPodSandboxStats", pb.ListPodSandboxStatsRequest, pb.ListPodSandboxStatsResponse
        )
        self.list_metric_descriptors = Unary(
            wire, _RUNTIME, "ListMetricDescriptors", pb.ListMetricDescriptorsRequest, pb.ListMetricDescriptorsResponse
        )
        self.list_pod_sandbox_metrics = Unary(
            wire, _RUNTIME, "ListPodSandboxMetrics", pb.ListPodSandboxMetricsRequest, pb.ListPodSandboxMetricsResponse
        )
        self.get_container_events = Stream(
            wire, _RUNTIME, "GetContainerEvents", pb.GetEventsRequest, pb.ContainerEventResponse
        )


class ImageCalls:
    """runtime.v1.ImageService."""

    def __init__(self, wire: Wire) -> None:
        self.list_images = Unary(wire, _IMAGES, "ListImages", pb.ListImagesRequest, pb.ListImagesResponse)
        self.image_status = Unary(wire, _IMAGES, "ImageStatus", pb.ImageStatusRequest, pb.ImageStatusResponse)
        self.pull_image = Unary(wire, _IMAGES, "PullImage", pb.PullImageRequest, pb.PullImageResponse)
        self.remove_image = Unary(wire, _IMAGES, "RemoveImage", pb.RemoveImageRequest, pb.RemoveImageResponse)
        self.image_fs_info = Unary(wire, _IMAGES, "ImageFsInfo", pb.ImageFsInfoRequest, pb.ImageFsInfoResponse)


class ContainerdCalls:
    """containerd.services.events.v1.Events, which containerd offers on the CRI socket."""

    def __init__(self, wire: Wire) -> None:
        self.subscribe = Stream(
            wire,
            _CONTAINERD_EVENTS,
            "Subscribe",
            events_pb2.SubscribeRequest,
            events_pb2.Envelope,
            metadata=(("containerd-namespace", "k8s.io"),),
        )

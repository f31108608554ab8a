"""The services of the CRI as methods of a gRPC server: one table from each method to what carries it out.

What is not in the table is answered with UNIMPLEMENTED. Source: the CRI API.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from google.protobuf.message import Message

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.net.grpc.call import typed_method
from pykubelet.net.grpc.services import Method, Services
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_cri_docker import views
from pykubelet_cri_docker.containers import Containers
from pykubelet_cri_docker.daemon import Daemon
from pykubelet_cri_docker.engine.client import Engine
from pykubelet_cri_docker.engine.transport import EngineError
from pykubelet_cri_docker.errors import rpc_error
from pykubelet_cri_docker.events import ContainerEvents
from pykubelet_cri_docker.exec_sync import exec_sync
from pykubelet_cri_docker.images import Images
from pykubelet_cri_docker.network.model import CniError
from pykubelet_cri_docker.sandboxes import PodSandboxes
from pykubelet_cri_docker.stats.statistics import Statistics
from pykubelet_cri_docker.streaming.backend import AttachTarget, ExecTarget, PortForwardTarget, StreamSet
from pykubelet_cri_docker.streaming.server import InvalidTarget, StreamingServer
from pykubelet_cri_docker.streaming.tokens import TooManyTokens

log = Log("cri-docker")
R = TypeVar("R", bound=Message)
RUNTIME, IMAGES = "/runtime.v1.RuntimeService", "/runtime.v1.ImageService"


class ServiceParts(Value):
    """What the methods are made of."""

    engine: Engine
    daemon: Daemon
    sandboxes: PodSandboxes
    containers: Containers
    images: Images
    events: ContainerEvents
    streaming: StreamingServer
    statistics: Statistics


def build_services(parts: ServiceParts) -> Services:
    """All methods."""
    methods = {
        **_sandboxes(parts),
        **_containers(parts),
        **_streams(parts),
        **_statistics(parts),
        **_daemon(parts),
        **_images(parts),
    }
    return Services(methods, {f"{RUNTIME}/GetContainerEvents": partial(_follow, parts.events)})


async def _follow(events: ContainerEvents, _: bytes) -> AsyncGenerator[bytes, None]:
    async with aclosing(events.follow()) as found:
        async for event in found:
            yield event.SerializeToString()


def _method(request: type[R], handler: Callable[[R], Awaitable[Message]]) -> Method:
    """A method that logs its failures, which become statuses."""
    name = request.DESCRIPTOR.name.removesuffix("Request")

    async def call(decoded: R) -> Message:
        try:
            return await handler(decoded)
        except InvalidTarget as error:
            raise RpcError(Code.INVALID_ARGUMENT, str(error)) from error
        except TooManyTokens as error:
            raise RpcError(Code.RESOURCE_EXHAUSTED, str(error)) from error
        except RpcError as error:
            log.info("call failed", call=name, error=error.message)
            raise
        except (CniError, EngineError, HostError) as error:
            log.info("call failed", call=name, error=error)
            raise rpc_error(error) if isinstance(error, EngineError) else RpcError(Code.UNKNOWN, str(error)) from error

    return typed_method(request, call)


def _sandboxes(parts: ServiceParts) -> dict[str, Method]:
    sandboxes = parts.sandboxes

    async def run_pod_sandbox(request: pb.RunPodSandboxRequest) -> Message:
        return pb.RunPodSandboxResponse(pod_sandbox_id=await sandboxes.run(request.config, request.runtime_handler))

    async def stop_pod_sandbox(request: pb.StopPodSandboxRequest) -> Message:
        await sandboxes.stop(request.pod_sandbox_id)
        return pb.StopPodSandboxResponse()

    async def remove_pod_sandbox(request: pb.RemovePodSandboxRequest) -> Message:
        await sandboxes.stop(request.pod_sandbox_id)
        await parts.containers.remove_all(request.pod_sandbox_id)
        await sandboxes.remove(request.pod_sandbox_id)
        return pb.RemovePodSandboxResponse()

    async def pod_sandbox_status(request: pb.PodSandboxStatusRequest) -> Message:
        answer = pb.PodSandboxStatusResponse(status=await sandboxes.status(request.pod_sandbox_id))
        if request.verbose:
            answer.info.update(views.show_info(await sandboxes.inspect(request.pod_sandbox_id)))
        return answer

    async def list_pod_sandbox(request: pb.ListPodSandboxRequest) -> Message:
        return pb.ListPodSandboxResponse(items=await sandboxes.list(request.filter))

    return {
        f"{RUNTIME}/RunPodSandbox": _method(pb.RunPodSandboxRequest, run_pod_sandbox),
        f"{RUNTIME}/StopPodSandbox": _method(pb.StopPodSandboxRequest, stop_pod_sandbox),
        f"{RUNTIME}/RemovePodSandbox": _method(pb.RemovePodSandboxRequest, remove_pod_sandbox),
        f"{RUNTIME}/PodSandboxStatus": _method(pb.PodSandboxStatusRequest, pod_sandbox_status),
        f"{RUNTIME}/ListPodSandbox": _method(pb.ListPodSandboxRequest, list_pod_sandbox),
    }


def _containers(parts: ServiceParts) -> dict[str, Method]:
    containers = parts.containers

    async def create_container(request: pb.CreateContainerRequest) -> Message:
        made = await containers.create(request.pod_sandbox_id, request.config, request.sandbox_config)
        return pb.CreateContainerResponse(container_id=made)

    async def start_container(request: pb.StartContainerRequest) -> Message:
        await containers.start(request.container_id)
        return pb.StartContainerResponse()

    async def stop_container(request: pb.StopContainerRequest) -> Message:
        await containers.stop(request.container_id, request.timeout)
        return pb.StopContainerResponse()

    async def remove_container(request: pb.RemoveContainerRequest) -> Message:
        await containers.remove(request.container_id)
        return pb.RemoveContainerResponse()

    async def list_containers(request: pb.ListContainersRequest) -> Message:
        return pb.ListContainersResponse(containers=await containers.list(request.filter))

    async def container_status(request: pb.ContainerStatusRequest) -> Message:
        answer = pb.ContainerStatusResponse(status=await containers.status_and_log(request.container_id))
        if request.verbose:
            answer.info.update(views.show_info(await containers.inspect(request.container_id)))
        return answer

    async def update_container_resources(request: pb.UpdateContainerResourcesRequest) -> Message:
        await containers.update(request.container_id, request.linux)
        return pb.UpdateContainerResourcesResponse()

    async def reopen_container_log(request: pb.ReopenContainerLogRequest) -> Message:
        await containers.reopen_log(request.container_id)
        return pb.ReopenContainerLogResponse()

    async def exec_sync_(request: pb.ExecSyncRequest) -> Message:
        found = await containers.inspect_running(request.container_id)
        return await exec_sync(parts.engine, found.id, list(request.cmd), request.timeout)

    return {
        f"{RUNTIME}/CreateContainer": _method(pb.CreateContainerRequest, create_container),
        f"{RUNTIME}/StartContainer": _method(pb.StartContainerRequest, start_container),
        f"{RUNTIME}/StopContainer": _method(pb.StopContainerRequest, stop_container),
        f"{RUNTIME}/RemoveContainer": _method(pb.RemoveContainerRequest, remove_container),
        f"{RUNTIME}/ListContainers": _method(pb.ListContainersRequest, list_containers),
        f"{RUNTIME}/ContainerStatus": _method(pb.ContainerStatusRequest, container_status),
        f"{RUNTIME}/UpdateContainerResources": _method(pb.UpdateContainerResourcesRequest, update_container_resources),
        f"{RUNTIME}/ReopenContainerLog": _method(pb.ReopenContainerLogRequest, reopen_container_log),
        f"{RUNTIME}/ExecSync": _method(pb.ExecSyncRequest, exec_sync_),
    }


def _streams(parts: ServiceParts) -> dict[str, Method]:
    streaming = parts.streaming

    async def exec_(request: pb.ExecRequest) -> Message:
        found = await parts.containers.inspect_running(request.container_id)
        streams = StreamSet(request.stdin, request.stdout, request.stderr, request.tty)
        return pb.ExecResponse(url=streaming.exec_url(ExecTarget(found.id, tuple(request.cmd), streams)))

    async def attach(request: pb.AttachRequest) -> Message:
        found = await parts.containers.inspect(request.container_id)
        streams = StreamSet(request.stdin, request.stdout, request.stderr, request.tty)
        return pb.AttachResponse(url=streaming.attach_url(AttachTarget(found.id, streams)))

    async def port_forward(request: pb.PortForwardRequest) -> Message:
        found = await parts.sandboxes.inspect(request.pod_sandbox_id)
        return pb.PortForwardResponse(url=streaming.port_forward_url(PortForwardTarget(found.id, tuple(request.port))))

    return {
        f"{RUNTIME}/Exec": _method(pb.ExecRequest, exec_),
        f"{RUNTIME}/Attach": _method(pb.AttachRequest, attach),
        f"{RUNTIME}/PortForward": _method(pb.PortForwardRequest, port_forward),
    }


def _statistics(parts: ServiceParts) -> dict[str, Method]:
    statistics = parts.statistics

    async def container_stats(request: pb.ContainerStatsRequest) -> Message:
        return pb.ContainerStatsResponse(stats=await statistics.of_container(request.container_id))

    async def list_container_stats(request: pb.ListContainerStatsRequest) -> Message:
        return pb.ListContainerStatsResponse(stats=await statistics.of_containers(request.filter))

    async def pod_sandbox_stats(request: pb.PodSandboxStatsRequest) -> Message:
        return pb.PodSandboxStatsResponse(stats=await statistics.of_sandbox(request.pod_sandbox_id))

    async def list_pod_sandbox_stats(request: pb.ListPodSandboxStatsRequest) -> Message:
        return pb.ListPodSandboxStatsResponse(stats=await statistics.of_sandboxes(request.filter))

    return {
        f"{RUNTIME}/ContainerStats": _method(pb.ContainerStatsRequest, container_stats),
        f"{RUNTIME}/ListContainerStats": _method(pb.ListContainerStatsRequest, list_container_stats),
        f"{RUNTIME}/PodSandboxStats": _method(pb.PodSandboxStatsRequest, pod_sandbox_stats),
        f"{RUNTIME}/ListPodSandboxStats": _method(pb.ListPodSandboxStatsRequest, list_pod_sandbox_stats),
    }


def _daemon(parts: ServiceParts) -> dict[str, Method]:
    daemon = parts.daemon

    async def version(_: pb.VersionRequest) -> Message:
        return await daemon.version()

    async def status(request: pb.StatusRequest) -> Message:
        return await daemon.status(verbose=request.verbose)

    async def runtime_config(_: pb.RuntimeConfigRequest) -> Message:
        return await daemon.runtime_config()

    async def update_runtime_config(_: pb.UpdateRuntimeConfigRequest) -> Message:
        return pb.UpdateRuntimeConfigResponse()  # the network's configuration is the administrator's

    return {
        f"{RUNTIME}/Version": _method(pb.VersionRequest, version),
        f"{RUNTIME}/Status": _method(pb.StatusRequest, status),
        f"{RUNTIME}/RuntimeConfig": _method(pb.RuntimeConfigRequest, runtime_config),
        f"{RUNTIME}/UpdateRuntimeConfig": _method(pb.UpdateRuntimeConfigRequest, update_runtime_config),
    }


def _images(parts: ServiceParts) -> dict[str, Method]:
    images = parts.images

    async def list_images(request: pb.ListImagesRequest) -> Message:
        return pb.ListImagesResponse(images=await images.list(request.filter.image.image))

    async def image_status(request: pb.ImageStatusRequest) -> Message:
        return pb.ImageStatusResponse(image=await images.status(request.image.image))

    async def pull_image(request: pb.PullImageRequest) -> Message:
        return pb.PullImageResponse(image_ref=await images.pull(request.image.image, request.auth))

    async def remove_image(request: pb.RemoveImageRequest) -> Message:
        await images.remove(request.image.image)
        return pb.RemoveImageResponse()

    async def image_fs_info(_: pb.ImageFsInfoRequest) -> Message:
        usage = await images.file_system()
        return pb.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[usage])

    return {
        f"{IMAGES}/ListImages": _method(pb.ListImagesRequest, list_images),
        f"{IMAGES}/ImageStatus": _method(pb.ImageStatusRequest, image_status),
        f"{IMAGES}/PullImage": _method(pb.PullImageRequest, pull_image),
        f"{IMAGES}/RemoveImage": _method(pb.RemoveImageRequest, remove_image),
        f"{IMAGES}/ImageFsInfo": _method(pb.ImageFsInfoRequest, image_fs_info),
    }

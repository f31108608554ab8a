"""The answers of the fake runtime to each CRI method, computed from `FakeState`.

Owns: the answers, the registry for pulls, the reported conditions. Serving, faults and events are in `fake.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pykubelet.base.kit.clock import Clock, SystemClock
from pykubelet.base.kit.values import Value
from pykubelet.edges.cri import containerd_tasks_pb2 as tasks_pb2
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode
from pykubelet.testing.cri.fake_script import parse_script
from pykubelet.testing.cri.fake_state import (
    FakeContainer,
    FakeImage,
    FakeState,
    Notify,
    Refused,
    container_item,
    container_status,
    sandbox_item,
    sandbox_status,
)

ExecHandler = Callable[[FakeContainer, list[str]], Awaitable[pb.ExecSyncResponse]]
Answer = Callable[[Any], Awaitable[Any]]


class RegistryAuth(Value):
    """The credentials that a private image requires."""

    username: str
    password: str


@dataclass(slots=True)
class FakeConditions:
    """The content of the answer to `Status`."""

    runtime_ready: bool = True
    network_ready: bool = True
    runtime_message: str = ""
    network_message: str = ""
    handlers: tuple[str, ...] = ("", "runc")


@dataclass(slots=True)
class FakeFeatures:
    """The optional features of the fake: CRI's event stream, containerd's event service, RuntimeConfig's cgroup driver.

    `answers_digest`: PullImage answers with a digest, as CRI-O does up to 1.35, and not with the ID. `mount_options`: of bind mounts.
    """

    cri_events: bool = False
    containerd_events: bool = True
    cgroup_driver: pb.CgroupDriver | None = None
    answers_digest: bool = False
    mount_options: bool = False


class FakeAnswers:
    """The answers, and the handles with which a test changes them."""

    def __init__(self, clock: Clock | None, features: FakeFeatures | None, notify: Notify) -> None:
        self.features = features or FakeFeatures()
        self.conditions = FakeConditions()
        self.clock: Clock = clock or SystemClock()
        self.state = FakeState(self.clock, notify)
        self.registry: dict[str, FakeImage] = {}
        self.private: dict[str, RegistryAuth] = {}
        self.exec_handler: ExecHandler = run_script
        self.used_bytes = 1_000_000_000
        self.pod_cidr = ""

    def runtime_answers(self) -> dict[str, tuple[type[Any], Answer]]:
        """The request type and answer of each method of the runtime service, by method name."""
        answers: dict[str, tuple[type[Any], Answer]] = {
            "Version": (pb.VersionRequest, self._version),
            "Status": (pb.StatusRequest, self._status),
            "UpdateRuntimeConfig": (pb.UpdateRuntimeConfigRequest, self._update_runtime_config),
            "RunPodSandbox": (pb.RunPodSandboxRequest, self._run_pod_sandbox),
            "StopPodSandbox": (pb.StopPodSandboxRequest, self._stop_pod_sandbox),
            "RemovePodSandbox": (pb.RemovePodSandboxRequest, self._remove_pod_sandbox),
            "PodSandboxStatus": (pb.PodSandboxStatusRequest, self._pod_sandbox_status),
            "ListPodSandbox": (pb.ListPodSandboxRequest, self._list_pod_sandbox),
            "CreateContainer": (pb.CreateContainerRequest, self._create_container),
            "StartContainer": (pb.StartContainerRequest, self._start_container),
            "StopContainer": (pb.StopContainerRequest, self._stop_container),
            "RemoveContainer": (pb.RemoveContainerRequest, self._remove_container),
            "ListContainers": (pb.ListContainersRequest, self._list_containers),
            "ContainerStatus": (pb.ContainerStatusRequest, self._container_status),
            "UpdateContainerResources": (pb.UpdateContainerResourcesRequest, self._update_container_resources),
            "ReopenContainerLog": (pb.ReopenContainerLogRequest, self._reopen_container_log),
            "ExecSync": (pb.ExecSyncRequest, self._exec_sync),
            "Exec": (pb.ExecRequest, self._exec),
            "Attach": (pb.AttachRequest, self._attach),
            "PortForward": (pb.PortForwardRequest, self._port_forward),
            "ContainerStats": (pb.ContainerStatsRequest, self._container_stats),
            "ListContainerStats": (pb.ListContainerStatsRequest, self._list_container_stats),
        }
        if self.features.cgroup_driver is not None:
            answers["RuntimeConfig"] = (pb.RuntimeConfigRequest, self._runtime_config)
        return answers

    def image_answers(self) -> dict[str, tuple[type[Any], Answer]]:
        """As `runtime_answers`, for the image service."""
        return {
            "ListImages": (pb.ListImagesRequest, self._list_images),
            "ImageStatus": (pb.ImageStatusRequest, self._image_status),
            "PullImage": (pb.PullImageRequest, self._pull_image),
            "RemoveImage": (pb.RemoveImageRequest, self._remove_image),
            "ImageFsInfo": (pb.ImageFsInfoRequest, self._image_fs_info),
        }

    def task_answers(self) -> dict[str, tuple[type[Any], Answer]]:
        """As `runtime_answers`, for the methods of containerd's task service that end processes."""
        return {
            "Kill": (tasks_pb2.KillRequest, self._done),
            "Wait": (tasks_pb2.WaitRequest, self._done),
            "Delete": (tasks_pb2.DeleteTaskRequest, self._delete_task),
        }

    async def _done(self, _request: Any) -> tasks_pb2.Done:
        return tasks_pb2.Done()

    async def _delete_task(self, request: tasks_pb2.DeleteTaskRequest) -> tasks_pb2.Done:
        self.state.need(request.container_id).task_left = False
        return tasks_pb2.Done()

    # The runtime

    async def _version(self, _request: pb.VersionRequest) -> pb.VersionResponse:
        return pb.VersionResponse(
            version="0.1.0", runtime_name="fake", runtime_version="1.0.0", runtime_api_version="v1"
        )

    async def _status(self, _request: pb.StatusRequest) -> pb.StatusResponse:
        conditions = self.conditions
        runtime = pb.RuntimeCondition(
            type="RuntimeReady", status=conditions.runtime_ready, message=conditions.runtime_message, reason=""
        )
        network = pb.RuntimeCondition(
            type="NetworkReady",
            status=conditions.network_ready,
            message=conditions.network_message,
            reason="" if conditions.network_ready else "NetworkPluginNotReady",
        )
        handlers = [pb.RuntimeHandler(name=name) for name in conditions.handlers]
        status = pb.RuntimeStatus(conditions=[runtime, network])
        features = pb.RuntimeFeatures(mount_options=self.features.mount_options)
        return pb.StatusResponse(status=status, runtime_handlers=handlers, features=features)

    async def _runtime_config(self, _request: pb.RuntimeConfigRequest) -> pb.RuntimeConfigResponse:
        linux = pb.LinuxRuntimeConfiguration(cgroup_driver=self.features.cgroup_driver)
        return pb.RuntimeConfigResponse(linux=linux)

    async def _update_runtime_config(self, request: pb.UpdateRuntimeConfigRequest) -> pb.UpdateRuntimeConfigResponse:
        self.pod_cidr = request.runtime_config.network_config.pod_cidr
        return pb.UpdateRuntimeConfigResponse()

    # Sandboxes

    async def _run_pod_sandbox(self, request: pb.RunPodSandboxRequest) -> pb.RunPodSandboxResponse:
        if request.runtime_handler not in self.conditions.handlers:
            message = f'failed to get sandbox runtime: no runtime for "{request.runtime_handler}" is configured'
            raise Refused(CriCode.UNKNOWN, message)
        sandbox = self.state.run_sandbox(request.config, request.runtime_handler)
        return pb.RunPodSandboxResponse(pod_sandbox_id=sandbox.id)

    async def _stop_pod_sandbox(self, request: pb.StopPodSandboxRequest) -> pb.StopPodSandboxResponse:
        self.state.stop_sandbox(self.state.need_sandbox(request.pod_sandbox_id))
        return pb.StopPodSandboxResponse()

    async def _remove_pod_sandbox(self, request: pb.RemovePodSandboxRequest) -> pb.RemovePodSandboxResponse:
        sandbox = self.state.sandboxes.get(request.pod_sandbox_id)
        if sandbox is not None:
            self.state.remove_sandbox(sandbox)
        return pb.RemovePodSandboxResponse()

    async def _pod_sandbox_status(self, request: pb.PodSandboxStatusRequest) -> pb.PodSandboxStatusResponse:
        return pb.PodSandboxStatusResponse(status=sandbox_status(self.state.need_sandbox(request.pod_sandbox_id)))

    async def _list_pod_sandbox(self, request: pb.ListPodSandboxRequest) -> pb.ListPodSandboxResponse:
        wanted = request.filter
        items = [
            item
            for item in map(sandbox_item, self.state.sandboxes.values())
            if item.id.startswith(wanted.id)
            and (not wanted.HasField("state") or item.state == wanted.state.state)
            and _selects(wanted.label_selector, item.labels)
        ]
        return pb.ListPodSandboxResponse(items=items)

    # Containers

    async def _create_container(self, request: pb.CreateContainerRequest) -> pb.CreateContainerResponse:
        container = self.state.create(request.pod_sandbox_id, request.config)
        return pb.CreateContainerResponse(container_id=container.id)

    async def _start_container(self, request: pb.StartContainerRequest) -> pb.StartContainerResponse:
        self.state.start(self.state.need(request.container_id))
        return pb.StartContainerResponse()

    async def _stop_container(self, request: pb.StopContainerRequest) -> pb.StopContainerResponse:
        container = self.state.containers.get(request.container_id)
        if container is not None:
            await self.state.stop(container, request.timeout)
        return pb.StopContainerResponse()

    async def _remove_container(self, request: pb.RemoveContainerRequest) -> pb.RemoveContainerResponse:
        container = self.state.containers.get(request.container_id)
        if container is not None:
            self.state.remove(container)
        return pb.RemoveContainerResponse()

    async def _list_containers(self, request: pb.ListContainersRequest) -> pb.ListContainersResponse:
        wanted = request.filter
        items = [
            item
            for item in map(container_item, self.state.containers.values())
            if item.id.startswith(wanted.id)
            and wanted.pod_sandbox_id in ("", item.pod_sandbox_id)
            and (not wanted.HasField("state") or item.state == wanted.state.state)
            and _selects(wanted.label_selector, item.labels)
        ]
        return pb.ListContainersResponse(containers=items)

    async def _container_status(self, request: pb.ContainerStatusRequest) -> pb.ContainerStatusResponse:
        return pb.ContainerStatusResponse(status=container_status(self.state.need(request.container_id)))

    async def _update_container_resources(
        self, request: pb.UpdateContainerResourcesRequest
    ) -> pb.UpdateContainerResourcesResponse:
        container = self.state.need(request.container_id)
        if container.state not in (pb.CONTAINER_CREATED, pb.CONTAINER_RUNNING):
            raise Refused(CriCode.UNKNOWN, f"container {container.id} is not running")
        merged = pb.LinuxContainerResources()
        merged.CopyFrom(container.resources)
        merged.MergeFrom(request.linux)
        container.resources = merged
        return pb.UpdateContainerResourcesResponse()

    async def _reopen_container_log(self, request: pb.ReopenContainerLogRequest) -> pb.ReopenContainerLogResponse:
        container = self._need_running(request.container_id)
        self.state.write_log(container, b"")
        return pb.ReopenContainerLogResponse()

    async def _exec_sync(self, request: pb.ExecSyncRequest) -> pb.ExecSyncResponse:
        container = self._need_running(request.container_id)
        try:
            return await asyncio.wait_for(self.exec_handler(container, list(request.cmd)), request.timeout or None)
        except TimeoutError as error:
            message = f"failed to exec in container: timeout {request.timeout}s exceeded: context deadline exceeded"
            raise Refused(CriCode.DEADLINE_EXCEEDED, message) from error

    async def _exec(self, request: pb.ExecRequest) -> pb.ExecResponse:
        self._need_running(request.container_id)
        return pb.ExecResponse(url=f"http://127.0.0.1:1/exec/{request.container_id[:8]}")

    async def _attach(self, request: pb.AttachRequest) -> pb.AttachResponse:
        self._need_running(request.container_id)
        return pb.AttachResponse(url=f"http://127.0.0.1:1/attach/{request.container_id[:8]}")

    async def _port_forward(self, request: pb.PortForwardRequest) -> pb.PortForwardResponse:
        sandbox = self.state.need_sandbox(request.pod_sandbox_id)
        return pb.PortForwardResponse(url=f"http://127.0.0.1:1/portforward/{sandbox.id[:8]}")

    async def _container_stats(self, request: pb.ContainerStatsRequest) -> pb.ContainerStatsResponse:
        return pb.ContainerStatsResponse(stats=self._stats_of(self._need_running(request.container_id)))

    async def _list_container_stats(self, request: pb.ListContainerStatsRequest) -> pb.ListContainerStatsResponse:
        wanted = request.filter
        stats = [
            self._stats_of(container)
            for container in self.state.containers.values()
            if container.state == pb.CONTAINER_RUNNING
            and container.id.startswith(wanted.id)
            and wanted.pod_sandbox_id in ("", container.sandbox.id)
            and _selects(wanted.label_selector, container.config.labels)
        ]
        return pb.ListContainerStatsResponse(stats=stats)

    def _stats_of(self, container: FakeContainer) -> pb.ContainerStats:
        now = int(self.clock.wall() * 1e9)
        lived = max(0, now - container.started_at)
        attributes = pb.ContainerAttributes(
            id=container.id,
            metadata=container.config.metadata,
            labels=container.config.labels,
            annotations=container.config.annotations,
        )
        return pb.ContainerStats(
            attributes=attributes,
            cpu=pb.CpuUsage(timestamp=now, usage_core_nano_seconds=pb.UInt64Value(value=lived // 100)),
            memory=pb.MemoryUsage(
                timestamp=now,
                working_set_bytes=pb.UInt64Value(value=4_000_000),
                usage_bytes=pb.UInt64Value(value=5_000_000),
            ),
            writable_layer=pb.FilesystemUsage(
                timestamp=now,
                fs_id=pb.FilesystemIdentifier(mountpoint="/"),
                used_bytes=pb.UInt64Value(value=4096),
                inodes_used=pb.UInt64Value(value=3),
            ),
        )

    def _need_running(self, container_id: str) -> FakeContainer:
        container = self.state.need(container_id)
        if container.state != pb.CONTAINER_RUNNING:
            raise Refused(CriCode.UNKNOWN, f"container is in {pb.ContainerState.Name(container.state)} state")
        return container

    # Images

    async def _list_images(self, _request: pb.ListImagesRequest) -> pb.ListImagesResponse:
        return pb.ListImagesResponse(images=[image.message() for image in self.state.images.values()])

    async def _image_status(self, request: pb.ImageStatusRequest) -> pb.ImageStatusResponse:
        image = self.state.find_image(request.image.image)
        return pb.ImageStatusResponse(image=image.message() if image else None)

    async def _pull_image(self, request: pb.PullImageRequest) -> pb.PullImageResponse:
        name = request.image.image
        image = self.registry.get(name)
        prefix = f'failed to pull and unpack image "{name}": failed to resolve reference "{name}": '
        if image is None:
            raise Refused(CriCode.NOT_FOUND, f"{prefix}{name}: not found")
        wanted = self.private.get(name)
        if wanted is not None and (request.auth.username, request.auth.password) != (wanted.username, wanted.password):
            denied = "pull access denied, repository does not exist or may require authorization: authorization failed"
            raise Refused(CriCode.UNKNOWN, f"{prefix}{denied}: no basic auth credentials")
        self.state.images[name] = image
        return pb.PullImageResponse(image_ref=image.digest if self.features.answers_digest else image.id)

    async def _remove_image(self, request: pb.RemoveImageRequest) -> pb.RemoveImageResponse:
        image = self.state.find_image(request.image.image)
        if image is not None:
            self.state.images.pop(image.name, None)
        return pb.RemoveImageResponse()

    async def _image_fs_info(self, _request: pb.ImageFsInfoRequest) -> pb.ImageFsInfoResponse:
        usage = pb.FilesystemUsage(
            timestamp=int(self.clock.wall() * 1e9),
            fs_id=pb.FilesystemIdentifier(mountpoint="/"),
            used_bytes=pb.UInt64Value(value=self.used_bytes),
            inodes_used=pb.UInt64Value(value=1000),
        )
        return pb.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[usage])


async def run_script(_container: FakeContainer, command: list[str]) -> pb.ExecSyncResponse:
    """The default exec: runs the same subset of shell as a container's own command (see `fake_script.py`)."""
    script = parse_script(command)
    if script.runs_s is None:
        await asyncio.Event().wait()
    await asyncio.sleep(script.runs_s or 0)
    return pb.ExecSyncResponse(stdout=script.output, exit_code=script.exit_code)


def _selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())

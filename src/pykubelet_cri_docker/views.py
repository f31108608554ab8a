"""What the CRI shows of Docker's containers: states, times and reasons. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pykubelet.base.api.times import parse_time_ns
from pykubelet.base.kit.text import parse_decimal
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet_cri_docker import labels
from pykubelet_cri_docker.engine import messages as docker

#: containerd's reason and exit code if the first process could not be started.
START_ERROR, START_ERROR_CODE = "StartError", 128
#: Podman shows a container that gets its signal as `stopping`, where Docker shows it as running.
_RUNNING = ("running", "paused", "restarting", "stopping")


def sandbox_state(status: str) -> pb.PodSandboxState:
    """The state of a sandbox by that of its container."""
    return pb.SANDBOX_READY if status == "running" else pb.SANDBOX_NOTREADY


def container_state(status: str) -> pb.ContainerState:
    """The state by Docker's."""
    if status in _RUNNING:
        return pb.CONTAINER_RUNNING
    return pb.CONTAINER_CREATED if status == "created" else pb.CONTAINER_EXITED


def nanoseconds(time: str) -> int:
    """A time of Docker in nanoseconds since the epoch; 0 for none, and for what is no time."""
    try:
        return max(0, parse_time_ns(time)) if time and not time.startswith("0001-") else 0
    except ValueError:
        return 0


def show_sandbox(found: docker.ContainerSummary) -> pb.PodSandbox:
    """An entry of ListPodSandbox."""
    config = labels.sandbox_config(found.labels or {})
    return pb.PodSandbox(
        id=found.id,
        metadata=config.metadata,
        state=sandbox_state(found.state),
        created_at=found.created * 10**9,
        labels=config.labels,
        annotations=config.annotations,
        runtime_handler=(found.labels or {}).get(labels.RUNTIME_HANDLER, ""),
    )


def show_sandbox_status(found: docker.DockerContainer, ips: Sequence[str]) -> pb.PodSandboxStatus:
    """The status of a sandbox. `ips`: of its network, the pod's address first."""
    config = labels.sandbox_config(found.labels)
    status = pb.PodSandboxStatus(
        id=found.id,
        metadata=config.metadata,
        state=sandbox_state(found.state.status),
        created_at=nanoseconds(found.created),
        labels=config.labels,
        annotations=config.annotations,
        runtime_handler=found.labels.get(labels.RUNTIME_HANDLER, ""),
    )
    status.linux.namespaces.options.CopyFrom(config.linux.security_context.namespace_options)
    if ips:
        status.network.ip = ips[0]
        status.network.additional_ips.extend(pb.PodIP(ip=ip) for ip in ips[1:])
    return status


def show_container(found: docker.ContainerSummary) -> pb.Container:
    """An entry of ListContainers."""
    own = found.labels or {}
    config = labels.container_config(own)
    return pb.Container(
        id=found.id,
        pod_sandbox_id=own.get(labels.SANDBOX_ID, ""),
        metadata=config.metadata,
        image=_named(config.image),
        image_ref=found.image_id,
        image_id=found.image_id,
        state=container_state(found.state),
        created_at=found.created * 10**9,
        labels=config.labels,
        annotations=config.annotations,
    )


def show_container_status(found: docker.DockerContainer, extra: pb.LinuxContainerResources) -> pb.ContainerStatus:
    """The status of a container. `extra`: limits that Docker does not have."""
    own, state = found.labels, found.state
    config = labels.container_config(own)
    status = pb.ContainerStatus(
        id=found.id,
        metadata=config.metadata,
        state=container_state(state.status),
        created_at=nanoseconds(found.created),
        image=_named(config.image),
        image_ref=found.image,
        image_id=found.image,
        labels=config.labels,
        annotations=config.annotations,
        mounts=config.mounts,
        log_path=own.get(labels.LOG_PATH, ""),
        stop_signal=config.stop_signal,
        resources=show_resources(found.host_config),
    )
    status.resources.linux.MergeFrom(extra)
    if state.status == "created" and state.exit_code and state.error:
        status.state = pb.CONTAINER_EXITED
        status.reason, status.message, status.exit_code = START_ERROR, state.error, START_ERROR_CODE
        status.started_at = status.finished_at = status.created_at
        return status
    if status.state != pb.CONTAINER_CREATED:
        status.started_at = nanoseconds(state.started_at)
    if status.state == pb.CONTAINER_EXITED:
        status.finished_at, status.exit_code = nanoseconds(state.finished_at), state.exit_code
        status.reason = "OOMKilled" if state.oom_killed else "Error" if state.exit_code else "Completed"
        status.message = state.error
    return status


def show_info(found: docker.DockerContainer) -> dict[str, str]:
    """What a verbose status has beside the status, as containerd has it: JSON under one key."""
    about = {
        "pid": found.state.pid,
        "sandboxID": found.labels.get(labels.SANDBOX_ID, ""),
        "cgroupParent": found.host_config.cgroup_parent,
        "runtimeHandler": found.labels.get(labels.RUNTIME_HANDLER, ""),
    }
    return {"info": msgspec.json.encode(about).decode()}


def _named(image: pb.ImageSpec) -> pb.ImageSpec:
    """The image under the name in the pod, where a client asked for its ID."""
    return pb.ImageSpec(image=image.user_specified_image or image.image, annotations=image.annotations)


def show_resources(host: docker.DockerHostConfig) -> pb.ContainerResources:
    """The limits of a container, as Docker keeps them."""
    linux = pb.LinuxContainerResources(
        cpu_period=host.cpu_period,
        cpu_quota=host.cpu_quota,
        cpu_shares=host.cpu_shares,
        memory_limit_in_bytes=host.memory,
        memory_swap_limit_in_bytes=host.memory_swap,
        oom_score_adj=host.oom_score_adj,
        cpuset_cpus=host.cpuset_cpus,
        cpuset_mems=host.cpuset_mems,
    )
    return pb.ContainerResources(linux=linux)


def show_image(found: docker.ImageSummary, *, pinned: bool) -> pb.Image:
    """An entry of ListImages. Docker shows an image without a name as `<none>:<none>`."""
    return pb.Image(
        id=found.id,
        repo_tags=[tag for tag in found.repo_tags or () if not tag.startswith("<none>")],
        repo_digests=[digest for digest in found.repo_digests or () if not digest.startswith("<none>")],
        size=found.size,
        pinned=pinned,
    )


def show_image_status(found: docker.DockerImage, *, pinned: bool) -> pb.Image:
    """An image with the user that it sets."""
    shown = show_image(docker.ImageSummary(found.id, found.repo_tags, found.repo_digests, found.size), pinned=pinned)
    user = (found.config.user if found.config else "").partition(":")[0]
    uid = parse_decimal(user)
    if uid is not None:
        shown.uid.value = uid
    else:
        shown.username = user
    return shown

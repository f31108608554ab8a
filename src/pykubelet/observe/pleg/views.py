"""Converts CRI messages to the agent's views of pods, sandboxes and containers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pykubelet.base.kit.text import shorten
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID, SandboxID
from pykubelet.base.model.labels import CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID
from pykubelet.base.model.observed import (
    ContainerView,
    MountView,
    NetworkMode,
    ObservedState,
    ObservedUser,
    PodView,
    ResourcesView,
    SandboxView,
    known_time,
)
from pykubelet.base.model.reasons import START_ERROR
from pykubelet.edges.cri import cri_pb2 as pb

#: A pod's sandboxes and containers in a list, without their statuses.
ListedPod = tuple[list[pb.PodSandbox], list[pb.Container]]

_STATES = {
    pb.CONTAINER_CREATED: ObservedState.CREATED,
    pb.CONTAINER_RUNNING: ObservedState.RUNNING,
    pb.CONTAINER_EXITED: ObservedState.EXITED,
    pb.CONTAINER_UNKNOWN: ObservedState.UNKNOWN,
}

#: The maximum length of the runtime's reason and message for a container, which may quote its image or pod.
REASON_LIMIT, MESSAGE_LIMIT, CPUSET_LIMIT = 256, 8 << 10, 4 << 10

#: containerd's message for a start whose client disconnected: containerd then kills the program that starts the shim. The
#: reason is that of every failed start (START_ERROR).
_CALLER_GONE = "context canceled"
_SHIM, _SHIM_KILLED = "failed to start shim: ", "signal: killed"


def state_of(container: pb.Container) -> ObservedState:
    """The state of a listed container."""
    return _STATES[container.state]


def pod_of(labels: Mapping[str, str]) -> PodRef | None:
    """The pod in the labels; None if the object was not made by a kubelet."""
    uid, name, namespace = labels.get(POD_UID), labels.get(POD_NAME), labels.get(POD_NAMESPACE)
    if not uid or not name or not namespace:
        return None
    return PodRef(namespace, name, PodUID(uid))


def container_view(container: pb.Container, status: pb.ContainerStatus) -> ContainerView:
    """The view of a listed container: sandbox and labels from `container`, the rest from `status`."""
    name = container.labels.get(CONTAINER_NAME) or container.metadata.name
    return _view(ContainerID(container.id), name, SandboxID(container.pod_sandbox_id), status)


def started_view(status: pb.ContainerStatus, sandbox: SandboxID) -> ContainerView:
    """The view of a container that was just started in `sandbox`, from its status alone."""
    name = status.labels.get(CONTAINER_NAME) or status.metadata.name
    return _view(ContainerID(status.id), name, sandbox, status)


def updated_view(known: ContainerView, status: pb.ContainerStatus) -> ContainerView:
    """The same container with a newer status."""
    return _view(known.id, known.name, known.sandbox_id, status)


def _state(status: pb.ContainerStatus) -> ObservedState:
    """The state of a container; CREATED if its start was interrupted by the end of the agent.

    Such a container has not run, so a pod with restartPolicy Never must not fail because of it, and its successor is no restart. Its
    process may have been there for a moment, which the runtime does not state; that a program is started twice is documented for Jobs.
    """
    is_cut = status.reason == START_ERROR and not status.started_at and _is_caller_gone(status.message)
    return ObservedState.CREATED if is_cut and status.state == pb.CONTAINER_EXITED else _STATES[status.state]


def _is_caller_gone(message: str) -> bool:
    return _CALLER_GONE in message or _SHIM_KILLED in message.partition(_SHIM)[2]


def _view(container: ContainerID, name: str, sandbox: SandboxID, status: pb.ContainerStatus) -> ContainerView:
    linux = status.resources.linux if status.HasField("resources") and status.resources.HasField("linux") else None
    user = status.user.linux if status.HasField("user") and status.user.HasField("linux") else None
    signal = pb.Signal.Name(status.stop_signal) if status.stop_signal else ""
    return ContainerView(
        id=container,
        name=name,
        sandbox_id=sandbox,
        state=_state(status),
        attempt=status.metadata.attempt,
        created_at=known_time(status.created_at),
        started_at=known_time(status.started_at),
        finished_at=known_time(status.finished_at),
        exit_code=status.exit_code,
        reason=shorten(status.reason, REASON_LIMIT),
        message=shorten(status.message, MESSAGE_LIMIT),
        image=status.image.image,
        image_ref=status.image_ref,
        image_id=status.image_id,
        log_path=status.log_path,
        annotations=dict(status.annotations),
        mounts=tuple(
            MountView(m.container_path, m.host_path, m.readonly, m.recursive_read_only) for m in status.mounts
        ),
        user=ObservedUser(user.uid, user.gid, tuple(user.supplemental_groups)) if user is not None else None,
        resources=(
            ResourcesView(
                linux.cpu_shares,
                linux.cpu_quota,
                linux.cpu_period,
                linux.memory_limit_in_bytes,
                shorten(linux.cpuset_cpus, CPUSET_LIMIT),
                shorten(linux.cpuset_mems, CPUSET_LIMIT),
            )
            if linux is not None
            else None
        ),
        stop_signal=signal.removeprefix("SIGNAL_").replace("PLUS", "+").replace("MINUS", "-"),
    )


def sandbox_view(sandbox: pb.PodSandbox | pb.PodSandboxStatus, status: pb.PodSandboxStatus | None) -> SandboxView:
    """A sandbox; without a `status` it has no addresses."""
    ips: tuple[str, ...] = ()
    network = NetworkMode.POD
    if status is not None:
        if status.linux.namespaces.options.network == pb.NODE:
            network = NetworkMode.NODE
        ips = tuple(ip for ip in (status.network.ip, *(more.ip for more in status.network.additional_ips)) if ip)
    return SandboxView(
        id=SandboxID(sandbox.id),
        attempt=sandbox.metadata.attempt,
        ready=sandbox.state == pb.SANDBOX_READY,
        created_at=known_time(sandbox.created_at),
        ips=ips,
        network=network,
        runtime_handler=sandbox.runtime_handler,
    )


def pod_view(
    ref: PodRef, sandboxes: Iterable[SandboxView], containers: Iterable[ContainerView], read_at: float
) -> PodView:
    """A pod's view with the newest first: by attempt, which does not depend on clocks, then by creation time."""
    return PodView(
        ref=ref,
        sandboxes=tuple(sorted(sandboxes, key=lambda s: (s.attempt, s.created_at), reverse=True)),
        containers=tuple(sorted(containers, key=lambda c: (c.attempt, c.created_at), reverse=True)),
        read_at=read_at,
    )

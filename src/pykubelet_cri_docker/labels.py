"""How pods and their containers are named and labelled in Docker. Pure.

A container's own labels have the whole of what Docker has no field for, so that nothing but Docker has to be asked after a
restart, and what is not labelled so is never touched. The labels and names of pods are those that dockershim used:
people know them from `docker ps`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from google.protobuf.message import DecodeError

from pykubelet.edges.cri import cri_pb2 as pb

M = TypeVar("M", pb.PodSandboxConfig, pb.ContainerConfig)
#: Sandbox or container; a container with another value or without the label is none of this program's.
TYPE = "io.kubernetes.docker.type"
SANDBOX_ID = "io.kubernetes.sandbox.id"
#: The config of the CRI in base64, without what Docker keeps itself.
CONFIG = "io.kubernetes.cri-docker.config"
#: The runtime of Docker that a RuntimeClass names; without the label it is the default.
RUNTIME_HANDLER = "io.kubernetes.cri-docker.runtime-handler"
LOG_PATH = "io.kubernetes.container.logpath"
PREFIX = "k8s"
#: What the names of all that this program has made begin with. A container has the labels of its image too, for example of one that was
#: committed from a container of a pod, but an image cannot choose the name.
NAMES = f"{PREFIX}_"
SANDBOX_NAME = "POD"


class ContainerKind(StrEnum):
    """What a container of Docker is in the CRI."""

    SANDBOX = "podsandbox"
    CONTAINER = "container"


#: The labels of all that this program has made, as Docker filters by them.
OF_SANDBOX, OF_CONTAINER = f"{TYPE}={ContainerKind.SANDBOX}", f"{TYPE}={ContainerKind.CONTAINER}"


def sandbox_name(meta: pb.PodSandboxMetadata) -> str:
    """The name of a sandbox in Docker, which makes sure that there is one for each attempt."""
    return "_".join((PREFIX, SANDBOX_NAME, meta.name, meta.namespace, meta.uid, str(meta.attempt)))


def container_name(meta: pb.ContainerMetadata, pod: pb.PodSandboxMetadata) -> str:
    """The name of a container in Docker."""
    return "_".join((PREFIX, meta.name, pod.name, pod.namespace, pod.uid, str(meta.attempt)))


def sandbox_labels(config: pb.PodSandboxConfig, runtime_handler: str = "") -> dict[str, str]:
    """The labels of a sandbox in Docker."""
    handler = {RUNTIME_HANDLER: runtime_handler} if runtime_handler else {}
    return {**config.labels, TYPE: ContainerKind.SANDBOX, CONFIG: _encoded(config), **handler}


def container_labels(config: pb.ContainerConfig, sandbox_id: str, log_path: str) -> dict[str, str]:
    """The labels of a container in Docker. `log_path`: of the log in the format of the CRI."""
    kept = pb.ContainerConfig(
        metadata=config.metadata,
        image=config.image,
        mounts=config.mounts,
        labels=config.labels,
        annotations=config.annotations,
        log_path=config.log_path,
        stop_signal=config.stop_signal,
    )
    asked = config.linux.resources
    if asked.unified or asked.hugepage_limits:
        limits = pb.LinuxContainerResources(unified=asked.unified, hugepage_limits=asked.hugepage_limits)
        kept.linux.resources.CopyFrom(limits)
    return {
        **config.labels,
        TYPE: ContainerKind.CONTAINER,
        SANDBOX_ID: sandbox_id,
        LOG_PATH: log_path,
        CONFIG: _encoded(kept),
    }


def sandbox_config(labels: Mapping[str, str]) -> pb.PodSandboxConfig:
    """The config of a sandbox; what cannot be read is empty."""
    return _decoded(pb.PodSandboxConfig, labels)


def container_config(labels: Mapping[str, str]) -> pb.ContainerConfig:
    """The kept part of a container's config; what cannot be read is empty."""
    return _decoded(pb.ContainerConfig, labels)


def _encoded(config: pb.PodSandboxConfig | pb.ContainerConfig) -> str:
    return base64.b64encode(config.SerializeToString(deterministic=True)).decode()


def _decoded(message: type[M], labels: Mapping[str, str]) -> M:
    try:
        return message.FromString(base64.b64decode(labels.get(CONFIG, ""), validate=True))
    except (DecodeError, binascii.Error, ValueError):
        return message()

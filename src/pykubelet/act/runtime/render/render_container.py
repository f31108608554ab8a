"""Renders the CRI configuration of a container. Pure.

Source: the Container Runtime Interface (ContainerConfig) and Kubernetes docs on the fields of a container.
"""

from __future__ import annotations

from typing import cast

from pykubelet.act.runtime.render.container_resources import container_resources
from pykubelet.act.runtime.render.context import (
    AnyContainer,
    ContainerContext,
    RenderSettings,
)
from pykubelet.act.runtime.render.env import build_environment
from pykubelet.act.runtime.render.etc_hosts import name_pod
from pykubelet.act.runtime.render.render_annotations import container_annotations, container_labels
from pykubelet.act.runtime.render.render_mounts import container_devices, container_mounts
from pykubelet.act.runtime.render.security import container_security_context
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import Pod
from pykubelet.base.model.arguments import ArgumentSpace, ArgumentsTooLongError
from pykubelet.base.model.reasons import CREATE_CONTAINER_ERROR
from pykubelet.edges.cri import cri_pb2

#: A configuration made from so many things takes too long for the event loop.
HEAVY = 2000
_SIGNALS = dict(cri_pb2.Signal.items())


def render_container(
    pod: Pod, container: AnyContainer, settings: RenderSettings, ctx: ContainerContext
) -> cri_pb2.ContainerConfig:
    """The configuration for CreateContainer. Raises ContainerStartError."""
    try:
        return _render(pod, container, settings, ctx)
    except UnicodeEncodeError:
        # A Secret may contain any bytes. Environment variables can have them, commands cannot.
        raise ContainerStartError("string field contains invalid UTF-8", CREATE_CONTAINER_ERROR) from None
    except ArgumentsTooLongError as error:
        raise ContainerStartError(str(error)) from None


def weight(container: AnyContainer, ctx: ContainerContext) -> int:
    """How many things the configuration is made from, about."""
    own = (container.env, container.envFrom, container.command, container.args, container.volumeMounts)
    found = 0 if ctx.api_objects is None else ctx.api_objects.keys()
    texts = (*(variable.value for variable in container.env), *container.command, *container.args)
    references = sum(text.count("$(") for text in texts)
    return sum(map(len, own)) + references + found * len(container.envFrom)


def log_path(container_name: str, restart_count: int) -> str:
    """The path of the log, relative to the sandbox's log directory."""
    return f"{container_name}/{restart_count}.log"


def stop_signal(container: AnyContainer, settings: RenderSettings) -> cri_pb2.Signal:
    """The container's stop signal (KEP-4960); unset (the image's signal is used) if the gate is off or none is given."""
    name = container.lifecycle.stopSignal if container.lifecycle is not None else ""
    if not name or not settings.container_stop_signals:
        return cri_pb2.SIGNAL_RUNTIME_DEFAULT
    spelled = "SIGNAL_" + name.replace("+", "PLUS").replace("-", "MINUS")
    return cast("cri_pb2.Signal", _SIGNALS.get(spelled, cri_pb2.SIGNAL_RUNTIME_DEFAULT))


def _render(
    pod: Pod, container: AnyContainer, settings: RenderSettings, ctx: ContainerContext
) -> cri_pb2.ContainerConfig:
    # A pod with hostNetwork has no host name of its own, but an invalid name is refused as well.
    name_pod(pod, settings.cluster_domain)
    devices = container_devices(container, ctx)
    space = ArgumentSpace()
    env = build_environment(pod, container, settings, ctx, space)
    command = space.expand_all("command", container.command, env)
    args = space.expand_all("args", container.args, env)
    mounts = container_mounts(pod, container, settings, ctx, env)
    security = container_security_context(pod, container, settings, ctx)
    userns = security.namespace_options.userns_options
    if userns.uids:
        for mount in mounts:
            mount.uidMappings.extend(userns.uids)
            mount.gidMappings.extend(userns.gids)
    return cri_pb2.ContainerConfig(
        metadata=cri_pb2.ContainerMetadata(name=container.name, attempt=ctx.restart_count),
        image=cri_pb2.ImageSpec(image=ctx.image_ref, user_specified_image=container.image),
        command=command,
        args=args,
        working_dir=container.workingDir,
        envs=[
            cri_pb2.KeyValue(key=name, value=value.encode("utf-8", "surrogateescape")) for name, value in env.items()
        ],
        mounts=mounts,
        devices=devices,
        CDI_devices=[cri_pb2.CDIDevice(name=name) for name in ctx.devices.cdi],
        labels=container_labels(pod, container),
        annotations=container_annotations(pod, container, ctx.restart_count, ctx.devices.annotations),
        log_path=log_path(container.name, ctx.restart_count),
        stdin=bool(container.stdin),
        stdin_once=bool(container.stdinOnce),
        tty=bool(container.tty),
        stop_signal=stop_signal(container, settings),
        linux=cri_pb2.LinuxContainerConfig(
            resources=container_resources(pod, container, settings, ctx), security_context=security
        ),
    )

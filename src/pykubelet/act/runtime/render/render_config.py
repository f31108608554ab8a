"""Renders the CRI configurations of a pod's sandbox and of its containers, and reads the annotations of containers back. Pure.

They are read back for containers whose pod is not known any more: after a restart of the agent, only the annotations show
how to stop such a pod.

Source: the Container Runtime Interface (PodSandboxConfig, ContainerConfig) and Kubernetes docs on the fields of pods and containers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec

from pykubelet.act.runtime.render.container_resources import container_resources, sandbox_resources
from pykubelet.act.runtime.render.context import (
    AnyContainer,
    ContainerContext,
    RenderSettings,
    SandboxContext,
)
from pykubelet.act.runtime.render.dns import dns_config, name_pod
from pykubelet.act.runtime.render.env import build_environment
from pykubelet.act.runtime.render.render_mounts import container_devices, container_mounts
from pykubelet.act.runtime.render.security import (
    container_security_context,
    groups_policy,
    pod_namespaces,
    selinux_options,
)
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import Container, ContainerPort, HTTPGetAction, LifecycleHandler, Pod
from pykubelet.base.kit.values import Value
from pykubelet.base.model import labels
from pykubelet.base.model.arguments import ArgumentSpace, ArgumentsTooLongError
from pykubelet.base.model.containers import container_hash
from pykubelet.base.model.reasons import CREATE_CONTAINER_ERROR, CREATE_POD_SANDBOX_ERROR
from pykubelet.base.model.roster import pod_ref
from pykubelet.base.model.sysctls import with_defaults
from pykubelet.edges.cri import cri_pb2

_PROTOCOLS = {"UDP": cri_pb2.UDP, "SCTP": cri_pb2.SCTP}


def render_sandbox(pod: Pod, settings: RenderSettings, ctx: SandboxContext) -> cri_pb2.PodSandboxConfig:
    """The configuration for RunPodSandbox, without the runtime handler. `dns_config` returns the Events about DNS.

    Raises ContainerStartError.
    """
    try:
        return _sandbox_config(pod, settings, ctx)
    except ContainerStartError as error:
        raise ContainerStartError(error.message, CREATE_POD_SANDBOX_ERROR) from None


def _sandbox_config(pod: Pod, settings: RenderSettings, ctx: SandboxContext) -> cri_pb2.PodSandboxConfig:
    metadata = pod.metadata
    resolver, _ = dns_config(pod, settings)
    hostname = "" if pod.spec.hostNetwork else name_pod(pod, settings.cluster_domain).kernel
    resources, overhead = sandbox_resources(pod, settings, ctx)
    context = pod.spec.securityContext
    has_sysctls = settings.default_sysctls or (context is not None and context.sysctls)
    return cri_pb2.PodSandboxConfig(
        metadata=cri_pb2.PodSandboxMetadata(
            name=metadata.name, uid=metadata.uid, namespace=metadata.namespace, attempt=ctx.attempt
        ),
        hostname=hostname,
        log_directory=settings.paths.pod_logs(pod_ref(pod)),
        dns_config=resolver,
        port_mappings=[mapping for container in pod.spec.containers for mapping in port_mappings(container)],
        labels=sandbox_labels(pod),
        annotations=metadata.annotations,
        linux=cri_pb2.LinuxPodSandboxConfig(
            cgroup_parent=ctx.cgroup_parent,
            security_context=_security_context(pod, settings, ctx),
            sysctls=with_defaults(pod, settings.default_sysctls) if has_sysctls else {},
            overhead=overhead,
            resources=resources,
        ),
    )


def render_puller(pod: Pod, cgroup_parent: str) -> cri_pb2.PodSandboxConfig:
    """The sandbox config for an image pull. Runtimes may apply rules for the namespace, or charge the pod's cgroup."""
    metadata = pod.metadata
    return cri_pb2.PodSandboxConfig(
        metadata=cri_pb2.PodSandboxMetadata(name=metadata.name, uid=metadata.uid, namespace=metadata.namespace),
        labels=sandbox_labels(pod),
        annotations=metadata.annotations,
        linux=cri_pb2.LinuxPodSandboxConfig(cgroup_parent=cgroup_parent),
    )


def port_mappings(container: Container) -> list[cri_pb2.PortMapping]:
    """All declared ports, including those without a host port. Of duplicates, the first is used."""
    mappings: dict[str, cri_pb2.PortMapping] = {}
    for port in container.ports:
        family = "any" if not port.hostIP else "v6" if ":" in port.hostIP else "v4"
        host_port = port.hostPort or 0
        key = port.name or f"{family}-{port.protocol}-{port.hostIP}:{port.containerPort}:{host_port}"
        if key not in mappings:
            mappings[key] = cri_pb2.PortMapping(
                protocol=_PROTOCOLS.get(port.protocol, cri_pb2.TCP),
                container_port=port.containerPort,
                host_port=host_port,
                host_ip=port.hostIP,
            )
    return list(mappings.values())


def has_privileged_container(pod: Pod) -> bool:
    """True if any regular, init or ephemeral container of the pod is privileged."""
    spec = pod.spec
    containers: tuple[AnyContainer, ...] = (*spec.containers, *spec.initContainers, *spec.ephemeralContainers)
    contexts = (container.securityContext for container in containers)
    return any(context is not None and context.privileged for context in contexts)


def _security_context(pod: Pod, settings: RenderSettings, ctx: SandboxContext) -> cri_pb2.LinuxSandboxSecurityContext:
    # The sandbox's own process runs with the default seccomp profile, so that the pod may have a stricter one.
    runtime_default = cri_pb2.SecurityProfile(profile_type=cri_pb2.SecurityProfile.RuntimeDefault)
    context = cri_pb2.LinuxSandboxSecurityContext(
        privileged=has_privileged_container(pod),
        seccomp=runtime_default,
        namespace_options=pod_namespaces(pod, ctx),
    )
    of_pod = pod.spec.securityContext
    if of_pod is None:
        return context
    if of_pod.runAsUser is not None:
        context.run_as_user.value = of_pod.runAsUser
    if of_pod.runAsGroup is not None:
        context.run_as_group.value = of_pod.runAsGroup
    if of_pod.fsGroup is not None:
        context.supplemental_groups.append(of_pod.fsGroup)
    context.supplemental_groups.extend((*ctx.supplemental_groups, *of_pod.supplementalGroups))
    context.supplemental_groups_policy = groups_policy(of_pod)
    selinux = selinux_options(of_pod.seLinuxOptions, settings)
    if selinux is not None:
        context.selinux_options.CopyFrom(selinux)
    return context


#: A configuration made from so many things takes too long for the event loop.
HEAVY = 2000
_SIGNALS = dict(cri_pb2.Signal.items())


def render_container(
    pod: Pod, container: AnyContainer, settings: RenderSettings, ctx: ContainerContext
) -> cri_pb2.ContainerConfig:
    """The configuration for CreateContainer. Raises ContainerStartError."""
    try:
        return _container_config(pod, container, settings, ctx)
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


def _container_config(
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


# Labels and annotations

T = TypeVar("T")


def sandbox_labels(pod: Pod) -> dict[str, str]:
    """The CRI labels of a sandbox: the pod's labels, name, namespace and UID."""
    return {**pod.metadata.labels, **_identity(pod)}


def container_labels(pod: Pod, container: AnyContainer) -> dict[str, str]:
    """The CRI labels of one container: its pod's identity and its name."""
    return {**_identity(pod), labels.CONTAINER_NAME: container.name}


def _identity(pod: Pod) -> dict[str, str]:
    metadata = pod.metadata
    return {
        labels.POD_NAME: metadata.name,
        labels.POD_NAMESPACE: metadata.namespace,
        labels.POD_UID: metadata.uid,
    }


def container_annotations(
    pod: Pod, container: AnyContainer, restart_count: int, from_devices: Mapping[str, str]
) -> dict[str, str]:
    """The CRI annotations of one container. `from_devices`: those of device plugins, which cannot replace the agent's own."""
    annotations = {
        **from_devices,
        labels.CONTAINER_HASH: container_hash(container),
        labels.CONTAINER_RESTART_COUNT: str(restart_count),
        labels.CONTAINER_TERMINATION_MESSAGE_PATH: container.terminationMessagePath,
        labels.CONTAINER_TERMINATION_MESSAGE_POLICY: container.terminationMessagePolicy,
    }
    if pod.metadata.deletionGracePeriodSeconds is not None:
        annotations[labels.POD_DELETION_GRACE_PERIOD] = str(pod.metadata.deletionGracePeriodSeconds)
    if pod.spec.terminationGracePeriodSeconds is not None:
        annotations[labels.POD_TERMINATION_GRACE_PERIOD] = str(pod.spec.terminationGracePeriodSeconds)
    if container.lifecycle is not None and container.lifecycle.preStop is not None:
        annotations[labels.CONTAINER_PRE_STOP_HANDLER] = _json(_handler(container.lifecycle.preStop))
    if container.ports:
        annotations[labels.CONTAINER_PORTS] = _json([_port(port) for port in container.ports])
    return annotations


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in ("", None, (), 0)}


def _port(port: ContainerPort) -> dict[str, Any]:
    """A port with the reference kubelet's order of fields; that of the structs is alphabetical."""
    return {
        **_given({"name": port.name, "hostPort": port.hostPort}),
        "containerPort": port.containerPort,
        **_given({"protocol": port.protocol, "hostIP": port.hostIP}),
    }


def _handler(handler: LifecycleHandler) -> dict[str, Any]:
    """A hook with the reference kubelet's order of fields."""
    return _given(
        {
            "exec": handler.exec,
            "httpGet": _http_get(handler.httpGet) if handler.httpGet is not None else None,
            "tcpSocket": handler.tcpSocket,
            "sleep": handler.sleep,
        }
    )


def _http_get(action: HTTPGetAction) -> dict[str, Any]:
    return {
        **_given({"path": action.path}),
        "port": action.port,
        **_given({"host": action.host, "scheme": action.scheme, "httpHeaders": action.httpHeaders}),
    }


class RestoredContainer(Value):
    """The fields in a container's annotations. None or "": missing or invalid."""

    deletion_grace_s: int | None = None
    termination_grace_s: int | None = None
    termination_message_path: str = ""
    termination_message_policy: str = ""
    pre_stop: LifecycleHandler | None = None
    ports: tuple[ContainerPort, ...] = ()


def restored_container(annotations: Mapping[str, str]) -> RestoredContainer:
    """Read the annotations of a container. Invalid values count as missing."""
    return RestoredContainer(
        deletion_grace_s=_number(annotations, labels.POD_DELETION_GRACE_PERIOD),
        termination_grace_s=_number(annotations, labels.POD_TERMINATION_GRACE_PERIOD),
        termination_message_path=annotations.get(labels.CONTAINER_TERMINATION_MESSAGE_PATH, ""),
        termination_message_policy=annotations.get(labels.CONTAINER_TERMINATION_MESSAGE_POLICY, ""),
        pre_stop=_decoded(annotations, labels.CONTAINER_PRE_STOP_HANDLER, LifecycleHandler),
        ports=_decoded(annotations, labels.CONTAINER_PORTS, tuple[ContainerPort, ...]) or (),
    )


def _number(annotations: Mapping[str, str], key: str) -> int | None:
    try:
        return int(annotations[key])
    except (KeyError, ValueError):
        return None


def _decoded(annotations: Mapping[str, str], key: str, kind: type[T]) -> T | None:
    text = annotations.get(key)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:
        return None

"""Renders the CRI configuration of a pod's sandbox. Pure.

Source: the Container Runtime Interface (PodSandboxConfig) and Kubernetes docs on the fields of a pod.
"""

from __future__ import annotations

from pykubelet.act.runtime.render.container_resources import sandbox_resources
from pykubelet.act.runtime.render.context import (
    AnyContainer,
    RenderSettings,
    SandboxContext,
)
from pykubelet.act.runtime.render.dns import dns_config
from pykubelet.act.runtime.render.etc_hosts import name_pod
from pykubelet.act.runtime.render.render_annotations import sandbox_labels
from pykubelet.act.runtime.render.security import groups_policy, pod_namespaces, selinux_options
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import Container, Pod
from pykubelet.base.model.reasons import CREATE_POD_SANDBOX_ERROR
from pykubelet.base.model.roster import pod_ref
from pykubelet.base.model.sysctls import sysctls_of
from pykubelet.edges.cri import cri_pb2

_PROTOCOLS = {"UDP": cri_pb2.UDP, "SCTP": cri_pb2.SCTP}


def render_sandbox(pod: Pod, settings: RenderSettings, ctx: SandboxContext) -> cri_pb2.PodSandboxConfig:
    """The configuration for RunPodSandbox, without the runtime handler. `dns_config` returns the Events about DNS.

    Raises ContainerStartError.
    """
    try:
        return _render(pod, settings, ctx)
    except ContainerStartError as error:
        raise ContainerStartError(error.message, CREATE_POD_SANDBOX_ERROR) from None


def _render(pod: Pod, settings: RenderSettings, ctx: SandboxContext) -> cri_pb2.PodSandboxConfig:
    metadata = pod.metadata
    resolver, _ = dns_config(pod, settings)
    hostname = "" if pod.spec.hostNetwork else name_pod(pod, settings.cluster_domain).kernel
    resources, overhead = sandbox_resources(pod, settings, ctx)
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
            sysctls=sysctls_of(pod),
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

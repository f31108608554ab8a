"""PodSandboxes and containers of the CRI as containers of Docker. Pure.

Raises RpcError for what Docker cannot express: an isolation that was asked for is never dropped. Source: the CRI API, and the
Docker Engine API reference, "Create a container".
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet_cri_docker import labels
from pykubelet_cri_docker.engine import messages as docker
from pykubelet_cri_docker.errors import invalid, unimplemented
from pykubelet_cri_docker.logs.log_config import LOG_CONFIG

SANDBOX_OOM_SCORE_ADJ = -998
RESOLV_CONF = "/etc/resolv.conf"
NO_LOG = docker.LogConfig("none")
_NO_HEALTHCHECK = {"Test": ["NONE"]}
#: Docker's default is private, but for a mount that contains its own directory, such as `/`, for which it refuses `rprivate`.
_PROPAGATION = {
    pb.PROPAGATION_PRIVATE: "",
    pb.PROPAGATION_HOST_TO_CONTAINER: "rslave",
    pb.PROPAGATION_BIDIRECTIONAL: "rshared",
}
_READONLY_MOUNTS = (1, 44)
_UNCONFINED, _DEFAULT = pb.SecurityProfile.Unconfined, pb.SecurityProfile.RuntimeDefault
_PROFILES = {"runtime/default": _DEFAULT, "docker/default": _DEFAULT, "unconfined": _UNCONFINED}


class RenderFacts(Value):
    """What a rendered container depends on beside its config. `seccomp`: the text of the profile that its config names, or empty.

    `api`: the version of Docker Engine's API. `least_oom_score_adj`: the lowest value that the kernel lets Docker set.
    `runtime_handler`: of the sandbox, "" for Docker's default. `resolv_conf`: the sandbox's file, if the engine does not give it to the
    containers that join the sandbox, nor its hostname; else empty.
    """

    seccomp: str = ""
    api: tuple[int, int] = (1, 41)
    least_oom_score_adj: int = -1000
    runtime_handler: str = ""
    resolv_conf: str = ""


def render_sandbox(config: pb.PodSandboxConfig, image: str, facts: RenderFacts) -> docker.NewContainer:
    """The container that holds a pod's namespaces. It needs no privileges itself, whatever the containers in it have."""
    context, linux = config.linux.security_context, config.linux
    options = context.namespace_options
    _check_userns(options)
    on_host = options.network == pb.NODE
    host = docker.HostConfig(
        network_mode="host" if on_host else "none",
        ipc_mode="host" if options.ipc == pb.NODE else "shareable",
        pid_mode="host" if options.pid == pb.NODE else "",
        uts_mode="host" if on_host else "",
        userns_mode="host" if on_host else "",
        runtime=facts.runtime_handler,
        cgroup_parent=_cgroup_parent(config),
        oom_score_adj=max(SANDBOX_OOM_SCORE_ADJ, facts.least_oom_score_adj),
        readonly_rootfs=context.readonly_rootfs,
        group_add=[str(group) for group in context.supplemental_groups],
        security_opt=_security_options(context, facts.seccomp),
        sysctls=dict(linux.sysctls),
        log_config=NO_LOG,
    )
    return docker.NewContainer(
        image=image,
        hostname="" if on_host else config.hostname,
        user=_user(context),
        labels=labels.sandbox_labels(config, facts.runtime_handler),
        healthcheck=_NO_HEALTHCHECK,
        host_config=host,
    )


def render_container(
    config: pb.ContainerConfig, sandbox: pb.PodSandboxConfig, sandbox_id: str, facts: RenderFacts
) -> docker.NewContainer:
    """A container in a sandbox."""
    linux, context = config.linux, config.linux.security_context
    if context.supplemental_groups_policy == pb.SupplementalGroupsPolicy.Strict:
        raise unimplemented("linux.security_context.supplemental_groups_policy Strict")
    if context.capabilities.add_ambient_capabilities:
        raise unimplemented("linux.security_context.capabilities.add_ambient_capabilities")
    _check_userns(context.namespace_options)
    shared = f"container:{sandbox_id}"
    host = docker.HostConfig(
        network_mode=shared,
        ipc_mode=_shared(context.namespace_options.ipc, shared),
        pid_mode=_pid_mode(context.namespace_options, shared),
        uts_mode="host" if context.namespace_options.network == pb.NODE else shared if facts.resolv_conf else "",
        runtime=facts.runtime_handler,
        cgroup_parent=_cgroup_parent(sandbox),
        oom_score_adj=max(linux.resources.oom_score_adj, facts.least_oom_score_adj),
        privileged=context.privileged,
        readonly_rootfs=context.readonly_rootfs,
        cap_add=list(context.capabilities.add_capabilities),
        cap_drop=list(context.capabilities.drop_capabilities),
        group_add=[str(group) for group in context.supplemental_groups],
        security_opt=_security_options(context, facts.seccomp),
        mounts=_mounts(config, facts),
        binds=[_relabeled(mount, number) for number, mount in enumerate(config.mounts) if mount.selinux_relabel],
        devices=[docker.DockerDevice(d.host_path, d.container_path, d.permissions) for d in config.devices],
        log_config=LOG_CONFIG,
    )
    _set_limits(host, linux.resources)
    if not context.privileged:
        host.masked_paths, host.readonly_paths = list(context.masked_paths), list(context.readonly_paths)
    return docker.NewContainer(
        image=config.image.image,
        user=_user(context),
        entrypoint=list(config.command) or None,
        cmd=list(config.args) or None,
        env=[f"{env.key}={_text(env.value, env.key)}" for env in config.envs],
        working_dir=config.working_dir,
        tty=config.tty,
        open_stdin=config.stdin,
        stdin_once=config.stdin_once,
        stop_signal=_signal(config.stop_signal),
        labels=labels.container_labels(config, sandbox_id, log_path(sandbox, config)),
        healthcheck=_NO_HEALTHCHECK,
        host_config=host,
    )


def render_resources(resources: pb.LinuxContainerResources) -> docker.Resources:
    """The limits of an update."""
    limits = docker.Resources()
    _set_limits(limits, resources)
    return limits


def log_path(sandbox: pb.PodSandboxConfig, config: pb.ContainerConfig) -> str:
    """Where the log in the format of the CRI is; empty if none is wanted."""
    return f"{sandbox.log_directory}/{config.log_path}" if sandbox.log_directory and config.log_path else ""


def seccomp_path(context: pb.LinuxContainerSecurityContext | pb.LinuxSandboxSecurityContext) -> str:
    """The file of the seccomp profile; empty if it needs none."""
    profile = _seccomp(context)
    is_local = profile.profile_type == pb.SecurityProfile.Localhost
    return profile.localhost_ref if is_local and not context.privileged else ""


def apparmor_name(context: pb.LinuxContainerSecurityContext | pb.LinuxSandboxSecurityContext) -> str:
    """The AppArmor profile of the machine; empty if it needs none."""
    profile = _apparmor(context)
    is_local = profile.profile_type == pb.SecurityProfile.Localhost
    return profile.localhost_ref.removeprefix("localhost/") if is_local and not context.privileged else ""


def _set_limits(limits: docker.Resources, resources: pb.LinuxContainerResources) -> None:
    limits.cpu_shares, limits.cpu_period, limits.cpu_quota = (
        resources.cpu_shares,
        resources.cpu_period,
        resources.cpu_quota,
    )
    limits.cpuset_cpus, limits.cpuset_mems = resources.cpuset_cpus, resources.cpuset_mems
    limits.memory = resources.memory_limit_in_bytes
    # without a value, Docker allows as much swap as memory
    limits.memory_swap = resources.memory_swap_limit_in_bytes or _with_swap(limits.memory, resources.unified)


def _with_swap(memory: int, unified: Mapping[str, str]) -> int:
    """The limit of memory and swap together, where cgroup version 2 has one of swap. Docker keeps that of both with each update."""
    text = unified.get("memory.swap.max", "0").strip()
    if text == "max":
        return -1 if memory > 0 else 0
    return memory + (parse_decimal(text) or 0) if memory > 0 else memory


def _cgroup_parent(sandbox: pb.PodSandboxConfig) -> str:
    """The cgroup of the pod; only the slice's name with systemd, which is all that Docker takes then."""
    parent = sandbox.linux.cgroup_parent
    return posixpath.basename(parent) if parent.endswith(".slice") else parent


def _check_userns(options: pb.NamespaceOption) -> None:
    if options.HasField("userns_options") and options.userns_options.mode == pb.POD:
        raise unimplemented("namespace_options.userns_options mode POD")


def _shared(mode: int, shared: str) -> str:
    return "host" if mode == pb.NODE else shared if mode == pb.POD else "private"


def _pid_mode(options: pb.NamespaceOption, shared: str) -> str:
    if options.pid == pb.TARGET:
        return f"container:{options.target_id}"
    return "host" if options.pid == pb.NODE else shared if options.pid == pb.POD else ""


def _user(context: pb.LinuxContainerSecurityContext | pb.LinuxSandboxSecurityContext) -> str:
    user = str(context.run_as_user.value) if context.HasField("run_as_user") else ""
    if isinstance(context, pb.LinuxContainerSecurityContext):
        user = user or context.run_as_username
    if not context.HasField("run_as_group"):
        return user
    if not user:
        raise invalid("security_context.run_as_group", "needs run_as_user or run_as_username")
    return f"{user}:{context.run_as_group.value}"


def _security_options(
    context: pb.LinuxContainerSecurityContext | pb.LinuxSandboxSecurityContext, seccomp: str
) -> list[str]:
    options: list[str] = []
    kind = pb.SecurityProfile
    if not context.privileged:
        filtered, confined, name = _seccomp(context), _apparmor(context), apparmor_name(context)
        if filtered.profile_type == kind.Localhost:
            options.append(f"seccomp={seccomp}")
        elif filtered.profile_type == kind.Unconfined:
            options.append("seccomp=unconfined")
        if name:
            options.append(f"apparmor={name}")
        elif confined.profile_type == kind.Unconfined:
            options.append("apparmor=unconfined")
    selinux = context.selinux_options
    parts = (("user", selinux.user), ("role", selinux.role), ("type", selinux.type), ("level", selinux.level))
    options += [f"label={name}:{value}" for name, value in parts if value]
    if isinstance(context, pb.LinuxContainerSecurityContext):
        if context.privileged:
            options.append("seccomp=unconfined")  # as with Docker without it, not with Podman
        if context.no_new_privs:
            options.append("no-new-privileges")
    return options


def _seccomp(context: pb.LinuxContainerSecurityContext | pb.LinuxSandboxSecurityContext) -> pb.SecurityProfile:
    """The seccomp profile. A client that names none wants none, as with the other runtimes."""
    if context.HasField("seccomp"):
        return context.seccomp
    text = context.seccomp_profile_path
    return _deprecated("seccomp_profile_path", text) if text else pb.SecurityProfile(profile_type=_UNCONFINED)


def _apparmor(context: pb.LinuxContainerSecurityContext | pb.LinuxSandboxSecurityContext) -> pb.SecurityProfile:
    """The AppArmor profile; Docker's own if the client names none."""
    if context.HasField("apparmor") or isinstance(context, pb.LinuxSandboxSecurityContext):
        return context.apparmor
    return _deprecated("apparmor_profile", context.apparmor_profile or "runtime/default")


def _deprecated(field: str, text: str) -> pb.SecurityProfile:
    """The profile that a deprecated field of a security context names."""
    if text.startswith("localhost/"):
        return pb.SecurityProfile(
            profile_type=pb.SecurityProfile.Localhost, localhost_ref=text.removeprefix("localhost/")
        )
    if text not in _PROFILES:
        raise invalid(f"security_context.{field}", f"unknown value {text!r}")
    return pb.SecurityProfile(profile_type=_PROFILES[text])


def _mounts(config: pb.ContainerConfig, facts: RenderFacts) -> list[docker.DockerMount]:
    made = [_mount(mount, number, facts.api) for number, mount in enumerate(config.mounts)]
    mounts = [mount for mount, given in zip(made, config.mounts, strict=True) if not given.selinux_relabel]
    if facts.resolv_conf and all(mount.container_path != RESOLV_CONF for mount in config.mounts):
        mounts.append(docker.DockerMount(type="bind", source=facts.resolv_conf, target=RESOLV_CONF))
    return mounts


def _mount(mount: pb.Mount, number: int, api: tuple[int, int]) -> docker.DockerMount:
    field = f"mounts[{number}]"
    if mount.HasField("image") or mount.image_sub_path:
        raise unimplemented(f"{field}.image")
    if mount.uidMappings or mount.gidMappings:
        raise unimplemented(f"{field}.uidMappings")
    if mount.mount_options:
        raise unimplemented(f"{field}.mount_options")
    if mount.recursive_read_only and api < _READONLY_MOUNTS:
        raise unimplemented(f"{field}.recursive_read_only before API 1.44")
    if mount.propagation not in _PROPAGATION:
        raise invalid(f"{field}.propagation", f"unknown value {mount.propagation}")
    options = docker.DockerMount.BindOptions(propagation=_PROPAGATION[mount.propagation])
    if mount.readonly and api >= _READONLY_MOUNTS:
        # from 1.44 on, Docker makes what is mounted below read-only where it can, unless this is given
        options.read_only_force_recursive = mount.recursive_read_only
        options.read_only_non_recursive = not mount.recursive_read_only
    return docker.DockerMount(
        type="bind",
        source=mount.host_path,
        target=mount.container_path,
        read_only=mount.readonly,
        bind_options=options,
    )


def _relabeled(mount: pb.Mount, number: int) -> str:
    """A mount whose files get the container's SELinux label, which Docker has in the short form of mounts only.

    Docker gives no label where it has no SELinux. The containers of a pod have one label, so that it is that of a single container (`Z`).
    """
    field = f"mounts[{number}].selinux_relabel"
    if ":" in mount.host_path or ":" in mount.container_path:
        raise unimplemented(f"{field} of a path with a colon")
    if mount.recursive_read_only:
        raise unimplemented(f"{field} with recursive_read_only")
    options = ("ro" if mount.readonly else "rw", _PROPAGATION[mount.propagation], "Z")
    return f"{mount.host_path}:{mount.container_path}:{','.join(filter(None, options))}"


def _text(value: bytes, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise invalid(f"envs[{name}].value", "Docker Engine takes only UTF-8") from error


def _signal(signal: int) -> str:
    """The name of a stop signal, as Docker takes it."""
    if signal == pb.SIGNAL_RUNTIME_DEFAULT:
        return ""
    name = pb.Signal.Name(signal).removeprefix("SIGNAL_")
    return name.replace("MINPLUS", "MIN+").replace("MAXMINUS", "MAX-")

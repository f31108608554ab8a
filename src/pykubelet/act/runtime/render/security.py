"""Renders the user, privileges and namespaces of sandboxes and containers. Pure.

Owns: the merge of the pod's and the container's securityContext (the container's wins), the check of runAsNonRoot,
seccomp, AppArmor, capabilities, masked paths, and the namespaces. Source: Kubernetes docs, "Configure a Security Context
for a Pod or Container", KEP-3619 (supplemental groups), KEP-127 (user namespaces), KEP-4265 (procMount).
"""

from __future__ import annotations

from pykubelet.act.runtime.lifecycle.decide_userns import user_namespace_refusal
from pykubelet.act.runtime.render.context import (
    AnyContainer,
    ContainerContext,
    RenderSettings,
    SandboxContext,
)
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import (
    AppArmorProfile,
    Capabilities,
    Pod,
    PodSecurityContext,
    SeccompProfile,
    SecurityContext,
    SELinuxOptions,
)
from pykubelet.base.kit.values import Value
from pykubelet.base.model.roster import pod_ref
from pykubelet.base.model.selinux import options_problem
from pykubelet.edges.cri import cri_pb2

APP_ARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"
MAX_UID = 2**31 - 1

MASKED_PATHS = (
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
)
READ_ONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

_NO_POD_CONTEXT = PodSecurityContext()
_NO_CONTEXT = SecurityContext()
_Profile = cri_pb2.SecurityProfile


class EffectiveIdentity(Value):
    """The user, group and SELinux options that follow from both securityContexts."""

    user: int | None
    group: int | None
    non_root: bool
    selinux: SELinuxOptions | None


def effective_identity(pod: Pod, container: AnyContainer) -> EffectiveIdentity:
    """The container's fields if set, else the pod's."""
    of_pod = pod.spec.securityContext or _NO_POD_CONTEXT
    own = container.securityContext or _NO_CONTEXT
    non_root = of_pod.runAsNonRoot if own.runAsNonRoot is None else own.runAsNonRoot
    return EffectiveIdentity(
        user=of_pod.runAsUser if own.runAsUser is None else own.runAsUser,
        group=of_pod.runAsGroup if own.runAsGroup is None else own.runAsGroup,
        non_root=bool(non_root),
        selinux=own.seLinuxOptions or of_pod.seLinuxOptions,
    )


def image_user(ctx: ContainerContext) -> tuple[int | None, str]:
    """The image's user as (UID, user name), one of them set; UID 0 when the image names none."""
    if ctx.image_uid is None and not ctx.image_username:
        return 0, ""
    return (ctx.image_uid, "") if ctx.image_uid is not None else (None, ctx.image_username)


def verify_run_as_non_root(pod: Pod, container: AnyContainer, uid: int | None, username: str) -> None:
    """Raise ContainerStartError if runAsNonRoot is set and the container would or might run as root. `uid`, `username`: the image's."""
    identity = effective_identity(pod, container)
    if not identity.non_root:
        return
    where = f'(pod: "{pod_ref(pod)}", container: {container.name})'
    if identity.user is not None:
        if identity.user == 0:
            raise ContainerStartError(f"container's runAsUser breaks non-root policy {where}")
        return
    if uid is None:
        if username:
            raise ContainerStartError(
                f"container has runAsNonRoot and image has non-numeric user ({username}), "
                f"cannot verify user is non-root {where}"
            )
        return
    if uid == 0:
        raise ContainerStartError(f"container has runAsNonRoot and image will run as root {where}")
    if not 0 < uid <= MAX_UID:
        raise ContainerStartError(
            f"container has runAsNonRoot and image has an invalid user id ({uid}). (Must be 1-({MAX_UID})): "
            f"must be between 0 and {MAX_UID}, inclusive {where}"
        )


def container_security_context(
    pod: Pod, container: AnyContainer, settings: RenderSettings, ctx: ContainerContext
) -> cri_pb2.LinuxContainerSecurityContext:
    """The security context of a container. ContainerStartError if it cannot be applied."""
    uid, username = image_user(ctx)
    verify_run_as_non_root(pod, container, uid, username)
    identity = effective_identity(pod, container)
    of_pod = pod.spec.securityContext or _NO_POD_CONTEXT
    own = container.securityContext or _NO_CONTEXT
    unmasked = own.procMount == "Unmasked"
    apparmor, apparmor_name = _apparmor(pod, container)
    groups = () if of_pod.fsGroup is None else (of_pod.fsGroup,)
    context = cri_pb2.LinuxContainerSecurityContext(
        privileged=bool(own.privileged),
        readonly_rootfs=bool(own.readOnlyRootFilesystem),
        no_new_privs=own.allowPrivilegeEscalation is False,
        namespace_options=container_namespaces(pod, ctx),
        supplemental_groups=(*groups, *of_pod.supplementalGroups, *ctx.sandbox.supplemental_groups),
        supplemental_groups_policy=groups_policy(of_pod),
        masked_paths=() if unmasked else (*MASKED_PATHS, *settings.extra_masked_paths),
        readonly_paths=() if unmasked else READ_ONLY_PATHS,
        seccomp=_seccomp(own.seccompProfile or of_pod.seccompProfile, settings),
        apparmor=apparmor,
        apparmor_profile=apparmor_name,
        capabilities=_capabilities(own.capabilities),
        selinux_options=selinux_options(identity.selinux, settings),
    )
    if identity.user is not None:
        context.run_as_user.value = identity.user
    elif uid is not None:
        context.run_as_user.value = uid
    else:
        context.run_as_username = username
    if identity.group is not None:
        context.run_as_group.value = identity.group
    return context


def selinux_options(options: SELinuxOptions | None, settings: RenderSettings) -> cri_pb2.SELinuxOption | None:
    """The CRI form of `seLinuxOptions`; None if there are none. ContainerStartError if SELinux is enabled and has no such context."""
    if options is None:
        return None
    if settings.selinux_enabled and (problem := options_problem(options)):
        raise ContainerStartError(f"securityContext.{problem}")
    return cri_pb2.SELinuxOption(user=options.user, role=options.role, type=options.type, level=options.level)


def groups_policy(context: PodSecurityContext) -> cri_pb2.SupplementalGroupsPolicy:
    """The CRI form of the pod's `supplementalGroupsPolicy`."""
    match context.supplementalGroupsPolicy:
        case "" | "Merge":
            return cri_pb2.Merge
        case "Strict":
            return cri_pb2.Strict
        case other:
            raise ContainerStartError(f"unsupported supplementalGroupsPolicy: {other}")


def needs_user_namespace(pod: Pod) -> bool:
    """True for pods with `hostUsers: false`."""
    return pod.spec.hostUsers is False


def pod_namespaces(pod: Pod, ctx: SandboxContext) -> cri_pb2.NamespaceOption:
    """The namespaces of a sandbox and its containers. ContainerStartError if the runtime does not support a requested user namespace."""
    spec = pod.spec
    if spec.hostPID:
        pid = cri_pb2.NODE
    else:
        pid = cri_pb2.POD if spec.shareProcessNamespace else cri_pb2.CONTAINER
    return cri_pb2.NamespaceOption(
        network=cri_pb2.NODE if spec.hostNetwork else cri_pb2.POD,
        ipc=cri_pb2.NODE if spec.hostIPC else cri_pb2.POD,
        pid=pid,
        userns_options=_user_namespace(pod, ctx),
    )


def container_namespaces(pod: Pod, ctx: ContainerContext) -> cri_pb2.NamespaceOption:
    """The namespaces of one container. An ephemeral container may share the process namespace of its target."""
    options = pod_namespaces(pod, ctx.sandbox)
    if ctx.target_container_id and options.pid == cri_pb2.CONTAINER:
        options.pid = cri_pb2.TARGET
        options.target_id = ctx.target_container_id
    return options


def _user_namespace(pod: Pod, ctx: SandboxContext) -> cri_pb2.UserNamespace:
    if not needs_user_namespace(pod):
        return cri_pb2.UserNamespace(mode=cri_pb2.NODE)
    refusal = user_namespace_refusal(ctx.runtime_handler, ctx.handler_features)
    if refusal:
        raise ContainerStartError(refusal)
    if ctx.userns is None:
        raise ContainerStartError("no ids were allocated for the user namespace of the pod")
    return cri_pb2.UserNamespace(
        mode=cri_pb2.POD,
        uids=[
            cri_pb2.IDMapping(host_id=m.host_id, container_id=m.container_id, length=m.length) for m in ctx.userns.uids
        ],
        gids=[
            cri_pb2.IDMapping(host_id=m.host_id, container_id=m.container_id, length=m.length) for m in ctx.userns.gids
        ],
    )


def _capabilities(capabilities: Capabilities | None) -> cri_pb2.Capability | None:
    if capabilities is None:
        return None
    return cri_pb2.Capability(add_capabilities=capabilities.add, drop_capabilities=capabilities.drop)


def _seccomp(profile: SeccompProfile | None, settings: RenderSettings) -> cri_pb2.SecurityProfile:
    if profile is None:
        return _Profile(profile_type=_Profile.RuntimeDefault if settings.seccomp_default else _Profile.Unconfined)
    if profile.type == "RuntimeDefault":
        return _Profile(profile_type=_Profile.RuntimeDefault)
    if profile.type == "Localhost":
        if not profile.localhostProfile:
            raise ContainerStartError("localhostProfile must be set if seccompProfile type is Localhost.")
        path = f"{settings.paths.seccomp}/{profile.localhostProfile}"
        return _Profile(profile_type=_Profile.Localhost, localhost_ref=path)
    if profile.type != "Unconfined":  # not unconfined because of a type that only a newer API server knows
        raise ContainerStartError(f'unknown seccomp profile type: "{profile.type}"')
    return _Profile(profile_type=_Profile.Unconfined)


def app_armor_profile(pod: Pod, container: AnyContainer) -> AppArmorProfile | None:
    """The container's field, else its deprecated annotation, else the pod's field."""
    own = container.securityContext.appArmorProfile if container.securityContext else None
    if own is not None:
        return own
    annotated = pod.metadata.annotations.get(APP_ARMOR_ANNOTATION + container.name)
    if annotated == "runtime/default":
        return AppArmorProfile(type="RuntimeDefault")
    if annotated == "unconfined":
        return AppArmorProfile(type="Unconfined")
    if annotated is not None and annotated.startswith("localhost/"):
        return AppArmorProfile(type="Localhost", localhostProfile=annotated.removeprefix("localhost/"))
    return pod.spec.securityContext.appArmorProfile if pod.spec.securityContext else None


def _apparmor(pod: Pod, container: AnyContainer) -> tuple[cri_pb2.SecurityProfile | None, str]:
    """The profile, and its text for runtimes that only know the deprecated field."""
    profile = app_armor_profile(pod, container)
    if profile is None:
        return None, ""
    match profile.type:
        case "RuntimeDefault":
            return _Profile(profile_type=_Profile.RuntimeDefault), "runtime/default"
        case "Unconfined":
            return _Profile(profile_type=_Profile.Unconfined), "unconfined"
        case "Localhost":
            if not profile.localhostProfile:
                raise ContainerStartError("missing localhost apparmor profile name")
            localhost = _Profile(profile_type=_Profile.Localhost, localhost_ref=profile.localhostProfile)
            return localhost, f"localhost/{profile.localhostProfile}"
        case other:
            raise ContainerStartError(f'unknown apparmor profile type: "{other}"')

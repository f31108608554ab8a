"""Renders the mounts and devices of a container. Pure.

Source: Kubernetes docs, "Volumes" (subPath, mount propagation, recursive read-only: KEP-3857; image volumes: KEP-4639; flags of
bind mounts: KEP-5855). The paths on the host already exist; rendering only decides where they are mounted.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.act.runtime.render.context import (
    AnyContainer,
    ContainerContext,
    RenderSettings,
)
from pykubelet.act.runtime.render.dns import ETC_HOSTS
from pykubelet.act.runtime.render.env import build_environment
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import Pod, VolumeMount
from pykubelet.base.model.arguments import ArgumentSpace, ArgumentsTooLongError, TooLongError, expand_all_known
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.edges.cri import cri_pb2

#: The longest path that the kernel takes, in bytes: PATH_MAX without the NUL.
MAX_PATH = 4095
PATH_LIMIT = f"it has more than {MAX_PATH} bytes"
#: The flags of bind mounts that a pod may set.
_BIND_OPTIONS = frozenset({"noexec", "nodev", "nosuid"})
_PROPAGATION = {
    "": cri_pb2.PROPAGATION_PRIVATE,
    "None": cri_pb2.PROPAGATION_PRIVATE,
    "HostToContainer": cri_pb2.PROPAGATION_HOST_TO_CONTAINER,
    "Bidirectional": cri_pb2.PROPAGATION_BIDIRECTIONAL,
}


def is_too_long(path: str) -> bool:
    """Whether no file can have this path."""
    return len(path) > MAX_PATH or len(path.encode("utf-8", "surrogatepass")) > MAX_PATH


def relative_sub_paths(
    pod: Pod, container: AnyContainer, settings: RenderSettings, ctx: ContainerContext
) -> dict[int, str]:
    """The sub-paths to bind, by index in volumeMounts: checked, with variables expanded, relative to the volume.

    The caller prepares a bind for each path before it renders, and passes the binds as `ctx.subpaths`. Image volumes are left
    out, because the runtime resolves their sub-paths.
    """
    expressions = any(mount.subPathExpr for mount in container.volumeMounts)
    try:
        env = build_environment(pod, container, settings, ctx, ArgumentSpace()) if expressions else {}
    except ArgumentsTooLongError as error:
        raise ContainerStartError(str(error)) from None
    paths = {
        index: _sub_path(mount, env)
        for index, mount in enumerate(container.volumeMounts)
        if mount.name not in ctx.image_volumes
    }
    return {index: path for index, path in paths.items() if path}


def container_mounts(
    pod: Pod, container: AnyContainer, settings: RenderSettings, ctx: ContainerContext, env: Mapping[str, str]
) -> list[cri_pb2.Mount]:
    """The mounts: of devices, of volumes in order, `/etc/hosts`, the termination message. ContainerStartError for an invalid one."""
    mounts = [
        cri_pb2.Mount(container_path=mount.container_path, host_path=mount.host_path, readonly=mount.read_only)
        for mount in ctx.devices.mounts
    ]
    for index, mount in enumerate(container.volumeMounts):
        mounts.append(_volume_mount(container, index, mount, settings, ctx, env))
    relabel = settings.selinux_enabled
    own_hosts = any(mount.mountPath == ETC_HOSTS for mount in container.volumeMounts)
    if ctx.etc_hosts_host_path and (ctx.pod_ips or pod.spec.hostNetwork) and not own_hosts:
        mounts.append(
            cri_pb2.Mount(container_path=ETC_HOSTS, host_path=ctx.etc_hosts_host_path, selinux_relabel=relabel)
        )
    if ctx.termination_log_host_path and container.terminationMessagePath:
        mounts.append(
            cri_pb2.Mount(
                container_path=_absolute(container.terminationMessagePath),
                host_path=ctx.termination_log_host_path,
                selinux_relabel=relabel,
            )
        )
    return mounts


def _volume_mount(
    container: AnyContainer,
    index: int,
    mount: VolumeMount,
    settings: RenderSettings,
    ctx: ContainerContext,
    env: Mapping[str, str],
) -> cri_pb2.Mount:
    path = _absolute(mount.mountPath)
    image = ctx.image_volumes.get(mount.name)
    if image is not None:
        spec = cri_pb2.ImageSpec(image=image.image_ref, user_specified_image=image.user_specified)
        return cri_pb2.Mount(
            container_path=path,
            image=spec,
            image_sub_path=_sub_path(mount, env),
            readonly=True,
            recursive_read_only=_is_recursive_read_only(mount, ctx),
        )
    volume = ctx.mounts.get(mount.name)
    if volume is None or volume.is_block:
        raise ContainerStartError(f'cannot find volume "{mount.name}" to mount into container "{container.name}"')
    if mount.mountPropagation not in _PROPAGATION:
        raise ContainerStartError(f'invalid MountPropagation mode: "{mount.mountPropagation}"')
    return cri_pb2.Mount(
        container_path=path,
        host_path=_host_path(container, index, mount, volume, ctx, env),
        readonly=bool(mount.readOnly) or volume.read_only,
        selinux_relabel=volume.supports_relabel and settings.selinux_enabled,
        propagation=_PROPAGATION[mount.mountPropagation],
        recursive_read_only=_is_recursive_read_only(mount, ctx),
        mount_options=_bind_options(mount) if settings.bind_options else (),
    )


def _bind_options(mount: VolumeMount) -> list[str]:
    """The flags of the bind mount. ContainerStartError for another than those of the API."""
    wrong = next((option for option in mount.bindMountOptions if option not in _BIND_OPTIONS), None)
    if wrong is not None:
        raise ContainerStartError(f'invalid bindMountOptions "{wrong[:64]}" of volume "{mount.name}"')
    return list(dict.fromkeys(mount.bindMountOptions))


def _host_path(
    container: AnyContainer,
    index: int,
    mount: VolumeMount,
    volume: MountedVolume,
    ctx: ContainerContext,
    env: Mapping[str, str],
) -> str:
    if not _sub_path(mount, env):
        return volume.host_path
    if index not in ctx.subpaths:
        raise ContainerStartError(
            f'failed to prepare subPath for volumeMount "{mount.name}" of container "{container.name}"'
        )
    return ctx.subpaths[index]


def _sub_path(mount: VolumeMount, env: Mapping[str, str]) -> str:
    """The path in the volume; "" for the whole volume. ContainerStartError if it leads out of the volume or has an unknown variable."""
    path = mount.subPath
    if mount.subPathExpr:
        try:
            path, missing = expand_all_known(mount.subPathExpr, env, most=MAX_PATH)
        except TooLongError as error:
            raise ContainerStartError(f'subPathExpr of volumeMount "{mount.name}" is too long: {error}') from None
        if missing:
            raise ContainerStartError(f"missing value for {', '.join(missing)}")
    elif is_too_long(path):
        raise ContainerStartError(f'subPath of volumeMount "{mount.name}" is too long: {PATH_LIMIT}')
    if path.startswith("/"):
        raise ContainerStartError(f"error SubPath `{path}` must not be an absolute path")
    if ".." in path.split("/"):
        raise ContainerStartError(f"unable to provision SubPath `{path}`: must not contain '..'")
    return path


def _is_recursive_read_only(mount: VolumeMount, ctx: ContainerContext) -> bool:
    mode = mount.recursiveReadOnly
    if mode in ("", "Disabled"):
        return False
    problem = ""
    features = ctx.sandbox.handler_features
    supported = features is not None and features.recursive_read_only_mounts
    wanted = f'volume "{mount.name}" requested recursive read-only mode, but it is not '
    if not mount.readOnly:
        problem = wanted + "read-only"
    elif mount.mountPropagation not in ("", "None"):
        problem = f'{wanted}compatible with propagation "{mount.mountPropagation}"'
    elif mode not in ("IfPossible", "Enabled"):
        problem = f'unknown recursive read-only mode "{mode}"'
    elif mode == "Enabled" and not supported:
        problem = wanted + "supported by the runtime"
    if problem:
        raise ContainerStartError(f"failed to resolve recursive read-only mode: {problem}")
    return supported


def _absolute(path: str) -> str:
    return path if path.startswith("/") else "/" + path


def container_devices(container: AnyContainer, ctx: ContainerContext) -> list[cri_pb2.Device]:
    """The devices of plugins, then those of block volumes."""
    devices = [
        cri_pb2.Device(host_path=node.host_path, container_path=node.container_path, permissions=node.permissions)
        for node in ctx.devices.nodes
    ]
    for device in container.volumeDevices:
        if not device.devicePath.startswith("/"):
            raise ContainerStartError(f"error DevicePath `{device.devicePath}` must be an absolute path")
        volume = ctx.mounts.get(device.name)
        if volume is None or not volume.is_block:
            raise ContainerStartError(f'cannot find volume "{device.name}" to pass into container "{container.name}"')
        permissions = "r" if volume.read_only else "mrw"
        devices.append(
            cri_pb2.Device(host_path=volume.host_path, container_path=device.devicePath, permissions=permissions)
        )
    return devices

"""From a pod's spec to what has to be done for each of its volumes. Pure.

Rules: what depends on the node's allocatable resources, or on objects of the API server, waits until they are known.
What cannot be had is refused in the reference's words; kinds that nobody here can provide are refused by name.
Source: the Kubernetes documentation "Volumes"; KEP-1967 (size of memory backed volumes).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from pykubelet.act.volumes.api_files import Reader
from pykubelet.act.volumes.downward_api import items_need_node, plan_files
from pykubelet.act.volumes.model import (
    CONFIG_MAP,
    DOWNWARD_API,
    EMPTY_DIR,
    PROJECTED,
    SECRET,
    EmptyDirPlan,
    HostPathPlan,
    InPlacePlan,
    PayloadFile,
    PayloadPlan,
    Plan,
    RefusedPlan,
    UndecidedPlan,
    VolumesError,
)
from pykubelet.act.volumes.projected import plan_projection, sources_need_node
from pykubelet.base.api.core import Container, EmptyDirVolumeSource, Pod, Quantity, Volume
from pykubelet.base.api.huge_pages import page_size
from pykubelet.base.api.quantity import QuantityError, parse
from pykubelet.base.api.resources import in_units
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Content, spoken_key
from pykubelet.base.model.fieldpath import every_container
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.requests import is_limited, pod_limits

MEMORY = "Memory"
HUGE_PAGES = "HugePages"
_NEED_API = (
    "persistentVolumeClaim",
    "ephemeral",
    "csi",
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cinder",
    "gcePersistentDisk",
    "vsphereVolume",
    "portworxVolume",
)
_PLUGINS = {
    "emptyDir": EMPTY_DIR,
    "downwardAPI": DOWNWARD_API,
    "projected": PROJECTED,
    "configMap": CONFIG_MAP,
    "secret": SECRET,
}
_NODE_UNKNOWN = UndecidedPlan("what the node can allocate is not known yet")


def kind_of(volume: Volume) -> str:
    """The field of the volume that is set: `emptyDir`, `hostPath`...; an empty source is an emptyDir."""
    for name in volume.__struct_fields__:
        if name != "name" and getattr(volume, name) is not None:
            return name
    return "emptyDir"


def plugin_of(kind: str) -> str:
    """The directory below `volumes` where this kind lies; "" for kinds that have none."""
    return _PLUGINS.get(kind, "")


def _all_containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.containers
    yield from pod.spec.initContainers


def has_subpaths(pod: Pod, name: str) -> bool:
    """Whether any container mounts a part of the volume, so that binds of parts may be there."""
    return any(
        mount.name == name and (mount.subPath or mount.subPathExpr)
        for container in _all_containers(pod)
        for mount in container.volumeMounts
    )


def plan_volume(pod: Pod, volume: Volume, node: NodeView, content: Content, paths: Paths) -> Plan:
    """What has to be done for one volume of the pod on this node, with what is known of the API's objects."""
    uid, kind = PodUID(pod.metadata.uid), kind_of(volume)
    try:
        match kind:
            case "emptyDir":
                return _plan_empty_dir(pod, volume, node, paths)
            case "hostPath":
                return _plan_host_path(volume)
            case "image":
                return InPlacePlan("image", "")
            case "downwardAPI" | "projected" | "configMap" | "secret":
                return _plan_payload(pod, volume, node, content, paths.volume(uid, plugin_of(kind), volume.name))
    except (VolumesError, QuantityError) as error:
        return RefusedPlan(str(error))
    if kind in _NEED_API:
        return RefusedPlan(f'volume kind "{kind}" is not supported yet')
    return RefusedPlan(f'volume kind "{kind}" is not supported')


def _fs_group(pod: Pod) -> int | None:
    return pod.spec.securityContext.fsGroup if pod.spec.securityContext is not None else None


def _plan_payload(pod: Pod, volume: Volume, node: NodeView, content: Content, path: str) -> Plan:
    """A volume of files, once everything that goes into them is known."""
    kind = kind_of(volume)
    reader = Reader(pod, content, _default_mode(volume))
    files: list[PayloadFile] = []
    if volume.downwardAPI is not None:
        if not node.allocatable and items_need_node(pod, volume.downwardAPI.items):
            return _NODE_UNKNOWN
        files = plan_files(pod, volume.downwardAPI.items, volume.downwardAPI.defaultMode, node.allocatable)
    elif volume.projected is not None:
        if not node.allocatable and sources_need_node(pod, volume.projected):
            return _NODE_UNKNOWN
        files = plan_projection(pod, volume.projected, reader, node.allocatable)
    elif volume.configMap is not None:
        files = reader.config_map(volume.configMap.name, volume.configMap.items, volume.configMap.optional)
    elif volume.secret is not None:
        files = reader.secret(volume.secret.secretName, volume.secret.items, volume.secret.optional)
    if reader.awaited:
        whats = dict.fromkeys(" ".join(spoken_key(key)) for key in reader.awaited)
        return UndecidedPlan(f"no answer about {', '.join(whats)} yet", tuple(reader.awaited))
    for file in files:
        _check_path(file.path)
    return PayloadPlan(
        kind,
        path,
        tuple({plain.path: plain for plain in map(_plain, files)}.values()),
        _memory_size(pod, None, node),
        _fs_group(pod),
        in_memory=kind != "configMap",
        nested=nested_mount_points(pod, volume.name),
    )


def _default_mode(volume: Volume) -> int | None:
    source = volume.projected or volume.configMap or volume.secret
    return source.defaultMode if source is not None else None


def nested_mount_points(pod: Pod, name: str) -> tuple[str, ...]:
    """Directories of the volume on which a container mounts something else; what lies below such a one is not listed.

    The volume is read-only to the runtime, which therefore cannot make them itself.
    """
    found: dict[str, None] = {}
    for container in every_container(pod):
        mounts = [(mount.name, posixpath.normpath(mount.mountPath)) for mount in container.volumeMounts]
        for own in (path for mounted, path in mounts if mounted == name):
            if own.startswith("../"):
                raise VolumesError(f"invalid container mount point {own}")
            outer: list[str] = []
            for path in sorted(path for _, path in mounts):
                if path.startswith(own + "/") and not any(path.startswith(before + "/") for before in outer):
                    outer.append(path)
                    found[path.removeprefix(own + "/")] = None
    return tuple(found)


def _plain(file: PayloadFile) -> PayloadFile:
    """`./a//b/` is `a/b`: the name under which the file is found again."""
    path = posixpath.normpath(file.path)
    return file if path == file.path else replace(file, path=path)


def _check_path(path: str) -> None:
    """The writer's own names begin with `..`, and nothing may lead out of the volume."""
    parts = path.split("/")
    if path in ("", "."):
        raise VolumesError('invalid path: must not be empty: ""')
    if path.startswith("/"):
        raise VolumesError(f"invalid path: must be relative path: {path}")
    if len(path.encode()) > 4096:
        raise VolumesError("invalid path: must be less than or equal to 4096 characters")
    if ".." in parts:
        raise VolumesError(f"invalid path: must not contain '..': {path}")
    if parts[0].startswith(".."):
        raise VolumesError(f"invalid path: must not start with '..': {path}")
    if any(len(part.encode()) > 255 for part in parts):
        raise VolumesError("invalid path: filenames must be less than or equal to 255 characters")


def _plan_host_path(volume: Volume) -> Plan:
    assert volume.hostPath is not None
    path = volume.hostPath.path
    if ".." in path.split("/"):
        raise VolumesError(f"invalid HostPath `{path}`: must not contain '..'")
    return HostPathPlan(path, volume.hostPath.type) if volume.hostPath.type else InPlacePlan("hostPath", path)


def _plan_empty_dir(pod: Pod, volume: Volume, node: NodeView, paths: Paths) -> Plan:
    source = volume.emptyDir or EmptyDirVolumeSource()
    uid = PodUID(pod.metadata.uid)
    path = paths.volume(uid, EMPTY_DIR, volume.name)
    meta = f"{paths.pod_plugins(uid)}/{EMPTY_DIR}/{volume.name}"
    group = _fs_group(pod)
    if source.medium == "":
        return EmptyDirPlan(path, meta, "", fs_group=group)
    if source.medium == MEMORY:
        if not node.allocatable:
            return _NODE_UNKNOWN
        return EmptyDirPlan(path, meta, MEMORY, size=_memory_size(pod, source.sizeLimit, node), fs_group=group)
    if source.medium == HUGE_PAGES or source.medium.startswith(HUGE_PAGES + "-"):
        if not node.page_sizes and not node.allocatable:
            return _NODE_UNKNOWN
        wanted = _page_size(pod, source.medium, node)
        return EmptyDirPlan(path, meta, HUGE_PAGES, page_size=wanted, fs_group=group)
    raise VolumesError(f'unknown storage medium "{source.medium}"')


def _memory_size(pod: Pod, size_limit: Quantity | None, node: NodeView) -> int:
    """The least of the volume's limit, the pod's memory limit and the node's allocatable memory; 0 when none is known."""
    sizes = [node.allocatable.get("memory", 0), _pod_memory_limit(pod)]
    if size_limit is not None:
        sizes.append(parse(size_limit).value())
    return min((size for size in sizes if size > 0), default=0)


def _pod_memory_limit(pod: Pod) -> int:
    """Bytes; 0 when the pod has none as a whole and not every container has one."""
    return in_units(pod_limits(pod, overhead=False)).get("memory", 0) if is_limited(pod, "memory") else 0


def _page_size(pod: Pod, medium: str, node: NodeView) -> int:
    """Bytes of a huge page, as the medium names it or the containers request it."""
    requested = _huge_page_sizes(pod)
    if medium == HUGE_PAGES:
        if len(requested) > 1:
            raise VolumesError(f"medium: {medium} can't be used if container requests multiple huge page sizes")
        wanted = next(iter(requested), 0)
    else:
        wanted = parse(medium.removeprefix(HUGE_PAGES + "-")).value()
    if wanted not in requested or wanted == 0:
        raise VolumesError(
            f"medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        )
    if wanted not in node.page_sizes:
        raise VolumesError(f"medium {medium}: the node has no huge pages of {wanted} bytes")
    return wanted


def _huge_page_sizes(pod: Pod) -> set[int]:
    """Bytes of each size of pages that the pod or a container names."""
    every = (pod.spec.resources, *(container.resources for container in _all_containers(pod)))
    names = {name for each in every if each is not None for name in (*each.requests, *each.limits)}
    return {size for name in names if (size := page_size(name)) is not None}


def mounted_volume(name: str, plan: EmptyDirPlan | HostPathPlan | PayloadPlan | InPlacePlan) -> MountedVolume:
    """What containers bind once the plan is carried out."""
    match plan:
        case EmptyDirPlan():
            return MountedVolume(name, "emptyDir", plan.path, supports_relabel=True)
        case PayloadPlan():
            return MountedVolume(name, plan.kind, plan.path, read_only=True, supports_relabel=True)
        case HostPathPlan():
            return MountedVolume(name, "hostPath", plan.path)
        case InPlacePlan():
            return MountedVolume(name, plan.kind, plan.path, read_only=plan.kind == "image")

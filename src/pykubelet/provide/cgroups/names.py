"""Names of cgroups. Pure.

Rules:
- A name is a path of parts below the cgroup mount: `cgroupRoot`, `kubepods`, the QoS class, `pod<uid>`. Guaranteed pods
  lie directly below `kubepods`.
- The cgroupfs driver joins the parts by slashes.
- systemd nests slices by their names. Dashes within a part become underscores, and the parts are joined by dashes. Every
    slice is in the slice whose name is one part shorter.
Source: the Kubernetes documentation "Container Runtimes" (cgroup drivers), systemd.slice(5).
"""

from __future__ import annotations

from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.sizing import QOSClass
from pykubelet.provide.cgroups.model import CgroupDriver, ResourceSettings

NODE_GROUP = "kubepods"
POD_PREFIX = "pod"
_QOS_GROUPS = {QOSClass.BURSTABLE: ("burstable",), QOSClass.BEST_EFFORT: ("besteffort",), QOSClass.GUARANTEED: ()}
_SLICE = ".slice"

GroupName = tuple[str, ...]


def split_root(cgroup_root: str) -> GroupName:
    """The parts of cgroupRoot; none for `/` and an empty text."""
    return tuple(part for part in cgroup_root.split("/") if part)


def parse_group(text: str, driver: CgroupDriver) -> GroupName:
    """A group named in the configuration: a path for cgroupfs, a slice (its path or its name) for systemd."""
    if driver is CgroupDriver.CGROUPFS:
        return split_root(text)
    last = text.rstrip("/").rpartition("/")[2].removesuffix(_SLICE)
    return tuple(part.replace("_", "-") for part in last.split("-") if part)


def quoted(name: GroupName) -> str:
    """The name as in Events: `["a" "kubepods"]`."""
    return "[" + " ".join(f'"{part}"' for part in name) + "]"


def node_group(settings: ResourceSettings) -> GroupName:
    """The group of all pods; cgroupRoot itself when there are no QoS groups."""
    root = split_root(settings.cgroup_root)
    return (*root, NODE_GROUP) if settings.cgroups_per_qos else root


def qos_group(settings: ResourceSettings, qos: QOSClass) -> GroupName:
    """The group of the pods of one class."""
    return (*node_group(settings), *_QOS_GROUPS[qos])


def pod_group(settings: ResourceSettings, qos: QOSClass, uid: PodUID) -> GroupName:
    """The group of one pod."""
    return (*qos_group(settings, qos), f"{POD_PREFIX}{uid}")


def driver_path(name: GroupName, driver: CgroupDriver) -> str:
    """The group's path below the mount."""
    if driver is CgroupDriver.CGROUPFS or not name:
        return "/" + "/".join(name)
    slices = [slice_name(name[:depth]) for depth in range(1, len(name) + 1)]
    return "/" + "/".join(slices)


def slice_name(name: GroupName) -> str:
    """The systemd unit of a group: `kubepods-burstable-pod<uid_>.slice`."""
    return "-".join(part.replace("-", "_") for part in name) + _SLICE


def cgroup_parent(settings: ResourceSettings, qos: QOSClass, uid: PodUID) -> str:
    """The value of the sandbox's `linux.cgroup_parent`: a path for cgroupfs, the name of a slice for systemd."""
    if not settings.cgroups_per_qos:
        return settings.cgroup_root
    name = pod_group(settings, qos, uid)
    return driver_path(name, settings.driver) if settings.driver is CgroupDriver.CGROUPFS else slice_name(name)


def read_pod_uid(entry: str, parent: GroupName, driver: CgroupDriver) -> PodUID | None:
    """The UID of the pod that a directory in a QoS group is the group of; None for other directories."""
    if driver is CgroupDriver.SYSTEMD:
        prefix = slice_name(parent).removesuffix(_SLICE) + "-" if parent else ""
        if not entry.endswith(_SLICE) or not entry.startswith(prefix):
            return None
        entry = entry.removesuffix(_SLICE).removeprefix(prefix).replace("_", "-")
    if not entry.startswith(POD_PREFIX) or entry == POD_PREFIX:
        return None
    return PodUID(entry.removeprefix(POD_PREFIX))

"""The mounted volumes of each pod. `Mounts` is written by provide/volumes alone."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.waits import Wait


class DrivenVolume(Value):
    """A volume that a CSI driver mounts: the driver's name, and its name for the volume.

    `path`: where the driver has published a block volume; "" for file systems, which containers bind where they are.
    """

    driver: str
    handle: str
    path: str = ""


class MountedVolume(Value):
    """One volume ready for use.

    `host_path`: what a container's mount binds (a directory, file, socket or device). `read_only`: the volume itself is
    read-only. `supports_relabel`: SELinux labels may be changed. `is_block`: `host_path` is a block device for
    `volumeDevices`. `kind`: the field of the volume's source in the pod's spec. `is_measured`: its use of disk or memory is
    measured and counts as the pod's. `csi`: the driver that measures it instead. `spec_name`: the name of the PersistentVolume
    behind a claim, which its directories have; "" for other volumes. `is_of_one_pod`: no second pod may use the volume.
    `is_migrated`: its source in the API is one of an in-tree cloud plugin. `group`: a supplemental group for all containers of
    the pod, which the volume asks for. `has_stats`: its file system, or the size of its block device, is measured and does not count
    as the pod's. `claim`: namespace and name of its PersistentVolumeClaim. `host_type`: of a hostPath, which must be so before each
    start of a container.
    """

    name: str
    kind: str
    host_path: str
    read_only: bool = False
    supports_relabel: bool = False
    is_block: bool = False
    is_measured: bool = True
    csi: DrivenVolume | None = None
    spec_name: str = ""
    is_of_one_pod: bool = False
    is_migrated: bool = False
    group: int | None = None
    has_stats: bool = False
    claim: tuple[str, str] | None = None
    host_type: str = ""


class DeviceStatus(Value):
    """Where the device of a volume stands, which all its pods share. `name`: its unique name. `directory`: where it is mounted.

    `state`: in words. `since`: wall seconds. `is_attachable`: the Node's `volumesAttached` must list it. `is_leaving`: it is
    being unmounted. `is_busy`: an operation runs.
    """

    name: str
    state: str
    since: float
    directory: str
    is_attachable: bool = False
    is_leaving: bool = False
    error: str = ""
    next_at: float | None = None
    is_busy: bool = False


class MountStatus(Value):
    """Where one volume of a pod stands, for diagnostics.

    `name`: that in the pod; `spec_name`: that of its directory. `kind`: as in `MountedVolume`; "" if it is only known from the
    disk. `directory`: below the pod's own, "" if it has none. `state`: in words. `since`: wall seconds; 0 for one in use.
    `error`: the last failure, or why it cannot be mounted. `is_leaving`: it is to be unmounted. `driver`: the CSI driver that
    mounts it. `claim`: `namespace/name`, "" without one. `is_busy`: an operation runs. `next_step`: what the agent does next by
    itself after a failure, `next_at` (wall seconds) when.
    """

    name: str
    spec_name: str
    state: str
    since: float = 0.0
    kind: str = ""
    directory: str = ""
    driver: str = ""
    error: str = ""
    is_leaving: bool = False
    device: DeviceStatus | None = None
    claim: str = ""
    is_busy: bool = False
    next_step: str = ""
    next_at: float | None = None


class PodMounts(Value):
    """A pod's volumes. `ready`: all that its containers need are mounted. `waits`: which are missing, and why.

    `mounting`: the missing ones are being mounted or are about to be, so the pod's sandbox need not wait for them.
    `holds`: something of them is, or may be, mounted or below the pod's directory, or an operation runs on one.
    """

    volumes: Mapping[str, MountedVolume] = field(default_factory=dict)
    ready: bool = False
    waits: tuple[Wait, ...] = ()
    mounting: bool = False
    holds: bool = False


class AttachLimit(Value):
    """Why the node rejects a pod: no more volumes can be attached to it. `drivers`: the CSI drivers that have reported this."""

    message: str
    drivers: tuple[str, ...]


class Mounts(Value):
    """The volumes by pod. A pod without an entry has nothing mounted, and provide/volumes has nothing of it left on disk.

    `reconstructed`: the volumes that an earlier agent has left are known. `in_use`: the unique names of the attachable volumes
    that pods want or that may be mounted, sorted; None until that is known. `at_limit`: the pods that cannot start here because
    of a limit of volumes.
    """

    pods: Mapping[PodUID, PodMounts] = field(default_factory=dict)
    reconstructed: bool = False
    in_use: tuple[str, ...] | None = None
    at_limit: Mapping[PodUID, AttachLimit] = field(default_factory=dict)

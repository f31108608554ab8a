"""Which volumes of which pods are in place. `Mounts` is written by act/volumes alone."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.waits import Wait


class MountedVolume(Value):
    """One volume ready for use.

    `host_path`: what a container's mount binds (a directory, file, socket or device). `read_only`: the volume itself
    is. `supports_relabel`: SELinux. `is_block`: host_path is a block device for `volumeDevices`. `kind`: its field in the
    pod's volume. `is_measured`: its use of disk or memory is the pod's, and counted.
    """

    name: str
    kind: str
    host_path: str
    read_only: bool = False
    supports_relabel: bool = False
    is_block: bool = False
    is_measured: bool = True


class PodMounts(Value):
    """A pod's volumes. `ready`: all that its containers need are there. `waits`: what is missing, and why.

    `coming`: what is missing will be there any moment, so that the pod's sandbox need not wait for it.
    """

    volumes: Mapping[str, MountedVolume] = field(default_factory=dict)
    ready: bool = False
    waits: tuple[Wait, ...] = ()
    coming: bool = False


class Mounts(Value):
    """By pod. A pod without an entry has nothing mounted and nothing left on disk that act/volumes owns."""

    pods: Mapping[PodUID, PodMounts] = field(default_factory=dict)
    reconstructed: bool = False

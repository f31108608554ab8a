"""What people should hear about the machine when the agent starts, as Events of the node.

Source: the Kubernetes documentation "About cgroup v2" and "Swap memory management"; "DNS for Services and Pods" for the limits.
"""

from __future__ import annotations

import contextlib

from pykubelet.act.runtime.render.dns import resolv_conf_warnings
from pykubelet.base.kit.values import Value
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.reasons import EVENT_CGROUP_V1, EVENT_POSSIBLE_MEMORY_BACKED_VOLUMES_ON_DISK
from pykubelet.config.kubelet import KubeletConfiguration
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import read_text
from pykubelet.edges.host.fs.mounts import tmpfs_no_swap_supported
from pykubelet.edges.host.proc.machine import Machine

_CGROUP_V1 = "cgroup v1 support is in maintenance mode, please migrate to cgroup v2"
_SWAPPED = (
    "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) might be swapped to "
    "disk and should no longer be considered secure."
)


class Circumstances(Value):
    """`has_swap`: it has some, and pods may run beside it. `resolv_conf`: the text of that file; None when there is none."""

    cgroup_v2: bool
    has_swap: bool
    tmpfs_no_swap: bool
    resolv_conf_path: str = ""
    resolv_conf: str | None = None
    cluster_domain: str = ""


def look_around(config: KubeletConfiguration, machine: Machine, *, cgroup_v2: bool) -> Circumstances:
    """Reads the host's resolver file. Where it cannot be read, the pods that need it tell what is wrong with it."""
    text = None
    if config.resolvConf:
        with contextlib.suppress(HostError):
            text = read_text(config.resolvConf)
    return Circumstances(
        cgroup_v2=cgroup_v2,
        has_swap=machine.swap_bytes > 0,
        tmpfs_no_swap=tmpfs_no_swap_supported(machine.kernel_version),
        resolv_conf_path=config.resolvConf,
        resolv_conf=text,
        cluster_domain=config.clusterDomain,
    )


def advice(on: Circumstances) -> tuple[KubeEvent, ...]:
    """What is to be told. Pure."""
    told = []
    if not on.cgroup_v2:
        told.append(warning(EVENT_CGROUP_V1, _CGROUP_V1))
    if on.has_swap and not on.tmpfs_no_swap:
        told.append(warning(EVENT_POSSIBLE_MEMORY_BACKED_VOLUMES_ON_DISK, _SWAPPED))
    if on.resolv_conf is not None:
        told.extend(resolv_conf_warnings(on.resolv_conf_path, on.resolv_conf, on.cluster_domain))
    return tuple(told)

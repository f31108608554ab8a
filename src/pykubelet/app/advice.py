"""Warnings about the machine that the agent posts as Events of the node when it starts.

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

_CGROUP_V1 = (
    "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. Please migrate to cgroup v2. "
    "More information at https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1"
)
_SWAPPED = (
    "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) might be swapped to "
    "disk and should no longer be considered secure."
)


class Circumstances(Value):
    """The facts behind the warnings. `has_swap`: the machine has swap space. `tmpfs_no_swap`: tmpfs can be kept out of swap.

    `resolv_conf`: the text of the resolver file; None if it is not configured or cannot be read.
    """

    cgroup_v2: bool
    has_swap: bool
    tmpfs_no_swap: bool
    resolv_conf_path: str = ""
    resolv_conf: str | None = None
    cluster_domain: str = ""


def read_circumstances(
    config: KubeletConfiguration, machine: Machine, root_dir: str, *, cgroup_v2: bool
) -> Circumstances:
    """Read the host's resolver file, and whether memory-backed volumes can be kept out of swap.

    `root_dir`: a directory in which a test mount may be made. In a user namespace the kernel refuses `noswap`. If the resolver
    file cannot be read, the pods that need it report the error.
    """
    text = None
    if config.resolvConf:
        with contextlib.suppress(HostError):
            text = read_text(config.resolvConf)
    has_swap = machine.swap_bytes > 0
    return Circumstances(
        cgroup_v2=cgroup_v2,
        has_swap=has_swap,
        tmpfs_no_swap=has_swap
        and not machine.in_user_namespace
        and tmpfs_no_swap_supported(machine.kernel_version, root_dir),
        resolv_conf_path=config.resolvConf,
        resolv_conf=text,
        cluster_domain=config.clusterDomain,
    )


def advice(on: Circumstances) -> tuple[KubeEvent, ...]:
    """The warnings to post. Pure."""
    events = []
    if not on.cgroup_v2:
        events.append(warning(EVENT_CGROUP_V1, _CGROUP_V1))
    if on.has_swap and not on.tmpfs_no_swap:
        events.append(warning(EVENT_POSSIBLE_MEMORY_BACKED_VOLUMES_ON_DISK, _SWAPPED))
    if on.resolv_conf is not None:
        events.extend(resolv_conf_warnings(on.resolv_conf_path, on.resolv_conf, on.cluster_domain))
    return tuple(events)

"""The inputs of rendering besides the pod: the agent's settings, and the context of one sandbox or container.

Owns: the values that are passed to `render_sandbox` and `render_container`. The caller collects these values first, so that
rendering is a pure function. Its error is `ContainerStartError`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.act.runtime.render.env_files import EnvFile
from pykubelet.base.api.core import ConfigMap, Container, EphemeralContainer, Secret
from pykubelet.base.api.resources import in_units
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.node import HandlerFeatures, NodeView
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.placement import CpuSet, Devices
from pykubelet.config.settings import Settings
from pykubelet.edges.host.proc.machine import Machine

AnyContainer = Container | EphemeralContainer

NO_SWAP = "NoSwap"
LIMITED_SWAP = "LimitedSwap"


class MemoryQos(Value):
    """Memory QoS (KEP-2570, cgroup v2 only). `tiered`: memoryReservationPolicy is TieredReservation. `for_pods`: bytes of
    memory not reserved for the node's daemons; the hard eviction reservation is not subtracted. `page_size`: bytes."""

    throttling_factor: float = 0.9
    tiered: bool = False
    for_pods: int = 0
    page_size: int = 4096


class RenderSettings(Value):
    """The settings that apply to all pods of the agent.

    `node`: its capacity, allocatable resources and addresses (primary family first) are used. `resolv_conf`: the text of the
    host's file; None if resolvConf is set to "" (no lookups). `resolv_conf_error`: why the file cannot be read.
    `cpu_cfs_quota_period_us`: microseconds. `single_process_oom_kill`: None means not given. `swap_controller`: the
    kernel can limit swap. `swap_capacity`: bytes of swap the node has. `extra_masked_paths`: per-CPU thermal_throttle
    directories that exist on the host. `container_stop_signals`: gate ContainerStopSignals.
    """

    paths: Paths
    node: NodeView
    cluster_domain: str = ""
    cluster_dns: tuple[str, ...] = ()
    resolv_conf: str | None = None
    resolv_conf_error: str = ""
    cpu_cfs_quota: bool = True
    cpu_cfs_quota_period_us: int = 100_000
    seccomp_default: bool = False
    single_process_oom_kill: bool | None = None
    cgroup_v2: bool = False
    swap_behavior: str = NO_SWAP
    swap_controller: bool = False
    swap_capacity: int = 0
    selinux_enabled: bool = False
    extra_masked_paths: tuple[str, ...] = ()
    container_stop_signals: bool = False
    memory_qos: MemoryQos | None = None

    @property
    def memory_capacity(self) -> int:
        """The memory of the machine in bytes; 0 if not known."""
        return self.node.capacity.get("memory", 0)

    @property
    def page_sizes(self) -> tuple[int, ...]:
        """The huge page sizes of the machine, in bytes."""
        return self.node.page_sizes


def render_settings(
    settings: Settings, node: NodeView, *, cgroup_v2: bool, swap_controller: bool, machine: Machine
) -> RenderSettings:
    """The render settings from the agent's configuration, the node and the machine."""
    config = settings.config
    reserved = settings.reserved
    kept = in_units(reserved.system).get("memory", 0) + in_units(reserved.kube).get("memory", 0)
    for_pods = max(0, node.capacity.get("memory", 0) - kept)
    qos = MemoryQos(config.memoryThrottlingFactor or 0.9, settings.has_tiered_memory, for_pods)
    return RenderSettings(
        paths=settings.paths,
        node=node,
        cluster_domain=config.clusterDomain,
        cluster_dns=tuple(config.clusterDNS),
        cpu_cfs_quota=config.cpuCFSQuota,
        cpu_cfs_quota_period_us=settings.cpu_cfs_quota_period_us,
        seccomp_default=settings.seccomp_default,
        single_process_oom_kill=config.singleProcessOOMKill,
        cgroup_v2=cgroup_v2,
        swap_behavior=config.memorySwap.swapBehavior or "NoSwap",
        swap_controller=swap_controller,
        swap_capacity=machine.swap_bytes,
        extra_masked_paths=machine.throttle_paths,
        container_stop_signals=settings.enabled("ContainerStopSignals"),
        memory_qos=qos if settings.enabled("MemoryQoS") and cgroup_v2 else None,
    )


class IDMapping(Value):
    """One range of a user namespace."""

    host_id: int
    container_id: int
    length: int


class UserNamespace(Value):
    """UID and GID mappings of a pod with its own user namespace."""

    uids: tuple[IDMapping, ...]
    gids: tuple[IDMapping, ...]


class SandboxContext(Value):
    """The context of one sandbox.

    `cgroup_parent`: in the form that the runtime expects. `runtime_handler`: of the RuntimeClass, "" for the default.
    `handler_features`: None when the runtime does not know the handler. `userns`: the ranges of a pod with
    `hostUsers: false`. `supplemental_groups`: those that its volumes add. `exclusive_cpus`: the pod has CPUs of its own.
    """

    attempt: int = 0
    cgroup_parent: str = ""
    runtime_handler: str = ""
    handler_features: HandlerFeatures | None = field(default_factory=HandlerFeatures)
    userns: UserNamespace | None = None
    supplemental_groups: tuple[int, ...] = ()
    exclusive_cpus: bool = False


class Unavailable(Value):
    """An API object that could not be read. `not_found`: it does not exist, which is no error for an optional reference."""

    message: str
    not_found: bool = False


class ApiObjects(Value):
    """The objects of the pod's namespace that its environment refers to, by name."""

    config_maps: Mapping[str, ConfigMap | Unavailable] = field(default_factory=dict)
    secrets: Mapping[str, Secret | Unavailable] = field(default_factory=dict)

    def keys(self) -> int:
        """The number of keys of all objects."""
        every = (*self.config_maps.values(), *self.secrets.values())
        return sum(len(found.data) for found in every if not isinstance(found, Unavailable))


class ImageVolume(Value):
    """A pulled image used as a volume."""

    image_ref: str = ""
    user_specified: str = ""


class ContainerContext(Value):
    """The context of one container instance.

    `image_uid` and `image_username`: the user of the image. `pod_ips`: primary family first; empty while not
    known. `mounts`: the pod's volumes by name. `subpaths`: by index in volumeMounts, what to bind instead of the volume
    (see `relative_sub_paths`). `termination_log_host_path`, `etc_hosts_host_path`: the files made for this instance,
    "" for none. `services`: environment of Services, None while they are not known. `api_objects`: None without an API
    server. `env_files`: the files of `fileKeyRef`s by volume and path. `target_container_id`: of an
    ephemeral container.
    """

    restart_count: int = 0
    image_ref: str = ""
    image_uid: int | None = None
    image_username: str = ""
    sandbox: SandboxContext = field(default_factory=SandboxContext)
    pod_ips: tuple[str, ...] = ()
    host_ips: tuple[str, ...] = ()
    mounts: Mapping[str, MountedVolume] = field(default_factory=dict)
    subpaths: Mapping[int, str] = field(default_factory=dict)
    image_volumes: Mapping[str, ImageVolume] = field(default_factory=dict)
    termination_log_host_path: str = ""
    etc_hosts_host_path: str = ""
    services: Mapping[str, str] | None = field(default_factory=dict)
    api_objects: ApiObjects | None = None
    env_files: Mapping[tuple[str, str], EnvFile] = field(default_factory=dict)
    devices: Devices = field(default_factory=Devices)
    cpuset: CpuSet = field(default_factory=CpuSet)
    target_container_id: str = ""

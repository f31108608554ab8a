"""`Settings`: the configuration and the flags in one frozen value.

Owns: the flag-only values, and values that are derived from fields (seconds as float with names ending in `_s`, bytes, one
value from two fields). The fields themselves are in `settings.config`. A component builds its own settings from these, in
the module that declares them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.quantity import parse_text
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.remarks import Remark
from pykubelet.base.model.version import VERSIONS, Release, full_version
from pykubelet.config.behaviors import Behavior, behavior_of
from pykubelet.config.errors import ConfigError
from pykubelet.config.eviction import Threshold, read_thresholds, reserved_by, stall_threshold
from pykubelet.config.gates import FeatureGates
from pykubelet.config.kubelet import KubeletConfiguration, OutputRouting
from pykubelet.config.reserved import Reserved, read_reserved

#: Gates whose features the node declares, sorted by name.
DECLARED = (
    "DRANodeAllocatableResources",
    "DRAOptionalNodeOperations",
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "InPlacePodVerticalScalingMemoryBackedVolumes",
    "RestartAllContainersOnContainerExits",
    "VolumeBindMountOptions",
)
USAGE_MAX_AGE_S = 1.0
CRASH_BACKOFF_INITIAL_S = 10.0
REDUCED_CRASH_BACKOFF_INITIAL_S = 1.0
CRASH_BACKOFF_MAX_S = 300.0
REDUCED_CRASH_BACKOFF_MAX_S = 60.0
#: The back-off of a container that ran this long since the last one starts afresh, whatever the longest wait is.
CRASH_BACKOFF_RESET_S = 600.0


class Flags(Value):
    """Values that only the command line can give. Empty text means "not given". Paths are absolute."""

    config: str = ""
    config_dir: str = ""
    kubeconfig: str = ""
    bootstrap_kubeconfig: str = ""
    hostname_override: str = ""
    node_ip: tuple[str, ...] = ()
    cert_dir: str = "/var/lib/kubelet/pki"
    cloud_provider: str = ""
    emulated_version: str = ""
    root_dir: str = "/var/lib/kubelet"
    seccomp_default: bool = False
    node_labels: Mapping[str, str] = field(default_factory=dict)
    lock_file: str = ""
    exit_on_lock_contention: bool = False
    minimum_container_ttl_duration_s: float = 0.0
    maximum_dead_containers_per_container: int = 1
    maximum_dead_containers: int = -1
    experimental_allocatable_ignore_eviction: bool = False
    runtime_cgroups: str = ""
    cadvisor_port: int = 0
    image_credential_provider_config: str = ""
    image_credential_provider_bin_dir: str = ""
    eviction_dry_run: bool = False
    eviction_stall: Mapping[str, str] = field(default_factory=dict)
    housekeeping_interval_s: float = 10.0
    max_housekeeping_interval_s: float = 15.0
    runonce: bool = False
    experimental_mounter_path: str = ""
    machine_id_file: str = "/etc/machine-id,/var/lib/dbus/machine-id"
    boot_id_file: str = "/proc/sys/kernel/random/boot_id"
    containerd: str = ""
    containerd_namespace: str = "k8s.io"
    container_hints: str = ""
    enable_load_reader: bool = False
    application_metrics_count_limit: int = 100
    log_cadvisor_usage: bool = False
    global_housekeeping_interval_s: float = 60.0
    extension: tuple[str, ...] = ()
    extension_cpu_time_s: float = 0.005


class Settings(Value):
    """All settings of the agent. `inert`: given fields and flags that have no effect in the Kubernetes kubelet either.

    `warnings`: are logged once at start. `files`: the configuration files that were read, in order. `remarks`: about these files.
    """

    config: KubeletConfiguration = field(default_factory=KubeletConfiguration)
    flags: Flags = field(default_factory=Flags)
    gates: FeatureGates = field(default_factory=lambda: FeatureGates({}))
    inert: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()

    def enabled(self, gate: str) -> bool:
        """Whether a feature gate is on."""
        return self.gates.enabled(gate)

    @property
    def release(self) -> Release:
        """The release of Kubernetes that the agent is (`--emulated-version`)."""
        return self.gates.release

    @property
    def behavior(self) -> Behavior:
        """What the release does differently from others without a feature gate."""
        return behavior_of(self.release)

    @property
    def version(self) -> str:
        """The version that the agent reports, such as `v1.37.2+pykubelet.0.9.0`."""
        return full_version(self.release)

    @property
    def kubernetes_version(self) -> str:
        """The version of Kubernetes in it, such as `v1.37.2`."""
        return VERSIONS[self.release]

    def node_name(self, hostname: str) -> str:
        """The node's name on a machine with this `hostname`. Raises ConfigError if the name is empty."""
        name = (self.flags.hostname_override or hostname).strip().lower()
        if not name:
            raise ConfigError("empty hostname is invalid")
        return name

    # -- paths, endpoints and names

    @property
    def standalone(self) -> bool:
        """Whether there is no API server, so that pods come only from manifests."""
        return not self.flags.kubeconfig

    @property
    def run_once(self) -> bool:
        """Whether to run the static pods once and exit."""
        return self.flags.runonce or self.config.runOnce

    @property
    def paths(self) -> Paths:
        """The paths below the agent's directory and the directory of pod logs."""
        return Paths(self.flags.root_dir, self.config.podLogsDir)

    @property
    def image_endpoint(self) -> str:
        """The address of the CRI image service, by default the runtime's."""
        return self.config.imageServiceEndpoint or self.config.containerRuntimeEndpoint

    @property
    def log_json(self) -> bool:
        """Whether log lines are JSON instead of text."""
        return self.config.logging.format == "json"

    @property
    def log_routing(self) -> OutputRouting:
        """The streams of the log, for its format (`logging.options`)."""
        options = self.config.logging.options
        return options.json if self.log_json else options.text

    @property
    def log_buffer_bytes(self) -> int:
        """How many bytes of the log's messages are kept before they are written; 0: none."""
        return max(0, parse_text(self.log_routing.infoBufferSize).value())

    @property
    def declared_features(self) -> tuple[str, ...]:
        """The optional features of this node that the scheduler must know about (KEP-5328), if the runtime has those that need it."""
        if not self.enabled("NodeDeclaredFeatures"):
            return ()
        return tuple(gate for gate in DECLARED if self.enabled(gate))

    # -- periods, in seconds

    @property
    def usage_max_age_s(self) -> float:
        """How old the usage of containers may be that the ports serve: 1 s, unless the housekeeping flags allow more or less."""
        default, flags = Flags(), self.flags
        interval_s = min(flags.housekeeping_interval_s, flags.max_housekeeping_interval_s)
        is_default = interval_s == min(default.housekeeping_interval_s, default.max_housekeeping_interval_s)
        return USAGE_MAX_AGE_S if is_default else interval_s

    @property
    def crash_backoff(self) -> BackoffPolicy:
        """The back-off before a crashed container is restarted."""
        reduced = self.enabled("ReduceDefaultCrashLoopBackOffDecay")
        initial = REDUCED_CRASH_BACKOFF_INITIAL_S if reduced else CRASH_BACKOFF_INITIAL_S
        longest = REDUCED_CRASH_BACKOFF_MAX_S if reduced else CRASH_BACKOFF_MAX_S
        period = self.config.crashLoopBackOff.maxContainerRestartPeriod
        if period is not None and self.enabled("KubeletCrashLoopBackOffMax"):
            longest = period.s
        return BackoffPolicy(min(initial, longest), longest, CRASH_BACKOFF_RESET_S)

    # -- containers and images

    @property
    def container_log_max_bytes(self) -> int:
        """`containerLogMaxSize` in bytes; a negative value disables rotation."""
        return parse_text(self.config.containerLogMaxSize).value()

    @property
    def seccomp_default(self) -> bool:
        """Whether containers without a seccomp profile get RuntimeDefault."""
        return self.flags.seccomp_default or self.config.seccompDefault

    @property
    def pod_pids_limit(self) -> int | None:
        """The most processes of one pod; None: no limit per pod."""
        return None if self.config.podPidsLimit < 0 else self.config.podPidsLimit

    @property
    def cpu_cfs_quota_period_us(self) -> int:
        """`cpuCFSQuotaPeriod` in microseconds."""
        return self.config.cpuCFSQuotaPeriod.ns // 1000

    @property
    def user_namespace_ids_per_pod(self) -> int:
        """`userNamespaces.idsPerPod`, by default 65536."""
        return self.config.userNamespaces.idsPerPod or 65536

    # -- cgroups and reservations

    @property
    def cgroup_root(self) -> str:
        """The parent cgroup of the pods' cgroups; if it is not configured, `/` with QoS cgroups and empty without."""
        return self.config.cgroupRoot or ("/" if self.config.cgroupsPerQOS else "")

    @property
    def reserved(self) -> Reserved:
        """The resources reserved for the system; computed at each call."""
        return read_reserved(self.config, self.enabled("QOSReserved"))[0]

    @property
    def eviction_thresholds(self) -> tuple[Threshold, ...]:
        """The configured eviction thresholds; computed at each call."""
        return read_thresholds(self.config).thresholds

    @property
    def stall_thresholds(self) -> tuple[Threshold, ...]:
        """The thresholds of `--eviction-stall`."""
        return tuple(stall_threshold(name, share) for name, share in self.flags.eviction_stall.items())

    @property
    def has_placement_policy(self) -> bool:
        """Whether the CPU, Memory or Topology Manager has a policy, so that Guaranteed pods are placed."""
        config = self.config
        policies = (config.cpuManagerPolicy, config.memoryManagerPolicy, config.topologyManagerPolicy)
        return policies != ("none", "None", "none")

    def eviction_reserved(self, capacity: Mapping[str, int]) -> dict[str, int]:
        """The amounts by resource that the hard eviction thresholds keep from pods. `capacity`: the node's, by resource."""
        if self.flags.experimental_allocatable_ignore_eviction:
            return {}
        return reserved_by(self.eviction_thresholds, capacity)

    @property
    def has_tiered_memory(self) -> bool:
        """Whether memory QoS protects memory by tiers (`memoryReservationPolicy: TieredReservation`)."""
        return self.config.memoryReservationPolicy == "TieredReservation"

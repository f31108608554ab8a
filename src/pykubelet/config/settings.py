"""`Settings`: the configuration and the flags in one frozen value, which is read everywhere and changed nowhere.

Owns: the flag-only values, and values that are derived from fields (seconds as float ending `_s`, bytes, one value from two
fields). The fields themselves are in `settings.config`. A component builds its own settings from these, in the module that
declares them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.quantity import parse_text
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.paths import Paths
from pykubelet.config.errors import ConfigError
from pykubelet.config.eviction import Threshold, read_thresholds, reserved_by
from pykubelet.config.gates import FeatureGates
from pykubelet.config.kubelet import KubeletConfiguration
from pykubelet.config.reserved import Reserved, read_reserved

#: Gates whose features a node declares, in the order of their names.
DECLARED = (
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
    "UserNamespacesHostNetworkSupport",
)
CRASH_BACKOFF_INITIAL_S = 10.0
REDUCED_CRASH_BACKOFF_INITIAL_S = 1.0
CRASH_BACKOFF_MAX_S = 300.0
REDUCED_CRASH_BACKOFF_MAX_S = 60.0
#: A container that lived this long since its last back-off begins anew, whatever the longest wait is.
CRASH_BACKOFF_RESET_S = 600.0


class Flags(Value):
    """Values that only the command line can give. Empty text means: not given. Paths are absolute."""

    config: str = ""
    config_dir: str = ""
    kubeconfig: str = ""
    bootstrap_kubeconfig: str = ""
    hostname_override: str = ""
    node_ip: tuple[str, ...] = ()
    cert_dir: str = "/var/lib/kubelet/pki"
    cloud_provider: str = ""
    root_dir: str = "/var/lib/kubelet"
    seccomp_default: bool = False
    node_labels: Mapping[str, str] = field(default_factory=dict)
    lock_file: str = ""
    exit_on_lock_contention: bool = False
    minimum_container_ttl_s: float = 0.0
    maximum_dead_containers_per_container: int = 1
    maximum_dead_containers: int = -1
    experimental_allocatable_ignore_eviction: bool = False
    runtime_cgroups: str = ""
    cadvisor_port: int = 0
    image_credential_provider_config: str = ""
    image_credential_provider_bin_dir: str = ""
    housekeeping_interval_s: float = 10.0
    max_housekeeping_interval_s: float = 15.0
    run_once: bool = False


class Settings(Value):
    """`no_effect`: fields and flags that were given and do nothing yet. `warnings`: to be logged once at start.
    `files`: the configuration files that were read, in order."""

    config: KubeletConfiguration = field(default_factory=KubeletConfiguration)
    flags: Flags = field(default_factory=Flags)
    gates: FeatureGates = field(default_factory=lambda: FeatureGates({}))
    no_effect: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def enabled(self, gate: str) -> bool:
        """Whether a feature gate is on."""
        return self.gates.enabled(gate)

    def node_name(self, hostname: str) -> str:
        """The node's name on a machine called `hostname`. Raises ConfigError when nothing is left of it."""
        name = (self.flags.hostname_override or hostname).strip().lower()
        if not name:
            raise ConfigError("empty hostname is invalid")
        return name

    # -- where and who

    @property
    def standalone(self) -> bool:
        """No API server: pods come from manifests alone."""
        return not self.flags.kubeconfig

    @property
    def run_once(self) -> bool:
        return self.flags.run_once or self.config.runOnce

    @property
    def root_dir(self) -> str:
        return self.flags.root_dir

    @property
    def paths(self) -> Paths:
        return Paths(self.root_dir, self.config.podLogsDir)

    @property
    def runtime_endpoint(self) -> str:
        return self.config.containerRuntimeEndpoint

    @property
    def image_endpoint(self) -> str:
        return self.config.imageServiceEndpoint or self.config.containerRuntimeEndpoint

    @property
    def verbosity(self) -> int:
        return self.config.logging.verbosity

    @property
    def log_json(self) -> bool:
        return self.config.logging.format == "json"

    @property
    def declared_features(self) -> tuple[str, ...]:
        """The optional features of this node that the scheduler must know (KEP-5328)."""
        if not self.enabled("NodeDeclaredFeatures"):
            return ()
        return tuple(gate for gate in DECLARED if self.enabled(gate))

    # -- periods, in seconds

    @property
    def sync_frequency_s(self) -> float:
        return self.config.syncFrequency.s

    @property
    def file_check_frequency_s(self) -> float:
        return self.config.fileCheckFrequency.s

    @property
    def http_check_frequency_s(self) -> float:
        return self.config.httpCheckFrequency.s

    @property
    def runtime_request_timeout_s(self) -> float:
        return self.config.runtimeRequestTimeout.s

    @property
    def image_minimum_gc_age_s(self) -> float:
        return self.config.imageMinimumGCAge.s

    @property
    def image_maximum_gc_age_s(self) -> float:
        """0: off."""
        return self.config.imageMaximumGCAge.s

    @property
    def container_log_monitor_interval_s(self) -> float:
        return self.config.containerLogMonitorInterval.s

    @property
    def crash_backoff_max_s(self) -> float:
        """The longest wait before a crashed container is started again."""
        period = self.config.crashLoopBackOff.maxContainerRestartPeriod
        if period is not None and self.enabled("KubeletCrashLoopBackOffMax"):
            return period.s
        reduced = self.enabled("ReduceDefaultCrashLoopBackOffDecay")
        return REDUCED_CRASH_BACKOFF_MAX_S if reduced else CRASH_BACKOFF_MAX_S

    @property
    def crash_backoff_initial_s(self) -> float:
        """The first such wait; never above the longest."""
        reduced = self.enabled("ReduceDefaultCrashLoopBackOffDecay")
        initial = REDUCED_CRASH_BACKOFF_INITIAL_S if reduced else CRASH_BACKOFF_INITIAL_S
        return min(initial, self.crash_backoff_max_s)

    # -- containers and images

    @property
    def container_log_max_bytes(self) -> int:
        return parse_text(self.config.containerLogMaxSize).value()

    @property
    def seccomp_default(self) -> bool:
        """Containers without a seccomp profile get RuntimeDefault."""
        return self.flags.seccomp_default or self.config.seccompDefault

    @property
    def pod_pids_limit(self) -> int | None:
        """Processes of one pod; None: no limit of the pod's own."""
        return None if self.config.podPidsLimit < 0 else self.config.podPidsLimit

    @property
    def cpu_cfs_quota_period_us(self) -> int:
        return self.config.cpuCFSQuotaPeriod.ns // 1000

    @property
    def user_namespace_ids_per_pod(self) -> int:
        return self.config.userNamespaces.idsPerPod or 65536

    # -- cgroups and reservations

    @property
    def cgroup_root(self) -> str:
        """The cgroup below which the pods' cgroups lie; `/` when none is named and there are QoS cgroups."""
        return self.config.cgroupRoot or ("/" if self.config.cgroupsPerQOS else "")

    @property
    def reserved(self) -> Reserved:
        """What is kept for the system; computed at each call."""
        return read_reserved(self.config, self.enabled("QOSReserved"))[0]

    @property
    def eviction_thresholds(self) -> tuple[Threshold, ...]:
        """Computed at each call."""
        return read_thresholds(self.config).thresholds

    def eviction_reserved(self, capacity: Mapping[str, int]) -> dict[str, int]:
        """Bytes by resource that the hard eviction thresholds keep from pods. `capacity`: of the node, by resource."""
        if self.flags.experimental_allocatable_ignore_eviction:
            return {}
        return reserved_by(self.eviction_thresholds, capacity)

    @property
    def has_tiered_memory(self) -> bool:
        """Memory protection is by tiers (memory QoS)."""
        return self.config.memoryReservationPolicy == "TieredReservation"

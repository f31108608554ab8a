"""From the one `Settings` to what each room wants to know. Pure but for what is handed in."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.act.images.model import ImageSettings, Pulls, VerificationPolicy
from pykubelet.act.resources.model import CgroupDriver, Enforce, MemoryProtection, ResourceSettings
from pykubelet.act.runtime.context import MemoryQos, RenderSettings
from pykubelet.act.runtime.gc import GcSettings
from pykubelet.act.runtime.gc_plan import GcPolicy
from pykubelet.act.runtime.log_rotation import RotationSettings
from pykubelet.base.api.resources import in_units
from pykubelet.base.config.settings import Settings
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.waits import Wait
from pykubelet.desired.roster.model import AdmissionRules
from pykubelet.desired.sources.gated import FieldGates
from pykubelet.edges.host.machine import Machine

#: Which hard eviction threshold keeps which resource from pods.
_EVICTION_RESOURCES = {"memory.available": "memory", "nodefs.available": "ephemeral-storage"}

#: Gates whose features a node declares, in the order of their names.
DECLARED = (
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
    "UserNamespacesHostNetworkSupport",
)


def paths_of(settings: Settings) -> Paths:
    return Paths(settings.root_dir, settings.config.podLogsDir)


def admission_rules(settings: Settings, kernel: tuple[int, int], *, app_armor: bool) -> AdmissionRules:
    """`kernel`: major and minor version. `app_armor`: the kernel has it switched on."""
    config = settings.config
    return AdmissionRules(
        allowed_unsafe_sysctls=tuple(config.allowedUnsafeSysctls),
        kernel=kernel,
        max_pods=config.maxPods,
        app_armor=app_armor,
        resize_containers=settings.enabled("InPlacePodVerticalScaling"),
        resize_pods=settings.enabled("InPlacePodLevelResourcesVerticalScaling"),
        resize_init_containers=settings.enabled("InPlacePodVerticalScalingInitContainers"),
        static_cpus=config.cpuManagerPolicy == "static",
        static_memory=config.memoryManagerPolicy == "Static",
        limited_swap=config.memorySwap.swapBehavior == "LimitedSwap",
        pod_level_resources=settings.enabled("PodLevelResources"),
        features=frozenset(declared_features(settings)) if settings.enabled("NodeDeclaredFeatures") else None,
    )


def field_gates(settings: Settings) -> FieldGates:
    return FieldGates(
        hostname_override=settings.enabled("HostnameOverride"),
        env_files=settings.enabled("EnvFiles"),
        restart_rules=settings.enabled("ContainerRestartRules"),
        restart_all=settings.enabled("RestartAllContainersOnContainerExits")
        or settings.enabled("NodeDeclaredFeatures"),
    )


def declared_features(settings: Settings) -> tuple[str, ...]:
    """What of the optional features that the scheduler must know of this node has (KEP-5328)."""
    if not settings.enabled("NodeDeclaredFeatures"):
        return ()
    return tuple(gate for gate in DECLARED if settings.enabled(gate))


def image_settings(settings: Settings) -> ImageSettings:
    config = settings.config
    return ImageSettings(
        records_dir=f"{settings.root_dir}/image_manager",
        serialize=config.serializeImagePulls,
        max_parallel=config.maxParallelImagePulls,
        qps=float(config.registryPullQPS),
        burst=config.registryBurst,
        verification=_verification(config.imagePullCredentialsVerificationPolicy),
        allowlist=frozenset(config.preloadedImagesVerificationAllowlist),
        ensure_secret_pulled=settings.enabled("KubeletEnsureSecretPulledImages"),
        min_age_s=settings.image_minimum_gc_age_s,
        max_age_s=settings.image_maximum_gc_age_s,
        high_percent=config.imageGCHighThresholdPercent,
        low_percent=config.imageGCLowThresholdPercent,
    )


def _verification(policy: str) -> VerificationPolicy:
    """Empty while the gate KubeletEnsureSecretPulledImages is off: then nothing is verified."""
    return VerificationPolicy(policy) if policy else VerificationPolicy.NEVER_VERIFY


def gc_settings(settings: Settings, period_s: float) -> GcSettings:
    flags = settings.flags
    policy = GcPolicy(
        min_age_s=flags.minimum_container_ttl_s,
        per_container=flags.maximum_dead_containers_per_container,
        total=flags.maximum_dead_containers,
    )
    return GcSettings(paths_of(settings), policy, period_s)


def rotation_settings(settings: Settings) -> RotationSettings:
    config = settings.config
    return RotationSettings(
        max_bytes=settings.container_log_max_bytes,
        max_files=config.containerLogMaxFiles,
        workers=config.containerLogMaxWorkers,
        period_s=settings.container_log_monitor_interval_s,
    )


def pull_waits(pulls: Pulls, pod: PodRef) -> list[Wait]:
    """What a pod's containers wait for at the registry, with the place in the queue."""
    waits = []
    for pull in pulls.of_pod(pod):
        detail = f"{pull.stage} {pull.image}" + (f", number {pull.position} in the queue" if pull.position else "")
        waits += [
            Wait("image pull", "act/images", waiting.since, waiting.container, "Pulling", detail, "start the container")
            for waiting in pull.pods
            if waiting.pod == pod
        ]
    return waits


def eviction_reserved(settings: Settings, capacity: Mapping[str, int]) -> dict[str, int]:
    """What the hard eviction thresholds keep free, in bytes."""
    if settings.flags.experimental_allocatable_ignore_eviction:
        return {}
    kept: dict[str, int] = {}
    for threshold in settings.eviction_thresholds:
        resource = _EVICTION_RESOURCES.get(threshold.signal)
        if resource is None or threshold.grace.s > 0:
            continue
        if threshold.limit.amount is not None:
            kept[resource] = threshold.limit.amount.value()
        elif threshold.limit.fraction is not None:
            kept[resource] = int(capacity.get(resource, 0) * threshold.limit.fraction)
    return kept


def resource_settings(
    settings: Settings, capacity: Mapping[str, int], driver: CgroupDriver, *, cgroup_v2: bool = False
) -> ResourceSettings:
    """`driver`: the runtime's choice where it tells one, else the configured one."""
    config = settings.config
    reserved = settings.reserved
    protects = settings.enabled("MemoryQoS") and cgroup_v2
    return ResourceSettings(
        cgroup_root=settings.cgroup_root,
        cgroups_per_qos=config.cgroupsPerQOS,
        driver=driver,
        cpu_cfs_quota=config.cpuCFSQuota,
        cpu_cfs_quota_period_us=settings.cpu_cfs_quota_period_us,
        pod_pids_limit=settings.pod_pids_limit,
        system_reserved=in_units(reserved.system),
        kube_reserved=in_units(reserved.kube),
        eviction_reserved=eviction_reserved(settings, capacity),
        enforce=frozenset(Enforce(name) for name in config.enforceNodeAllocatable),
        system_reserved_cgroup=config.systemReservedCgroup,
        kube_reserved_cgroup=config.kubeReservedCgroup,
        qos_reserved_memory=reserved.qos.get("memory"),
        memory_protection=MemoryProtection(config.memoryReservationPolicy) if protects else MemoryProtection.OFF,
    )


def render_settings(settings: Settings, node: NodeView, *, cgroup_v2: bool, machine: Machine) -> RenderSettings:
    config = settings.config
    reserved = settings.reserved
    kept = in_units(reserved.system).get("memory", 0) + in_units(reserved.kube).get("memory", 0)
    tiered = config.memoryReservationPolicy == MemoryProtection.TIERED
    for_pods = max(0, node.capacity.get("memory", 0) - kept)
    qos = MemoryQos(config.memoryThrottlingFactor or 0.9, tiered, for_pods)
    return RenderSettings(
        paths=paths_of(settings),
        node=node,
        cluster_domain=config.clusterDomain,
        cluster_dns=tuple(config.clusterDNS),
        cpu_cfs_quota=config.cpuCFSQuota,
        cpu_cfs_quota_period_us=settings.cpu_cfs_quota_period_us,
        seccomp_default=settings.seccomp_default,
        single_process_oom_kill=config.singleProcessOOMKill,
        cgroup_v2=cgroup_v2,
        swap_behavior=config.memorySwap.swapBehavior or "NoSwap",
        swap_controller=cgroup_v2,
        swap_capacity=machine.swap_bytes,
        extra_masked_paths=machine.throttle_paths,
        container_stop_signals=settings.enabled("ContainerStopSignals"),
        memory_qos=qos if settings.enabled("MemoryQoS") and cgroup_v2 else None,
    )

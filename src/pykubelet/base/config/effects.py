"""Which fields and flags do something: the one list to extend when a part of the agent is built.

A field that is accepted, given explicitly and not listed here is named once in the log at start, so that nobody relies
on it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.base.config.gates import settable_gates

# Dotted paths of KubeletConfiguration; a path covers all below it.
EFFECTIVE = frozenset(
    {
        "address",
        "allowedUnsafeSysctls",
        "authentication",
        "authorization",
        "cgroupDriver",
        "cgroupRoot",
        "cgroupsPerQOS",
        "clusterDNS",
        "clusterDomain",
        "configMapAndSecretChangeDetectionStrategy",
        "containerLogMaxFiles",
        "containerLogMaxSize",
        "containerLogMaxWorkers",
        "containerLogMonitorInterval",
        "containerRuntimeEndpoint",
        "cpuCFSQuota",
        "cpuCFSQuotaPeriod",
        "crashLoopBackOff",
        "enableControllerAttachDetach",
        "enableDebugFlagsHandler",
        "enableDebuggingHandlers",
        "enableProfilingHandler",
        "enableServer",
        "enableSystemLogHandler",
        "enableSystemLogQuery",
        "enforceNodeAllocatable",
        "eventBurst",
        "eventRecordQPS",
        "failCgroupV1",
        "failSwapOn",
        "featureGates",
        "fileCheckFrequency",
        "healthzBindAddress",
        "healthzPort",
        "httpCheckFrequency",
        "imageGCHighThresholdPercent",
        "imageGCLowThresholdPercent",
        "imageMaximumGCAge",
        "imageMinimumGCAge",
        "imagePullCredentialsVerificationPolicy",
        "imageServiceEndpoint",
        "kubeAPIBurst",
        "kubeAPIQPS",
        "kubeReserved",
        "kubeReservedCgroup",
        "kubeletCgroups",
        "localStorageCapacityIsolation",
        "logging.format",
        "logging.verbosity",
        "makeIPTablesUtilChains",
        "maxOpenFiles",
        "maxParallelImagePulls",
        "maxPods",
        "memoryReservationPolicy",
        "memorySwap.swapBehavior",
        "memoryThrottlingFactor",
        "nodeLeaseDurationSeconds",
        "nodeStatusMaxImages",
        "nodeStatusReportFrequency",
        "nodeStatusUpdateFrequency",
        "oomScoreAdj",
        "podLogsDir",
        "podPidsLimit",
        "podsPerCore",
        "port",
        "preloadedImagesVerificationAllowlist",
        "protectKernelDefaults",
        "providerID",
        "qosReserved",
        "readOnlyPort",
        "registerNode",
        "registerWithTaints",
        "registryBurst",
        "registryPullQPS",
        "reservedSystemCPUs",
        "resolvConf",
        "rotateCertificates",
        "runOnce",
        "runtimeRequestTimeout",
        "seccompDefault",
        "serializeImagePulls",
        "serverTLSBootstrap",
        "singleProcessOOMKill",
        "staticPodPath",
        "staticPodURL",
        "staticPodURLHeader",
        "streamingConnectionIdleTimeout",
        "syncFrequency",
        "systemReserved",
        "systemReservedCgroup",
        "tlsCertFile",
        "tlsCipherSuites",
        "tlsCurvePreferences",
        "tlsMinVersion",
        "tlsPrivateKeyFile",
        "userNamespaces.idsPerPod",
        "volumeStatsAggPeriod",
    }
)

# Flags without a field.
EFFECTIVE_FLAGS = frozenset(
    {
        "bootstrap-kubeconfig",
        "cadvisor-port",
        "cert-dir",
        "cloud-provider",
        "config",
        "config-dir",
        "experimental-allocatable-ignore-eviction",
        "help",
        "hostname-override",
        "image-credential-provider-bin-dir",
        "image-credential-provider-config",
        "kubeconfig",
        "lock-file",
        "maximum-dead-containers",
        "maximum-dead-containers-per-container",
        "minimum-container-ttl-duration",
        "node-ip",
        "node-labels",
        "root-dir",
        "runonce",
        "runtime-cgroups",
        "seccomp-default",
        "version",
    }
)


# Fields that do a part of what they are for: what each does, and what it does not yet.
IN_PART = {
    "evictionHard": "evictionHard lowers what pods may request (allocatable); no pod is evicted because of it yet",
    "systemCgroups": "systemCgroups names the group of which usage is told; no process is moved there yet",
}

# Feature gates of the kubelet that may be set and do something.
EFFECTIVE_GATES = frozenset(
    {
        "ChangeContainerStatusOnKubeletRestart",
        "ComponentFlagz",
        "ComponentStatusz",
        "ContainerCheckpoint",
        "ContainerRestartRules",
        "ContainerStopSignals",
        "CustomCPUCFSQuotaPeriod",
        "EnvFiles",
        "ExtendWebSocketsToKubelet",
        "HostnameOverride",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
        "KubeletCrashLoopBackOffMax",
        "KubeletEnsureSecretPulledImages",
        "MemoryQoS",
        "NodeDeclaredFeatures",
        "PodLevelResources",
        "PodLogsQuerySplitStreams",
        "PodReadyToStartContainersCondition",
        "QOSReserved",
        "ReduceDefaultCrashLoopBackOffDecay",
        "RestartAllContainersOnContainerExits",
        "RotateKubeletServerCertificate",
    }
)


def gates_without_effect(given: Iterable[str]) -> tuple[str, ...]:
    """Of the given gates those that the kubelet knows, that are not locked, and that are never asked here, by path.

    Gates of other components are not told: one value often serves them all.
    """
    kubelets = settable_gates()
    return tuple(sorted(f"featureGates.{name}" for name in given if name in kubelets and name not in EFFECTIVE_GATES))


def without_effect(fields: Iterable[str], flags: Iterable[str]) -> tuple[str, ...]:
    """Of the given field paths and flag names those that do nothing yet, sorted; flags with their dashes."""
    idle = [path for path in fields if not _covered(path) and path not in IN_PART]
    idle += [f"--{name}" for name in flags if name not in EFFECTIVE_FLAGS]
    return tuple(sorted(set(idle)))


def in_part(fields: Iterable[str]) -> tuple[str, ...]:
    """What is to be said of the given fields that do only a part, in their order by name."""
    return tuple(IN_PART[path] for path in sorted(set(fields) & IN_PART.keys()))


def _covered(path: str) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:end]) in EFFECTIVE for end in range(1, len(parts) + 1))

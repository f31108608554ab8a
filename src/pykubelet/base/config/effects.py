"""Which fields and flags do something: the one list to extend when a part of the agent is built.

A field that is accepted, given explicitly and not listed here is named once in the log at start, so that nobody relies
on it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

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
        "systemCgroups",
        "systemReserved",
        "systemReservedCgroup",
        "tlsCertFile",
        "tlsCipherSuites",
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


def without_effect(fields: Iterable[str], flags: Iterable[str]) -> tuple[str, ...]:
    """Of the given field paths and flag names those that do nothing yet, sorted; flags with their dashes."""
    idle = [path for path in fields if not _covered(path)]
    idle += [f"--{name}" for name in flags if name not in EFFECTIVE_FLAGS]
    return tuple(sorted(set(idle)))


def _covered(path: str) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:end]) in EFFECTIVE for end in range(1, len(parts) + 1))

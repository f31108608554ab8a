"""Finds given fields, flags and feature gates that have no effect yet; the agent logs them once at start. Pure.

Fields without effect are marked in `kubelet.py`. Flags without a field and gates are listed here if they have an effect.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.config.gates import settable_gates
from pykubelet.config.schema import partly_by_path

# Flags without a field that have an effect.
EFFECTIVE_FLAGS = frozenset(
    {
        "bootstrap-kubeconfig",
        "cadvisor-port",
        "cert-dir",
        "cloud-provider",
        "config",
        "config-dir",
        "eviction-dry-run",
        "eviction-stall",
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

# Feature gates of the kubelet that may be set and have an effect.
EFFECTIVE_GATES = frozenset(
    {
        "ChangeContainerStatusOnKubeletRestart",
        "ComponentFlagz",
        "ComponentStatusz",
        "ContainerCheckpoint",
        "ContainerRestartRules",
        "ContainerStopSignals",
        "CPUManagerPolicyAlphaOptions",
        "CPUManagerPolicyBetaOptions",
        "CSIVolumeHealth",
        "CustomCPUCFSQuotaPeriod",
        "DRAExtendedResource",
        "DisableCPUQuotaWithExclusiveCPUs",
        "EnvFiles",
        "ExtendWebSocketsToKubelet",
        "GracefulNodeShutdown",
        "GracefulNodeShutdownBasedOnPodPriority",
        "HostnameOverride",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
        "KubeletCrashLoopBackOffMax",
        "KubeletEnsureSecretPulledImages",
        "KubeletSeparateDiskGC",
        "KubeletPodResourcesListUseActivePods",
        "LocalStorageCapacityIsolationFSQuotaMonitoring",
        "MemoryQoS",
        "NodeDeclaredFeatures",
        "PodLevelResources",
        "PodLogsQuerySplitStreams",
        "PodReadyToStartContainersCondition",
        "QOSReserved",
        "ReduceDefaultCrashLoopBackOffDecay",
        "ResourceHealthStatus",
        "ResourceHealthStatusMessage",
        "RestartAllContainersOnContainerExits",
        "RotateKubeletServerCertificate",
        "SELinuxMount",
        "TopologyManagerPolicyAlphaOptions",
        "TopologyManagerPolicyBetaOptions",
    }
)


def gates_without_effect(given: Iterable[str]) -> tuple[str, ...]:
    """The paths of given gates that the kubelet reads, that are not locked, and that have no effect in this agent.

    Gates of other components are left out, because one value often serves all components.
    """
    kubelets = settable_gates()
    return tuple(sorted(f"featureGates.{name}" for name in given if name in kubelets and name not in EFFECTIVE_GATES))


def without_effect(fields: Iterable[str], flags: Iterable[str]) -> tuple[str, ...]:
    """The given field paths and flag names that have no effect yet, sorted; flags with their dashes."""
    idle = [path for path in fields if partly_by_path().get(path) == ""]
    idle += [f"--{name}" for name in flags if name not in EFFECTIVE_FLAGS]
    return tuple(sorted(set(idle)))


def in_part(fields: Iterable[str]) -> tuple[str, ...]:
    """The warnings about given fields that have only a part of their effect, sorted by field name."""
    partly = partly_by_path()
    return tuple(partly[path] for path in sorted(set(fields)) if partly.get(path))

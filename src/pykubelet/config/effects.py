"""Finds given settings without effect; the agent logs them once at start. Pure.

Fields without effect are marked in `kubelet.py`. Flags without effect are listed here, and gates that have an effect.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.config.gates import settable_gates
from pykubelet.config.kubelet import PROTOBUF, KubeletConfiguration
from pykubelet.config.schema import partly_by_path

#: Flags without effect in the Kubernetes kubelet. They configure parts of cAdvisor that it does not use.
INERT_FLAGS = frozenset(
    {
        "event-storage-age-limit",
        "event-storage-event-limit",
        "storage-driver-buffer-duration",
        "storage-driver-db",
        "storage-driver-host",
        "storage-driver-password",
        "storage-driver-secure",
        "storage-driver-table",
        "storage-driver-user",
    }
)
#: Flags that are refused wherever the Kubernetes kubelet gives them an effect (`flag_values.py`, `validate_host.py`, `load.py`).
REFUSED_FLAGS = frozenset(
    {"application-metrics-count-limit", "container-hints", "enable-load-reader", "experimental-mounter-path"}
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
        "LoggingAlphaOptions",
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
    """The given field paths and flag names that have no effect, here and in the Kubernetes kubelet; flags with their dashes."""
    inert = [path for path in fields if partly_by_path().get(path) == ""]
    inert += [f"--{name}" for name in flags if name in INERT_FLAGS | REFUSED_FLAGS]
    return tuple(sorted(set(inert)))


def in_part(fields: Iterable[str]) -> tuple[str, ...]:
    """The warnings about given fields that have only a part of their effect, sorted by field name."""
    partly = partly_by_path()
    return tuple(partly[path] for path in sorted(set(fields)) if partly.get(path))


def json_warning(config: KubeletConfiguration, fields: Iterable[str]) -> tuple[str, ...]:
    """The warning that JSON is used, if protobuf is asked for explicitly."""
    if "contentType" not in fields or config.contentType != PROTOBUF:
        return ()
    return (f"contentType: {PROTOBUF} is not used; requests to the API server are JSON, which it answers alike",)

"""Fields, flags and feature gates that are given and do nothing yet. They are named once in the log at start. Pure.

Fields say so themselves (`kubelet.py`); flags without a field and gates that have an effect are listed here.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.config.gates import settable_gates
from pykubelet.config.schema import partly_by_path

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

    Gates of other components are left out: one value often serves them all.
    """
    kubelets = settable_gates()
    return tuple(sorted(f"featureGates.{name}" for name in given if name in kubelets and name not in EFFECTIVE_GATES))


def without_effect(fields: Iterable[str], flags: Iterable[str]) -> tuple[str, ...]:
    """Of the given field paths and flag names those that do nothing yet, sorted; flags with their dashes."""
    idle = [path for path in fields if partly_by_path().get(path) == ""]
    idle += [f"--{name}" for name in flags if name not in EFFECTIVE_FLAGS]
    return tuple(sorted(set(idle)))


def in_part(fields: Iterable[str]) -> tuple[str, ...]:
    """The warnings about the given fields that do a part of their work, in their order by name."""
    partly = partly_by_path()
    return tuple(partly[path] for path in sorted(set(fields)) if partly.get(path))

"""Every rule of the validator, broken once: the document, and the messages people will search for.

Rules of `validate.py` are here, those of its parts in a module for each of them.
"""

from __future__ import annotations

from typing import Any

from config.validate_eviction_cases import EVICTION
from config.validate_logs_cases import CONTAINER_LOGS, OWN_LOG
from config.validate_node_cases import NODE
from config.validate_server_cases import SERVER

NO_CRASH = {"KubeletCrashLoopBackOffMax": False}

#: Messages without the prefix "invalid configuration: ".
PREFIXED: list[tuple[dict[str, Any], list[str]]] = [
    ({"nodeLeaseDurationSeconds": -1}, ["nodeLeaseDurationSeconds must be greater than 0"]),
    (
        {"systemCgroups": "/system"},
        ["systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified"],
    ),
    ({"eventBurst": -1}, ["eventBurst (--event-burst) -1 must not be a negative number"]),
    ({"eventRecordQPS": -1}, ["eventRecordQPS (--event-qps) -1 must not be a negative number"]),
    ({"kubeAPIBurst": -1}, ["kubeAPIBurst (--kube-api-burst) -1 must not be a negative number"]),
    ({"kubeAPIQPS": -1}, ["kubeAPIQPS (--kube-api-qps) -1 must not be a negative number"]),
    ({"maxOpenFiles": -1}, ["maxOpenFiles (--max-open-files) -1 must not be a negative number"]),
    ({"maxPods": -1}, ["maxPods (--max-pods) -1 must not be a negative number"]),
    ({"podsPerCore": -1}, ["podsPerCore (--pods-per-core) -1 must not be a negative number"]),
    ({"registryBurst": -1}, ["registryBurst (--registry-burst) -1 must not be a negative number"]),
    ({"registryPullQPS": -1}, ["registryPullQPS (--registry-qps) -1 must not be a negative number"]),
    (
        {"cpuCFSQuotaPeriod": "10us"},
        ["cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {10µs} must be between 1ms and 1sec, inclusive"],
    ),
    (
        {"cpuCFSQuotaPeriod": "2s"},
        ["cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {2s} must be between 1ms and 1sec, inclusive"],
    ),
    (
        {"cpuCFSQuotaPeriod": "50ms", "featureGates": {"CustomCPUCFSQuotaPeriod": False}},
        ["cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {50ms} requires feature gate CustomCPUCFSQuotaPeriod"],
    ),
    (
        {"imageGCHighThresholdPercent": 101},
        ["imageGCHighThresholdPercent (--image-gc-high-threshold) 101 must be between 0 and 100, inclusive"],
    ),
    (
        {"imageGCLowThresholdPercent": -1},
        ["imageGCLowThresholdPercent (--image-gc-low-threshold) -1 must be between 0 and 100, inclusive"],
    ),
    (
        {"imageGCLowThresholdPercent": 85},
        [
            "imageGCLowThresholdPercent (--image-gc-low-threshold) 85 must be less than "
            "imageGCHighThresholdPercent (--image-gc-high-threshold) 85"
        ],
    ),
    (
        {"nodeStatusReportFrequency": "-1s"},
        ["nodeStatusReportFrequency -1s must not be negative: a duration, or 0 for the default"],
    ),
    (
        {"authentication": {"webhook": {"cacheTTL": "-1s"}}},
        [
            "authentication.webhook.cacheTTL (--authentication-token-webhook-cache-ttl) -1s must not be negative: "
            "a duration, or 0 for the default"
        ],
    ),
    ({"imageMinimumGCAge": "-1s"}, ["imageMinimumGCAge -1s must not be negative"]),
    ({"imageMaximumGCAge": "-1s"}, ["imageMaximumGCAge -1s must not be negative"]),
    ({"imageMaximumGCAge": "2m"}, ["imageMaximumGCAge 2m0s must be greater than imageMinimumGCAge 2m0s"]),
    ({"iptablesDropBit": 32}, ["iptablesDropBit (--iptables-drop-bit) 32 must be between 0 and 31, inclusive"]),
    (
        {"iptablesMasqueradeBit": -1},
        ["iptablesMasqueradeBit (--iptables-masquerade-bit) -1 must be between 0 and 31, inclusive"],
    ),
    ({"nodeStatusMaxImages": -2}, ["nodeStatusMaxImages (--node-status-max-images) -2 must be -1 or greater"]),
    ({"oomScoreAdj": -1001}, ["oomScoreAdj (--oom-score-adj) -1001 must be between -1000 and 1000, inclusive"]),
    ({"oomScoreAdj": 1001}, ["oomScoreAdj (--oom-score-adj) 1001 must be between -1000 and 1000, inclusive"]),
    ({"maxParallelImagePulls": 0}, ["maxParallelImagePulls 0 must be a positive number"]),
    (
        {"maxParallelImagePulls": 2, "serializeImagePulls": True},
        [
            "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) "
            "is set to false"
        ],
    ),
    (
        {"serverTLSBootstrap": True, "featureGates": {"RotateKubeletServerCertificate": False}},
        ["serverTLSBootstrap true requires feature gate RotateKubeletServerCertificate"],
    ),
    (
        {"registerWithTaints": [{"key": "a", "effect": "NoSchedule", "timeAdded": "2020-01-01T00:00:00Z"}]},
        ["taint.TimeAdded is not nil"],
    ),
    (
        {"shutdownGracePeriod": "10s", "shutdownGracePeriodCriticalPods": "20s"},
        ["shutdownGracePeriodCriticalPods {20s} must be <= shutdownGracePeriod {10s}"],
    ),
    (
        {"shutdownGracePeriod": "500ms"},
        ["shutdownGracePeriod {500ms} must be either zero or otherwise >= 1 sec"],
    ),
    (
        {"shutdownGracePeriod": "10s", "shutdownGracePeriodCriticalPods": "5ms"},
        ["shutdownGracePeriodCriticalPods {5ms} must be either zero or otherwise >= 1 sec"],
    ),
    (
        {
            "shutdownGracePeriod": "10s",
            "featureGates": {
                "GracefulNodeShutdown": False,
                "GracefulNodeShutdownBasedOnPodPriority": False,
                "WindowsGracefulNodeShutdown": False,
            },
        },
        [
            "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate "
            "GracefulNodeShutdown"
        ],
    ),
    (
        {"shutdownGracePeriod": "10s", "shutdownGracePeriodByPodPriority": [{"priority": 1}]},
        ["Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time"],
    ),
    (
        {
            "shutdownGracePeriodByPodPriority": [{"priority": 1}],
            "featureGates": {"GracefulNodeShutdownBasedOnPodPriority": False},
        },
        ["Specifying shutdownGracePeriodByPodPriority requires feature gate GracefulNodeShutdownBasedOnPodPriority"],
    ),
    (
        {"crashLoopBackOff": {"maxContainerRestartPeriod": "500ms"}},
        ["CrashLoopBackOff.MaxContainerRestartPeriod (got: 0.5 seconds) must be set between 1s and 300s"],
    ),
    (
        {"crashLoopBackOff": {"maxContainerRestartPeriod": "301s"}},
        ["CrashLoopBackOff.MaxContainerRestartPeriod (got: 301 seconds) must be set between 1s and 300s"],
    ),
    (
        {"crashLoopBackOff": {"maxContainerRestartPeriod": "5s"}, "featureGates": NO_CRASH},
        [
            "FeatureGate KubeletCrashLoopBackOffMax not enabled, CrashLoopBackOff.MaxContainerRestartPeriod "
            "must not be set"
        ],
    ),
    *(
        ({field: "-1s"}, [f"{field} (--{flag}) -1s must not be negative: a duration, or 0 for the default"])
        for field, flag in (
            ("syncFrequency", "sync-frequency"),
            ("fileCheckFrequency", "file-check-frequency"),
            ("httpCheckFrequency", "http-check-frequency"),
            ("runtimeRequestTimeout", "runtime-request-timeout"),
            ("nodeStatusUpdateFrequency", "node-status-update-frequency"),
            ("evictionPressureTransitionPeriod", "eviction-pressure-transition-period"),
        )
    ),
]

#: Messages that carry no prefix.
BARE: list[tuple[dict[str, Any], list[str]]] = [
    ({"featureGates": {"Nope": True}}, ["unrecognized feature gate: Nope"]),
    (
        {"featureGates": {"NodeSwap": False}},
        ["cannot set feature gate NodeSwap to false, feature is locked to true"],
    ),
    (
        {"featureGates": {"ContainerRestartRules": False}},
        [
            "RestartAllContainersOnContainerExits is enabled, but depends on features that are disabled: "
            "[ContainerRestartRules]"
        ],
    ),
    ({"registerWithTaints": [None]}, ["invalid taint: {   <nil>}"]),
    ({"registerWithTaints": [{"key": "a b", "effect": "NoSchedule"}]}, ["invalid taint: {a b  NoSchedule <nil>}"]),
    ({"registerWithTaints": [{"key": "a", "effect": "Never"}]}, ["invalid taint: {a  Never <nil>}"]),
    (
        {"showHiddenMetricsForVersion": "1.34"},
        [
            'invalid showHiddenMetricsForVersion: showHiddenMetricsForVersion: Invalid value: "1.34": must be omitted or have '
            "the value '1.36'; only the previous minor version is allowed"
        ],
    ),
]

ALL = [
    *(
        (document, [f"invalid configuration: {text}" for text in texts])
        for document, texts in (*PREFIXED, *NODE, *EVICTION, *SERVER, *CONTAINER_LOGS)
    ),
    *BARE,
    *OWN_LOG,
]

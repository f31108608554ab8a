"""Every rule of the validator, broken once: the document, and the messages people will search for."""

from __future__ import annotations

from typing import Any

from config.validate_eviction_cases import EVICTION

ENFORCE = "enforceNodeAllocatable (--enforce-node-allocatable)"
ENFORCEMENTS = (
    '"pods", "system-reserved", "system-reserved-compressible", "kube-reserved", "kube-reserved-compressible" or "none"'
)
ALLOW = "preloadedImagesVerificationAllowlist"
ALLOWED = {"imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages"}
NO_CRASH = {"KubeletCrashLoopBackOffMax": False}

# Document, then the messages without the prefix "invalid configuration: ".
PREFIXED: list[tuple[dict[str, Any], list[str]]] = [
    ({"nodeLeaseDurationSeconds": -1}, ["nodeLeaseDurationSeconds must be greater than 0"]),
    ({"staticPodURL": "http://["}, ["staticPodURL (--manifest-url) is not a valid URL: Invalid IPv6 URL"]),
    (
        {
            "allowedUnsafeSysctls": [
                "net.*",
                "*",
                "kernel.panic",
                "fs/mqueue/msg_max",
                "kernel.shm*",
                "net*",
                "kernel.sem",
            ]
        },
        [
            f'allowedUnsafeSysctls (--allowed-unsafe-sysctls): the sysctls "{name}" are not known to be namespaced'
            for name in ("", "kernel.panic", "net")
        ],
    ),
    (
        {"allowedUnsafeSysctls": ["Net.x"]},
        [
            'allowedUnsafeSysctls (--allowed-unsafe-sysctls): sysctl "Net.x" must have at most 253 characters and match regex '
            r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]"
        ],
    ),
    (
        {"defaultPodSysctls": {"net.core.somaxconn": "1024"}},
        ["DefaultPodSysctls feature gate is required for Kubelet configuration option defaultPodSysctls"],
    ),
    (
        {
            "featureGates": {"DefaultPodSysctls": True},
            "defaultPodSysctls": {
                "Net.x": "1",
                "kernel.panic": "1",
                "net.core.somaxconn": "1",
                "net/core/somaxconn": "2",
                "user.max_user_namespaces": "0",
                "kernel.domainname": "a",
                "kernel.shm": "1",
            },
        },
        [
            '"Net.x" is not a valid sysctl name for defaultPodSysctls',
            '"kernel.panic" is not known to be namespaced for defaultPodSysctls',
            '"kernel.shm" is not known to be namespaced for defaultPodSysctls',
            'duplicate sysctl "net/core/somaxconn" found in defaultPodSysctls',
        ],
    ),
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
    ({"healthzPort": 65536}, ["healthzPort (--healthz-port) 65536 must be between 1 and 65535, inclusive"]),
    ({"healthzPort": -1}, ["healthzPort (--healthz-port) -1 must be between 1 and 65535, inclusive"]),
    ({"port": -1}, ["port (--port) -1 must be between 1 and 65535, inclusive"]),
    ({"port": 70000}, ["port (--port) 70000 must be between 1 and 65535, inclusive"]),
    ({"readOnlyPort": -1}, ["readOnlyPort (--read-only-port) -1 must be between 0 and 65535, inclusive"]),
    ({"readOnlyPort": 65536}, ["readOnlyPort (--read-only-port) 65536 must be between 0 and 65535, inclusive"]),
    ({"address": "host"}, ['address (--address) "host" is not a valid IP address']),
    (
        {"healthzBindAddress": "1.2.3"},
        ['healthzBindAddress (--healthz-bind-address) "1.2.3" is not a valid IP address'],
    ),
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
        {"topologyManagerPolicy": "best"},
        [
            'topologyManagerPolicy (--topology-manager-policy) "best" must be one of: '
            '["none" "best-effort" "restricted" "single-numa-node"]'
        ],
    ),
    (
        {"topologyManagerScope": "node"},
        ['topologyManagerScope (--topology-manager-scope) "node" must be one of: "container", or "pod"'],
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
        {"memorySwap": {"swapBehavior": "Unlimited"}},
        ['memorySwap.swapBehavior "Unlimited" must be one of: "", "LimitedSwap" or "NoSwap"'],
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
    (
        {"enforceNodeAllocatable": ["pods", "pods"]},
        [f'duplicated enforcements "pods" in {ENFORCE}'],
    ),
    (
        {"enforceNodeAllocatable": ["none", "pods"]},
        [f'{ENFORCE} may not contain additional enforcements when "none" is specified'],
    ),
    (
        {"enforceNodeAllocatable": ["cats"]},
        [f'option "cats" specified for {ENFORCE}. Valid options are {ENFORCEMENTS}'],
    ),
    (
        {"enforceNodeAllocatable": ["system-reserved"]},
        [
            "systemReservedCgroup (--system-reserved-cgroup) must be specified when "
            f'"system-reserved" or "system-reserved-compressible" included in {ENFORCE}'
        ],
    ),
    (
        {"enforceNodeAllocatable": ["kube-reserved-compressible"]},
        [
            "kubeReservedCgroup (--kube-reserved-cgroup) must be specified when "
            f'"kube-reserved" or "kube-reserved-compressible" included in {ENFORCE}'
        ],
    ),
    (
        {
            "enforceNodeAllocatable": ["kube-reserved", "kube-reserved-compressible"],
            "kubeReservedCgroup": "/kube",
        },
        [f'both "kube-reserved" and "kube-reserved-compressible" cannot be specified together in {ENFORCE}'],
    ),
    (
        {
            "enforceNodeAllocatable": ["system-reserved", "system-reserved-compressible"],
            "systemReservedCgroup": "/system",
        },
        [f'both "system-reserved" and "system-reserved-compressible" cannot be specified together in {ENFORCE}'],
    ),
    (
        {"cgroupsPerQOS": False},
        [f'cgroupsPerQOS (--cgroups-per-qos) must be set to true when "pods" contained in {ENFORCE}'],
    ),
    (
        {"contentType": "application/yaml"},
        [
            'option "application/yaml" specified for contentType (--kube-api-content-type). '
            'Valid options are "", "application/json" or "application/vnd.kubernetes.protobuf"'
        ],
    ),
    (
        {"podCIDR": "10.0.0.0/24,10.0.0.300"},
        [
            'podCIDR (--pod-cidr) "10.0.0.0/24,10.0.0.300" must be a range such as 10.0.1.0/24, or two with a comma',
        ],
    ),
    (
        {"hairpinMode": "bridge"},
        [
            'option "bridge" specified for hairpinMode (--hairpin-mode). '
            'Valid options are "none", "hairpin-veth" or "promiscuous-bridge"'
        ],
    ),
    (
        {"imagePullCredentialsVerificationPolicy": "Never"},
        [
            'option "Never" specified for imagePullCredentialsVerificationPolicy. Valid options are "NeverVerify", '
            '"NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages" or "AlwaysVerify"'
        ],
    ),
    (
        {
            "imagePullCredentialsVerificationPolicy": "AlwaysVerify",
            "featureGates": {"KubeletEnsureSecretPulledImages": False},
        },
        [
            "`imagePullCredentialsVerificationPolicy` must not be set if KubeletEnsureSecretPulledImages "
            "feature gate is not enabled"
        ],
    ),
    (
        {ALLOW: ["a.b/c"], "featureGates": {"KubeletEnsureSecretPulledImages": False}},
        [f"`{ALLOW}` must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled"],
    ),
    (
        {ALLOW: ["a.b/c"]},
        [f'can\'t set `{ALLOW}` if `imagePullCredentialsVerificationPolicy` is not "NeverVerifyAllowlistedImages"'],
    ),
    (
        {**ALLOWED, ALLOW: [" a.b/c"]},
        [f"invalid image pattern in `{ALLOW}`: leading/trailing spaces are not allowed:  a.b/c"],
    ),
    (
        {**ALLOWED, ALLOW: ["a.b/*/c"]},
        [
            f"invalid image pattern in `{ALLOW}`: not a valid wildcard pattern, only patterns ending with '/*' "
            "are allowed: a.b/*/c"
        ],
    ),
    ({**ALLOWED, ALLOW: ["/*"]}, [f"invalid image pattern in `{ALLOW}`: at least registry hostname is required"]),
    ({**ALLOWED, ALLOW: [""]}, [f"invalid image pattern in `{ALLOW}`: the supplied pattern is too short: "]),
    (
        {**ALLOWED, ALLOW: ["a.b/c:1"]},
        [f"invalid image pattern in `{ALLOW}`: neither tag nor digest is accepted in an image reference: a.b/c:1"],
    ),
    (
        {**ALLOWED, ALLOW: ["a.b/C"]},
        [
            f"invalid image pattern in `{ALLOW}`: failed to parse as an image name: repository name must be lowercase: a.b/C"
        ],
    ),
    (
        {**ALLOWED, ALLOW: ["a.b/c//d"]},
        [f"invalid image pattern in `{ALLOW}`: failed to parse as an image name: invalid reference format: a.b/c//d"],
    ),
    (
        {"tlsCurvePreferences": [None]},
        ["tlsCurvePreferences[0]: curve preference 0 is out of range (must be 1-65535)"],
    ),
    (
        {"tlsCipherSuites": [None]},
        ["tlsCipherSuites (--tls-cipher-suites): Cipher suite  not supported or doesn't exist"],
    ),
    (
        {"systemReserved": {"memory": None}},
        [
            'failed to parse quantity "" for "memory" resource (systemReserved): quantities must match the regular '
            "expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        ],
    ),
    (
        {"reservedSystemCPUs": "0", "kubeReservedCgroup": "/kube"},
        [
            "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) "
            "or kubeReservedCgroup (--kube-reserved-cgroup)"
        ],
    ),
    (
        {"reservedSystemCPUs": "0-x"},
        ['unable to parse reservedSystemCPUs (--reserved-cpus) 0-x, error: "x" is not the number of a CPU'],
    ),
    (
        {"reservedMemory": [{"numaNode": 0, "limits": {"cpu": "1"}}]},
        ['the limit type "cpu" for NUMA node 0 is not supported, only [memory hugepages-<HugePageSize>] is accepted'],
    ),
    (
        {"reservedMemory": [{"numaNode": 0, "limits": {"memory": "0"}}]},
        ['reserved memory may not be zero for NUMA node 0 and resource "memory"'],
    ),
    (
        {
            "reservedMemory": [
                {"numaNode": 1, "limits": {"memory": "1Gi"}},
                {"numaNode": 1, "limits": {"memory": "2Gi"}},
            ]
        },
        ['the reserved memory has a duplicate value for NUMA node 1 and resource "memory"'],
    ),
    ({"userNamespaces": {"idsPerPod": 1}}, ["userNamespaces.idsPerPod must not be less than 65536"]),
    ({"userNamespaces": {"idsPerPod": 65537}}, ["userNamespaces.idsPerPod must be a multiple of 65536"]),
    ({"userNamespaces": {"idsPerPod": 2**32}}, ["userNamespaces.idsPerPod must not be more than 4294967295"]),
    (
        {"memoryThrottlingFactor": 1.5},
        ["memoryThrottlingFactor 1.5 must be greater than 0 and less than or equal to 1.0"],
    ),
    ({"memoryThrottlingFactor": 0}, ["memoryThrottlingFactor 0 must be greater than 0 and less than or equal to 1.0"]),
    (
        {"memoryReservationPolicy": "TieredReservation", "featureGates": {"MemoryQoS": False}},
        ['memoryReservationPolicy "TieredReservation" requires MemoryQoS feature gate to be enabled'],
    ),
    (
        {"memoryReservationPolicy": "Some"},
        ['option "Some" specified for memoryReservationPolicy. Valid options are "None" or "TieredReservation"'],
    ),
    (
        {"enableSystemLogQuery": True, "enableSystemLogHandler": False},
        ["enableSystemLogHandler is required for enableSystemLogQuery"],
    ),
    ({"containerLogMaxWorkers": 0}, ["containerLogMaxWorkers must be greater than or equal to 1"]),
    (
        {"containerLogMonitorInterval": "2s"},
        ["containerLogMonitorInterval must be a positive time duration greater than or equal to 3s"],
    ),
    ({"containerLogMaxFiles": 1}, ["containerLogMaxFiles must be greater than 1"]),
    (
        {"containerLogMaxSize": "big"},
        [
            'failed to parse container log max size "big": quantities must match the regular expression '
            "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        ],
    ),
    (
        {"containerLogMaxSize": "0"},
        [
            'containerLogMaxSize (--container-log-max-size) "0" must not be zero: a size above zero, '
            "or a negative one for no rotation"
        ],
    ),
    ({"podLogsDir": "logs"}, ['pod logs path "logs" must be absolute path']),
    ({"podLogsDir": "/var//log"}, ['pod logs path "/var//log" must be normalized']),
    ({"podLogsDir": "/var/log/"}, ['pod logs path "/var/log/" must be normalized']),
    ({"podLogsDir": "/var/lög"}, ['pod logs path "/var/lög" mut contains ASCII characters only']),
    (
        {"cgroupDriver": "docker"},
        ['option "docker" specified for cgroupDriver (--cgroup-driver). Valid options are "cgroupfs" or "systemd"'],
    ),
    (
        {"cpuManagerPolicy": "dynamic"},
        [
            'option "dynamic" specified for cpuManagerPolicy (--cpu-manager-policy). Valid options are "none" or "static"'
        ],
    ),
    (
        {"memoryManagerPolicy": "none"},
        [
            'option "none" specified for memoryManagerPolicy (--memory-manager-policy). '
            'Valid options are "None" or "Static"'
        ],
    ),
    (
        {"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}},
        ["cpuManagerPolicyOptions full-pcpus-only=true need cpuManagerPolicy static"],
    ),
    (
        {"topologyManagerPolicyOptions": {"fast": "true"}},
        [
            'unknown option "fast" in topologyManagerPolicyOptions. '
            'Valid options are "prefer-closest-numa-nodes" or "max-allowable-numa-nodes"'
        ],
    ),
    (
        {"authorization": {"mode": "RBAC"}},
        [
            'option "RBAC" specified for authorization.mode (--authorization-mode). '
            'Valid options are "AlwaysAllow" or "Webhook"'
        ],
    ),
    (
        {"configMapAndSecretChangeDetectionStrategy": "Poll"},
        [
            'option "Poll" specified for configMapAndSecretChangeDetectionStrategy. '
            'Valid options are "Get", "Cache" or "Watch"'
        ],
    ),
    (
        {"tlsMinVersion": "TLS12"},
        [
            'option "TLS12" specified for tlsMinVersion (--tls-min-version). '
            'Valid options are "VersionTLS10", "VersionTLS11", "VersionTLS12" or "VersionTLS13"'
        ],
    ),
    (
        {"tlsCipherSuites": ["ROT13"]},
        ["tlsCipherSuites (--tls-cipher-suites): Cipher suite ROT13 not supported or doesn't exist"],
    ),
    (
        {"tlsCurvePreferences": [29, 0, 65536, 29, 30, 4588]},
        [
            "tlsCurvePreferences[1]: curve preference 0 is out of range (must be 1-65535)",
            "tlsCurvePreferences[2]: curve preference 65536 is out of range (must be 1-65535)",
            "tlsCurvePreferences[3]: duplicate curve preference 29",
            "tlsCurvePreferences[4]: curve preference 30 is not supported: must be one of "
            "23 (P-256), 24 (P-384), 25 (P-521), 29 (X25519)",
        ],
    ),
    (
        {"tlsCurvePreferences": [4588]},
        [
            "tlsCurvePreferences: 4588 (X25519MLKEM768) cannot be used here: add at least one of "
            "23 (P-256), 24 (P-384), 25 (P-521), 29 (X25519)",
        ],
    ),
    (
        {"containerRuntimeEndpoint": "tcp://1.2.3.4:5"},
        [
            'containerRuntimeEndpoint (--container-runtime-endpoint) "tcp://1.2.3.4:5" must be a unix socket '
            "such as unix:///run/runtime.sock"
        ],
    ),
    (
        {"imageServiceEndpoint": "unix://run/x.sock"},
        [
            'imageServiceEndpoint (--image-service-endpoint) "unix://run/x.sock" must be a unix socket '
            "such as unix:///run/runtime.sock"
        ],
    ),
    (
        {"kubeReserved": {"gpu": "1"}},
        ['cannot reserve "gpu" resource (kubeReserved): must be one of cpu, memory, ephemeral-storage, pid'],
    ),
    (
        {"systemReserved": {"memory": "-1Gi"}},
        ['resource quantity for "memory" cannot be negative: -1Gi (systemReserved)'],
    ),
    (
        {"systemReserved": {"memory": "x"}},
        [
            'failed to parse quantity "x" for "memory" resource (systemReserved): quantities must match the regular '
            "expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        ],
    ),
    (
        {"qosReserved": {"cpu": "50%"}, "featureGates": {"QOSReserved": True}},
        ['qosReserved: only memory can be reserved for QoS, not "cpu"'],
    ),
    (
        {"qosReserved": {"memory": "150%"}, "featureGates": {"QOSReserved": True}},
        ['qosReserved[memory]: invalid value "150%": must be a percentage from 0% to 100%'],
    ),
]

# Messages that carry no prefix.
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
    ({"logging": {"vmodule": [None]}}, ["logging.vmodule[0]: Required value: File pattern must not be empty"]),
    (
        {"tracing": {"endpoint": "a b"}},
        ['tracing.endpoint: Invalid value: "a b": invalid character " " in host name'],
    ),
    ({"registerWithTaints": [{"key": "a b", "effect": "NoSchedule"}]}, ["invalid taint: {a b  NoSchedule <nil>}"]),
    ({"registerWithTaints": [{"key": "a", "effect": "Never"}]}, ["invalid taint: {a  Never <nil>}"]),
    (
        {"showHiddenMetricsForVersion": "1.34"},
        [
            'invalid showHiddenMetricsForVersion: showHiddenMetricsForVersion: Invalid value: "1.34": must be omitted or have '
            "the value '1.36'; only the previous minor version is allowed"
        ],
    ),
    (
        {"logging": {"format": "xml"}},
        ['logging.format: Invalid value: "xml": Unsupported log format, must be text or json'],
    ),
    (
        {"logging": {"flushFrequency": "-1s"}},
        ['logging.flushFrequency: Invalid value: "-1s": Must be greater than zero'],
    ),
    ({"logging": {"verbosity": 3000000000}}, ["logging.verbosity: Invalid value: 3000000000: Must be <= 2147483647"]),
    (
        {"logging": {"format": "json", "vmodule": [{"filePattern": "a", "verbosity": 1}]}},
        ["logging.vmodule: Forbidden: Only supported for text log format"],
    ),
    (
        {"logging": {"vmodule": [{"verbosity": 1}, {"filePattern": "a=b"}, {"filePattern": "c", "verbosity": 2**31}]}},
        [
            "logging.vmodule[0]: Required value: File pattern must not be empty",
            'logging.vmodule[1]: Invalid value: "a=b": File pattern must not contain equal sign or comma',
            "logging.vmodule[2]: Invalid value: 2147483648: Must be <= 2147483647",
        ],
    ),
    (
        {"logging": {"options": {"json": {"splitStream": True}}}},
        ["logging.options.json.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled"],
    ),
    (
        {"logging": {"format": "json"}, "featureGates": {"LoggingBetaOptions": False}},
        ["logging.format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature"],
    ),
    (
        {"logging": {"options": {"text": {"infoBufferSize": "1Ki"}}}},
        ["logging.options.text.infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled"],
    ),
    (
        {"tracing": {"samplingRatePerMillion": -1}},
        ["tracing.samplingRatePerMillion: Invalid value: -1: sampling rate must be positive"],
    ),
    (
        {"tracing": {"samplingRatePerMillion": 1000001}},
        [
            "tracing.samplingRatePerMillion: Invalid value: 1000001: sampling rate per million must be less than or "
            "equal to one million"
        ],
    ),
    ({"tracing": {"endpoint": ":4317"}}, ['tracing.endpoint: Invalid value: ":4317": the host is missing']),
    (
        {"tracing": {"endpoint": "http://x"}},
        [
            'tracing.endpoint: Invalid value: "http://x": unsupported scheme: http.  Options are none, dns, unix, or '
            "unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md"
        ],
    ),
]
ALL = [
    (document, [f"invalid configuration: {text}" for text in texts]) for document, texts in (*PREFIXED, *EVICTION)
] + BARE

"""Rules of `validate_node.py` but for eviction, each broken once: the document, and the messages without their prefix."""

from __future__ import annotations

from typing import Any

ENFORCE = "enforceNodeAllocatable (--enforce-node-allocatable)"
ENFORCEMENTS = (
    '"pods", "system-reserved", "system-reserved-compressible", "kube-reserved", "kube-reserved-compressible" or "none"'
)
ALLOW = "preloadedImagesVerificationAllowlist"
ALLOWED = {"imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages"}

NODE: list[tuple[dict[str, Any], list[str]]] = [
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
        {"memorySwap": {"swapBehavior": "Unlimited"}},
        ['memorySwap.swapBehavior "Unlimited" must be one of: "", "LimitedSwap" or "NoSwap"'],
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
        {"configMapAndSecretChangeDetectionStrategy": "Poll"},
        [
            'option "Poll" specified for configMapAndSecretChangeDetectionStrategy. '
            'Valid options are "Get", "Cache" or "Watch"'
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

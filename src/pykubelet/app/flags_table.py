"""The kubelet's flags: name, type and target. Data only, and cheap to import.

The target states where the value goes: `flags.NAME` is an attribute of `config.settings.Flags`; any other name is the path of
a field of KubeletConfiguration; a flag with an empty target is accepted and does nothing. `flags_parse.py` explains the types.
Source: the kubelet's command line reference (doc page kubelet).
"""

from __future__ import annotations

from typing import NamedTuple

from pykubelet.base.model.version import Release


class Flag(NamedTuple):
    """One flag. `deprecated`: the text of its deprecation warning; empty if there is none. `gone`: the first release without it."""

    name: str
    kind: str
    target: str
    help: str = ""
    deprecated: str = ""
    gone: Release | None = None

    @property
    def attribute(self) -> str:
        """The attribute of `Flags`; empty if the target is a field."""
        return self.target.removeprefix("flags.") if self.target.startswith("flags.") else ""


IN_FILE = (
    "This parameter should be set via the config file specified by the Kubelet's --config flag. See "
    "https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/ for more information."
)
NOT_DEPRECATED = frozenset({"v", "vmodule", "log-flush-frequency", "provider-id", "fail-cgroupv1"})
_EVICTION = "Use --eviction-hard or --eviction-soft instead. Will be removed in a future version."
_CADVISOR = (
    "This is a cadvisor flag that was mistakenly registered with the Kubelet. Due to legacy concerns, it will follow the "
    "standard CLI deprecation timeline before being removed."
)
_NO_EFFECT = "no effect"


def _own(name: str, kind: str, text: str, deprecated: str = "", gone: Release | None = None) -> Flag:
    """A flag whose attribute of `Flags` has its name, and the unit of durations."""
    attribute = name.replace("-", "_") + ("_s" if kind == "duration" else "")
    return Flag(name, kind, "" if text == _NO_EFFECT else f"flags.{attribute}", text, deprecated, gone)


#: Name, type, help, and why it is deprecated.
_OWN_FLAGS = (
    ("config", "str", "read the configuration from this file; flags beat it"),
    ("config-dir", "str", "merge the *.conf files of this directory over the configuration"),
    ("kubeconfig", "str", "how to reach the API server; without it the node stands alone"),
    ("bootstrap-kubeconfig", "str", "used to get a client certificate"),
    ("hostname-override", "str", "the node's name instead of the host's name"),
    ("node-ip", "node-ip", "the node's address, or a dual-stack pair with a comma"),
    ("cert-dir", "str", "where certificates are kept"),
    ("cloud-provider", "str", 'empty or "external"'),
    ("emulated-version", "str", "be the kubelet of this release: 1.36, 1.37 (default)"),
    ("root-dir", "str", "where the node agent keeps pods and state"),
    ("extension", "texts", "load an extension: NAME or FILE, and =SETTINGS.yaml; repeatable"),
    ("extension-cpu-time", "duration", "what one call of an extension may use (5ms)"),
    ("seccomp-default", "bool", "RuntimeDefault for containers without a profile"),
    ("node-labels", "labels", "key=value,...: labels of the node at registration"),
    ("lock-file", "str", "hold a lock on this file"),
    ("exit-on-lock-contention", "bool", "exit when the lock file is touched"),
    ("cadvisor-port", "int32", "serve the node's web page on this port of loopback; 0: not"),
    ("runtime-cgroups", "str", "the container runtime's cgroup, for statistics"),
    ("image-credential-provider-config", "str", "credential provider configuration: a file, or a directory of them"),
    ("image-credential-provider-bin-dir", "str", "where the credential provider programs are"),
    ("runonce", "bool", "bring the manifests' pods up, report, and exit", IN_FILE),
    ("minimum-container-ttl-duration", "duration", "least age of a dead container before it is removed", _EVICTION),
    ("maximum-dead-containers-per-container", "int32", "dead instances kept per container", _EVICTION),
    ("maximum-dead-containers", "int32", "dead containers kept in all; negative: no limit", _EVICTION),
    ("experimental-mounter-path", "str", "must be empty", "will be removed in 1.25 or later. in favor of using CSI."),
    (
        *("experimental-allocatable-ignore-eviction", "bool", "leave hard eviction out of allocatable"),
        "will be removed in 1.25 or later.",
    ),
    ("eviction-dry-run", "bool", "report which pods would be evicted, and evict none"),
    ("eviction-stall", "stalls", "evict when tasks are stalled for longer than these shares"),
    ("housekeeping-interval", "duration", "how old the usage of containers may be"),
    ("max-housekeeping-interval", "duration", "the same; the smaller value counts"),
)
OWN = tuple(_own(*row) for row in _OWN_FLAGS)

#: Flags of cAdvisor, which 1.37 has no more: name, type, help. Those without effect do nothing in the Kubernetes kubelet either.
_CADVISOR_FLAGS = (
    ("application-metrics-count-limit", "int32", "only 100 is accepted"),
    ("boot-id-file", "str", "a,b,...: files with the boot id; the first counts"),
    ("container-hints", "str", "a file that must not exist"),
    ("containerd", "str", "containerd's socket, if it is another than that of CRI"),
    ("containerd-namespace", "str", "containerd's namespace of pods"),
    ("enable-load-reader", "bool", "refused with cgroup v1, no effect with v2"),
    ("event-storage-age-limit", "str", _NO_EFFECT),
    ("event-storage-event-limit", "str", _NO_EFFECT),
    ("global-housekeeping-interval", "duration", "interval between searches for cgroups of pods that are gone"),
    ("log-cadvisor-usage", "bool", "log the CPU and memory usage of the agent"),
    ("machine-id-file", "str", "a,b,...: files with the machine id; the first counts"),
    ("storage-driver-user", "str", _NO_EFFECT),
    ("storage-driver-password", "str", _NO_EFFECT),
    ("storage-driver-host", "str", _NO_EFFECT),
    ("storage-driver-db", "str", _NO_EFFECT),
    ("storage-driver-table", "str", _NO_EFFECT),
    ("storage-driver-secure", "bool", _NO_EFFECT),
    ("storage-driver-buffer-duration", "duration", _NO_EFFECT),
)
CADVISOR = tuple(_own(*row, _CADVISOR, Release.V1_37) for row in _CADVISOR_FLAGS)

_FIELDS = """
    enable-server bool enableServer
    fail-swap-on bool failSwapOn
    pod-manifest-path str staticPodPath
    sync-frequency duration syncFrequency
    file-check-frequency duration fileCheckFrequency
    http-check-frequency duration httpCheckFrequency
    manifest-url str staticPodURL
    manifest-url-header multimap staticPodURLHeader
    address ip address
    port int32 port
    read-only-port int32 readOnlyPort
    fail-cgroupv1 bool failCgroupV1
    container-runtime-endpoint str containerRuntimeEndpoint
    image-service-endpoint str imageServiceEndpoint
    anonymous-auth bool authentication.anonymous.enabled
    authentication-token-webhook bool authentication.webhook.enabled
    authentication-token-webhook-cache-ttl duration authentication.webhook.cacheTTL
    client-ca-file str authentication.x509.clientCAFile
    authorization-mode str authorization.mode
    authorization-webhook-cache-authorized-ttl duration authorization.webhook.cacheAuthorizedTTL
    authorization-webhook-cache-unauthorized-ttl duration authorization.webhook.cacheUnauthorizedTTL
    tls-cert-file str tlsCertFile
    tls-private-key-file str tlsPrivateKeyFile
    rotate-server-certificates bool serverTLSBootstrap
    tls-cipher-suites strings tlsCipherSuites
    tls-min-version str tlsMinVersion
    rotate-certificates bool rotateCertificates
    registry-qps int32 registryPullQPS
    registry-burst int32 registryBurst
    event-qps int32 eventRecordQPS
    event-burst int32 eventBurst
    enable-debugging-handlers bool enableDebuggingHandlers
    contention-profiling bool enableContentionProfiling
    healthz-port int32 healthzPort
    healthz-bind-address ip healthzBindAddress
    oom-score-adj int32 oomScoreAdj
    cluster-domain str clusterDomain
    volume-plugin-dir str volumePluginDir
    cluster-dns strings clusterDNS
    streaming-connection-idle-timeout duration streamingConnectionIdleTimeout
    node-status-update-frequency duration nodeStatusUpdateFrequency
    minimum-image-ttl-duration duration imageMinimumGCAge
    image-gc-high-threshold int32 imageGCHighThresholdPercent
    image-gc-low-threshold int32 imageGCLowThresholdPercent
    volume-stats-agg-period duration volumeStatsAggPeriod
    feature-gates bools featureGates
    kubelet-cgroups str kubeletCgroups
    system-cgroups str systemCgroups
    provider-id str providerID
    cgroups-per-qos bool cgroupsPerQOS
    cgroup-driver str cgroupDriver
    cgroup-root str cgroupRoot
    cpu-manager-policy str cpuManagerPolicy
    cpu-manager-policy-options map-whole cpuManagerPolicyOptions
    cpu-manager-reconcile-period duration cpuManagerReconcilePeriod
    qos-reserved map qosReserved
    topology-manager-policy str topologyManagerPolicy
    runtime-request-timeout duration runtimeRequestTimeout
    hairpin-mode str hairpinMode
    max-pods int32 maxPods
    pod-cidr str podCIDR
    pod-max-pids int64 podPidsLimit
    resolv-conf str resolvConf
    cpu-cfs-quota bool cpuCFSQuota
    cpu-cfs-quota-period duration cpuCFSQuotaPeriod
    enable-controller-attach-detach bool enableControllerAttachDetach
    make-iptables-util-chains bool makeIPTablesUtilChains
    container-log-max-size str containerLogMaxSize
    container-log-max-files int32 containerLogMaxFiles
    allowed-unsafe-sysctls strings allowedUnsafeSysctls
    node-status-max-images int32 nodeStatusMaxImages
    kernel-memcg-notification bool kernelMemcgNotification
    local-storage-capacity-isolation bool localStorageCapacityIsolation
    max-open-files int64 maxOpenFiles
    kube-api-content-type str contentType
    kube-api-qps int32 kubeAPIQPS
    kube-api-burst int32 kubeAPIBurst
    serialize-image-pulls bool serializeImagePulls
    eviction-hard map< evictionHard
    eviction-soft map< evictionSoft
    eviction-soft-grace-period map evictionSoftGracePeriod
    eviction-pressure-transition-period duration evictionPressureTransitionPeriod
    eviction-max-pod-grace-period int32 evictionMaxPodGracePeriod
    eviction-minimum-reclaim map evictionMinimumReclaim
    pods-per-core int32 podsPerCore
    protect-kernel-defaults bool protectKernelDefaults
    reserved-cpus str reservedSystemCPUs
    topology-manager-scope str topologyManagerScope
    topology-manager-policy-options map topologyManagerPolicyOptions
    system-reserved map systemReserved
    kube-reserved map kubeReserved
    enforce-node-allocatable strings enforceNodeAllocatable
    system-reserved-cgroup str systemReservedCgroup
    kube-reserved-cgroup str kubeReservedCgroup
    logging-format str logging.format
    log-flush-frequency duration logging.flushFrequency
    v verbosity logging.verbosity
    vmodule vmodule logging.vmodule
    log-text-split-stream bool logging.options.text.splitStream
    log-text-info-buffer-size quantity logging.options.text.infoBufferSize
    log-json-split-stream bool logging.options.json.splitStream
    log-json-info-buffer-size quantity logging.options.json.infoBufferSize
    memory-manager-policy str memoryManagerPolicy
    reserved-memory reserved-memory reservedMemory
    register-node bool registerNode
    register-with-taints taints registerWithTaints
"""


def _field_flags() -> tuple[Flag, ...]:
    rows = (line.split() for line in _FIELDS.strip().splitlines())
    return tuple(
        Flag(name, kind, target, f"sets {target}", "" if name in NOT_DEPRECATED else IN_FILE)
        for name, kind, target in rows
    )


FIELDS = _field_flags()
PROGRAM = (
    Flag("version", "version", "", "print the version and exit; =raw in full, =vX.Y.Z to report another"),
    Flag("help", "bool", "", "show this help and exit"),
)
SHORT = {"v": "v", "h": "help"}
ALL = {flag.name: flag for flag in (*OWN, *CADVISOR, *FIELDS, *PROGRAM)}

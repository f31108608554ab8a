"""Every field of KubeletConfiguration v1beta1 with its type and default, from the reference documentation.

Columns: dotted path, type (`*`: a pointer, where an explicit zero is kept), default as JSON (null: none).
"""

from __future__ import annotations

import json
from typing import Any

_TABLE = """
    enableServer *bool true
    staticPodPath str ""
    podLogsDir str "/var/log/pods"
    syncFrequency duration "1m0s"
    fileCheckFrequency duration "20s"
    httpCheckFrequency duration "20s"
    staticPodURL str ""
    staticPodURLHeader map {}
    address str "0.0.0.0"
    port int32 10250
    readOnlyPort int32 0
    tlsCertFile str ""
    tlsPrivateKeyFile str ""
    tlsCipherSuites list []
    tlsCurvePreferences list []
    tlsMinVersion str ""
    rotateCertificates bool false
    serverTLSBootstrap bool false
    authentication.x509.clientCAFile str ""
    authentication.webhook.enabled *bool true
    authentication.webhook.cacheTTL duration "2m0s"
    authentication.anonymous.enabled *bool false
    authorization.mode str "Webhook"
    authorization.webhook.cacheAuthorizedTTL duration "5m0s"
    authorization.webhook.cacheUnauthorizedTTL duration "30s"
    registryPullQPS *int32 5
    registryBurst int32 10
    imagePullCredentialsVerificationPolicy str "NeverVerifyPreloadedImages"
    preloadedImagesVerificationAllowlist list []
    eventRecordQPS *int32 50
    eventBurst int32 100
    enableDebuggingHandlers *bool true
    enableContentionProfiling bool false
    healthzPort *int32 10248
    healthzBindAddress str "127.0.0.1"
    oomScoreAdj *int32 -999
    clusterDomain str ""
    clusterDNS list []
    streamingConnectionIdleTimeout duration "4h0m0s"
    nodeStatusUpdateFrequency duration "10s"
    nodeStatusReportFrequency duration "5m0s"
    nodeLeaseDurationSeconds int32 40
    imageMinimumGCAge duration "2m0s"
    imageMaximumGCAge duration "0s"
    imageGCHighThresholdPercent *int32 85
    imageGCLowThresholdPercent *int32 80
    volumeStatsAggPeriod duration "1m0s"
    kubeletCgroups str ""
    systemCgroups str ""
    cgroupRoot str ""
    cgroupsPerQOS *bool true
    cgroupDriver str "cgroupfs"
    cpuManagerPolicy str "none"
    singleProcessOOMKill *bool null
    cpuManagerPolicyOptions map {}
    cpuManagerReconcilePeriod duration "10s"
    memoryManagerPolicy str "None"
    topologyManagerPolicy str "none"
    topologyManagerScope str "container"
    topologyManagerPolicyOptions map {}
    qosReserved map {}
    runtimeRequestTimeout duration "2m0s"
    hairpinMode str "promiscuous-bridge"
    maxPods int32 110
    podCIDR str ""
    podPidsLimit *int64 -1
    resolvConf *str "/etc/resolv.conf"
    runOnce bool false
    cpuCFSQuota *bool true
    cpuCFSQuotaPeriod *duration "100ms"
    nodeStatusMaxImages *int32 50
    maxOpenFiles int64 1000000
    contentType str "application/vnd.kubernetes.protobuf"
    kubeAPIQPS *int32 50
    kubeAPIBurst int32 100
    serializeImagePulls *bool true
    maxParallelImagePulls *int32 null
    evictionHard map {}
    evictionSoft map {}
    evictionSoftGracePeriod map {}
    evictionPressureTransitionPeriod duration "5m0s"
    evictionMaxPodGracePeriod int32 0
    evictionMinimumReclaim map {}
    mergeDefaultEvictionSettings *bool false
    podsPerCore int32 0
    enableControllerAttachDetach *bool true
    protectKernelDefaults bool false
    makeIPTablesUtilChains *bool true
    iptablesMasqueradeBit *int32 14
    iptablesDropBit *int32 15
    featureGates map {}
    failSwapOn *bool true
    memorySwap.swapBehavior str ""
    containerLogMaxSize str "10Mi"
    containerLogMaxFiles *int32 5
    containerLogMaxWorkers *int32 1
    containerLogMonitorInterval *duration "10s"
    configMapAndSecretChangeDetectionStrategy str "Watch"
    systemReserved map {}
    kubeReserved map {}
    reservedSystemCPUs str ""
    showHiddenMetricsForVersion str ""
    systemReservedCgroup str ""
    kubeReservedCgroup str ""
    enforceNodeAllocatable list ["pods"]
    allowedUnsafeSysctls list []
    defaultPodSysctls map {}
    volumePluginDir str "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"
    providerID str ""
    kernelMemcgNotification bool false
    logging.format str "text"
    logging.flushFrequency duration "5s"
    logging.verbosity uint32 0
    logging.vmodule list []
    logging.options.text.splitStream bool false
    logging.options.text.infoBufferSize quantity "0"
    logging.options.json.splitStream bool false
    logging.options.json.infoBufferSize quantity "0"
    enableSystemLogHandler *bool true
    enableSystemLogQuery *bool false
    shutdownGracePeriod duration "0s"
    shutdownGracePeriodCriticalPods duration "0s"
    shutdownGracePeriodByPodPriority list []
    crashLoopBackOff.maxContainerRestartPeriod *duration null
    reservedMemory list []
    enableProfilingHandler *bool true
    enableDebugFlagsHandler *bool true
    seccompDefault *bool false
    memoryThrottlingFactor *float null
    memoryReservationPolicy str "None"
    registerWithTaints list []
    registerNode *bool true
    tracing.endpoint *str null
    tracing.samplingRatePerMillion *int32 null
    localStorageCapacityIsolation *bool true
    containerRuntimeEndpoint str "unix:///run/containerd/containerd.sock"
    imageServiceEndpoint str ""
    failCgroupV1 *bool true
    userNamespaces.idsPerPod *int64 null
"""


def rows() -> list[tuple[str, str, bool, Any]]:
    """Path, type, whether it is a pointer, default."""
    split = (line.split(maxsplit=2) for line in _TABLE.strip().splitlines())
    return [(path, kind.lstrip("*"), kind.startswith("*"), json.loads(default)) for path, kind, default in split]

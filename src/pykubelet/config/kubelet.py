"""The `KubeletConfiguration` of `kubelet.config.k8s.io/v1beta1` with all its fields and defaults.

Owns: names, types and plain defaults (doc page: Kubelet Configuration v1beta1). Attribute names are the JSON names.
Not here: defaults that depend on other fields (`combine.py`), rules (`validate*.py`), reading (`schema.py`).

A field marked `Inert` is accepted and checked, and has no effect in the Kubernetes kubelet either.
Every other field has its effect.

A type marked `Ptr` distinguishes "not given" from the zero value, as a pointer does in the reference: an explicit `0`, `false`
or `""` stays. For other types, a zero value counts as not given and takes the default. `T | None` has no default at all.
Annotations here are evaluated at once (no `from __future__ import annotations`) because `schema.py` reads them.
"""

from typing import Annotated, TypeVar

import msgspec

from pykubelet.base.kit.durations import MILLISECOND, MINUTE, SECOND, Duration
from pykubelet.base.kit.values import repr_without

T = TypeVar("T")

API_VERSION = "kubelet.config.k8s.io/v1beta1"
KIND = "KubeletConfiguration"
#: The default of `contentType`.
PROTOBUF = "application/vnd.kubernetes.protobuf"


class Range(msgspec.Struct, frozen=True):
    """The range of integers that a field's type can hold."""

    low: int
    high: int


class Mark(msgspec.Struct, frozen=True):
    """A mark that a field's annotation adds to its Python type."""

    name: str


POINTER = Mark("pointer")
QUANTITY = Mark("quantity")
NS_TOO = Mark("nanoseconds too")
INERT = Mark("inert")

Ptr = Annotated[T, POINTER]
Inert = Annotated[T, INERT]
Int32 = Annotated[int, Range(-(2**31), 2**31 - 1)]
Int64 = Annotated[int, Range(-(2**63), 2**63 - 1)]
UInt32 = Annotated[int, Range(0, 2**32 - 1)]
Quantity = Annotated[str, QUANTITY]
TimeOrDuration = Annotated[Duration, NS_TOO]  # a duration string, or a number of nanoseconds


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    pass


class X509Authentication(_Part, frozen=True, kw_only=True):
    clientCAFile: str = ""


class WebhookAuthentication(_Part, frozen=True, kw_only=True):
    enabled: Ptr[bool] = True
    cacheTTL: Duration = Duration(2 * MINUTE)


class AnonymousAuthentication(_Part, frozen=True, kw_only=True):
    enabled: Ptr[bool] = False


class Authentication(_Part, frozen=True, kw_only=True):
    x509: X509Authentication = X509Authentication()
    webhook: WebhookAuthentication = WebhookAuthentication()
    anonymous: AnonymousAuthentication = AnonymousAuthentication()


class WebhookAuthorization(_Part, frozen=True, kw_only=True):
    cacheAuthorizedTTL: Duration = Duration(5 * MINUTE)
    cacheUnauthorizedTTL: Duration = Duration(30 * SECOND)


class Authorization(_Part, frozen=True, kw_only=True):
    mode: str = "Webhook"
    webhook: WebhookAuthorization = WebhookAuthorization()


class MemorySwap(_Part, frozen=True, kw_only=True):
    swapBehavior: str = ""


class VModuleItem(_Part, frozen=True, kw_only=True):
    filePattern: str = ""
    verbosity: UInt32 = 0


class OutputRouting(_Part, frozen=True, kw_only=True):
    splitStream: bool = False
    infoBufferSize: Quantity = "0"


class FormatOptions(_Part, frozen=True, kw_only=True):
    text: OutputRouting = OutputRouting()
    json: OutputRouting = OutputRouting()


class Logging(_Part, frozen=True, kw_only=True):
    format: str = "text"
    flushFrequency: TimeOrDuration = Duration(5 * SECOND)
    verbosity: UInt32 = 0
    vmodule: tuple[VModuleItem, ...] = ()
    options: FormatOptions = FormatOptions()


class ShutdownGracePeriodByPodPriority(_Part, frozen=True, kw_only=True):
    priority: Int32 = 0
    shutdownGracePeriodSeconds: Int64 = 0


class CrashLoopBackOff(_Part, frozen=True, kw_only=True):
    maxContainerRestartPeriod: Duration | None = None


class MemoryReservation(_Part, frozen=True, kw_only=True):
    numaNode: Int32 = 0
    limits: dict[str, Quantity] = {}


class RegistrationTaint(_Part, frozen=True, kw_only=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    timeAdded: str | None = None


class Tracing(_Part, frozen=True, kw_only=True):
    endpoint: str | None = None
    samplingRatePerMillion: Int32 | None = None


class UserNamespaceSettings(_Part, frozen=True, kw_only=True):
    idsPerPod: Int64 | None = None


class KubeletConfiguration(_Part, frozen=True, kw_only=True):
    """The effective configuration after defaults, drop-ins and flags."""

    enableServer: Ptr[bool] = True
    staticPodPath: str = ""
    podLogsDir: str = "/var/log/pods"
    syncFrequency: Duration = Duration(MINUTE)
    fileCheckFrequency: Duration = Duration(20 * SECOND)
    httpCheckFrequency: Duration = Duration(20 * SECOND)
    staticPodURL: str = ""
    staticPodURLHeader: dict[str, tuple[str, ...]] = {}
    address: str = "0.0.0.0"
    port: Int32 = 10250
    readOnlyPort: Int32 = 0
    tlsCertFile: str = ""
    tlsPrivateKeyFile: str = ""
    tlsCipherSuites: tuple[str, ...] = ()
    tlsCurvePreferences: tuple[Int32, ...] = ()
    tlsMinVersion: str = ""
    rotateCertificates: bool = False
    serverTLSBootstrap: bool = False
    authentication: Authentication = Authentication()
    authorization: Authorization = Authorization()
    registryPullQPS: Ptr[Int32] = 5
    registryBurst: Int32 = 10
    imagePullCredentialsVerificationPolicy: str = "NeverVerifyPreloadedImages"
    preloadedImagesVerificationAllowlist: tuple[str, ...] = ()
    eventRecordQPS: Ptr[Int32] = 50
    eventBurst: Int32 = 100
    enableDebuggingHandlers: Ptr[bool] = True
    enableContentionProfiling: bool = False
    healthzPort: Ptr[Int32] = 10248
    healthzBindAddress: str = "127.0.0.1"
    oomScoreAdj: Ptr[Int32] = -999
    clusterDomain: str = ""
    clusterDNS: tuple[str, ...] = ()
    streamingConnectionIdleTimeout: Duration = Duration(240 * MINUTE)
    nodeStatusUpdateFrequency: Duration = Duration(10 * SECOND)
    nodeStatusReportFrequency: Duration = Duration(5 * MINUTE)
    nodeLeaseDurationSeconds: Int32 = 40
    imageMinimumGCAge: Duration = Duration(2 * MINUTE)
    imageMaximumGCAge: Duration = Duration(0)
    imageGCHighThresholdPercent: Ptr[Int32] = 85
    imageGCLowThresholdPercent: Ptr[Int32] = 80
    volumeStatsAggPeriod: Duration = Duration(MINUTE)
    kubeletCgroups: str = ""
    systemCgroups: str = ""
    cgroupRoot: str = ""
    cgroupsPerQOS: Ptr[bool] = True
    cgroupDriver: str = "cgroupfs"
    cpuManagerPolicy: str = "none"
    singleProcessOOMKill: bool | None = None
    cpuManagerPolicyOptions: dict[str, str] = {}
    cpuManagerReconcilePeriod: Duration = Duration(10 * SECOND)
    memoryManagerPolicy: str = "None"
    topologyManagerPolicy: str = "none"
    topologyManagerScope: str = "container"
    topologyManagerPolicyOptions: dict[str, str] = {}
    qosReserved: dict[str, str] = {}
    runtimeRequestTimeout: Duration = Duration(2 * MINUTE)
    hairpinMode: Inert[str] = "promiscuous-bridge"
    maxPods: Int32 = 110
    podCIDR: str = ""
    podPidsLimit: Ptr[Int64] = -1
    resolvConf: Ptr[str] = "/etc/resolv.conf"
    runOnce: bool = False
    cpuCFSQuota: Ptr[bool] = True
    cpuCFSQuotaPeriod: Ptr[Duration] = Duration(100 * MILLISECOND)
    nodeStatusMaxImages: Ptr[Int32] = 50
    maxOpenFiles: Int64 = 1_000_000
    contentType: str = PROTOBUF
    kubeAPIQPS: Ptr[Int32] = 50
    kubeAPIBurst: Int32 = 100
    serializeImagePulls: Ptr[bool] = True
    maxParallelImagePulls: Int32 | None = None
    evictionHard: dict[str, str] = {}
    evictionSoft: dict[str, str] = {}
    evictionSoftGracePeriod: dict[str, str] = {}
    evictionPressureTransitionPeriod: Duration = Duration(5 * MINUTE)
    evictionMaxPodGracePeriod: Int32 = 0
    evictionMinimumReclaim: dict[str, str] = {}
    mergeDefaultEvictionSettings: Ptr[bool] = False
    podsPerCore: Int32 = 0
    enableControllerAttachDetach: Ptr[bool] = True
    protectKernelDefaults: bool = False
    makeIPTablesUtilChains: Ptr[bool] = True
    iptablesMasqueradeBit: Inert[Ptr[Int32]] = 14
    iptablesDropBit: Inert[Ptr[Int32]] = 15
    featureGates: dict[str, bool] = {}
    failSwapOn: Ptr[bool] = True
    memorySwap: MemorySwap = MemorySwap()
    containerLogMaxSize: str = "10Mi"
    containerLogMaxFiles: Ptr[Int32] = 5
    containerLogMaxWorkers: Ptr[Int32] = 1
    containerLogMonitorInterval: Ptr[Duration] = Duration(10 * SECOND)
    configMapAndSecretChangeDetectionStrategy: str = "Watch"
    systemReserved: dict[str, str] = {}
    kubeReserved: dict[str, str] = {}
    reservedSystemCPUs: str = ""
    showHiddenMetricsForVersion: str = ""
    systemReservedCgroup: str = ""
    kubeReservedCgroup: str = ""
    enforceNodeAllocatable: tuple[str, ...] = ("pods",)
    allowedUnsafeSysctls: tuple[str, ...] = ()
    defaultPodSysctls: dict[str, str] = {}
    volumePluginDir: str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"
    providerID: str = ""
    kernelMemcgNotification: bool = False
    logging: Logging = Logging()
    enableSystemLogHandler: Ptr[bool] = True
    enableSystemLogQuery: Ptr[bool] = False
    shutdownGracePeriod: Duration = Duration(0)
    shutdownGracePeriodCriticalPods: Duration = Duration(0)
    shutdownGracePeriodByPodPriority: tuple[ShutdownGracePeriodByPodPriority, ...] = ()
    crashLoopBackOff: CrashLoopBackOff = CrashLoopBackOff()
    reservedMemory: tuple[MemoryReservation, ...] = ()
    enableProfilingHandler: Ptr[bool] = True
    enableDebugFlagsHandler: Ptr[bool] = True
    seccompDefault: Ptr[bool] = False
    memoryThrottlingFactor: float | None = None
    memoryReservationPolicy: str = "None"
    registerWithTaints: tuple[RegistrationTaint, ...] = ()
    registerNode: Ptr[bool] = True
    tracing: Tracing | None = None
    localStorageCapacityIsolation: Ptr[bool] = True
    containerRuntimeEndpoint: str = "unix:///run/containerd/containerd.sock"
    imageServiceEndpoint: str = ""
    failCgroupV1: Ptr[bool] = True
    userNamespaces: UserNamespaceSettings = UserNamespaceSettings()

    def __repr__(self) -> str:
        return repr_without(self, ("staticPodURL", "staticPodURLHeader"))  # they may have a password

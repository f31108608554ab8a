"""Feature gates of Kubernetes 1.36: names, defaults, locks, and the set in force. Pure.

Owns: the tables and the rules for setting gates (unknown name, locked gate, unmet dependency, `AllAlpha`, `AllBeta`).
A gate that is listed here is known. One of the kubelet's that can be set has its effect in this agent, unless `FIXED` or
`EITHER_WAY` names it.
Source: the kubelet's command line reference and the list of feature gates in the Kubernetes documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache

from pykubelet.base.kit.text import nearest
from pykubelet.base.kit.values import Value

ALL_ALPHA = "AllAlpha"
ALL_BETA = "AllBeta"


class FeatureStage(StrEnum):
    ALPHA = "ALPHA"
    BETA = "BETA"
    GA = "GA"
    DEPRECATED = "DEPRECATED"


class Gate(Value):
    """One feature gate. `locked`: it may only be set to `default`."""

    default: bool
    stage: FeatureStage
    locked: bool = False


# Gates the kubelet reads.
_KUBELET_GA_LOCKED = """
    CPUManagerPolicyOptions DynamicResourceAllocation ImageMaximumGCAge ImageVolume InPlacePodVerticalScaling
    KubeletCgroupDriverFromCRI KubeletFineGrainedAuthz KubeletPSI KubeletPodResourcesDynamicResources
    KubeletPodResourcesGet KubeletTracing MutableCSINodeAllocatableCount NodeLogQuery NodeSwap
    PodLifecycleSleepAction PodObservedGenerationTracking ProcMountType RecoverVolumeExpansionFailure
    RecursiveReadOnlyMounts RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation SELinuxChangePolicy
    SELinuxMountReadWriteOncePod SidecarContainers SupplementalGroupsPolicy SystemdWatchdog
    TopologyManagerPolicyOptions UserNamespacesSupport
"""
_KUBELET_GA = "CustomCPUCFSQuotaPeriod"
_KUBELET_BETA_ON = """
    CPUManagerPolicyBetaOptions ComponentFlagz ComponentStatusz ContainerCheckpoint ContainerRestartRules
    ContextualLogging DRAExtendedResource EnvFiles ExtendWebSocketsToKubelet GracefulNodeShutdown
    GracefulNodeShutdownBasedOnPodPriority HostnameOverride InPlacePodLevelResourcesVerticalScaling
    InPlacePodVerticalScalingInitContainers KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages
    KubeletSeparateDiskGC KubeletServiceAccountTokenForCredentialProviders LoggingBetaOptions
    NodeDeclaredFeatures PLEGOnDemandRelist PodLevelResources PodReadyToStartContainersCondition
    PreventStaticPodAPIReferences ReloadKubeletClientCAFile ReloadKubeletServerCertificateFile
    ResourceHealthStatus ResourceHealthStatusMessage RestartAllContainersOnContainerExits
    RotateKubeletServerCertificate TopologyManagerPolicyBetaOptions
"""
_KUBELET_BETA_OFF = """
    ClusterTrustBundleProjection LocalStorageCapacityIsolationFSQuotaMonitoring PodCertificateRequest
    SELinuxMount
"""
_KUBELET_ALPHA = """
    CPUManagerPolicyAlphaOptions CRIListStreaming CSIVolumeHealth ContainerStopSignals EventedPLEG
    ImageVolumeWithDigest InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory
    KubeletInUserNamespace LoggingAlphaOptions MemoryQoS NativeHistograms PodAndContainerStatsFromCRI
    PodLevelResourceManagers PodLogsQuerySplitStreams PodsAPI QOSReserved ReduceDefaultCrashLoopBackOffDecay
    RuntimeClassInImageCriApi TaintTolerationComparisonOperators TopologyManagerPolicyAlphaOptions
    UserNamespacesHostNetworkSupport
"""
_KUBELET_DEPRECATED_ON = "DisableCPUQuotaWithExclusiveCPUs KubeletPodResourcesListUseActivePods"
_KUBELET_DEPRECATED_OFF_LOCKED = "GitRepoVolumeDriver"
_KUBELET_DEPRECATED_OFF = "AllowDNSOnlyNodeCSR ChangeContainerStatusOnKubeletRestart KubeletRegistrationGetOnExistsOnly"

# Gates of other components. One --feature-gates value often serves all components, so the kubelet must know these names.
_OTHER_GA_LOCKED = """
    APIServerTracing AnonymousAuthConfigurableEndpoints AnyVolumeDataSource AuthorizeNodeWithSelectors
    AuthorizeWithSelectors BtreeWatchCache CRDValidationRatcheting CSIServiceAccountTokenSecrets
    ConsistentListFromCache CustomResourceFieldSelectors DRAAdminAccess DeclarativeValidation
    DisableAllocatorDualWrite ExecProbeTimeout ExternalServiceAccountTokenSigner InOrderInformers
    JobBackoffLimitPerIndex JobManagedBy JobPodReplacementPolicy JobSuccessPolicy LogarithmicScaleDown
    MatchLabelKeysInPodAffinity MultiCIDRServiceAllocator NFTablesProxyMode
    NodeInclusionPolicyInPodTopologySpread OrderedNamespaceDeletion PodLifecycleSleepActionAllowZero
    PodSchedulingReadiness PreferSameTrafficDistribution ResilientWatchCacheInitialization RetryGenerateName
    SchedulerQueueingHints SeparateTaintEvictionController ServiceAccountTokenJTI ServiceAccountTokenNodeBinding
    ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo StreamingCollectionEncodingToJSON
    StreamingCollectionEncodingToProtobuf StructuredAuthenticationConfiguration VolumeAttributesClass WinDSR
    WinOverlay
"""
_OTHER_GA = "AllowServiceExternalIPs DRAPrioritizedList InformerResourceVersion MutatingAdmissionPolicy"
_OTHER_BETA_ON = """
    APIResponseCompression APIServerIdentity AllowParsingUserUIDFromCertAuth AtomicFIFO
    AuthorizePodWebsocketUpgradeCreatePermission CRDObservedGenerationTracking
    ClearingNominatedNodeNameAfterBinding ClientsAllowCARotation ClientsAllowTLSCacheGC ConstrainedImpersonation
    DRAConsumableCapacity DRADeviceBindingConditions DRADeviceTaints DRAPartitionableDevices
    DRAResourceClaimDeviceStatus DRAResourceClaimGranularStatusAuthorization DRASchedulerFilterTimeout
    DeclarativeValidationBeta DeploymentReplicaSetTerminatingReplicas DetectCacheInconsistency
    HPAConfigurableTolerance InOrderInformersBatchProcess ListFromCacheSnapshot
    MatchLabelKeysInPodTopologySpread MatchLabelKeysInPodTopologySpreadSelectorMerge
    MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs
    NominatedNodeNameForExpectation OpenAPIEnums OpportunisticBatching PodDeletionCost
    PodTopologyLabelsAdmission PortForwardWebsockets RelaxedServiceNameValidation RemoteRequestHeaderUID
    SchedulerAsyncPreemption SchedulerPopFromBackoffQ ServiceAccountNodeAudienceRestriction
    SizeBasedListCostEstimate StaleControllerConsistencyDaemonSet StaleControllerConsistencyJob
    StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet
    StatefulSetSemanticRevisionComparison StorageVersionHash StrictIPCIDRValidation
    StructuredAuthenticationConfigurationEgressSelector StructuredAuthenticationConfigurationJWKSMetrics
    TokenRequestServiceAccountUIDValidation TranslateStreamCloseWebsocketRequests
    UnauthenticatedHTTP2DOSMitigation UnknownVersionInteroperabilityProxy UnlockWhileProcessingFIFO
    WatchCacheInitializationPostStartHook WatchList WatchListClient WindowsGracefulNodeShutdown
"""
_OTHER_BETA_OFF = """
    ClusterTrustBundle ConcurrentWatchObjectDecode CoordinatedLeaderElection DRADeviceTaintRules
    MaxUnavailableStatefulSet SchedulerAsyncAPICalls StorageVersionMigrator
"""
_OTHER_ALPHA = """
    APIServingWithRoutine AllowUnsafeMalformedObjectDeletion CBORServingAndStorage ClientsAllowCBOR
    ClientsPreferCBOR CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook
    ControllerManagerReleaseLeaderElectionLockOnExit CrossNamespaceVolumeDataSource DRAListTypeAttributes
    DRANodeAllocatableResources DRAResourcePoolStatus DRAWorkloadResourceClaims GangScheduling GenericWorkload
    HPAScaleToZero ManifestBasedAdmissionControlConfig MutablePVNodeAffinity
    PersistentVolumeClaimUnusedSinceTime ShardedListAndWatch StorageCapacityScoring StorageVersionAPI
    TopologyAwareWorkloadScheduling VolumeLimitScaling WindowsCPUAndMemoryAffinity WorkloadAwarePreemption
    WorkloadWithJob
"""
_OTHER_DEPRECATED_ON_LOCKED = "AggregatedDiscoveryRemoveBetaType DisableNodeKubeProxyVersion"
_OTHER_DEPRECATED_ON = "ServiceCIDRStatusFieldWiping StorageNamespaceIndex"
_OTHER_DEPRECATED_OFF_LOCKED = "AllowOverwriteTerminationGracePeriodSeconds SeparateCacheWatchRPC"
_OTHER_DEPRECATED_OFF = (
    "AllowInsecureKubeletCertificateSigningRequests DeclarativeValidationTakeover KMSv1 WindowsHostNetwork"
)

#: Gates of the kubelet that keep their defaults in this agent, and why. Setting one to the other value is refused;
#: `AllAlpha` and `AllBeta` do not change it.
FIXED: Mapping[str, str] = {
    "CRIListStreaming": "lists of pods, containers and images are read from the runtime in one message each",
    "ImageVolumeWithDigest": "the digests of image volumes are not reported",
    "InPlacePodVerticalScalingExclusiveCPUs": "containers with exclusive CPUs cannot be resized in place",
    "InPlacePodVerticalScalingExclusiveMemory": "containers with memory of NUMA nodes of their own cannot be resized in place",
    "NativeHistograms": "metrics are served as text, which has no native histograms",
    "PodAndContainerStatsFromCRI": "usage is read from cgroups, not from the runtime",
    "PodCertificateRequest": "projected volumes of the kind podCertificate are not supported",
    "PodLevelResourceManagers": "exclusive CPUs and NUMA nodes are assigned to containers, not to pods",
    "PodsAPI": "the gRPC API for pods is not served",
    "ReloadKubeletClientCAFile": "a changed client CA file is always read again",
    "ReloadKubeletServerCertificateFile": "changed certificate and key files are always read again",
    "RuntimeClassInImageCriApi": "images are not counted for each runtime handler",
    "UserNamespacesHostNetworkSupport": "a pod on the host's network cannot have its own user namespace",
}
#: Gates of the kubelet that choose between two ways to one result. This agent has one way, so both values are accepted.
#: Log lines have the fields of their call and none of a context (the first); exits come from the runtime's events and from
#: lists (the next two); what the kernel refuses to a user namespace is never an error (the last).
EITHER_WAY = frozenset({"ContextualLogging", "EventedPLEG", "PLEGOnDemandRelist", "KubeletInUserNamespace"})

# The gates that must be on too. Needs that are locked on are left out.
DEPENDENCIES: Mapping[str, tuple[str, ...]] = {
    "ClusterTrustBundleProjection": ("ClusterTrustBundle",),
    "DRADeviceBindingConditions": ("DRAResourceClaimDeviceStatus",),
    "DRAResourceClaimGranularStatusAuthorization": ("DRAResourceClaimDeviceStatus",),
    "DRAWorkloadResourceClaims": ("GenericWorkload",),
    "ExtendWebSocketsToKubelet": ("NodeDeclaredFeatures",),
    "GangScheduling": ("GenericWorkload",),
    "GracefulNodeShutdownBasedOnPodPriority": ("GracefulNodeShutdown",),
    "InPlacePodLevelResourcesVerticalScaling": ("NodeDeclaredFeatures", "PodLevelResources"),
    "InPlacePodVerticalScalingInitContainers": ("NodeDeclaredFeatures",),
    "MatchLabelKeysInPodTopologySpreadSelectorMerge": ("MatchLabelKeysInPodTopologySpread",),
    "PodLevelResourceManagers": ("PodLevelResources",),
    "ResourceHealthStatusMessage": ("ResourceHealthStatus",),
    "RestartAllContainersOnContainerExits": ("ContainerRestartRules", "NodeDeclaredFeatures"),
    "StaleControllerConsistencyDaemonSet": ("AtomicFIFO",),
    "StaleControllerConsistencyJob": ("AtomicFIFO",),
    "StaleControllerConsistencyReplicaSet": ("AtomicFIFO",),
    "StaleControllerConsistencyStatefulSet": ("AtomicFIFO",),
    "StorageVersionAPI": ("APIServerIdentity",),
    "TopologyAwareWorkloadScheduling": ("GenericWorkload",),
    "UnknownVersionInteroperabilityProxy": ("APIServerIdentity",),
    "UserNamespacesHostNetworkSupport": ("NodeDeclaredFeatures",),
    "WindowsGracefulNodeShutdown": ("GracefulNodeShutdown",),
    "WorkloadAwarePreemption": ("GangScheduling",),
    "WorkloadWithJob": ("GenericWorkload",),
}


@cache
def known_gates() -> Mapping[str, Gate]:
    """Every gate by name."""
    rows = (
        (_KUBELET_GA_LOCKED, Gate(True, FeatureStage.GA, locked=True)),
        (_KUBELET_GA, Gate(True, FeatureStage.GA)),
        (_KUBELET_BETA_ON, Gate(True, FeatureStage.BETA)),
        (_KUBELET_BETA_OFF, Gate(False, FeatureStage.BETA)),
        (_KUBELET_ALPHA, Gate(False, FeatureStage.ALPHA)),
        (_KUBELET_DEPRECATED_ON, Gate(True, FeatureStage.DEPRECATED)),
        (_KUBELET_DEPRECATED_OFF_LOCKED, Gate(False, FeatureStage.DEPRECATED, locked=True)),
        (_KUBELET_DEPRECATED_OFF, Gate(False, FeatureStage.DEPRECATED)),
        (_OTHER_GA_LOCKED, Gate(True, FeatureStage.GA, locked=True)),
        (_OTHER_GA, Gate(True, FeatureStage.GA)),
        (_OTHER_BETA_ON, Gate(True, FeatureStage.BETA)),
        (_OTHER_BETA_OFF, Gate(False, FeatureStage.BETA)),
        (_OTHER_ALPHA, Gate(False, FeatureStage.ALPHA)),
        (_OTHER_DEPRECATED_ON_LOCKED, Gate(True, FeatureStage.DEPRECATED, locked=True)),
        (_OTHER_DEPRECATED_ON, Gate(True, FeatureStage.DEPRECATED)),
        (_OTHER_DEPRECATED_OFF_LOCKED, Gate(False, FeatureStage.DEPRECATED, locked=True)),
        (_OTHER_DEPRECATED_OFF, Gate(False, FeatureStage.DEPRECATED)),
    )
    return {name: gate for names, gate in rows for name in names.split()}


@cache
def settable_gates() -> frozenset[str]:
    """The gates that the kubelet reads and that are not locked."""
    rows = (
        _KUBELET_GA,
        _KUBELET_BETA_ON,
        _KUBELET_BETA_OFF,
        _KUBELET_ALPHA,
        _KUBELET_DEPRECATED_ON,
        _KUBELET_DEPRECATED_OFF,
    )
    return frozenset(name for names in rows for name in names.split())


class FeatureGates(Value):
    """The gates in force: the defaults, overridden by `given`. Build it with `feature_gates`."""

    given: Mapping[str, bool]

    def enabled(self, name: str) -> bool:
        """Whether a known gate is on. Raises KeyError for an unknown name, which is a bug in the caller."""
        gate = known_gates()[name]
        if name in FIXED:
            return gate.default
        if name in self.given:
            return self.given[name]
        return self.given.get(_group(gate), gate.default)

    def all(self) -> dict[str, tuple[bool, str]]:
        """Every known gate: whether it is on, and its stage."""
        return {name: (self.enabled(name), gate.stage.value) for name, gate in known_gates().items()}

    def leaving(self) -> tuple[tuple[str, str], ...]:
        """The given gates that a later release removes, by name: each with its stage, as the kubelet words it."""
        words = {FeatureStage.GA: "GA", FeatureStage.DEPRECATED: "deprecated"}
        stages = ((name, known_gates()[name].stage) for name in sorted(self.given) if name in known_gates())
        return tuple((name, words[stage]) for name, stage in stages if stage in words)

    def unmoved(self) -> tuple[str, ...]:
        """The gates that keep their defaults although `AllAlpha` or `AllBeta` sets the other value, sorted."""
        gates = known_gates()
        return tuple(sorted(name for name in FIXED if self.given.get(_group(gates[name])) is (not gates[name].default)))


def _group(gate: Gate) -> str:
    """The name that sets all gates of the stage; "" if there is none."""
    return "" if gate.locked else {FeatureStage.ALPHA: ALL_ALPHA, FeatureStage.BETA: ALL_BETA}.get(gate.stage, "")


def setting_problems(given: Mapping[str, bool]) -> list[str]:
    """The problems of the given gates: unknown names and locked gates, in the reference's words, and gates of `FIXED`."""
    problems = []
    for name in sorted(given):
        gate = known_gates().get(name)
        if name in (ALL_ALPHA, ALL_BETA):
            continue
        if gate is None:
            problems.append(f"unrecognized feature gate: {name}{_nearest(name)}")
        elif gate.locked and given[name] != gate.default:
            wanted, fixed = str(given[name]).lower(), str(gate.default).lower()
            problems.append(f"cannot set feature gate {name} to {wanted}, feature is locked to {fixed}")
        elif name in FIXED and given[name] != gate.default:
            problems.append(f"cannot set feature gate {name} to {str(given[name]).lower()} here: {FIXED[name]}")
    return problems


def dependency_problems(gates: FeatureGates) -> list[str]:
    """The problems of gates that are on while a gate that they depend on is off."""
    problems = []
    for name in sorted(DEPENDENCIES):
        missing = [need for need in DEPENDENCIES[name] if not gates.enabled(need)]
        if missing and gates.enabled(name):
            problems.append(f"{name} is enabled, but depends on features that are disabled: [{' '.join(missing)}]")
    return problems


def _nearest(name: str) -> str:
    near = nearest(name, known_gates(), cutoff=0.7)
    return f' (did you mean "{near}"?)' if near else ""

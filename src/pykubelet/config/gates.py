"""Feature gates of Kubernetes 1.36: names, defaults, locks, and the set in force. Pure.

Owns: the table and the rules for setting gates (unknown name, locked gate, unmet dependency, `AllAlpha`, `AllBeta`).
A gate that is listed here is known. `effects.py` lists the gates that have an effect in this agent.
Source: the kubelet's command line reference and the list of feature gates in the Kubernetes documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache

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
    KubeletPodResourcesGet KubeletTracing MutableCSINodeAllocatableCount NodeLogQuery NodeSwap PodLifecycleSleepAction
    PodObservedGenerationTracking ProcMountType RecoverVolumeExpansionFailure RecursiveReadOnlyMounts
    RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation SELinuxChangePolicy SELinuxMountReadWriteOncePod
    SidecarContainers SupplementalGroupsPolicy SystemdWatchdog TopologyManagerPolicyOptions UserNamespacesSupport
"""
_KUBELET_GA = "CustomCPUCFSQuotaPeriod"
_KUBELET_BETA_ON = """
    CPUManagerPolicyBetaOptions ComponentFlagz ComponentStatusz ContainerCheckpoint ContainerRestartRules
    ContextualLogging DRAConsumableCapacity DRAExtendedResource DisableCPUQuotaWithExclusiveCPUs EnvFiles
    ExtendWebSocketsToKubelet GracefulNodeShutdown GracefulNodeShutdownBasedOnPodPriority HostnameOverride
    InPlacePodLevelResourcesVerticalScaling InPlacePodVerticalScalingInitContainers KubeletCrashLoopBackOffMax
    KubeletEnsureSecretPulledImages KubeletSeparateDiskGC KubeletServiceAccountTokenForCredentialProviders
    LoggingBetaOptions NodeDeclaredFeatures PLEGOnDemandRelist PodLevelResources PodReadyToStartContainersCondition
    PreventStaticPodAPIReferences ReloadKubeletClientCAFile ReloadKubeletServerCertificateFile ResourceHealthStatus
    ResourceHealthStatusMessage RestartAllContainersOnContainerExits RotateKubeletServerCertificate
    TopologyManagerPolicyBetaOptions
"""
_KUBELET_BETA_OFF = """
    ClusterTrustBundleProjection LocalStorageCapacityIsolationFSQuotaMonitoring PodCertificateRequest SELinuxMount
"""
_KUBELET_ALPHA = """
    CPUManagerPolicyAlphaOptions CRIListStreaming CSIVolumeHealth ContainerStopSignals EventedPLEG ImageVolumeWithDigest
    InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory KubeletInUserNamespace
    LoggingAlphaOptions MemoryQoS NativeHistograms PodAndContainerStatsFromCRI PodLevelResourceManagers
    PodLogsQuerySplitStreams PodsAPI QOSReserved ReduceDefaultCrashLoopBackOffDecay RuntimeClassInImageCriApi
    TaintTolerationComparisonOperators TopologyManagerPolicyAlphaOptions UserNamespacesHostNetworkSupport
    VolumeLimitScaling
"""
_KUBELET_DEPRECATED_ON = "KubeletPodResourcesListUseActivePods"
_KUBELET_DEPRECATED_OFF = """
    AllowDNSOnlyNodeCSR AllowInsecureKubeletCertificateSigningRequests ChangeContainerStatusOnKubeletRestart
    KubeletRegistrationGetOnExistsOnly
"""
_KUBELET_DEPRECATED_OFF_LOCKED = "GitRepoVolumeDriver"

# Gates of other components. One --feature-gates value often serves all components, so the kubelet must know these names.
_OTHER_GA_LOCKED = """
    APIServerTracing AnonymousAuthConfigurableEndpoints AnyVolumeDataSource AuthorizeNodeWithSelectors
    AuthorizeWithSelectors BtreeWatchCache CRDValidationRatcheting CSIMigrationPortworx ConsistentListFromCache
    CustomResourceFieldSelectors DisableAllocatorDualWrite ExecProbeTimeout HonorPVReclaimPolicy
    JobBackoffLimitPerIndex JobManagedBy JobPodReplacementPolicy JobSuccessPolicy LogarithmicScaleDown
    MatchLabelKeysInPodAffinity MemoryManager MultiCIDRServiceAllocator NFTablesProxyMode
    NodeInclusionPolicyInPodTopologySpread OrderedNamespaceDeletion PodLifecycleSleepActionAllowZero
    PodSchedulingReadiness PreferSameTrafficDistribution ResilientWatchCacheInitialization RetryGenerateName
    SchedulerQueueingHints SeparateTaintEvictionController ServiceAccountTokenJTI ServiceAccountTokenNodeBinding
    ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo ServiceTrafficDistribution
    StreamingCollectionEncodingToJSON StreamingCollectionEncodingToProtobuf StructuredAuthenticationConfiguration
    StructuredAuthorizationConfiguration TopologyAwareHints VolumeAttributesClass WinDSR WinOverlay
"""
_OTHER_GA = "InformerResourceVersion"
_OTHER_BETA_ON = """
    APIResponseCompression APIServerIdentity AllowParsingUserUIDFromCertAuth
    AuthorizePodWebsocketUpgradeCreatePermission CSIServiceAccountTokenSecrets ClearingNominatedNodeNameAfterBinding
    DRAAdminAccess DRAPrioritizedList DRAResourceClaimDeviceStatus DRASchedulerFilterTimeout DeclarativeValidation
    DeploymentReplicaSetTerminatingReplicas DetectCacheInconsistency ExternalServiceAccountTokenSigner
    HPAConfigurableTolerance InOrderInformers InOrderInformersBatchProcess ListFromCacheSnapshot
    MatchLabelKeysInPodTopologySpread MatchLabelKeysInPodTopologySpreadSelectorMerge MaxUnavailableStatefulSet
    NominatedNodeNameForExpectation OpenAPIEnums OpportunisticBatching PodDeletionCost PodTopologyLabelsAdmission
    PortForwardWebsockets RemoteRequestHeaderUID SchedulerAsyncPreemption SchedulerPopFromBackoffQ
    ServiceAccountNodeAudienceRestriction SizeBasedListCostEstimate StatefulSetSemanticRevisionComparison
    StorageVersionHash StructuredAuthenticationConfigurationEgressSelector
    StructuredAuthenticationConfigurationJWKSMetrics TokenRequestServiceAccountUIDValidation
    TranslateStreamCloseWebsocketRequests UnauthenticatedHTTP2DOSMitigation WatchList WatchListClient
    WindowsGracefulNodeShutdown
"""
_OTHER_BETA_OFF = """
    CRDObservedGenerationTracking ClusterTrustBundle ConcurrentWatchObjectDecode CoordinatedLeaderElection
    DeclarativeValidationTakeover MutatingAdmissionPolicy SchedulerAsyncAPICalls StorageVersionMigrator
    WatchCacheInitializationPostStartHook
"""
_OTHER_ALPHA = """
    APIServingWithRoutine AllowUnsafeMalformedObjectDeletion CBORServingAndStorage ClientsAllowCBOR ClientsPreferCBOR
    CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook ConstrainedImpersonation
    CrossNamespaceVolumeDataSource DRADeviceBindingConditions DRADeviceTaintRules DRADeviceTaints
    DRAPartitionableDevices GangScheduling GenericWorkload HPAScaleToZero InTreePluginPortworxUnregister
    MutablePVNodeAffinity MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs
    RelaxedServiceNameValidation StorageCapacityScoring StorageVersionAPI StrictIPCIDRValidation
    UnknownVersionInteroperabilityProxy WindowsCPUAndMemoryAffinity
"""
_OTHER_DEPRECATED_ON = """
    AggregatedDiscoveryRemoveBetaType DisableNodeKubeProxyVersion SeparateCacheWatchRPC StorageNamespaceIndex
"""
_OTHER_DEPRECATED_OFF = """
    AllowOverwriteTerminationGracePeriodSeconds InPlacePodVerticalScalingAllocatedStatus KMSv1
    WatchFromStorageWithoutResourceVersion WindowsHostNetwork
"""

# For the gates that the kubelet reads: the gates that must be on too.
DEPENDENCIES: Mapping[str, tuple[str, ...]] = {
    "DRAConsumableCapacity": ("DynamicResourceAllocation",),
    "DRAExtendedResource": ("DynamicResourceAllocation",),
    "GracefulNodeShutdownBasedOnPodPriority": ("GracefulNodeShutdown",),
    "ImageVolumeWithDigest": ("ImageVolume",),
    "InPlacePodLevelResourcesVerticalScaling": (
        "InPlacePodVerticalScaling",
        "NodeDeclaredFeatures",
        "PodLevelResources",
    ),
    "InPlacePodVerticalScalingExclusiveCPUs": ("InPlacePodVerticalScaling",),
    "InPlacePodVerticalScalingExclusiveMemory": ("InPlacePodVerticalScaling",),
    "ProcMountType": ("UserNamespacesSupport",),
    "ResourceHealthStatus": ("DynamicResourceAllocation",),
    "RestartAllContainersOnContainerExits": ("ContainerRestartRules", "NodeDeclaredFeatures"),
    "UserNamespacesHostNetworkSupport": ("UserNamespacesSupport",),
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
        (_KUBELET_DEPRECATED_OFF, Gate(False, FeatureStage.DEPRECATED)),
        (_KUBELET_DEPRECATED_OFF_LOCKED, Gate(False, FeatureStage.DEPRECATED, locked=True)),
        (_OTHER_GA_LOCKED, Gate(True, FeatureStage.GA, locked=True)),
        (_OTHER_GA, Gate(True, FeatureStage.GA)),
        (_OTHER_BETA_ON, Gate(True, FeatureStage.BETA)),
        (_OTHER_BETA_OFF, Gate(False, FeatureStage.BETA)),
        (_OTHER_ALPHA, Gate(False, FeatureStage.ALPHA)),
        (_OTHER_DEPRECATED_ON, Gate(True, FeatureStage.DEPRECATED)),
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
        if name in self.given:
            return self.given[name]
        if not gate.locked and gate.stage is FeatureStage.ALPHA and ALL_ALPHA in self.given:
            return self.given[ALL_ALPHA]
        if not gate.locked and gate.stage is FeatureStage.BETA and ALL_BETA in self.given:
            return self.given[ALL_BETA]
        return gate.default

    def all(self) -> dict[str, tuple[bool, str]]:
        """Every known gate: whether it is on, and its stage."""
        return {name: (self.enabled(name), gate.stage.value) for name, gate in known_gates().items()}


def setting_problems(given: Mapping[str, bool]) -> list[str]:
    """The problems of the given gates: unknown names and locked gates, in the reference's words."""
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
    import difflib  # only after a mistake

    near = difflib.get_close_matches(name, known_gates(), n=1, cutoff=0.7)
    return f' (did you mean "{near[0]}"?)' if near else ""

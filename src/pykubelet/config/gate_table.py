"""The feature gates of each release. Data only.

A row: the gate, then its stage in 1.36, in 1.37 and in 1.38, then the gates that must be on if it is on (without those that are
locked on). A stage is `alpha`, `beta`, `GA` or `deprecated`, with `on` or `off` where the default is another than the
usual one of the stage (alpha: off; beta and GA: on), and `locked` if only the default can be set. `-`: the release does not have
the gate. `.`: as in the release before.

1.38 is what its notes of October 2026 state. They do not state the stage of CertificateSigningRequestMLDSA, taken as alpha.
Source: the kubelet's command line reference, the list of feature gates in the Kubernetes documentation, and the release notes.
"""

from __future__ import annotations

#: Gates that the kubelet reads.
KUBELET = """
AllowDNSOnlyNodeCSR                          deprecated,off        .                    .
AtomicWriteVolumeUserFields                  -                     alpha                .
ChangeContainerStatusOnKubeletRestart        deprecated,off        .                    .
ClusterTrustBundleProjection                 beta,off              GA                   GA,locked ClusterTrustBundle
ComponentFlagz                               beta                  .                    .
ComponentStatusz                             beta                  .                    .
ContainerCheckpoint                          beta                  .                    .
ContainerRestartRules                        beta                  .                    .
ContainerStopSignals                         alpha                 .                    .
ContextualLogging                            beta                  .                    .
CPUManagerPolicyAlphaOptions                 alpha                 .                    .
CPUManagerPolicyBetaOptions                  beta                  .                    .
CPUManagerPolicyOptions                      GA,locked             .                    .
CRIListStreaming                             alpha                 .                    .
CSIVolumeHealth                              alpha                 .                    .
CustomCPUCFSQuotaPeriod                      GA                    .                    .
DefaultPodSysctls                            -                     alpha                .
DisableCPUQuotaWithExclusiveCPUs             deprecated,on         deprecated,on,locked .
DRAExtendedResource                          beta                  GA,locked            .
DRANodeAllocatableResources                  alpha                 .                    .
DRAOptionalNodeOperations                    -                     alpha                .
DynamicResourceAllocation                    GA,locked             .                    -
EmptyDirVolumeMode                           -                     alpha                .
EnvFiles                                     beta                  .                    GA,locked
EventedPLEG                                  alpha                 .                    .
ExtendWebSocketsToKubelet                    beta                  .                    . NodeDeclaredFeatures
GitRepoVolumeDriver                          deprecated,off,locked .                    .
GracefulNodeShutdown                         beta                  .                    .
GracefulNodeShutdownBasedOnPodPriority       beta                  .                    . GracefulNodeShutdown
GRPCContainerProbeTLS                        -                     alpha                .
H2CContainerProbe                            -                     alpha                . NodeDeclaredFeatures
HostnameOverride                             beta                  GA,locked            .
HugepageAwareEviction                        -                     beta                 .
ImageMaximumGCAge                            GA,locked             .                    .
ImageVolume                                  GA,locked             .                    .
ImageVolumeWithDigest                        alpha                 .                    .
InPlacePodLevelResourcesVerticalScaling      beta                  .                    . NodeDeclaredFeatures PodLevelResources
InPlacePodVerticalScaling                    GA,locked             .                    .
InPlacePodVerticalScalingExclusiveCPUs       alpha                 .                    .
InPlacePodVerticalScalingExclusiveMemory     alpha                 .                    .
InPlacePodVerticalScalingInitContainers      beta                  GA,locked            . NodeDeclaredFeatures
InPlacePodVerticalScalingMemoryBackedVolumes -                     alpha                . NodeDeclaredFeatures
InPlacePodVerticalScalingSchedulerPreemption -                     alpha                .
KubeletAllocatedPodsEndpoint                 -                     alpha                .
KubeletCgroupDriverFromCRI                   GA,locked             .                    .
KubeletCrashLoopBackOffMax                   beta                  .                    .
KubeletEnsureSecretPulledImages              beta                  .                    .
KubeletFineGrainedAuthz                      GA,locked             .                    .
KubeletInUserNamespace                       alpha                 beta                 .
KubeletPodResourcesDynamicResources          GA,locked             .                    .
KubeletPodResourcesGet                       GA,locked             .                    .
KubeletPodResourcesListUseActivePods         deprecated,on         .                    .
KubeletPSI                                   GA,locked             .                    .
KubeletRegistrationGetOnExistsOnly           deprecated,off        .                    .
KubeletSeparateDiskGC                        beta                  .                    .
KubeletServiceAccountTokenForCredentialProviders beta                  .                    .
KubeletTracing                               GA,locked             .                    -
LocalStorageCapacityIsolationFSQuotaMonitoring beta,off              .                    .
LoggingAlphaOptions                          alpha                 .                    .
LoggingBetaOptions                           beta                  .                    .
MemoryQoS                                    alpha                 beta                 .
MutableCSINodeAllocatableCount               GA,locked             .                    .
NativeHistograms                             alpha                 beta                 .
NodeDeclaredFeatures                         beta                  GA,locked            .
NodeLifecycleConditions                      -                     alpha                .
NodeLogQuery                                 GA,locked             .                    .
NodeSwap                                     GA,locked             .                    .
PLEGOnDemandRelist                           beta                  GA,locked            .
PodAndContainerStatsFromCRI                  alpha                 beta,off             .
PodCertificateMLDSA                          -                     -                    beta,off
PodCertificateRequest                        beta,off              GA                   GA,locked
PodLevelResourceManagers                     alpha                 beta,off             . PodLevelResources
PodLevelResources                            beta                  .                    .
PodLevelResourcesFixKubeletQOSClass          -                     beta                 . PodLevelResources
PodLifecycleSleepAction                      GA,locked             -                    .
PodLogsQuerySplitStreams                     alpha                 .                    .
PodObservedGenerationTracking                GA,locked             .                    .
PodReadyToStartContainersCondition           beta                  GA,locked            .
PodsAPI                                      alpha                 beta                 .
PreventStaticPodAPIReferences                beta                  -                    .
ProcMountType                                GA,locked             .                    .
QOSReserved                                  alpha                 .                    .
RecoverVolumeExpansionFailure                GA,locked             .                    .
RecursiveReadOnlyMounts                      GA,locked             .                    .
ReduceDefaultCrashLoopBackOffDecay           alpha                 .                    .
RelaxedDNSSearchValidation                   GA,locked             -                    .
RelaxedEnvironmentVariableValidation         GA,locked             .                    .
ReloadKubeletClientCAFile                    beta                  .                    .
ReloadKubeletServerCertificateFile           beta                  .                    .
ResourceHealthStatus                         beta                  .                    .
ResourceHealthStatusMessage                  beta                  .                    . ResourceHealthStatus
RestartAllContainersOnContainerExits         beta                  .                    . ContainerRestartRules NodeDeclaredFeatures
RotateKubeletServerCertificate               beta                  .                    .
RuntimeClassInImageCriApi                    alpha                 .                    .
SELinuxChangePolicy                          GA,locked             .                    .
SELinuxMount                                 beta,off              GA                   GA,locked
SELinuxMountReadWriteOncePod                 GA,locked             .                    .
SidecarContainers                            GA,locked             -                    .
SupplementalGroupsPolicy                     GA,locked             .                    .
SystemdWatchdog                              GA,locked             .                    .
TaintTolerationComparisonOperators           alpha                 .                    .
TopologyManagerPolicyAlphaOptions            alpha                 .                    .
TopologyManagerPolicyBetaOptions             beta                  .                    .
TopologyManagerPolicyOptions                 GA,locked             .                    .
UserNamespacesHostNetworkSupport             alpha                 .                    . NodeDeclaredFeatures
UserNamespacesSupport                        GA,locked             .                    .
VolumeBindMountOptions                       -                     alpha                .
"""

#: Gates of other components. One value of --feature-gates often serves all components, so the kubelet must know these
#: names.
OTHERS = """
AggregatedDiscoveryRemoveBetaType            deprecated,on,locked  .                    -
AllowInsecureKubeletCertificateSigningRequests deprecated,off        .                    .
AllowOverwriteTerminationGracePeriodSeconds  deprecated,off,locked .                    .
AllowParsingUserUIDFromCertAuth              beta                  .                    .
AllowServiceExternalIPs                      GA                    .                    .
AllowUnsafeMalformedObjectDeletion           alpha                 beta                 .
AnonymousAuthConfigurableEndpoints           GA,locked             -                    .
AnyVolumeDataSource                          GA,locked             -                    .
APIResponseCompression                       beta                  .                    .
APIServerIdentity                            beta                  .                    .
APIServerTracing                             GA,locked             -                    .
APIServerWebhookAuthenticationToken          -                     alpha                .
APIServingWithRoutine                        alpha                 .                    .
AtomicFIFO                                   beta                  .                    .
AuthorizeNodeWithSelectors                   GA,locked             -                    .
AuthorizePodWebsocketUpgradeCreatePermission beta                  .                    .
AuthorizeWithSelectors                       GA,locked             -                    .
BtreeWatchCache                              GA,locked             -                    .
CBORServingAndStorage                        alpha                 .                    .
CertificateSigningRequestMLDSA               -                     -                    alpha
ClearingNominatedNodeNameAfterBinding        beta                  .                    .
ClientsAllowCARotation                       beta                  .                    .
ClientsAllowCBOR                             alpha                 .                    .
ClientsAllowTLSCacheGC                       beta                  .                    .
ClientsPreferCBOR                            alpha                 .                    .
CloudControllerManagerWatchBasedRoutesReconciliation alpha                 .                    .
CloudControllerManagerWebhook                alpha                 .                    .
ClusterTrustBundle                           beta,off              GA                   GA,locked
CompositePodGroup                            -                     alpha                . GenericWorkload TopologyAwareWorkloadScheduling
ConcurrentWatchObjectDecode                  beta,off              beta                 .
ConsistentListFromCache                      GA,locked             -                    .
ConsistentListFromCacheSkipTimeoutFallback   -                     alpha                .
ConstrainedImpersonation                     beta                  .                    .
ControllerManagerReleaseLeaderElectionLockOnExit alpha                 .                    .
CoordinatedLeaderElection                    beta,off              .                    .
CRDObservedGenerationTracking                beta                  .                    .
CRDValidationRatcheting                      GA,locked             .                    -
CrossNamespaceVolumeDataSource               alpha                 .                    .
CSIServiceAccountTokenSecrets                GA,locked             .                    .
CustomResourceFieldSelectors                 GA,locked             .                    -
DeclarativeValidation                        GA,locked             .                    .
DeclarativeValidationBeta                    beta                  .                    .
DeclarativeValidationTakeover                deprecated,off        deprecated,off,locked .
DeploymentReplicaSetTerminatingReplicas      beta                  .                    .
DetectCacheInconsistency                     beta                  .                    .
DisableAllocatorDualWrite                    GA,locked             .                    .
DisableNodeKubeProxyVersion                  deprecated,on,locked  .                    .
DRAAdminAccess                               GA,locked             .                    .
DRAConsumableCapacity                        beta                  .                    .
DRADerivedAttributes                         -                     alpha                .
DRADeviceBindingConditions                   beta                  .                    . DRAResourceClaimDeviceStatus
DRADeviceCompatibilityGroups                 -                     alpha                .
DRADeviceTaintRules                          beta,off              GA                   GA,locked DRADeviceTaints
DRADeviceTaints                              beta                  GA                   GA,locked
DRAFractionalCapacityRange                   -                     beta                 . DRAConsumableCapacity
DRAListTypeAttributes                        alpha                 .                    .
DRAPartitionableDevices                      beta                  .                    .
DRAPartitionableDevicesType                  -                     alpha                .
DRAPrioritizedList                           GA                    GA,locked            .
DRAResourceClaimDeviceStatus                 beta                  GA,locked            .
DRAResourceClaimGranularStatusAuthorization  beta                  .                    . DRAResourceClaimDeviceStatus
DRAResourcePoolStatus                        alpha                 .                    .
DRASchedulerFilterTimeout                    beta                  .                    .
DRAWorkloadResourceClaims                    alpha                 beta,off             . GenericWorkload
EtcdRangeStream                              -                     beta                 .
EvictionRequestAPI                           -                     alpha                .
ExcludeAdmissionWebhookVirtualResources      -                     beta                 .
ExecProbeTimeout                             GA,locked             .                    .
ExternalServiceAccountTokenSigner            GA,locked             .                    .
GangScheduling                               alpha                 -                    . GenericWorkload
GenericWorkload                              alpha                 beta,off             .
HPAConfigurableTolerance                     beta                  GA,locked            .
HPAGeneration                                -                     beta                 .
HPAOptimizedSelectorStore                    -                     beta                 .
HPAScaleToZero                               alpha                 beta                 .
InformerResourceVersion                      GA                    .                    .
InOrderInformers                             GA,locked             .                    .
InOrderInformersBatchProcess                 beta                  .                    .
InterPodAffinityHostnameFastPath             -                     alpha                .
JobBackoffLimitPerIndex                      GA,locked             -                    .
JobManagedBy                                 GA,locked             .                    .
JobPodReplacementPolicy                      GA,locked             -                    .
JobSuccessPolicy                             GA,locked             -                    .
KMSv1                                        deprecated,off        .                    .
KubeProxyIPVS                                -                     deprecated,on        .
KubeProxyNFTablesLocalhostNodePorts          -                     alpha                .
ListFromCacheSnapshot                        beta                  .                    .
LogarithmicScaleDown                         GA,locked             -                    .
ManagedFieldsOptOut                          -                     -                    alpha
ManifestBasedAdmissionControlConfig          alpha                 beta                 .
MatchLabelKeysInPodAffinity                  GA,locked             .                    -
MatchLabelKeysInPodTopologySpread            beta                  .                    .
MatchLabelKeysInPodTopologySpreadSelectorMerge beta                  .                    . MatchLabelKeysInPodTopologySpread
MaxUnavailableStatefulSet                    beta,off              beta                 .
MultiCIDRServiceAllocator                    GA,locked             .                    .
MutablePodResourcesForSuspendedJobs          beta                  .                    .
MutablePVNodeAffinity                        alpha                 .                    .
MutableSchedulingDirectivesForSuspendedJobs  beta                  .                    .
MutatingAdmissionPolicy                      GA                    .                    .
NFTablesNetlink                              -                     beta                 .
NFTablesProxyMode                            GA,locked             .                    .
NodeControllerLeaseCircuitBreaker            -                     beta                 . AtomicFIFO
NodeInclusionPolicyInPodTopologySpread       GA,locked             .                    .
NominatedNodeNameForExpectation              beta                  .                    .
OpenAPIEnums                                 beta                  .                    .
OpportunisticBatching                        beta                  .                    .
OrderedNamespaceDeletion                     GA,locked             -                    .
PersistentVolumeClaimUnusedSinceTime         alpha                 beta                 .
PodDeletionCost                              beta                  .                    .
PodGroupPreemptionPolicy                     -                     alpha                . GenericWorkload
PodLevelResourcesFixDefaulting               -                     beta                 .
PodLifecycleSleepActionAllowZero             GA,locked             -                    .
PodSchedulingReadiness                       GA,locked             .                    -
PodTopologyLabelsAdmission                   beta                  .                    .
PortForwardWebsockets                        beta                  .                    .
PreferSameTrafficDistribution                GA,locked             .                    .
RelaxedServiceNameValidation                 beta                  GA,locked            .
RemoteRequestHeaderUID                       beta                  .                    .
ResilientWatchCacheInitialization            GA,locked             -                    .
RetryGenerateName                            GA,locked             -                    .
SchedulerAsyncAPICalls                       beta,off              .                    .
SchedulerAsyncPreemption                     beta                  .                    .
SchedulerPopFromBackoffQ                     beta                  .                    .
SchedulerPreQueueingHints                    -                     alpha                .
SchedulerQueueingHints                       GA,locked             -                    .
SeparateCacheWatchRPC                        deprecated,off,locked .                    .
SeparateTaintEvictionController              GA,locked             .                    -
ServiceAccountNodeAudienceRestriction        beta                  .                    .
ServiceAccountTokenJTI                       GA,locked             .                    .
ServiceAccountTokenNodeBinding               GA,locked             .                    .
ServiceAccountTokenNodeBindingValidation     GA,locked             .                    .
ServiceAccountTokenPodNodeInfo               GA,locked             .                    -
ServiceCIDRStatusFieldWiping                 deprecated,on         .                    .
ShardedListAndWatch                          alpha                 .                    .
SizeBasedListCostEstimate                    beta                  .                    .
StaleControllerConsistencyDaemonSet          beta                  .                    . AtomicFIFO
StaleControllerConsistencyHPA                -                     beta                 . AtomicFIFO
StaleControllerConsistencyJob                beta                  .                    . AtomicFIFO
StaleControllerConsistencyReplicaSet         beta                  .                    . AtomicFIFO
StaleControllerConsistencyStatefulSet        beta                  .                    . AtomicFIFO
StatefulSetRecreateStrategy                  -                     alpha                .
StatefulSetSemanticRevisionComparison        beta                  .                    .
StorageCapacityScoring                       alpha                 beta                 .
StorageNamespaceIndex                        deprecated,on         .                    .
StorageVersionAPI                            alpha                 .                    . APIServerIdentity
StorageVersionHash                           beta                  .                    .
StorageVersionMigrator                       beta,off              GA                   .
StreamingCollectionEncodingToJSON            GA,locked             -                    .
StreamingCollectionEncodingToProtobuf        GA,locked             -                    .
StrictIPCIDRValidation                       beta                  .                    GA,locked
StructuredAuthenticationConfiguration        GA,locked             -                    .
StructuredAuthenticationConfigurationEgressSelector beta                  .                    .
StructuredAuthenticationConfigurationJWKSMetrics beta                  .                    .
TokenRequestServiceAccountUIDValidation      beta                  .                    .
TopologyAwareWorkloadScheduling              alpha                 .                    . GenericWorkload
TranslateStreamCloseWebsocketRequests        beta                  .                    .
UnauthenticatedHTTP2DOSMitigation            beta                  .                    .
UnknownVersionInteroperabilityProxy          beta                  .                    . APIServerIdentity
UnlockWhileProcessingFIFO                    beta                  .                    .
VolumeAttributesClass                        GA,locked             .                    .
VolumeLimitScaling                           alpha                 beta                 .
WatchCacheInitializationPostStartHook        beta                  GA,locked            .
WatchList                                    beta                  .                    .
WatchListClient                              beta                  .                    .
WatchListCompression                         -                     beta                 .
WebhookRoundTripLoadBalancing                -                     beta                 .
WindowsCPUAndMemoryAffinity                  alpha                 .                    .
WindowsGracefulNodeShutdown                  beta                  .                    . GracefulNodeShutdown
WindowsHostNetwork                           deprecated,off        .                    -
WinDSR                                       GA,locked             .                    .
WinOverlay                                   GA,locked             .                    .
WorkloadAwarePreemption                      alpha                 -                    . GangScheduling
WorkloadWithJob                              alpha                 .                    . GenericWorkload
"""

"""The structs of the internal version of the API's Pod, as the reference defines them in Go: names, types and order of fields.

A line is a struct and its fields, each `GoName:type` or `GoName=jsonName:type`; without a JSON name, it is the Go name with a small
first letter, and the name `-` stands for fields that JSON has in the struct around. Types without a package are those of the package
`core`. Of the structs in a status, only the status itself is listed: a manifest has none.
"""

from __future__ import annotations

from functools import cache

from pykubelet.base.kit.values import Value

_STRUCTS = """\
v1.ObjectMeta: Name:string GenerateName:string Namespace:string SelfLink:string UID=uid:types.UID
  ResourceVersion:string Generation:int64 CreationTimestamp:v1.Time DeletionTimestamp:*v1.Time
  DeletionGracePeriodSeconds:*int64 Labels:map[string]string Annotations:map[string]string
  OwnerReferences:[]v1.OwnerReference Finalizers:[]string ManagedFields:[]v1.ManagedFieldsEntry
v1.OwnerReference: APIVersion=apiVersion:string Kind:string Name:string UID=uid:types.UID Controller:*bool
  BlockOwnerDeletion:*bool
PodSpec: Volumes:[]Volume InitContainers:[]Container Containers:[]Container EphemeralContainers:[]EphemeralContainer
  RestartPolicy:RestartPolicy TerminationGracePeriodSeconds:*int64 ActiveDeadlineSeconds:*int64
  DNSPolicy=dnsPolicy:DNSPolicy NodeSelector:map[string]string ServiceAccountName:string
  AutomountServiceAccountToken:*bool NodeName:string SecurityContext:*PodSecurityContext
  ImagePullSecrets:[]LocalObjectReference Hostname:string Subdomain:string SetHostnameAsFQDN:*bool Affinity:*Affinity
  SchedulerName:string Tolerations:[]Toleration HostAliases:[]HostAlias PriorityClassName:string Priority:*int32
  PreemptionPolicy:*PreemptionPolicy DNSConfig=dnsConfig:*PodDNSConfig ReadinessGates:[]PodReadinessGate
  RuntimeClassName:*string Overhead:ResourceList EnableServiceLinks:*bool
  TopologySpreadConstraints:[]TopologySpreadConstraint OS=os:*PodOS SchedulingGates:[]PodSchedulingGate
  ResourceClaims:[]PodResourceClaim Resources:*ResourceRequirements HostnameOverride:*string
  SchedulingGroup:*PodSchedulingGroup
Volume: Name:string VolumeSource=-:VolumeSource
VolumeSource: HostPath:*HostPathVolumeSource EmptyDir:*EmptyDirVolumeSource
  GCEPersistentDisk=gcePersistentDisk:*GCEPersistentDiskVolumeSource
  AWSElasticBlockStore=awsElasticBlockStore:*AWSElasticBlockStoreVolumeSource GitRepo:*GitRepoVolumeSource
  Secret:*SecretVolumeSource NFS=nfs:*NFSVolumeSource ISCSI=iscsi:*ISCSIVolumeSource Glusterfs:*GlusterfsVolumeSource
  PersistentVolumeClaim:*PersistentVolumeClaimVolumeSource RBD=rbd:*RBDVolumeSource Quobyte:*QuobyteVolumeSource
  FlexVolume:*FlexVolumeSource Cinder:*CinderVolumeSource CephFS=cephfs:*CephFSVolumeSource
  Flocker:*FlockerVolumeSource DownwardAPI:*DownwardAPIVolumeSource FC=fc:*FCVolumeSource
  AzureFile:*AzureFileVolumeSource ConfigMap:*ConfigMapVolumeSource VsphereVolume:*VsphereVirtualDiskVolumeSource
  AzureDisk:*AzureDiskVolumeSource PhotonPersistentDisk:*PhotonPersistentDiskVolumeSource
  Projected:*ProjectedVolumeSource PortworxVolume:*PortworxVolumeSource ScaleIO:*ScaleIOVolumeSource
  StorageOS=storageos:*StorageOSVolumeSource CSI=csi:*CSIVolumeSource Ephemeral:*EphemeralVolumeSource
  Image:*ImageVolumeSource
HostPathVolumeSource: Path:string Type:*HostPathType
EmptyDirVolumeSource: Medium:StorageMedium SizeLimit:*resource.Quantity
GCEPersistentDiskVolumeSource: PDName=pdName:string FSType=fsType:string Partition:int32 ReadOnly:bool
AWSElasticBlockStoreVolumeSource: VolumeID:string FSType=fsType:string Partition:int32 ReadOnly:bool
GitRepoVolumeSource: Repository:string Revision:string Directory:string
SecretVolumeSource: SecretName:string Items:[]KeyToPath DefaultMode:*int32 Optional:*bool
KeyToPath: Key:string Path:string Mode:*int32
NFSVolumeSource: Server:string Path:string ReadOnly:bool
ISCSIVolumeSource: TargetPortal:string IQN=iqn:string Lun:int32 ISCSIInterface=iscsiInterface:string
  FSType=fsType:string ReadOnly:bool Portals:[]string DiscoveryCHAPAuth=chapAuthDiscovery:bool
  SessionCHAPAuth=chapAuthSession:bool SecretRef:*LocalObjectReference InitiatorName:*string
LocalObjectReference: Name:string
GlusterfsVolumeSource: EndpointsName=endpoints:string Path:string ReadOnly:bool
PersistentVolumeClaimVolumeSource: ClaimName:string ReadOnly:bool
RBDVolumeSource: CephMonitors=monitors:[]string RBDImage=image:string FSType=fsType:string RBDPool=pool:string
  RadosUser=user:string Keyring:string SecretRef:*LocalObjectReference ReadOnly:bool
QuobyteVolumeSource: Registry:string Volume:string ReadOnly:bool User:string Group:string Tenant:string
FlexVolumeSource: Driver:string FSType=fsType:string SecretRef:*LocalObjectReference ReadOnly:bool
  Options:map[string]string
CinderVolumeSource: VolumeID:string FSType=fsType:string ReadOnly:bool SecretRef:*LocalObjectReference
CephFSVolumeSource: Monitors:[]string Path:string User:string SecretFile:string SecretRef:*LocalObjectReference
  ReadOnly:bool
FlockerVolumeSource: DatasetName:string DatasetUUID:string
DownwardAPIVolumeSource: Items:[]DownwardAPIVolumeFile DefaultMode:*int32
DownwardAPIVolumeFile: Path:string FieldRef:*ObjectFieldSelector ResourceFieldRef:*ResourceFieldSelector Mode:*int32
ObjectFieldSelector: APIVersion=apiVersion:string FieldPath:string
ResourceFieldSelector: ContainerName:string Resource:string Divisor:resource.Quantity
FCVolumeSource: TargetWWNs:[]string Lun:*int32 FSType=fsType:string ReadOnly:bool WWIDs=wwids:[]string
AzureFileVolumeSource: SecretName:string ShareName:string ReadOnly:bool
ConfigMapVolumeSource: LocalObjectReference=-:LocalObjectReference Items:[]KeyToPath DefaultMode:*int32 Optional:*bool
VsphereVirtualDiskVolumeSource: VolumePath:string FSType=fsType:string StoragePolicyName:string StoragePolicyID:string
AzureDiskVolumeSource: DiskName:string DataDiskURI=diskURI:string CachingMode:*AzureDataDiskCachingMode
  FSType=fsType:*string ReadOnly:*bool Kind:*AzureDataDiskKind
PhotonPersistentDiskVolumeSource: PdID:string FSType=fsType:string
ProjectedVolumeSource: Sources:[]VolumeProjection DefaultMode:*int32
VolumeProjection: Secret:*SecretProjection DownwardAPI:*DownwardAPIProjection ConfigMap:*ConfigMapProjection
  ServiceAccountToken:*ServiceAccountTokenProjection ClusterTrustBundle:*ClusterTrustBundleProjection
  PodCertificate:*PodCertificateProjection
SecretProjection: LocalObjectReference=-:LocalObjectReference Items:[]KeyToPath Optional:*bool
DownwardAPIProjection: Items:[]DownwardAPIVolumeFile
ConfigMapProjection: LocalObjectReference=-:LocalObjectReference Items:[]KeyToPath Optional:*bool
ServiceAccountTokenProjection: Audience:string ExpirationSeconds:int64 Path:string
ClusterTrustBundleProjection: Name:*string SignerName:*string LabelSelector:*v1.LabelSelector Optional:*bool
  Path:string
v1.LabelSelector: MatchLabels:map[string]string MatchExpressions:[]v1.LabelSelectorRequirement
v1.LabelSelectorRequirement: Key:string Operator:v1.LabelSelectorOperator Values:[]string
PodCertificateProjection: SignerName:string KeyType:string MaxExpirationSeconds:*int32 CredentialBundlePath:string
  KeyPath:string CertificateChainPath:string UserAnnotations:map[string]string
PortworxVolumeSource: VolumeID:string FSType=fsType:string ReadOnly:bool
ScaleIOVolumeSource: Gateway:string System:string SecretRef:*LocalObjectReference SSLEnabled=sslEnabled:bool
  ProtectionDomain:string StoragePool:string StorageMode:string VolumeName:string FSType=fsType:string ReadOnly:bool
StorageOSVolumeSource: VolumeName:string VolumeNamespace:string FSType=fsType:string ReadOnly:bool
  SecretRef:*LocalObjectReference
CSIVolumeSource: Driver:string ReadOnly:*bool FSType=fsType:*string VolumeAttributes:map[string]string
  NodePublishSecretRef:*LocalObjectReference
EphemeralVolumeSource: VolumeClaimTemplate:*PersistentVolumeClaimTemplate
PersistentVolumeClaimTemplate: ObjectMeta=metadata:v1.ObjectMeta Spec:PersistentVolumeClaimSpec
PersistentVolumeClaimSpec: AccessModes:[]PersistentVolumeAccessMode Selector:*v1.LabelSelector
  Resources:VolumeResourceRequirements VolumeName:string StorageClassName:*string VolumeMode:*PersistentVolumeMode
  DataSource:*TypedLocalObjectReference DataSourceRef:*TypedObjectReference VolumeAttributesClassName:*string
VolumeResourceRequirements: Limits:ResourceList Requests:ResourceList
TypedLocalObjectReference: APIGroup=apiGroup:*string Kind:string Name:string
TypedObjectReference: APIGroup=apiGroup:*string Kind:string Name:string Namespace:*string
ImageVolumeSource: Reference:string PullPolicy:PullPolicy
Container: Name:string Image:string Command:[]string Args:[]string WorkingDir:string Ports:[]ContainerPort
  EnvFrom:[]EnvFromSource Env:[]EnvVar Resources:ResourceRequirements ResizePolicy:[]ContainerResizePolicy
  RestartPolicy:*ContainerRestartPolicy RestartPolicyRules:[]ContainerRestartRule VolumeMounts:[]VolumeMount
  VolumeDevices:[]VolumeDevice LivenessProbe:*Probe ReadinessProbe:*Probe StartupProbe:*Probe Lifecycle:*Lifecycle
  TerminationMessagePath:string TerminationMessagePolicy:TerminationMessagePolicy ImagePullPolicy:PullPolicy
  SecurityContext:*SecurityContext Stdin:bool StdinOnce:bool TTY=tty:bool
ContainerPort: Name:string HostPort:int32 ContainerPort:int32 Protocol:Protocol HostIP:string
EnvFromSource: Prefix:string ConfigMapRef:*ConfigMapEnvSource SecretRef:*SecretEnvSource
ConfigMapEnvSource: LocalObjectReference=-:LocalObjectReference Optional:*bool
SecretEnvSource: LocalObjectReference=-:LocalObjectReference Optional:*bool
EnvVar: Name:string Value:string ValueFrom:*EnvVarSource
EnvVarSource: FieldRef:*ObjectFieldSelector ResourceFieldRef:*ResourceFieldSelector
  ConfigMapKeyRef:*ConfigMapKeySelector SecretKeyRef:*SecretKeySelector FileKeyRef:*FileKeySelector
ConfigMapKeySelector: LocalObjectReference=-:LocalObjectReference Key:string Optional:*bool
SecretKeySelector: LocalObjectReference=-:LocalObjectReference Key:string Optional:*bool
FileKeySelector: VolumeName:string Path:string Key:string Optional:*bool
ResourceRequirements: Limits:ResourceList Requests:ResourceList Claims:[]ResourceClaim
ResourceClaim: Name:string Request:string
ContainerResizePolicy: ResourceName:ResourceName RestartPolicy:ResourceResizeRestartPolicy
ContainerRestartRule: Action:ContainerRestartRuleAction ExitCodes:*ContainerRestartRuleOnExitCodes
ContainerRestartRuleOnExitCodes: Operator:ContainerRestartRuleOnExitCodesOperator Values:[]int32
VolumeMount: Name:string ReadOnly:bool RecursiveReadOnly:*RecursiveReadOnlyMode MountPath:string SubPath:string
  MountPropagation:*MountPropagationMode SubPathExpr:string
VolumeDevice: Name:string DevicePath:string
Probe: ProbeHandler=-:ProbeHandler InitialDelaySeconds:int32 TimeoutSeconds:int32 PeriodSeconds:int32
  SuccessThreshold:int32 FailureThreshold:int32 TerminationGracePeriodSeconds:*int64
ProbeHandler: Exec:*ExecAction HTTPGet=httpGet:*HTTPGetAction TCPSocket=tcpSocket:*TCPSocketAction
  GRPC=grpc:*GRPCAction
ExecAction: Command:[]string
HTTPGetAction: Path:string Port:intstr.IntOrString Host:string Scheme:URIScheme HTTPHeaders=httpHeaders:[]HTTPHeader
HTTPHeader: Name:string Value:string
TCPSocketAction: Port:intstr.IntOrString Host:string
GRPCAction: Port:int32 Service:*string
Lifecycle: PostStart:*LifecycleHandler PreStop:*LifecycleHandler StopSignal:*Signal
LifecycleHandler: Exec:*ExecAction HTTPGet=httpGet:*HTTPGetAction TCPSocket=tcpSocket:*TCPSocketAction
  Sleep:*SleepAction
SleepAction: Seconds:int64
SecurityContext: Capabilities:*Capabilities Privileged:*bool SELinuxOptions=seLinuxOptions:*SELinuxOptions
  WindowsOptions:*WindowsSecurityContextOptions RunAsUser:*int64 RunAsGroup:*int64 RunAsNonRoot:*bool
  ReadOnlyRootFilesystem:*bool AllowPrivilegeEscalation:*bool ProcMount:*ProcMountType SeccompProfile:*SeccompProfile
  AppArmorProfile:*AppArmorProfile
Capabilities: Add:[]Capability Drop:[]Capability
SELinuxOptions: User:string Role:string Type:string Level:string
WindowsSecurityContextOptions: GMSACredentialSpecName=gmsaCredentialSpecName:*string
  GMSACredentialSpec=gmsaCredentialSpec:*string RunAsUserName:*string HostProcess:*bool
SeccompProfile: Type:SeccompProfileType LocalhostProfile:*string
AppArmorProfile: Type:AppArmorProfileType LocalhostProfile:*string
EphemeralContainer: EphemeralContainerCommon=-:EphemeralContainerCommon TargetContainerName:string
EphemeralContainerCommon: Name:string Image:string Command:[]string Args:[]string WorkingDir:string
  Ports:[]ContainerPort EnvFrom:[]EnvFromSource Env:[]EnvVar Resources:ResourceRequirements
  ResizePolicy:[]ContainerResizePolicy RestartPolicy:*ContainerRestartPolicy RestartPolicyRules:[]ContainerRestartRule
  VolumeMounts:[]VolumeMount VolumeDevices:[]VolumeDevice LivenessProbe:*Probe ReadinessProbe:*Probe
  StartupProbe:*Probe Lifecycle:*Lifecycle TerminationMessagePath:string
  TerminationMessagePolicy:TerminationMessagePolicy ImagePullPolicy:PullPolicy SecurityContext:*SecurityContext
  Stdin:bool StdinOnce:bool TTY=tty:bool
PodSecurityContext: HostNetwork:bool HostPID:bool HostIPC:bool ShareProcessNamespace:*bool HostUsers:*bool
  SELinuxOptions=seLinuxOptions:*SELinuxOptions WindowsOptions:*WindowsSecurityContextOptions RunAsUser:*int64
  RunAsGroup:*int64 RunAsNonRoot:*bool SupplementalGroups:[]int64 SupplementalGroupsPolicy:*SupplementalGroupsPolicy
  FSGroup=fsGroup:*int64 FSGroupChangePolicy=fsGroupChangePolicy:*PodFSGroupChangePolicy Sysctls:[]Sysctl
  SeccompProfile:*SeccompProfile AppArmorProfile:*AppArmorProfile
  SELinuxChangePolicy=seLinuxChangePolicy:*PodSELinuxChangePolicy
Sysctl: Name:string Value:string
Affinity: NodeAffinity:*NodeAffinity PodAffinity:*PodAffinity PodAntiAffinity:*PodAntiAffinity
NodeAffinity: RequiredDuringSchedulingIgnoredDuringExecution:*NodeSelector
  PreferredDuringSchedulingIgnoredDuringExecution:[]PreferredSchedulingTerm
NodeSelector: NodeSelectorTerms:[]NodeSelectorTerm
NodeSelectorTerm: MatchExpressions:[]NodeSelectorRequirement MatchFields:[]NodeSelectorRequirement
NodeSelectorRequirement: Key:string Operator:NodeSelectorOperator Values:[]string
PreferredSchedulingTerm: Weight:int32 Preference:NodeSelectorTerm
PodAffinity: RequiredDuringSchedulingIgnoredDuringExecution:[]PodAffinityTerm
  PreferredDuringSchedulingIgnoredDuringExecution:[]WeightedPodAffinityTerm
PodAffinityTerm: LabelSelector:*v1.LabelSelector Namespaces:[]string TopologyKey:string
  NamespaceSelector:*v1.LabelSelector MatchLabelKeys:[]string MismatchLabelKeys:[]string
WeightedPodAffinityTerm: Weight:int32 PodAffinityTerm:PodAffinityTerm
PodAntiAffinity: RequiredDuringSchedulingIgnoredDuringExecution:[]PodAffinityTerm
  PreferredDuringSchedulingIgnoredDuringExecution:[]WeightedPodAffinityTerm
Toleration: Key:string Operator:TolerationOperator Value:string Effect:TaintEffect TolerationSeconds:*int64
HostAlias: IP=ip:string Hostnames:[]string
PodDNSConfig: Nameservers:[]string Searches:[]string Options:[]PodDNSConfigOption
PodDNSConfigOption: Name:string Value:*string
PodReadinessGate: ConditionType:PodConditionType
TopologySpreadConstraint: MaxSkew:int32 TopologyKey:string WhenUnsatisfiable:UnsatisfiableConstraintAction
  LabelSelector:*v1.LabelSelector MinDomains:*int32 NodeAffinityPolicy:*NodeInclusionPolicy
  NodeTaintsPolicy:*NodeInclusionPolicy MatchLabelKeys:[]string
PodOS: Name:OSName
PodSchedulingGate: Name:string
PodResourceClaim: Name:string ResourceClaimName:*string ResourceClaimTemplateName:*string
PodSchedulingGroup: PodGroupName:*string
PodStatus: ObservedGeneration:int64 Phase:PodPhase Conditions:[]PodCondition Message:string Reason:string
  NominatedNodeName:string HostIP:string HostIPs:[]HostIP PodIPs:[]PodIP StartTime:*v1.Time
  QOSClass=qosClass:PodQOSClass InitContainerStatuses:[]ContainerStatus ContainerStatuses:[]ContainerStatus
  EphemeralContainerStatuses:[]ContainerStatus Resize:PodResizeStatus ResourceClaimStatuses:[]PodResourceClaimStatus
  ExtendedResourceClaimStatus:*PodExtendedResourceClaimStatus AllocatedResources:ResourceList
  Resources:*ResourceRequirements NodeAllocatableResourceClaimStatuses:[]NodeAllocatableResourceClaimStatus
"""


class InternalField(Value):
    """A field of a struct. `json`: its name in JSON; empty: its own fields are in the struct around."""

    name: str
    json: str
    type: str


@cache
def internal_structs() -> dict[str, tuple[InternalField, ...]]:
    """The structs by their names, such as `core.Container`."""
    structs: dict[str, tuple[InternalField, ...]] = {}
    for line in _STRUCTS.replace("\n  ", " ").splitlines():
        name, _, fields = line.partition(": ")
        if fields:
            structs[_qualified(name)] = tuple(_field(text) for text in fields.split(" "))
    return structs


def _field(text: str) -> InternalField:
    names, _, kind = text.partition(":")
    name, _, json = names.partition("=")
    json = json or name[0].lower() + name[1:]
    return InternalField(name, json if json != "-" else "", _qualified(kind))


def _qualified(kind: str) -> str:
    """The type with its package, as Go prints it: `*HostPathType` is `*core.HostPathType`."""
    bare = kind.lstrip("*[]")
    is_core = bare[0].isupper() and "." not in bare
    return f"{kind[: len(kind) - len(bare)]}core.{bare}" if is_core else kind

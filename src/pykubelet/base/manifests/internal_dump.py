"""The dump of a pod as the reference has it in memory after reading a manifest: the text under the hash that is a static pod's UID. Pure.

A value is `(type)value`, a struct `{Name:value ...}` with all fields; elements of lists and maps have no types, and `<nil>` stands for
what is not there. Lists and maps that are given empty differ from those that are left out, and quantities appear as they are written,
so the manifest is read beside the pod. Not reproduced are `metadata.creationTimestamp` (it depends on the time zone of the machine),
the contents of `status`, and amounts of `spec.resources` that are sums of those of the containers.
A quantity is an integer and a power of ten, with the text if that is the canonical one. Others (`1.5Gi`, or more than 18 digits) are
decimals of any size.
Source: the Go library `spew`, with the settings of `k8s.io/utils/dump`; apimachinery's `resource.Quantity`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from pykubelet.base.api.codec import to_object
from pykubelet.base.api.core import Pod
from pykubelet.base.api.quantity import CAP, NANO, Amount, Format, Parts, parse_text, split_text
from pykubelet.base.kit.values import Value

#: The reference keeps amounts in resource lists no finer than this power of ten.
MILLI = -3
_MAX_INT = (1 << 63) - 1
_MAX_DIGITS = 18
_WORD = (1 << 64) - 1


class _Held(Value):
    """A quantity as an integer times a power of ten, with its text where that is kept."""

    value: int
    scale: int
    text: str
    format: str


@lru_cache(maxsize=2048)
def dump_quantity(text: str, finest: int = -9) -> str:
    """The dump without its type. `finest`: the power of ten it is rounded up to. Raises QuantityError."""
    held = _Held(0, 0, text, Format.DECIMAL_SI.value) if text == "0" else _hold(text, split_text(text))
    if held is None:
        return _dump_decimal(parse_text(text), finest)
    if held.scale < finest:
        held = _Held(_rounded_away(held.value, 10 ** (finest - held.scale)), finest, "", held.format)
    return _dump(held.value, held.scale, "<nil>", held.text, held.format)


def zero_quantity() -> str:
    """The dump of a quantity that is not given, without its type."""
    return _dump(0, 0, "<nil>", "", "")


def _dump(value: int, scale: int, decimal: str, text: str, format_: str) -> str:
    return (
        f"{{i:(resource.int64Amount){{value:(int64){value} scale:(resource.Scale){scale}}}"
        f" d:(resource.infDecAmount){{Dec:(*inf.Dec){decimal}}} s:(string){text} Format:(resource.Format){format_}}}"
    )


def _hold(text: str, parts: Parts) -> _Held | None:
    """The integer and the power of ten; None if the reference needs a decimal of any size."""
    whole = parts.whole.lstrip("0")
    if not whole and not parts.fraction:
        whole = "0"
    digits = whole + parts.fraction
    if parts.format is Format.BINARY_SI:
        # the reference's estimate of how many digits fit
        if parts.fraction or 15 - len(whole) - parts.shift * 3 // 10 - 1 < 0:
            return None
        scale = 0
    else:
        scale = parts.power - len(parts.fraction)
        if len(digits) > _MAX_DIGITS:
            return None
    value = int(digits) << parts.shift
    if scale < -9 or value > _MAX_INT:
        return None
    if parts.format is Format.BINARY_SI:
        canonical = int(digits) & 7 != 0
    else:
        canonical = scale % 3 == 0 and not digits.endswith("000") and not digits.startswith("0")
    return _Held(-value if parts.negative else value, scale, text if canonical else "", parts.format.value)


def _dump_decimal(amount: Amount, finest: int) -> str:
    scale = 9
    unscaled = abs(amount.nano)
    if unscaled == CAP and amount.format is Format.BINARY_SI:
        unscaled, scale = unscaled // NANO, 0
    if scale > -finest or scale == 0:
        step = -finest - scale
        unscaled = unscaled * 10**step if step >= 0 else _rounded_away(unscaled, 10**-step)
        scale = -finest
    words = []
    while unscaled:
        words.append(str(unscaled & _WORD))
        unscaled >>= 64
    number = f"(big.Int){{neg:(bool){str(amount.nano < 0).lower()} abs:(big.nat)[{' '.join(words)}]}}"
    return _dump(0, 0, f"{{unscaled:{number} scale:(inf.Scale){scale}}}", "", amount.format.value)


def _rounded_away(value: int, by: int) -> int:
    quotient = -(-abs(value) // by)
    return quotient if value >= 0 else -quotient


#: The longest dump, in characters: that of a pod with some forty containers.
MAX_LENGTH = 160 << 10

_QUANTITY = "resource.Quantity"
_TIME = "{Time:(time.Time){wall:(uint64)0 ext:(int64)0 loc:(*time.Location)<nil>}}"
_RESOURCE_LIST = "core.ResourceList"
_IN_POD_SECURITY = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers")
#: Defaults that change nothing, and which pods do not have here.
_DEFAULTS = {
    ("core.HostPathVolumeSource", "type"): "",
    ("core.GRPCAction", "service"): "",
    ("core.FileKeySelector", "optional"): False,
}
_NUMBERS = frozenset({"int32", "int64"})
Object = Mapping[str, Any]


class TooLong(Exception):
    """The dump has more than MAX_LENGTH characters."""


def dump_pod(pod: Pod, manifest: Object) -> str:
    """The dump of `pod`, which has its defaults, and was read from `manifest`. Raises TooLong, and QuantityError for no quantity."""
    given, found = _internal(manifest), _internal(to_object(pod))
    _share_limits(given["spec"])
    dump = _Dump()
    dump.add("(*core.Pod){TypeMeta:(v1.TypeMeta){Kind:(string) APIVersion:(string)} ObjectMeta:(v1.ObjectMeta)")
    dump.struct("v1.ObjectMeta", found.get("metadata") or {}, given.get("metadata") or {})
    dump.add(" Spec:(core.PodSpec)")
    dump.struct("core.PodSpec", found["spec"], given.get("spec") or {})
    dump.add(" Status:(core.PodStatus)")
    dump.struct("core.PodStatus", {}, {})
    dump.add("}")
    return "".join(dump.parts)


def _share_limits(spec: dict[str, Any]) -> None:
    """Give the containers of a manifest the requests that are set to their limits, as these are written."""
    for name in ("containers", "initContainers"):
        containers = [dict(container) for container in spec.get(name) or ()]
        for container in containers:
            resources = container.get("resources") or {}
            if resources.get("limits") is not None:
                requests = {**resources["limits"], **(resources.get("requests") or {})}
                container["resources"] = {**resources, "requests": requests}
        if containers:
            spec[name] = containers


def _internal(pod: Object) -> dict[str, Any]:
    """The pod with its fields where the internal version has them."""
    spec = dict(pod.get("spec") or {})
    spec["securityContext"] = {
        **(spec.get("securityContext") or {}),
        **{name: spec[name] for name in _IN_POD_SECURITY if name in spec},
    }
    spec["serviceAccountName"] = spec.get("serviceAccountName") or spec.get("serviceAccount") or ""
    return {**pod, "spec": spec}


class _Dump:
    """The parts of a text under construction. `found` is a value with defaults, `given` the same in the manifest."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._length = 0

    def add(self, text: str) -> None:
        self._length += len(text)
        if self._length > MAX_LENGTH:
            raise TooLong
        self.parts.append(text)

    def typed(self, kind: str, found: Any, given: Any) -> None:
        """A value after its type, as the field of a struct has it."""
        self.add(f"({kind})")
        if kind.startswith("*"):
            kind = kind[1:]
            if found is None and given is None:
                self.add("<nil>")
                return
        self.untyped(kind, found, given)

    def untyped(self, kind: str, found: Any, given: Any) -> None:
        if kind.startswith("[]"):
            self._list(kind[2:], found, given)
        elif kind.startswith("map["):
            self._map(found, given, str)
        elif kind == _RESOURCE_LIST:
            self._resource_list(found, given)
        elif kind == _QUANTITY:
            text = _written(found if given is None else given)
            self.add(dump_quantity(text) if text else zero_quantity())
        elif kind == "intstr.IntOrString":
            text = found if isinstance(found, str) else ""
            number = 0 if isinstance(found, str) else found or 0
            self.add(
                f"{{Type:(intstr.Type){int(isinstance(found, str))} IntVal:(int32){number} StrVal:(string){text}}}"
            )
        elif kind == "v1.Time":
            self.add(_TIME)
        elif kind in internal_structs():
            self.struct(kind, found or {}, given or {})
        elif kind == "bool":
            self.add("true" if found else "false")
        elif kind in _NUMBERS:
            self.add(str(found or 0))
        else:
            self.add(found or "")

    def struct(self, kind: str, found: Object, given: Object) -> None:
        before = "{"
        for field in internal_structs()[kind]:
            if field.only_if_given and not (found.get(field.json) or given.get(field.json) is not None):
                continue
            value, written = (found.get(field.json), given.get(field.json)) if field.json else (found, given)
            value = _DEFAULTS.get((kind, field.json)) if value is None else value
            if value is None and written is None:
                self.add(f"{before}{field.name}:{_dump_absent(field.type)}")
            else:
                self.add(f"{before}{field.name}:")
                self.typed(field.type, value, written)
            before = " "
        self.add("}")

    def _list(self, kind: str, found: Sequence[Any] | None, given: Any) -> None:
        if not found:
            self.add("<nil>" if given is None else "[]")
            return
        listed = given if isinstance(given, list) and len(given) == len(found) else [None] * len(found)
        self.add("[")
        for number, item in enumerate(found):
            if number:
                self.add(" ")
            self.untyped(kind, item, listed[number])
        self.add("]")

    def _map(self, found: Object | None, given: Any, dump: Callable[[Any], str]) -> None:
        if not found:
            self.add("<nil>" if given is None else "map[]")
            return
        self.add(f"map[{' '.join(f'{key}:{dump(found[key])}' for key in sorted(found, key=str.encode))}]")

    def _resource_list(self, found: Object | None, given: Any) -> None:
        written = {**(found or {}), **(given if isinstance(given, dict) else {})}
        self._map(written, given, lambda quantity: dump_quantity(_written(quantity), MILLI))


@cache
def _dump_absent(kind: str) -> str:
    """What is dumped of a field of this type that is not there, as most fields are not."""
    dump = _Dump()
    dump.typed(kind, None, None)
    return "".join(dump.parts)


def _written(quantity: Any) -> str:
    """The text of a quantity in a manifest; empty if there is none."""
    if quantity is None:
        return ""
    if isinstance(quantity, float) and quantity.is_integer():
        quantity = int(quantity)  # a number like 1e3 in YAML
    return quantity if isinstance(quantity, str) else repr(quantity)


# The structs of the internal version of the API's Pod

#: As the reference defines them in Go: names, types and order of fields. A line is a struct and its fields, each `GoName:type` or
#: `GoName=jsonName:type`; without a JSON name, it is the Go name with a small first letter, and the name `-` stands for fields that JSON
#: has in the struct around. A field `GoName?` came after 1.36, and is left out where it is not given: an update of the agent gives no
#: static pod another UID, although the dump of a later kubelet has the field in each of them. Types without a package are those of
#: the package `core`. Of the structs in a status, only the status itself is listed: a manifest has none.
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
  SchedulingGroup:*PodSchedulingGroup EvictionResponders?:[]EvictionResponder
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
EmptyDirVolumeSource: Medium:StorageMedium SizeLimit:*resource.Quantity Mode?:*int32
GCEPersistentDiskVolumeSource: PDName=pdName:string FSType=fsType:string Partition:int32 ReadOnly:bool
AWSElasticBlockStoreVolumeSource: VolumeID:string FSType=fsType:string Partition:int32 ReadOnly:bool
GitRepoVolumeSource: Repository:string Revision:string Directory:string
SecretVolumeSource: SecretName:string Items:[]KeyToPath DefaultMode:*int32 Optional:*bool DefaultUser?:*int64
KeyToPath: Key:string Path:string Mode:*int32 User?:*int64
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
DownwardAPIVolumeSource: Items:[]DownwardAPIVolumeFile DefaultMode:*int32 DefaultUser?:*int64
DownwardAPIVolumeFile: Path:string FieldRef:*ObjectFieldSelector ResourceFieldRef:*ResourceFieldSelector Mode:*int32
  User?:*int64
ObjectFieldSelector: APIVersion=apiVersion:string FieldPath:string
ResourceFieldSelector: ContainerName:string Resource:string Divisor:resource.Quantity
FCVolumeSource: TargetWWNs:[]string Lun:*int32 FSType=fsType:string ReadOnly:bool WWIDs=wwids:[]string
AzureFileVolumeSource: SecretName:string ShareName:string ReadOnly:bool
ConfigMapVolumeSource: LocalObjectReference=-:LocalObjectReference Items:[]KeyToPath DefaultMode:*int32 Optional:*bool
  DefaultUser?:*int64
VsphereVirtualDiskVolumeSource: VolumePath:string FSType=fsType:string StoragePolicyName:string StoragePolicyID:string
AzureDiskVolumeSource: DiskName:string DataDiskURI=diskURI:string CachingMode:*AzureDataDiskCachingMode
  FSType=fsType:*string ReadOnly:*bool Kind:*AzureDataDiskKind
PhotonPersistentDiskVolumeSource: PdID:string FSType=fsType:string
ProjectedVolumeSource: Sources:[]VolumeProjection DefaultMode:*int32 DefaultUser?:*int64
VolumeProjection: Secret:*SecretProjection DownwardAPI:*DownwardAPIProjection ConfigMap:*ConfigMapProjection
  ServiceAccountToken:*ServiceAccountTokenProjection ClusterTrustBundle:*ClusterTrustBundleProjection
  PodCertificate:*PodCertificateProjection
SecretProjection: LocalObjectReference=-:LocalObjectReference Items:[]KeyToPath Optional:*bool
DownwardAPIProjection: Items:[]DownwardAPIVolumeFile
ConfigMapProjection: LocalObjectReference=-:LocalObjectReference Items:[]KeyToPath Optional:*bool
ServiceAccountTokenProjection: Audience:string ExpirationSeconds:int64 Path:string User?:*int64
ClusterTrustBundleProjection: Name:*string SignerName:*string LabelSelector:*v1.LabelSelector Optional:*bool
  Path:string User?:*int64
v1.LabelSelector: MatchLabels:map[string]string MatchExpressions:[]v1.LabelSelectorRequirement
v1.LabelSelectorRequirement: Key:string Operator:v1.LabelSelectorOperator Values:[]string
PodCertificateProjection: SignerName:string KeyType:string MaxExpirationSeconds:*int32 CredentialBundlePath:string
  KeyPath:string CertificateChainPath:string UserAnnotations:map[string]string User?:*int64
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
  MountPropagation:*MountPropagationMode SubPathExpr:string BindMountOptions?:[]string
VolumeDevice: Name:string DevicePath:string
Probe: ProbeHandler=-:ProbeHandler InitialDelaySeconds:int32 TimeoutSeconds:int32 PeriodSeconds:int32
  SuccessThreshold:int32 FailureThreshold:int32 TerminationGracePeriodSeconds:*int64
ProbeHandler: Exec:*ExecAction HTTPGet=httpGet:*HTTPGetAction TCPSocket=tcpSocket:*TCPSocketAction
  GRPC=grpc:*GRPCAction
ExecAction: Command:[]string
HTTPGetAction: Path:string Port:intstr.IntOrString Host:string Scheme:URIScheme HTTPHeaders=httpHeaders:[]HTTPHeader
  Protocol?:*HTTPProtocol
HTTPHeader: Name:string Value:string
TCPSocketAction: Port:intstr.IntOrString Host:string
GRPCAction: Port:int32 Service:*string Mode?:*GRPCProbeMode
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
EvictionResponder: Name:string Priority:int32
PodStatus: ObservedGeneration:int64 Phase:PodPhase Conditions:[]PodCondition Message:string Reason:string
  NominatedNodeName:string HostIP:string HostIPs:[]HostIP PodIPs:[]PodIP StartTime:*v1.Time
  QOSClass=qosClass:PodQOSClass InitContainerStatuses:[]ContainerStatus ContainerStatuses:[]ContainerStatus
  EphemeralContainerStatuses:[]ContainerStatus Resize:PodResizeStatus ResourceClaimStatuses:[]PodResourceClaimStatus
  ExtendedResourceClaimStatus:*PodExtendedResourceClaimStatus AllocatedResources:ResourceList
  Resources:*ResourceRequirements NodeAllocatableResourceClaimStatuses:[]NodeAllocatableResourceClaimStatus
"""


class InternalField(Value):
    """A field of a struct. `json`: its name in JSON; empty: its own fields are in the struct around.

    `only_if_given`: a field that is not given is not in the dump.
    """

    name: str
    json: str
    type: str
    only_if_given: bool = False


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
    marked, _, json = names.partition("=")
    name = marked.removesuffix("?")
    json = json or name[0].lower() + name[1:]
    return InternalField(name, json if json != "-" else "", _qualified(kind), name != marked)


def _qualified(kind: str) -> str:
    """The type with its package, as Go prints it: `*HostPathType` is `*core.HostPathType`."""
    bare = kind.lstrip("*[]")
    is_core = bare[0].isupper() and "." not in bare
    return f"{kind[: len(kind) - len(bare)]}core.{bare}" if is_core else kind

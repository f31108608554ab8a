"""The inputs of rendering besides the pod: the agent's settings, and the context of one sandbox or container. Pure.

Owns: the values that are passed to `render_sandbox` and `render_container`, and how an answer in `Content` becomes such a value:
ConfigMaps, Secrets, the variables of Services, the RuntimeClass. The caller collects these values first, so that rendering is a pure
function. Its error is `ContainerStartError`.
Source: the Kubernetes documentation "Service" (environment variables), "Runtime Class", "Secrets".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import ConfigMap, Container, EphemeralContainer, Pod, RuntimeClass, Secret, Service
from pykubelet.base.api.quantity import in_units
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.content import Absent, Content, ContentKind, Found, ObjectKey, Present, Unreadable
from pykubelet.base.model.extensions import AskForValues
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.needs import environment_keys, runtime_class_key
from pykubelet.base.model.node import HandlerFeatures, NodeView
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.placement import CpuSet, Devices
from pykubelet.base.model.reasons import CREATE_POD_SANDBOX_ERROR
from pykubelet.base.model.roster import is_static
from pykubelet.base.model.sysctls import normalized
from pykubelet.config.settings import Settings
from pykubelet.edges.host.proc.machine import Machine

AnyContainer = Container | EphemeralContainer

NO_SWAP = "NoSwap"
LIMITED_SWAP = "LimitedSwap"


class MemoryQos(Value):
    """Memory QoS (KEP-2570, cgroup v2 only). `throttling_factor` None: memory.high is not written. `tiered`:
    memoryReservationPolicy is TieredReservation. `best_effort_too`: memory.high is written for containers without request and
    limit. `for_pods`: bytes of memory not reserved for the node's daemons; the hard
    eviction reservation is not subtracted. `page_size`: bytes."""

    throttling_factor: float | None = None
    tiered: bool = False
    best_effort_too: bool = False
    for_pods: int = 0
    page_size: int = 4096


class RenderSettings(Value):
    """The settings that apply to all pods of the agent.

    `node`: its capacity, allocatable resources and addresses (primary family first) are used. `resolv_conf`: the text of the
    host's file; None if resolvConf is set to "" (no lookups). `resolv_conf_error`: why the file cannot be read.
    `cpu_cfs_quota_period_us`: microseconds. `single_process_oom_kill`: None means not given. `swap_controller`: the
    kernel can limit swap. `swap_capacity`: bytes of swap the node has. `extra_masked_paths`: per-CPU thermal_throttle
    directories that exist on the host. `container_stop_signals`: gate ContainerStopSignals. `default_sysctls`: by normalized
    name. `bind_options`: gate VolumeBindMountOptions. `ask_extensions` None: no extension changes values of cgroups.
    """

    paths: Paths
    node: NodeView
    cluster_domain: str = ""
    cluster_dns: tuple[str, ...] = ()
    resolv_conf: str | None = None
    resolv_conf_error: str = ""
    cpu_cfs_quota: bool = True
    cpu_cfs_quota_period_us: int = 100_000
    seccomp_default: bool = False
    single_process_oom_kill: bool | None = None
    cgroup_v2: bool = False
    swap_behavior: str = NO_SWAP
    swap_controller: bool = False
    swap_capacity: int = 0
    selinux_enabled: bool = False
    extra_masked_paths: tuple[str, ...] = ()
    container_stop_signals: bool = False
    default_sysctls: Mapping[str, str] = field(default_factory=dict)
    bind_options: bool = False
    memory_qos: MemoryQos | None = None
    ask_extensions: AskForValues | None = None

    @property
    def memory_capacity(self) -> int:
        """The memory of the machine in bytes; 0 if not known."""
        return self.node.capacity.get("memory", 0)

    @property
    def page_sizes(self) -> tuple[int, ...]:
        """The huge page sizes of the machine, in bytes."""
        return self.node.page_sizes


def render_settings(
    settings: Settings, node: NodeView, *, cgroup_v2: bool, swap_controller: bool, machine: Machine
) -> RenderSettings:
    """The render settings from the agent's configuration, the node and the machine."""
    config = settings.config
    reserved = settings.reserved
    kept = in_units(reserved.system).get("memory", 0) + in_units(reserved.kube).get("memory", 0)
    for_pods = max(0, node.capacity.get("memory", 0) - kept)
    qos = MemoryQos(
        config.memoryThrottlingFactor, settings.has_tiered_memory, settings.behavior.throttles_more, for_pods
    )
    return RenderSettings(
        paths=settings.paths,
        node=node,
        cluster_domain=config.clusterDomain,
        cluster_dns=tuple(config.clusterDNS),
        cpu_cfs_quota=config.cpuCFSQuota,
        cpu_cfs_quota_period_us=settings.cpu_cfs_quota_period_us,
        seccomp_default=settings.seccomp_default,
        single_process_oom_kill=config.singleProcessOOMKill,
        cgroup_v2=cgroup_v2,
        swap_behavior=config.memorySwap.swapBehavior or "NoSwap",
        swap_controller=swap_controller,
        swap_capacity=machine.swap_bytes,
        extra_masked_paths=machine.throttle_paths,
        container_stop_signals=settings.enabled("ContainerStopSignals"),
        bind_options=settings.enabled("VolumeBindMountOptions"),
        default_sysctls={normalized(name): value for name, value in config.defaultPodSysctls.items()},
        memory_qos=qos if settings.enabled("MemoryQoS") and cgroup_v2 else None,
    )


class IDMapping(Value):
    """One range of a user namespace."""

    host_id: int
    container_id: int
    length: int


class UserNamespace(Value):
    """UID and GID mappings of a pod with its own user namespace."""

    uids: tuple[IDMapping, ...]
    gids: tuple[IDMapping, ...]


class SandboxContext(Value):
    """The context of one sandbox.

    `cgroup_parent`: in the form that the runtime expects. `runtime_handler`: of the RuntimeClass, "" for the default.
    `handler_features`: None when the runtime does not know the handler. `userns`: the ranges of a pod with
    `hostUsers: false`. `supplemental_groups`: those that its volumes add. `exclusive_cpus`: the pod has CPUs of its own.
    """

    attempt: int = 0
    cgroup_parent: str = ""
    runtime_handler: str = ""
    handler_features: HandlerFeatures | None = field(default_factory=HandlerFeatures)
    userns: UserNamespace | None = None
    supplemental_groups: tuple[int, ...] = ()
    exclusive_cpus: bool = False


class Unavailable(Value):
    """An API object that could not be read. `not_found`: it does not exist, which is no error for an optional reference."""

    message: str
    not_found: bool = False


class ApiObjects(Value):
    """The objects of the pod's namespace that its environment refers to, by name."""

    config_maps: Mapping[str, ConfigMap | Unavailable] = field(default_factory=dict)
    secrets: Mapping[str, Secret | Unavailable] = field(default_factory=dict)

    def keys(self) -> int:
        """The number of keys of all objects."""
        every = (*self.config_maps.values(), *self.secrets.values())
        return sum(len(found.data) for found in every if not isinstance(found, Unavailable))


class EnvFile(Value):
    """The variables of a file for `fileKeyRef`, as far as they are wanted. `problem`: why further ones cannot be read.

    `cause`: the error of the host, which the pod does not see.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    cause: str = ""

    def find(self, key: str) -> str | None:
        """The value of a wanted variable, "" if it is missing; None if it may be where the file cannot be read."""
        return self.variables.get(key, None if self.problem else "")


class ImageVolume(Value):
    """A pulled image used as a volume."""

    image_ref: str = ""
    user_specified: str = ""


class ContainerContext(Value):
    """The context of one container instance.

    `image_uid` and `image_username`: the user of the image. `pod_ips`: primary family first; empty while not
    known. `mounts`: the pod's volumes by name. `subpaths`: by index in volumeMounts, what to bind instead of the volume
    (see `relative_sub_paths`). `termination_log_host_path`, `etc_hosts_host_path`: the files made for this instance,
    "" for none. `services`: environment of Services, None while they are not known. `api_objects`: None if nothing
    can have them. `env_files`: the files of `fileKeyRef`s by volume and path. `target_container_id`: of an
    ephemeral container.
    """

    restart_count: int = 0
    image_ref: str = ""
    image_uid: int | None = None
    image_username: str = ""
    sandbox: SandboxContext = field(default_factory=SandboxContext)
    pod_ips: tuple[str, ...] = ()
    host_ips: tuple[str, ...] = ()
    mounts: Mapping[str, MountedVolume] = field(default_factory=dict)
    subpaths: Mapping[int, str] = field(default_factory=dict)
    image_volumes: Mapping[str, ImageVolume] = field(default_factory=dict)
    termination_log_host_path: str = ""
    etc_hosts_host_path: str = ""
    services: Mapping[str, str] | None = field(default_factory=dict)
    api_objects: ApiObjects | None = None
    env_files: Mapping[tuple[str, str], EnvFile] = field(default_factory=dict)
    devices: Devices = field(default_factory=Devices)
    cpuset: CpuSet = field(default_factory=CpuSet)
    target_container_id: str = ""


T = TypeVar("T")

#: Every pod gets the environment variables of this service of the namespace `default`.
MASTER = "kubernetes"
MASTER_NAMESPACE = "default"
#: Ports of services of which variables are made. Those of more do not fit into a program's environment.
MAX_SERVICE_PORTS = 10_000


def environment_objects(pod: Pod, container: AnyContainer, content: Content) -> ApiObjects | None:
    """The objects that the container's environment refers to; None if nothing can have them. All must have answers."""
    if not content.available and not content.has_manifests:
        return None
    config_maps: dict[str, ConfigMap | Unavailable] = {}
    secrets: dict[str, Secret | Unavailable] = {}
    for key in environment_keys(pod, container):
        if key.kind is ContentKind.CONFIG_MAP:
            config_maps[key.name] = _value(content, key, ConfigMap)
        else:
            secrets[key.name] = _value(content, key, Secret)
    return ApiObjects(config_maps, secrets)


def _value(content: Content, key: ObjectKey, kind: type[T]) -> T | Unavailable:
    match content.objects.get(key):
        case Present(value) if isinstance(value, kind):
            return value
        case Absent(message):
            return Unavailable(message, not_found=True)
        case Unreadable(message):
            return Unavailable(message)
        case found:
            raise RuntimeError(f"asked for {key} and found {_type_of(found)}")


def _type_of(found: Found | None) -> str:
    """The type of the answer, without its content."""
    return type(found.value if isinstance(found, Present) else found).__name__


def service_environment(pod: Pod, content: Content) -> dict[str, str] | None:
    """The variables of Services; empty without an API server, None while the API server's services are not known.

    Raises ContainerStartError if they have more than `MAX_SERVICE_PORTS`.
    """
    if not content.available:
        return {}
    if content.services is None:
        return None
    links = bool(pod.spec.enableServiceLinks)
    chosen: dict[str, Service] = {}
    for service in content.services:
        name, namespace = service.metadata.name, service.metadata.namespace
        if service.spec.clusterIP in ("", "None"):
            continue
        if namespace == MASTER_NAMESPACE and name == MASTER:
            chosen.setdefault(name, service)
        elif namespace == pod.metadata.namespace and links:
            chosen[name] = service
    ports = sum(len(service.spec.ports) for service in chosen.values())
    if ports > MAX_SERVICE_PORTS:
        raise ContainerStartError(
            f"the services of the pod's namespace have {ports} ports, and variables are made of {MAX_SERVICE_PORTS} at most: "
            "set enableServiceLinks to false"
        )
    return service_variables(chosen.values())


def service_variables(services: Iterable[Service]) -> dict[str, str]:
    """`{NAME}_SERVICE_HOST`, `{NAME}_SERVICE_PORT` and the older variables of linked containers."""
    variables: dict[str, str] = {}
    for service in services:
        name, address = _variable(service.metadata.name), service.spec.clusterIP
        host = f"[{address}]" if ":" in address else address
        variables[f"{name}_SERVICE_HOST"] = address
        for index, port in enumerate(service.spec.ports):
            protocol = port.protocol or "TCP"
            url = f"{protocol.lower()}://{host}:{port.port}"
            if index == 0:
                variables[f"{name}_SERVICE_PORT"] = str(port.port)
                variables[f"{name}_PORT"] = url
            if port.name:
                variables[f"{name}_SERVICE_PORT_{_variable(port.name)}"] = str(port.port)
            prefix = f"{name}_PORT_{port.port}_{protocol.upper()}"
            variables[prefix] = url
            variables[f"{prefix}_PROTO"] = protocol.lower()
            variables[f"{prefix}_PORT"] = str(port.port)
            variables[f"{prefix}_ADDR"] = address
    return variables


def _variable(name: str) -> str:
    return name.upper().replace("-", "_")


def waits_for_services(pod: Pod, content: Content) -> bool:
    """Whether the pod must wait until the services were listed once; static pods do not wait."""
    return content.available and content.services is None and not is_static(pod)


def unanswered(keys: Iterable[ObjectKey], content: Content) -> ObjectKey | None:
    """The first of these keys without an answer in `Content`; None if all have one that can have one."""
    return next(filter(content.lacks, keys), None)


def runtime_handler(pod: Pod, content: Content) -> str:
    """The handler of the pod's RuntimeClass; "" for the runtime's default. Raises ContainerStartError for a class that is not
    known: its isolation was asked for."""
    key = runtime_class_key(pod)
    if key is None:
        return ""
    match content.objects.get(key):
        case Present(RuntimeClass() as found):
            return found.handler
        case Absent(message):
            raise ContainerStartError(message, CREATE_POD_SANDBOX_ERROR)
        case Unreadable(message):
            raise ContainerStartError(f"failed to lookup RuntimeClass {key.name}: {message}", CREATE_POD_SANDBOX_ERROR)
        case None if not content.may_answer(key):
            raise ContainerStartError(f"nothing knows the RuntimeClass {key.name}", CREATE_POD_SANDBOX_ERROR)
        case found:
            raise RuntimeError(f"asked for {key} and found {_type_of(found)}")

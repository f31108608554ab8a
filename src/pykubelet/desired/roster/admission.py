"""The admission checks of one pod. Pure.

The checks of the reference kubelet, in its order: node pressure; kernel parameters; operating system by label and by field;
the policy for supplemental groups; resources, node affinity, node name, host ports and taints, of which the first failure
counts; AppArmor; features that the node lacks; node shutdown. A critical pod (every static pod is critical) that only
lacks resources is not rejected: `preemption` chooses pods to end for it. Extended resources that the node does not have
are not checked, as in the reference kubelet.

Before them, a pod is refused that has more of anything than it may (`BOUNDS`, at the end). An API server admits 1.5 MB of anything; what
costs the agent more than a moment for each entry, at each event of the pod or for each of its containers, has a bound far above what
pods have.
Source: the Kubernetes documentation "Pod Lifecycle" and "Assigning Pods to Nodes", KEP-3619.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from pykubelet.base.api.codec import unusable_text
from pykubelet.base.api.core import (
    Container,
    EphemeralContainer,
    Pod,
    PodSpec,
    Quantity,
    ResourceRequirements,
    Taint,
    Toleration,
)
from pykubelet.base.api.quantity import HUGE_PAGES, QuantityError, in_units, is_pod_level, parse
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.containers import every_container
from pykubelet.base.model.evictions import NodePressure, PressureCondition
from pykubelet.base.model.node import BIND_OPTIONS, NodeView, RuntimeReady, declared_features
from pykubelet.base.model.node_selector import matches_node_selector
from pykubelet.base.model.reasons import (
    APP_ARMOR,
    EVICTED,
    NODE_SHUTDOWN,
    POD_FEATURE_UNSUPPORTED,
    POD_LEVEL_RESOURCES_NOT_SUPPORTED,
    POD_OS_NOT_SUPPORTED,
    POD_OS_SELECTOR_MISMATCH,
    SUPPLEMENTAL_GROUPS_POLICY_NOT_SUPPORTED,
    SYSCTL_FORBIDDEN,
)
from pykubelet.base.model.restart import is_sidecar
from pykubelet.base.model.roster import Rejection, is_critical, is_static
from pykubelet.base.model.sizing import QOSClass, pod_requests, qos_class
from pykubelet.base.model.sysctls import forbidden_sysctl
from pykubelet.base.model.tolerations import tolerates
from pykubelet.desired.roster.model import ALL_ADDRESSES, AdmissionRules, Demand, HostPort, Load

OS_LABEL = "kubernetes.io/os"
OS = "linux"
APP_ARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"
UNCONFINED = "Unconfined"
RESTART_ALL = "RestartAllContainers"
NO_EXECUTE = "NoExecute"
_MEMORY_PRESSURE = Taint(key="node.kubernetes.io/memory-pressure", effect="NoSchedule")
NODE_AFFINITY, TAINT_TOLERATION = "NodeAffinity", "TaintToleration"
#: Rejections that depend on labels and taints, which other clients write to the Node.
OF_THE_NODE = (NODE_AFFINITY, TAINT_TOLERATION)
_ALWAYS_COUNTED = ("cpu", "memory", "ephemeral-storage")
_WRONG_AFFINITY = "node(s) didn't match Pod's node affinity/selector"
_WRONG_NODE = "node(s) didn't match the requested node name"
_NOT_TOLERATED = "node(s) had taints that the pod didn't tolerate"
_PORTS_TAKEN = "node(s) didn't have free ports for the requested pod ports"


class Shortage(Value):
    """A shortage of one resource on the node; amounts as in `Demand`."""

    resource: str
    requested: int
    used: int
    capacity: int

    @property
    def missing(self) -> int:
        """The amount that must become free."""
        return self.requested - (self.capacity - self.used)

    @property
    def rejection(self) -> Rejection:
        """The rejection for this shortage, `OutOf<resource>`."""
        text = f"requested: {self.requested}, used: {self.used}, capacity: {self.capacity}"
        return Rejection(f"OutOf{self.resource}", f"Node didn't have enough resource: {self.resource}, {text}")


def requests_of(pod: Pod) -> Mapping[str, int]:
    """The resources that a pod requests, as in `Demand`; none if they are too many, which is refused as the pod's excess.

    A pod with an invalid amount is refused, too, and requests nothing.
    """
    try:
        return in_units(pod_requests(pod)) if has_countable_resources(pod) else {}
    except QuantityError:
        return {}


def demand_of(pod: Pod) -> Demand:
    """The resources and host ports that a pod requests."""
    containers = (*pod.spec.containers, *(c for c in pod.spec.initContainers if is_sidecar(c)))
    ports = frozenset(
        HostPort(f"{port.hostPort}/{port.protocol or 'TCP'}", port.hostIP or ALL_ADDRESSES)
        for container in containers
        for port in container.ports
        if port.hostPort
    )
    return Demand(requests_of(pod), ports)


def unusable_in(pod: Pod) -> str:
    """Which part of the pod's spec nothing can use, and why; "" if there is none."""
    if excess := excess_in(pod):
        return excess
    found = unusable_text(pod.spec)
    return f"spec.{found[0]}: {found[1]}" if found is not None else _invalid_amount(pod.spec)


def _invalid_amount(spec: PodSpec) -> str:
    """The field of the first amount that is none, and why; "" if there is none. API servers send valid amounts."""
    for path, amount in _amounts(spec):
        try:
            parse(amount)
        except QuantityError as error:
            return f"spec.{path}: {error}"
    return ""


def _amounts(spec: PodSpec) -> Iterator[tuple[str, Quantity]]:
    """Every amount that the agent counts, with the path of its field."""
    yield from ((f"overhead[{name}]", amount) for name, amount in spec.overhead.items())
    owners = [("resources", spec.resources)]
    owners += [(f"containers[{i}].resources", container.resources) for i, container in enumerate(spec.containers)]
    owners += [
        (f"initContainers[{i}].resources", container.resources) for i, container in enumerate(spec.initContainers)
    ]
    for path, resources in owners:
        if resources is not None:
            yield from ((f"{path}.limits[{name}]", amount) for name, amount in resources.limits.items())
            yield from ((f"{path}.requests[{name}]", amount) for name, amount in resources.requests.items())
    for i, volume in enumerate(spec.volumes):
        if volume.emptyDir is not None and volume.emptyDir.sizeLimit is not None:
            yield f"volumes[{i}].emptyDir.sizeLimit", volume.emptyDir.sizeLimit


# Checks of the pod by itself


def refuse_under_pressure(pod: Pod, pressure: NodePressure) -> Rejection | None:
    """Evicted for a pod that is not critical while a pressure condition holds; None: admitted. With only MemoryPressure, pods
    that are not BestEffort and pods that tolerate its taint are admitted too."""
    if is_critical(pod):
        return None
    held = pressure.conditions
    if not held:
        return None
    if held == (PressureCondition.MEMORY,):
        requests_some = qos_class(pod) is not QOSClass.BEST_EFFORT
        if requests_some or any(tolerates(toleration, _MEMORY_PRESSURE) for toleration in pod.spec.tolerations):
            return None
    return Rejection(EVICTED, f"The node had condition: [{' '.join(held)}]. ")


def refuse_sysctls(pod: Pod, rules: AdmissionRules) -> Rejection | None:
    """SysctlForbidden for kernel parameters that the node does not allow; None: admitted."""
    context = pod.spec.securityContext
    if context is None or not context.sysctls:
        return None
    problem = forbidden_sysctl(pod, rules.allowed_unsafe_sysctls, rules.kernel, rules.safe_sysctls)
    return Rejection(SYSCTL_FORBIDDEN, problem) if problem else None


def refuse_os(pod: Pod) -> Rejection | None:
    """PodOSSelectorMismatch or PodOSNotSupported for a pod that is not for Linux; None: admitted."""
    if pod.metadata.labels.get(OS_LABEL, OS) != OS:
        text = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
        return Rejection(POD_OS_SELECTOR_MISMATCH, text)
    if pod.spec.os is not None and pod.spec.os.name != OS:
        return Rejection(POD_OS_NOT_SUPPORTED, "Failed to admit pod as the OS field doesn't match node OS")
    return None


def needs_strict_groups(pod: Pod) -> bool:
    """Whether the pod has supplementalGroupsPolicy Strict (KEP-3619)."""
    context = pod.spec.securityContext
    return context is not None and context.supplementalGroupsPolicy == "Strict"


def refuse_groups_policy(pod: Pod, runtime: RuntimeReady) -> Rejection | None:
    """SupplementalGroupsPolicyNotSupported for a pod with Strict if the runtime lacks the feature; None: admitted."""
    if needs_strict_groups(pod) and not runtime.supplemental_groups_policy:
        text = "SupplementalGroupsPolicy=Strict is not supported in this node"
        return Rejection(SUPPLEMENTAL_GROUPS_POLICY_NOT_SUPPORTED, text)
    return None


def refuse_app_armor(pod: Pod, rules: AdmissionRules) -> Rejection | None:
    """AppArmor for a pod with a profile on a node without AppArmor; None: admitted."""
    if rules.app_armor or not _needs_app_armor(pod):
        return None
    return Rejection(APP_ARMOR, "Cannot enforce AppArmor: AppArmor is not enabled on the host")


def refuse_at_shutdown(*, shutting_down: bool) -> Rejection | None:
    """NodeShutdown while the machine shuts down; None: admitted. Source: the Kubernetes documentation "Node Shutdowns"."""
    if shutting_down:
        return Rejection(NODE_SHUTDOWN, "Pod was rejected as the node is shutting down.")
    return None


def needs_runtime_features(pod: Pod) -> bool:
    """Whether the runtime decides if the pod can run here."""
    return needs_strict_groups(pod) or _has_bind_options(pod)


def refuse_features(pod: Pod, rules: AdmissionRules, runtime: RuntimeReady) -> Rejection | None:
    """Rejection for disabled pod-level resources (KEP-2837), or for features the node does not declare (KEP-5328); None: admitted."""
    stated = pod.spec.resources
    names = (*stated.requests, *stated.limits) if stated is not None else ()
    if not rules.pod_level_resources and any(is_pod_level(name) for name in names):
        return Rejection(POD_LEVEL_RESOURCES_NOT_SUPPORTED, "PodLevelResources feature gate is disabled")
    if rules.features is None:
        return None
    lacking = sorted(_needed_features(pod).difference(declared_features(rules.features, runtime)))
    if not lacking:
        return None
    text = f"Pod requires node features that are not available: {', '.join(lacking)}"
    return Rejection(POD_FEATURE_UNSUPPORTED, text)


def _needed_features(pod: Pod) -> set[str]:
    needed = set()
    containers = (*pod.spec.initContainers, *pod.spec.containers)
    if any(rule.action == RESTART_ALL for container in containers for rule in container.restartPolicyRules):
        needed.add("RestartAllContainersOnContainerExits")
    if pod.spec.hostNetwork and pod.spec.hostUsers is False:
        needed.add("UserNamespacesHostNetworkSupport")
    if _has_bind_options(pod):
        needed.add(BIND_OPTIONS)
    return needed


def _has_bind_options(pod: Pod) -> bool:
    mounts = (mount for container in every_container(pod) for mount in container.volumeMounts)
    return any(mount.bindMountOptions for mount in mounts)


def _needs_app_armor(pod: Pod) -> bool:
    spec = pod.spec
    profiles = [spec.securityContext.appArmorProfile] if spec.securityContext is not None else []
    contexts = [c.securityContext for c in (*spec.initContainers, *spec.containers)]
    contexts.extend(c.securityContext for c in spec.ephemeralContainers)
    profiles.extend(context.appArmorProfile for context in contexts if context is not None)
    if any(profile is not None and profile.type != UNCONFINED for profile in profiles):
        return True
    annotations = pod.metadata.annotations.items()
    return any(key.startswith(APP_ARMOR_ANNOTATION) and value != "unconfined" for key, value in annotations)


# Checks against the node and the admitted pods


def find_shortages(
    demand: Demand, load: Load, node: NodeView, max_pods: int, devices: Collection[str] = ()
) -> tuple[Shortage, ...]:
    """The resources that the node lacks for the pod, in the order of the reference kubelet.

    `devices`: resources of device plugins, which are not counted here: the pod's placement decides on them.
    """
    found: list[Shortage] = []
    limit = node.allocatable.get("pods", max_pods)
    if load.pods + 1 > limit:
        found.append(Shortage("pods", 1, load.pods, limit))
    others = sorted(name for name in demand.requests if name not in _ALWAYS_COUNTED)
    for name in (*_ALWAYS_COUNTED, *others):
        wanted = demand.requests.get(name, 0)
        if wanted <= 0 or name in devices or not _is_counted(name, node):
            continue
        capacity, used = node.allocatable.get(name, 0), load.requests[name]
        if wanted > capacity - used:
            found.append(Shortage(name, wanted, used, capacity))
    return tuple(found)


def _is_counted(name: str, node: NodeView) -> bool:
    if name in _ALWAYS_COUNTED or name.startswith(HUGE_PAGES):
        return True
    is_native = "/" not in name or "kubernetes.io/" in name
    if is_native:
        return name.startswith("attachable-volumes-") or "/" in name
    return name in node.allocatable


def refuse_placement(pod: Pod, demand: Demand, load: Load, node: NodeView, rules: AdmissionRules) -> Rejection | None:
    """Rejection for node affinity, node name, host ports or NoExecute taints; None: admitted."""
    if not matches_node(pod, node):
        return _predicate(NODE_AFFINITY, _WRONG_AFFINITY)
    if pod.spec.nodeName and pod.spec.nodeName != node.name:
        return _predicate("NodeName", _WRONG_NODE)
    if load.has_taken(demand):
        return _predicate("NodePorts", _PORTS_TAKEN)
    if not is_static(pod) and not _tolerates_all(pod, node, rules.compares_taints):
        return _predicate(TAINT_TOLERATION, _NOT_TOLERATED)
    return None


def _tolerates_all(pod: Pod, node: NodeView, comparisons: bool) -> bool:
    """Whether the pod tolerates all NoExecute taints of the node; other taints do not count here."""
    taints = [taint for taint in node.taints if taint.effect == NO_EXECUTE]
    by_key: dict[str, list[Toleration]] = {}
    for toleration in pod.spec.tolerations if taints else ():
        if toleration.effect in ("", NO_EXECUTE) and (toleration.key or toleration.operator == "Exists"):
            by_key.setdefault(toleration.key, []).append(toleration)
    return all(
        any(tolerates(found, taint, comparisons) for key in ("", taint.key) for found in by_key.get(key, ()))
        for taint in taints
    )


def _predicate(name: str, description: str) -> Rejection:
    return Rejection(name, f"Predicate {name} failed: {description}")


def matches_node(pod: Pod, node: NodeView) -> bool:
    """Whether nodeSelector and required node affinity match. One term must match; a term without conditions never does."""
    if any(node.labels.get(key) != value for key, value in pod.spec.nodeSelector.items()):
        return False
    affinity = pod.spec.affinity.nodeAffinity if pod.spec.affinity is not None else None
    required = affinity.requiredDuringSchedulingIgnoredDuringExecution if affinity is not None else None
    if required is None:
        return True
    return matches_node_selector(required, node)


# How much of one kind a pod may have

#: Containers of all kinds. Each event of one costs a look at all.
MAX_CONTAINERS = 500
MAX_RESOURCES = 10_000


def _containers(pod: Pod) -> int:
    return len(pod.spec.containers) + len(pod.spec.initContainers)


def _of_containers(count: Callable[[Container | EphemeralContainer], int]) -> Callable[[Pod], int]:
    return lambda pod: sum(count(container) for container in every_container(pod))


def _resources(pod: Pod) -> int:
    every = (pod.spec.resources, *(container.resources for container in every_container(pod)))
    return len(pod.spec.overhead) + sum(_names(resources) for resources in every if resources is not None)


def _names(resources: ResourceRequirements) -> int:
    return len(resources.limits) + len(resources.requests) + len(resources.claims)


def _sources(pod: Pod) -> int:
    return sum(len(volume.projected.sources) for volume in pod.spec.volumes if volume.projected is not None)


def _claims(pod: Pod) -> int:
    return sum(volume.persistentVolumeClaim is not None or volume.ephemeral is not None for volume in pod.spec.volumes)


def _targets(pod: Pod) -> int:
    """Each is looked for on the node, and logged in to, when the volume is set up."""
    portals = sum(len(volume.iscsi.portals) for volume in pod.spec.volumes if volume.iscsi is not None)
    channels = (volume.fc for volume in pod.spec.volumes if volume.fc is not None)
    return portals + sum(len(fc.targetWWNs) + len(fc.wwids) for fc in channels)


def _affinity_terms(pod: Pod) -> int:
    """Each is compared with the node whenever the pod may be admitted."""
    affinity = pod.spec.affinity.nodeAffinity if pod.spec.affinity is not None else None
    required = affinity.requiredDuringSchedulingIgnoredDuringExecution if affinity is not None else None
    return len(required.nodeSelectorTerms) if required is not None else 0


#: What is counted in a pod, and how many of it a pod may have.
BOUNDS: dict[str, tuple[Callable[[Pod], int], int]] = {
    "containers and init containers": (_containers, MAX_CONTAINERS),
    "labels": (lambda pod: len(pod.metadata.labels), 1000),
    "names of resources and claims in all containers": (_resources, MAX_RESOURCES),
    "ports in all containers": (_of_containers(lambda container: len(container.ports)), 10_000),
    "mounts of volumes and devices in all containers": (
        _of_containers(lambda container: len(container.volumeMounts) + len(container.volumeDevices)),
        10_000,
    ),
    "mounts with a subPath": (
        _of_containers(lambda c: sum(bool(mount.subPath or mount.subPathExpr) for mount in c.volumeMounts)),
        2000,
    ),
    "volumes": (lambda pod: len(pod.spec.volumes), 4000),
    "volumes of PersistentVolumeClaims": (_claims, 1000),
    "imagePullSecrets": (lambda pod: len(pod.spec.imagePullSecrets), 1000),
    "sources of projected volumes": (_sources, 10_000),
    "portals of iSCSI and names of Fibre Channel volumes": (_targets, 1000),
    "terms of the required node affinity": (_affinity_terms, 10_000),
}


def excess_in(pod: Pod) -> str:
    """What the pod has too much of; "" if nothing."""
    for what, (count, most) in BOUNDS.items():
        if (number := count(pod)) > most:
            return f"the pod has {number} {what}, more than {most}"
    return ""


def has_countable_resources(pod: Pod) -> bool:
    """Whether the pod's resources are not too many to be summed up."""
    return _resources(pod) <= MAX_RESOURCES


def without_excess(pod: Pod) -> Pod:
    """The pod without ephemeral containers beyond `MAX_CONTAINERS`, which are not started; the same object if it has none."""
    spec = pod.spec
    left = max(0, MAX_CONTAINERS - _containers(pod))
    if len(spec.ephemeralContainers) <= left:
        return pod
    return replace(pod, spec=replace(spec, ephemeralContainers=spec.ephemeralContainers[:left]))

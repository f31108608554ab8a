"""Renders the Node's status, and the patch of the API server's copy. Pure.

Rules:
- A condition's transition time changes only with its status; its heartbeat time changes with every status that is sent.
- Resources that other clients have written into the capacity are kept, and are completely allocatable.
- With an external cloud provider, the addresses are the provider's. Before the provider has set them, they are the given
  node IPs (or the detected one, if `--node-ip` only selects a family, such as `::`), and the host name.
- This agent attaches no volumes. The volumes in use that another kubelet has reported are kept while any of them is mounted,
  because the attach-detach controller detaches volumes that are not in use.
Source: the Kubernetes documentation "Node Status"; KEP-5328 for declared features.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pykubelet.base.api.codec import to_object
from pykubelet.base.api.core import (
    ContainerImage,
    DaemonEndpoint,
    Node,
    NodeAddress,
    NodeCondition,
    NodeDaemonEndpoints,
    NodeFeatures,
    NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures,
    NodeStatus,
    NodeSystemInfo,
)
from pykubelet.base.api.patch import DIRECTIVE, strategic_diff
from pykubelet.base.api.quantity import NANO, Amount, format_units
from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import replace
from pykubelet.base.model.kube_events import KubeEvent, normal, warning
from pykubelet.base.model.node import DEFAULT_OBJECT_TTL_S, ApiNode, RuntimeReady, declared_features
from pykubelet.config.flag_values import UNSPECIFIED
from pykubelet.report.node.model import (
    CONTROLLER_ATTACH,
    OBJECT_TTL,
    PROVIDED_NODE_IP,
    NodeInputs,
    NodeRegistration,
)

MAX_NAMES_PER_IMAGE = 5
STORAGE = "ephemeral-storage"
READY, MEMORY, DISK, PID = "Ready", "MemoryPressure", "DiskPressure", "PIDPressure"
OWN_CONDITIONS = (MEMORY, DISK, PID, READY)
_NOT_REPORTED = frozenset({"pid"})
_VERSION = re.compile(r"\s*v?([0-9]+(?:\.[0-9]+)*)(.*)", re.DOTALL)
_SEMANTIC_EXTRA = re.compile(r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?\s*")
_UNKNOWN = "Unknown"
#: By type: the reason and message if the condition holds, and if it does not.
_PRESSURES = {
    MEMORY: (
        ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
        ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ),
    DISK: (
        ("KubeletHasDiskPressure", "kubelet has disk pressure"),
        ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ),
    PID: (
        ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
        ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ),
}
#: Event reasons when a condition becomes True, and when it becomes False.
_EVENTS = {
    READY: ("NodeReady", "NodeNotReady"),
    MEMORY: ("NodeHasInsufficientMemory", "NodeHasSufficientMemory"),
    DISK: ("NodeHasDiskPressure", "NodeHasNoDiskPressure"),
    PID: ("NodeHasInsufficientPID", "NodeHasSufficientPID"),
}


def render_status(about: NodeRegistration, inputs: NodeInputs, before: NodeStatus, now: str) -> NodeStatus:
    """The status of the node. `before`: the API server's copy. `now`: the time of the conditions."""
    view, runtime = inputs.view, inputs.runtime
    not_theirs = {*view.capacity, *(() if about.local_storage else (STORAGE,))}
    others = {name: amount for name, amount in before.capacity.items() if name not in not_theirs}
    return NodeStatus(
        addresses=_addresses(about, view.ips, before.addresses),
        allocatable={**others, **_resources(about, view.allocatable)},
        capacity={**others, **_resources(about, view.capacity)},
        conditions=_conditions(inputs, before.conditions, now, _missing(view.capacity, about.local_storage)),
        config=before.config,
        daemonEndpoints=NodeDaemonEndpoints(kubeletEndpoint=DaemonEndpoint(Port=about.port)),
        declaredFeatures=_declared(about, runtime, before),
        features=_features(runtime) if runtime.checked else before.features,
        images=_images(inputs.images, about.max_images),
        nodeInfo=_node_info(about, runtime, before.nodeInfo),
        phase=before.phase,
        runtimeHandlers=_handlers(runtime) if runtime.checked else before.runtimeHandlers,
        volumesAttached=before.volumesAttached,
        volumesInUse=before.volumesInUse if inputs.volumes_in_use is None else inputs.volumes_in_use,
    )


def render_annotations(about: NodeRegistration, before: Mapping[str, str]) -> dict[str, str]:
    """The annotations, with the agent's own set to their required values."""
    found = {key: text for key, text in before.items() if key not in (CONTROLLER_ATTACH, PROVIDED_NODE_IP)}
    if about.controller_attach:
        found[CONTROLLER_ATTACH] = "true"
    provided = [ip for ip in about.node_ips if ip not in UNSPECIFIED]
    if about.external_cloud and provided:
        found[PROVIDED_NODE_IP] = ",".join(provided)
    return found


def api_node(node: Node) -> ApiNode:
    """The part of the API server's Node that the agent uses."""
    meta = node.metadata
    ttl = meta.annotations.get(OBJECT_TTL, "")
    return ApiNode(
        registered=True,
        uid=meta.uid,
        labels=meta.labels,
        taints=node.spec.taints,
        addresses=node.status.addresses,
        object_ttl_s=float(ttl) if ttl.isdecimal() else DEFAULT_OBJECT_TTL_S,
        deleting=bool(meta.deletionTimestamp),
        volumes_in_use=frozenset(node.status.volumesInUse),
        volumes_attached={volume.name: volume.devicePath for volume in node.status.volumesAttached},
    )


def same_but_heartbeats(status: NodeStatus, other: NodeStatus) -> bool:
    """True if the statuses are equal except for heartbeat times."""
    return _without_heartbeats(status) == _without_heartbeats(other)


def status_patch(
    before: Node, after: NodeStatus, annotations: Mapping[str, str], labels: Mapping[str, Any]
) -> dict[str, Any]:
    """A strategic merge patch for `nodes/<name>/status` from `before` to the new status and annotations.

    `labels`: the label changes.
    """
    old, new = to_object(before.status), to_object(after)
    status = strategic_diff(old, new, {})
    # each of them has a new heartbeat time
    status["conditions"] = [condition for condition in new["conditions"] if condition["type"] in OWN_CONDITIONS]
    if "addresses" in status:
        # two addresses of one type cannot be merged by type
        status["addresses"] = [*new.get("addresses", []), {DIRECTIVE: "replace"}]
    changed = strategic_diff(dict(before.metadata.annotations), dict(annotations), {})
    metadata = {"annotations": changed, "labels": dict(labels)}
    metadata = {key: value for key, value in metadata.items() if value}
    return {"status": status} | ({"metadata": metadata} if metadata else {})


def condition_events(name: str, before: NodeStatus, after: NodeStatus) -> tuple[KubeEvent, ...]:
    """The Events for the change from one status to the next. There is none for a new node that is not ready yet."""
    known = {condition.type: condition.status for condition in before.conditions}
    found = []
    for condition in after.conditions:
        reasons = _EVENTS.get(condition.type)
        if reasons is None or known.get(condition.type) == condition.status:
            continue
        if condition.type == READY and READY not in known and condition.status != "True":
            continue
        reason = reasons[condition.status != "True"]
        found.append(normal(reason, f"Node {name} status is now: {reason}"))
    boot_id = before.nodeInfo.bootID if before.nodeInfo is not None else ""
    now_id = after.nodeInfo.bootID if after.nodeInfo is not None else ""
    if boot_id and boot_id != now_id:
        found.append(warning("Rebooted", f"Node {name} has been rebooted, boot id: {now_id}"))
    return tuple(found)


def node_image(names: Iterable[str], size: int) -> ContainerImage:
    """An image for the Node's status. `names`: digests before tags."""
    return ContainerImage(names=tuple(names)[:MAX_NAMES_PER_IMAGE], sizeBytes=size)


def ready_message(inputs: NodeInputs, missing: str = "") -> str:
    """Why the node is not ready; empty if it is ready."""
    runtime, shutdown = inputs.runtime, "node is shutting down" if inputs.shutting_down else ""
    all_errors = (runtime.runtime_error, runtime.pleg_error, runtime.network_error, missing, shutdown)
    errors = [text for text in all_errors if text]
    return errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]" if errors else ""


def _conditions(
    inputs: NodeInputs, before: tuple[NodeCondition, ...], now: str, missing: str
) -> tuple[NodeCondition, ...]:
    pressure = inputs.pressure
    wanted = {}
    for kind, holds in ((MEMORY, pressure.memory), (DISK, pressure.disk), (PID, pressure.pid)):
        wanted[kind] = (holds, *_PRESSURES[kind][not holds])
    problem = ready_message(inputs, missing)
    reason, message = ("KubeletNotReady", problem) if problem else _IS_READY
    warning = inputs.view.warning
    wanted[READY] = (not problem, reason, f"{message}. WARNING: {warning}" if warning else message)
    known = {condition.type: condition for condition in before}
    rendered = {kind: _condition(kind, values, known.get(kind), now) for kind, values in wanted.items()}
    kept = [rendered.pop(condition.type, condition) for condition in before]
    return (*kept, *rendered.values())


_IS_READY = ("KubeletReady", "kubelet is posting ready status")


def _condition(kind: str, wanted: tuple[bool, str, str], known: NodeCondition | None, now: str) -> NodeCondition:
    holds, reason, message = wanted
    status = "True" if holds else "False"
    since = known.lastTransitionTime if known is not None and known.status == status else now
    return NodeCondition(
        lastHeartbeatTime=now, lastTransitionTime=since, message=message, reason=reason, status=status, type=kind
    )


def _missing(capacity: Mapping[str, int], local_storage: bool) -> str:
    needed = ("cpu", "memory", "pods", STORAGE) if local_storage else ("cpu", "memory", "pods")
    lacking = [name for name in needed if name not in capacity]
    return f"missing node capacity for resources: {', '.join(lacking)}" if lacking else ""


def _without_heartbeats(status: NodeStatus) -> NodeStatus:
    conditions = {c.type: replace(c, lastHeartbeatTime="") for c in status.conditions}
    return replace(status, conditions=tuple(conditions[kind] for kind in sorted(conditions)))


def _addresses(
    about: NodeRegistration, ips: tuple[str, ...], before: tuple[NodeAddress, ...]
) -> tuple[NodeAddress, ...]:
    hostname = NodeAddress(type="Hostname", address=about.hostname)
    if about.external_cloud:
        if before:
            return before
        if not about.node_ips:
            return (hostname,)
    if not ips:
        return before
    return (*(NodeAddress(type="InternalIP", address=ip) for ip in ips), hostname)


def _resources(about: NodeRegistration, own: Mapping[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {n: format_units(n, amount) for n, amount in own.items() if n not in _NOT_REPORTED}
    if about.decimal_storage and STORAGE in found:
        found[STORAGE] = str(Amount(own[STORAGE] * NANO))
    return found


def is_extended(resource: str) -> bool:
    """Whether a resource has a domain other than `kubernetes.io`, so that a device plugin must provide it."""
    return "/" in resource and "kubernetes.io/" not in resource


def _images(found: Iterable[ContainerImage], at_most: int) -> tuple[ContainerImage, ...]:
    images = sorted(found, key=lambda image: -(image.sizeBytes or 0))
    return tuple(images if at_most < 0 else images[:at_most])


def _node_info(about: NodeRegistration, runtime: RuntimeReady, before: NodeSystemInfo | None) -> NodeSystemInfo:
    version = f"{runtime.name}://{_runtime_version(runtime.version)}" if runtime.name else ""
    if not version and before is not None:
        version = before.containerRuntimeVersion
    return replace(about.info, containerRuntimeVersion=version)


def _runtime_version(text: str) -> str:
    """A semantic version unchanged; of other versions only the leading numbers. As k8s.io/apimachinery's `version.Parse`."""
    found = _VERSION.fullmatch(text)
    if found is None or "\n" in found[2]:
        return _UNKNOWN
    numbers, extra = found[1].split("."), found[2]
    values = [parse_decimal(number) for number in numbers]
    if None in values:
        return _UNKNOWN
    semantic = _SEMANTIC_EXTRA.fullmatch(extra)
    is_padded = [_is_padded(number) for number in numbers]
    if len(numbers) == 3 and semantic is not None and not any(is_padded):
        before, build = semantic[1] or "", semantic[2] or ""
        if not any(part.isdecimal() and _is_padded(part) for part in before.split(".")):
            return ".".join(numbers) + (f"-{before}" if before else "") + (f"+{build}" if build else "")
    if len(numbers) < 2 or is_padded[0]:
        return _UNKNOWN
    return ".".join(str(value) for value in values)


def _is_padded(number: str) -> bool:
    return number.startswith("0") and number != "0"


def _declared(about: NodeRegistration, runtime: RuntimeReady, before: NodeStatus) -> tuple[str, ...]:
    """The declared features. Before the runtime was asked, those that need it stay as they were."""
    declared = declared_features(about.features, runtime)
    if runtime.checked:
        return declared
    return tuple(name for name in about.features if name in declared or name in before.declaredFeatures)


def _features(runtime: RuntimeReady) -> NodeFeatures | None:
    return NodeFeatures(supplementalGroupsPolicy=True) if runtime.supplemental_groups_policy else None


def _handlers(runtime: RuntimeReady) -> tuple[NodeRuntimeHandler, ...]:
    return tuple(
        NodeRuntimeHandler(
            name=name,
            features=NodeRuntimeHandlerFeatures(
                recursiveReadOnlyMounts=features.recursive_read_only_mounts, userNamespaces=features.user_namespaces
            ),
        )
        for name, features in sorted(runtime.handlers.items())
    )

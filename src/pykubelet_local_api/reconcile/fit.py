"""Whether a pod fits on a node, in the words and in the order of the default scheduler. Pure.

The first filter that refuses the node gives the reasons. Filters of volumes are in `fit_volumes`, those that look at other pods in
`fit_affinity`.
Source: the Kubernetes documentation "Scheduling, Preemption and Eviction"; KEP-1287 (resources of pods that are being resized).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pykubelet.base.api.codec import DecodeError, encode, from_object
from pykubelet.base.api.core import Pod, Taint
from pykubelet.base.api.quantity import Amount, QuantityError, in_units, parse
from pykubelet.base.kit.values import Value
from pykubelet.base.model.node_selector import matches_node_selector
from pykubelet.base.model.sizing import pod_requests
from pykubelet.base.model.tolerations import tolerates
from pykubelet_local_api.objects import Json, name_of
from pykubelet_local_api.reconcile.changes import spec_of, status_of
from pykubelet_local_api.reconcile.matching import node_view
from pykubelet_local_api.reconcile.pods import Remembered

UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_KEEPS_AWAY = ("NoSchedule", "NoExecute")
#: The most bytes of JSON of a pod's affinity to other pods and of its topology spread: each of their terms is compared with every pod.
MAX_TERMS_BYTES = 16 << 10
_FIRST = ("cpu", "memory", "ephemeral-storage")
#: Addresses that stand for all of the node.
_ANY_ADDRESS = ("", "0.0.0.0", "::")


class Refusal(Value):
    """Why a node cannot take a pod. `is_final`: not even if other pods were gone."""

    reasons: tuple[str, ...]
    is_final: bool


class PodToPlace(Value):
    """A pod that waits for a node: the object, and what it means. `requests`: in the units of `in_units`."""

    object: Json
    pod: Pod
    requests: Mapping[str, int]


class NodeLoad:
    """A node, and what its pods use of it. Pods that are chosen for it are added."""

    def __init__(self, node: Json) -> None:
        self.node = node
        self.name = name_of(node)
        self.labels: Mapping[str, str] = node["metadata"].get("labels") or {}
        self.taints = tuple(from_object(Taint, taint) for taint in spec_of(node).get("taints") or ())
        self.allocatable = _amounts(status_of(node).get("allocatable") or {})
        self.pods: dict[str, Json] = {}
        self.used: Counter[str] = Counter()
        self.ports: Counter[tuple[str, str, int]] = Counter()

    def add(self, pod: Json) -> None:
        """Count a pod of the node."""
        self.pods[pod["metadata"].get("uid", name_of(pod))] = pod
        self.used.update(requests_of(pod))
        self.ports.update(host_ports(pod))

    def remove(self, pod: Json) -> None:
        """Count a pod no longer."""
        del self.pods[pod["metadata"].get("uid", name_of(pod))]
        self.used.subtract(requests_of(pod))
        self.ports -= Counter(host_ports(pod))

    def without(self, pods: list[Json]) -> NodeLoad:
        """The node as if these pods were gone."""
        load = NodeLoad(self.node)
        gone = {pod["metadata"].get("uid") for pod in pods}
        for uid, pod in self.pods.items():
            if uid not in gone:
                load.add(pod)
        return load


_REQUESTS: Remembered[Mapping[str, int]] = Remembered()
_PLACED: Remembered[PodToPlace | str] = Remembered()


def remember_only(bound: Collection[Json], waiting: Collection[Json]) -> None:
    """Forget what is remembered of pods that are gone. `bound`: those with a node; `waiting`: those without."""
    _REQUESTS.keep_only(bound)
    _PLACED.keep_only(waiting)


def _amounts(listed: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, Amount] = {}
    for name, quantity in listed.items():
        try:
            found[name] = parse(quantity)
        except QuantityError:
            continue
    return in_units(found)


def to_place(found: Json) -> PodToPlace | str:
    """What the pod means, or why it cannot be understood."""
    known = _PLACED.get(found)
    if known is not None:
        return known
    affinity = spec_of(found).get("affinity") or {}
    terms = [affinity.get(key) for key in ("podAffinity", "podAntiAffinity")]
    if len(encode([*terms, spec_of(found).get("topologySpreadConstraints")])) > MAX_TERMS_BYTES:
        limit = f"affinity to other pods and topology spread have more than {MAX_TERMS_BYTES} bytes together"
        return _PLACED.put(found, f"{limit}, which this scheduler does not support")
    try:
        pod = from_object(Pod, found)
        return _PLACED.put(found, PodToPlace(found, pod, in_units(pod_requests(pod))))
    except (DecodeError, QuantityError) as error:
        return _PLACED.put(found, str(error))


def requests_of(found: Json) -> Mapping[str, int]:
    """What a bound pod has: its requests, or what it still has of larger ones while it is resized."""
    known = _REQUESTS.get(found)
    if known is not None:
        return known
    try:
        wanted = in_units(pod_requests(from_object(Pod, found)))
        held = in_units(pod_requests(from_object(Pod, _as_allocated(found))))
    except (DecodeError, QuantityError):
        return _REQUESTS.put(found, {})
    return _REQUESTS.put(
        found, {name: max(wanted.get(name, 0), held.get(name, 0)) for name in wanted.keys() | held.keys()}
    )


def _as_allocated(found: Json) -> Json:
    """The pod with the requests that the node has allocated."""
    status = status_of(found)
    listed = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    allocated = {item.get("name"): item["allocatedResources"] for item in listed if item.get("allocatedResources")}
    if not allocated:
        return found
    spec = dict(spec_of(found))
    for key in ("containers", "initContainers"):
        if key in spec:
            spec[key] = [
                container
                | {"resources": (container.get("resources") or {}) | {"requests": allocated[container["name"]]}}
                if container.get("name") in allocated
                else container
                for container in spec[key]
            ]
    return found | {"spec": spec}


def host_ports(pod: Json) -> Iterator[tuple[str, str, int]]:
    """The ports of the node that the pod takes: address, protocol, number. Init containers that go on running count."""
    spec = spec_of(pod)
    lasting = [item for item in spec.get("initContainers") or () if item.get("restartPolicy") == "Always"]
    for container in (*(spec.get("containers") or ()), *lasting):
        for port in container.get("ports") or ():
            if number := port.get("hostPort"):
                yield port.get("hostIP") or "", port.get("protocol") or "TCP", int(number)


def refuse_by_node(wanted: PodToPlace, load: NodeLoad) -> Refusal | None:
    """The filters that look at the node, its taints, its ports and its resources. None: they let the pod pass."""
    pod = wanted.pod
    tolerations = pod.spec.tolerations
    if spec_of(load.node).get("unschedulable") and not any(tolerates(item, UNSCHEDULABLE) for item in tolerations):
        return Refusal(("node(s) were unschedulable",), True)
    if pod.spec.nodeName and pod.spec.nodeName != load.name:
        return Refusal(("node(s) didn't match the requested node name",), True)
    for taint in load.taints:
        if taint.effect in _KEEPS_AWAY and not any(tolerates(item, taint) for item in tolerations):
            return Refusal(("node(s) had untolerated taint(s)",), True)
    if not _matches_node(pod, load):
        return Refusal(("node(s) didn't match Pod's node affinity/selector",), True)
    if _has_port_conflict(wanted.object, load):
        return Refusal(("node(s) didn't have free ports for the requested pod ports",), False)
    return _refuse_resources(wanted.requests, load)


def _matches_node(pod: Pod, load: NodeLoad) -> bool:
    if any(load.labels.get(key) != value for key, value in pod.spec.nodeSelector.items()):
        return False
    affinity = pod.spec.affinity.nodeAffinity if pod.spec.affinity is not None else None
    required = affinity.requiredDuringSchedulingIgnoredDuringExecution if affinity is not None else None
    return required is None or matches_node_selector(required, node_view(load.node))


def _has_port_conflict(pod: Json, load: NodeLoad) -> bool:
    if not load.ports:
        return False
    by_port: dict[tuple[str, int], set[str]] = {}
    for address, protocol, number in load.ports:
        by_port.setdefault((protocol, number), set()).add(address)
    for address, protocol, number in host_ports(pod):
        taken = by_port.get((protocol, number))
        if taken and (address in _ANY_ADDRESS or address in taken or any(other in _ANY_ADDRESS for other in taken)):
            return True
    return False


def _refuse_resources(requests: Mapping[str, int], load: NodeLoad) -> Refusal | None:
    reasons = []
    is_final = False
    if len(load.pods) + 1 > load.allocatable.get("pods", 0):
        reasons.append("Too many pods")
    for name in (*_FIRST, *sorted(requests.keys() - set(_FIRST))):
        amount, limit = requests.get(name, 0), load.allocatable.get(name, 0)
        if amount > 0 and amount > limit - load.used[name]:
            reasons.append(f"Insufficient {name}")
            is_final = is_final or amount > limit
    return Refusal(tuple(reasons), is_final) if reasons else None

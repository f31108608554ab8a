"""Allocates devices to resource claims when their pod is bound to a node. Pure.

Rules:
- A claim without an allocation gets devices of the node's ResourceSlices: `count` devices that match (ExactCount), or all that match (All).
  Of the alternatives of a request (`firstAvailable`), the first that can be had is taken.
- Devices of other claims are not taken. With a constraint `matchAttribute`, all devices of its requests have the same value.
- Before the pod is bound, the claim has the finalizer of DRA, its allocation, and the pod in `reservedFor`.
Not built, with a reason in the pod's condition: selectors in other forms than `device_selectors` understands, other constraints, devices
with shared counters, and devices that several claims may share.
Source: the Kubernetes documentation "Dynamic Resource Allocation"; KEP-4381.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import NodeSelector, Taint, Toleration
from pykubelet.base.kit.values import Value
from pykubelet.base.model.node_selector import matches_node_selector
from pykubelet.base.model.tolerations import tolerates
from pykubelet_local_api.objects import Json, is_deleting, name_of, namespace_of, uid_of
from pykubelet_local_api.reconcile.changes import (
    finalizers_of,
    spec_of,
    status_of,
    status_updated,
    updated,
    with_finalizer,
    with_status,
)
from pykubelet_local_api.reconcile.device_selectors import (
    Comparison,
    UnknownSelector,
    attribute_of,
    matches,
    parse_selectors,
)
from pykubelet_local_api.reconcile.fit import NodeLoad, PodToPlace, Refusal
from pykubelet_local_api.reconcile.matching import node_view
from pykubelet_local_api.reconcile.resource_claims import CLAIMS, FINALIZER, claim_names
from pykubelet_local_api.view import ObjectChange, View

SLICES, CLASSES = "resourceslices.resource.k8s.io", "deviceclasses.resource.k8s.io"
#: Consumers of one claim that the API admits.
MAX_CONSUMERS = 256
#: Devices of one claim that the API admits.
MAX_DEVICES = 32
_CANNOT = "cannot allocate all claims"
DeviceKey = tuple[str, str, str]


class NodeDevice(Value):
    """A device that can be reached from a node. `is_local`: from this node alone."""

    key: DeviceKey
    attributes: Mapping[str, Json]
    capacity: Mapping[str, Json]
    taints: tuple[Json, ...]
    is_local: bool
    is_simple: bool


class _Wanted(Value):
    """A request, or one alternative of it. `name`: as in results."""

    name: str
    exact: Json
    comparisons: tuple[Comparison, ...]
    device_class: Json


class DeviceUse:
    """The devices of a view, and which of them claims have. What is chosen in one look at all pods is added."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._taken: set[DeviceKey] | None = None
        self._chosen: dict[tuple[str, str], Json] = {}
        self._devices: dict[str, list[NodeDevice]] = {}

    def refuse(self, wanted: PodToPlace, load: NodeLoad) -> Refusal | None:
        """The filter of devices. What it chooses is forgotten."""
        tried: set[DeviceKey] = set()
        for claim in self._claims(wanted.object):
            allocation = self._allocation(claim)
            if allocation is not None:
                selector = allocation.get("nodeSelector")
                if selector and not matches_node_selector(from_object(NodeSelector, selector), node_view(load.node)):
                    return Refusal(("resourceclaim not available on the node",), True)
                continue
            found = self._allocate(claim, load, tried)
            if isinstance(found, str):
                return Refusal((found,), True)
        return None

    def refuse_anywhere(self, wanted: PodToPlace) -> str:
        """Why the pod's resource claims keep it from every node; "" if they do not."""
        pod = wanted.object
        for reference, name in claim_names(pod):
            if name is None:
                where = f"{namespace_of(pod)}/{name_of(pod)}"
                return f'pod "{where}": ResourceClaim not created yet (pod claim "{reference}")'
            claim = self._view.get(CLAIMS, namespace_of(pod), name)
            if claim is None:
                return f'resourceclaim "{name}" not found'
            if is_deleting(claim):
                return f'resourceclaim "{name}" is being deleted'
            consumers = status_of(claim).get("reservedFor") or ()
            is_full = len(consumers) >= MAX_CONSUMERS and not _is_reserved(claim, pod)
            if status_of(claim).get("allocation") is not None and is_full:
                return "resourceclaim in use"
        return ""

    def steps(self, wanted: PodToPlace, load: NodeLoad) -> list[ObjectChange] | None:
        """What the pod's claims need before it is bound to the node; None: nothing."""
        changes: list[ObjectChange] = []
        for claim in self._claims(wanted.object):
            if (status_of(claim).get("allocation") is not None) and _is_reserved(claim, wanted.object):
                continue
            allocation = self._allocation(claim)
            if allocation is None:
                found = self._allocate(claim, load, set())
                if isinstance(found, str):
                    return []
                allocation = self._chosen[namespace_of(claim), name_of(claim)] = found
                self._in_use().update(_keys(found))
            if FINALIZER not in finalizers_of(claim):
                changes.append(updated(CLAIMS, with_finalizer(claim, FINALIZER)))
                continue
            consumers = list(status_of(claim).get("reservedFor") or ())
            if not _is_reserved(claim, wanted.object):
                consumers.append(consumer_of(wanted.object))
            changes.append(status_updated(CLAIMS, with_status(claim, allocation=allocation, reservedFor=consumers)))
        return changes or None

    def _claims(self, pod: Json) -> Iterator[Json]:
        for _, name in claim_names(pod):
            claim = self._view.get(CLAIMS, namespace_of(pod), name or "")
            if claim is not None:
                yield claim

    def _allocation(self, claim: Json) -> Json | None:
        return status_of(claim).get("allocation") or self._chosen.get((namespace_of(claim), name_of(claim)))

    def _in_use(self) -> set[DeviceKey]:
        if self._taken is None:
            self._taken = set()
            for claim in self._view.list(CLAIMS):
                self._taken.update(_keys(status_of(claim).get("allocation") or {}))
        return self._taken

    def _allocate(self, claim: Json, load: NodeLoad, tried: set[DeviceKey]) -> Json | str:
        """An allocation, or why there is none. The devices are added to `tried`."""
        devices = spec_of(claim).get("devices") or {}
        parsed = self._requests(devices)
        if isinstance(parsed, str):
            return parsed
        constraints = devices.get("constraints") or []
        if any("matchAttribute" not in item for item in constraints) or len(constraints) > 1:
            return "constraints other than one matchAttribute are not supported"
        free = [item for item in self._of_node(load) if item.key not in self._in_use() and item.key not in tried]
        constraint = constraints[0] if constraints else None
        for value in _values(constraint, free):
            results = _choose(parsed, free, constraint, value, tried)
            if results is not None:
                tried.update(
                    (item["driver"], item["pool"], item["device"]) for item in results if not item.get("adminAccess")
                )
                return _allocated(results, parsed, devices, free, load)
        return _CANNOT

    def _requests(self, devices: Json) -> list[list[_Wanted]] | str:
        """The alternatives of each request, or why they cannot be served."""
        found: list[list[_Wanted]] = []
        for request in devices.get("requests") or ():
            name = str(request.get("name") or "")
            listed = request.get("firstAvailable") or ()
            pairs = [(f"{name}/{item.get('name')}", item) for item in listed] or [(name, request.get("exactly") or {})]
            alternatives = []
            for title, exact in pairs:
                class_name = str(exact.get("deviceClassName") or "")
                device_class = self._view.get(CLASSES, "", class_name)
                if device_class is None:
                    return f"request {title}: device class {class_name} does not exist"
                selectors = [*(spec_of(device_class).get("selectors") or ()), *(exact.get("selectors") or ())]
                comparisons = parse_selectors(selectors)
                if isinstance(comparisons, UnknownSelector):
                    return (
                        f"request {title}: selectors of devices in CEL are not supported here: {comparisons.expression}"
                    )
                if exact.get("capacity"):
                    return f"request {title}: requests of capacity are not supported here"
                alternatives.append(_Wanted(title, exact, comparisons, device_class))
            found.append(alternatives)
        return found

    def _of_node(self, load: NodeLoad) -> list[NodeDevice]:
        if load.name not in self._devices:
            self._devices[load.name] = list(_devices(self._view, load))
        return self._devices[load.name]


def consumer_of(pod: Json) -> Json:
    """The pod in `reservedFor`."""
    return {"resource": "pods", "name": name_of(pod), "uid": uid_of(pod)}


def _is_reserved(claim: Json, pod: Json) -> bool:
    return any(item.get("uid") == uid_of(pod) for item in status_of(claim).get("reservedFor") or ())


def _keys(allocation: Json) -> Iterator[DeviceKey]:
    for item in (allocation.get("devices") or {}).get("results") or ():
        if not item.get("adminAccess"):
            yield item.get("driver", ""), item.get("pool", ""), item.get("device", "")


def _devices(view: View, load: NodeLoad) -> Iterator[NodeDevice]:
    """The devices of complete pools, of their newest generation, that can be reached from the node."""
    pools: dict[tuple[str, str], list[Json]] = {}
    for found in view.list(SLICES):
        spec = spec_of(found)
        pool = spec.get("pool") or {}
        key = (str(spec.get("driver") or ""), str(pool.get("name") or ""))
        known = pools.setdefault(key, [])
        if known and (known[0]["spec"]["pool"].get("generation") or 0) > (pool.get("generation") or 0):
            continue
        if known and (known[0]["spec"]["pool"].get("generation") or 0) < (pool.get("generation") or 0):
            known.clear()
        known.append(found)
    for (driver, pool_name), slices in sorted(pools.items()):
        if len(slices) < int(slices[0]["spec"]["pool"].get("resourceSliceCount") or 1):
            continue
        for found in slices:
            spec = spec_of(found)
            for device in spec.get("devices") or ():
                place = device if spec.get("perDeviceNodeSelection") else spec
                if not _is_near(place, load):
                    continue
                yield NodeDevice(
                    key=(driver, pool_name, str(device.get("name") or "")),
                    attributes=device.get("attributes") or {},
                    capacity=device.get("capacity") or {},
                    taints=tuple(device.get("taints") or ()),
                    is_local=bool(place.get("nodeName")),
                    is_simple=not device.get("consumesCounters") and not device.get("allowMultipleAllocations"),
                )


def _is_near(place: Json, load: NodeLoad) -> bool:
    if place.get("nodeName"):
        return bool(place["nodeName"] == load.name)
    if place.get("allNodes"):
        return True
    selector = place.get("nodeSelector")
    return bool(selector) and matches_node_selector(from_object(NodeSelector, selector), node_view(load.node))


def _values(constraint: Json | None, free: Sequence[NodeDevice]) -> list[object]:
    """The values of the attribute that all devices of a constraint have to share; one None without a constraint."""
    if constraint is None:
        return [None]
    found = [attribute_of(item.key[0], item.attributes, constraint["matchAttribute"]) for item in free]
    return list(dict.fromkeys(value for value in found if value is not None))


def _choose(
    requests: Sequence[Sequence[_Wanted]],
    free: Sequence[NodeDevice],
    constraint: Json | None,
    value: object,
    tried: set[DeviceKey],
) -> list[Json] | None:
    """The results for all requests; None if one of them cannot be served."""
    taken = set(tried)
    results: list[Json] = []
    for alternatives in requests:
        for wanted in alternatives:
            is_bound = constraint is not None and _is_constrained(constraint, wanted.name)
            usable = [
                item
                for item in free
                if item.is_simple
                and matches(wanted.comparisons, item.key[0], item.attributes, item.capacity)
                and _tolerates(wanted.exact, item)
                and not (
                    is_bound
                    and constraint
                    and attribute_of(item.key[0], item.attributes, constraint["matchAttribute"]) != value
                )
            ]
            is_admin = bool(wanted.exact.get("adminAccess"))
            chosen = [item for item in usable if is_admin or item.key not in taken]
            if wanted.exact.get("allocationMode") == "All":
                is_enough = bool(chosen) and len(chosen) == len(usable)
            else:
                count = int(wanted.exact.get("count") or 1)
                is_enough, chosen = len(chosen) >= count, chosen[:count]
            if is_enough and len(results) + len(chosen) <= MAX_DEVICES:
                if not is_admin:
                    taken.update(item.key for item in chosen)
                results += [_result(wanted.name, item, is_admin=is_admin) for item in chosen]
                break
        else:
            return None
    return results


def _is_constrained(constraint: Json, name: str) -> bool:
    listed = constraint.get("requests") or ()
    return not listed or name in listed or name.partition("/")[0] in listed


def _tolerates(exact: Json, device: NodeDevice) -> bool:
    tolerations = [from_object(Toleration, item) for item in exact.get("tolerations") or ()]
    taints = [from_object(Taint, item) for item in device.taints]
    return all(any(tolerates(item, taint) for item in tolerations) for taint in taints)


def _result(request: str, device: NodeDevice, *, is_admin: bool) -> Json:
    driver, pool, name = device.key
    result = {"request": request, "driver": driver, "pool": pool, "device": name}
    return result | ({"adminAccess": True} if is_admin else {})


def _allocated(
    results: list[Json],
    requests: Sequence[Sequence[_Wanted]],
    devices: Json,
    free: Sequence[NodeDevice],
    load: NodeLoad,
) -> Json:
    used = {item["request"] for item in results}
    config = []
    for wanted in (item for alternatives in requests for item in alternatives if item.name in used):
        for entry in spec_of(wanted.device_class).get("config") or ():
            config.append({"source": "FromClass", "requests": [wanted.name]} | entry)
    config += [{"source": "FromClaim"} | entry for entry in devices.get("config") or ()]
    allocation: Json = {"devices": {"results": results} | ({"config": config} if config else {})}
    keys = {(item["driver"], item["pool"], item["device"]) for item in results}
    if any(item.is_local for item in free if item.key in keys):
        rule = {"key": "metadata.name", "operator": "In", "values": [load.name]}
        allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [rule]}]}
    return allocation

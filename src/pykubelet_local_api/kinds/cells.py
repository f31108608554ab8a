"""The cells of tables, by kind. Pure. Pods are in `pod_cells.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pykubelet_local_api.kinds.ages import age, age_of, since
from pykubelet_local_api.kinds.pod_cells import condition_rows, pod_cells
from pykubelet_local_api.objects import Json

NONE = "<none>"
UNSET = "<unset>"
UNKNOWN = "<unknown>"
#: So many endpoints are shown.
MAX_SHOWN = 3
_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
_ROLE = "node-role.kubernetes.io/"
_ROLE_LABEL = "kubernetes.io/role"
_DEFAULT_CLASS = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
_BETA_CLASS = "volume.beta.kubernetes.io/storage-class"


def _name(item: Json) -> str:
    return str(item["metadata"].get("name", ""))  # a bookmark has none


def _spec(item: Json) -> Json:
    return item.get("spec") or {}


def _status(item: Json) -> Json:
    return item.get("status") or {}


def _labels(labels: Json | None) -> str:
    return ",".join(f"{key}={label}" for key, label in sorted((labels or {}).items())) or NONE


def _namespace(item: Json, now: float) -> list[Any]:
    return [_name(item), _status(item).get("phase") or "", age(item, now)]


def _node(item: Json, now: float) -> list[Any]:
    status = _status(item)
    ready = next((found for found in status.get("conditions") or () if found.get("type") == "Ready"), None)
    shown = "Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"
    if _spec(item).get("unschedulable"):
        shown += ",SchedulingDisabled"
    labels = item["metadata"].get("labels") or {}
    roles = {key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE) and key != _ROLE}
    if labels.get(_ROLE_LABEL):
        roles.add(labels[_ROLE_LABEL])
    info = status.get("nodeInfo") or {}
    addresses: Json = {}
    for found in status.get("addresses") or ():
        addresses.setdefault(str(found.get("type")), found.get("address"))
    return [
        *(_name(item), shown, ",".join(sorted(roles)) or NONE, age(item, now), info.get("kubeletVersion") or ""),
        *(addresses.get("InternalIP") or NONE, addresses.get("ExternalIP") or NONE),
        *(info.get(field) or UNKNOWN for field in ("osImage", "kernelVersion", "containerRuntimeVersion")),
    ]


def _config_map(item: Json, now: float) -> list[Any]:
    return [_name(item), len(item.get("data") or {}) + len(item.get("binaryData") or {}), age(item, now)]


def _secret(item: Json, now: float) -> list[Any]:
    return [_name(item), item.get("type") or "", len(item.get("data") or {}), age(item, now)]


def _only_age(item: Json, now: float) -> list[Any]:
    return [_name(item), age(item, now)]


def _event(item: Json, now: float) -> list[Any]:
    """An Event in the form of either group."""
    of = item.get("involvedObject") or item.get("regarding") or {}
    source = item.get("source") or item.get("deprecatedSource") or {}
    first = item.get("firstTimestamp") or item.get("deprecatedFirstTimestamp") or item.get("eventTime")
    last = item.get("lastTimestamp") or item.get("deprecatedLastTimestamp") or first
    count = item.get("count") or item.get("deprecatedCount") or 1
    if series := item.get("series"):
        last, count = series.get("lastObservedTime") or last, series.get("count") or count
    target = str(of.get("kind") or "").lower()
    if of.get("name"):
        target = f"{target}/{of['name']}"
    component = source.get("component") or item.get("reportingComponent") or item.get("reportingController") or ""
    instance = source.get("host") or item.get("reportingInstance") or ""
    message = str(item.get("message") or item.get("note") or "").strip()
    return [
        *(age_of(last, now), item.get("type") or "", item.get("reason") or "", target, of.get("fieldPath") or ""),
        *(f"{component}, {instance}" if instance else component, message, age_of(first, now), count, _name(item)),
    ]


def _modes(modes: Iterable[str] | None) -> str:
    given = set(modes or ())
    return ",".join(short for mode, short in _MODES.items() if mode in given)


def _class(item: Json) -> str:
    annotations = item["metadata"].get("annotations") or {}
    return str(annotations.get(_BETA_CLASS) or _spec(item).get("storageClassName") or "")


def _phase(item: Json) -> str:
    return "Terminating" if item["metadata"].get("deletionTimestamp") else str(_status(item).get("phase") or "")


def _volume(item: Json, now: float) -> list[Any]:
    spec = _spec(item)
    claim = spec.get("claimRef")
    return [
        *(_name(item), (spec.get("capacity") or {}).get("storage") or "0", _modes(spec.get("accessModes"))),
        *(spec.get("persistentVolumeReclaimPolicy") or "", _phase(item)),
        *(f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "", _class(item)),
        *(spec.get("volumeAttributesClassName") or UNSET, _status(item).get("reason") or "", age(item, now)),
        spec.get("volumeMode") or UNSET,
    ]


def _claim(item: Json, now: float) -> list[Any]:
    spec, status = _spec(item), _status(item)
    volume, modes, size = spec.get("volumeName") or "", "", ""
    if volume:
        modes = _modes(status.get("accessModes"))
        size = (status.get("capacity") or {}).get("storage") or "0"
    return [
        *(_name(item), _phase(item), volume, size, modes, _class(item)),
        *(spec.get("volumeAttributesClassName") or UNSET, age(item, now), spec.get("volumeMode") or UNSET),
    ]


def _external_addresses(item: Json) -> str:
    spec = _spec(item)
    given = [str(address) for address in spec.get("externalIPs") or ()]
    match spec.get("type"):
        case "ExternalName":
            return str(spec.get("externalName") or "")
        case "LoadBalancer":
            points = (_status(item).get("loadBalancer") or {}).get("ingress") or ()
            found = [str(point.get("ip") or point.get("hostname") or "") for point in points]
            return ",".join([*found, *given]) or "<pending>"
    return ",".join(given) or NONE


def _service(item: Json, now: float) -> list[Any]:
    spec = _spec(item)
    ports = ",".join(
        f"{port.get('port')}:{port['nodePort']}/{port.get('protocol')}"
        if port.get("nodePort")
        else f"{port.get('port')}/{port.get('protocol')}"
        for port in spec.get("ports") or ()
    )
    return [
        *(_name(item), spec.get("type") or "", (spec.get("clusterIPs") or [NONE])[0], _external_addresses(item)),
        *(ports or NONE, age(item, now), _labels(spec.get("selector"))),
    ]


def _few(found: list[str], nothing: str) -> str:
    if not found:
        return nothing
    more = len(found) - MAX_SHOWN
    return ",".join(found[:MAX_SHOWN]) + (f" + {more} more..." if more > 0 else "")


def _endpoints(item: Json, now: float) -> list[Any]:
    found: list[str] = []
    for subset in item.get("subsets") or ():
        addresses = [str(address.get("ip")) for address in subset.get("addresses") or ()]
        ports = subset.get("ports") or []
        if not ports:
            found += addresses
        for port in ports:
            found += [f"[{ip}]:{port.get('port')}" if ":" in ip else f"{ip}:{port.get('port')}" for ip in addresses]
    return [_name(item), _few(found, NONE), age(item, now)]


def _endpoint_slice(item: Json, now: float) -> list[Any]:
    ports = [str(port.get("port") or "*") for port in item.get("ports") or ()]
    addresses = [
        str(address) for endpoint in item.get("endpoints") or () for address in endpoint.get("addresses") or ()
    ]
    return [_name(item), item.get("addressType") or "", _few(ports, UNSET), _few(addresses, UNSET), age(item, now)]


def _lease(item: Json, now: float) -> list[Any]:
    return [_name(item), _spec(item).get("holderIdentity") or "", age(item, now)]


def _storage_class(item: Json, now: float) -> list[Any]:
    annotations = item["metadata"].get("annotations") or {}
    is_default = any(annotations.get(key) == "true" for key in _DEFAULT_CLASS)
    return [
        *(f"{_name(item)} (default)" if is_default else _name(item), item.get("provisioner") or ""),
        *(item.get("reclaimPolicy") or "Delete", item.get("volumeBindingMode") or "Immediate"),
        *(bool(item.get("allowVolumeExpansion")), age(item, now)),
    ]


def _csi_driver(item: Json, now: float) -> list[Any]:
    spec = _spec(item)
    audiences = [str(found.get("audience") or "") for found in spec.get("tokenRequests") or ()]
    return [
        *(_name(item), spec.get("attachRequired", True), bool(spec.get("podInfoOnMount"))),
        *(bool(spec.get("storageCapacity")), ",".join(audiences) or UNSET, bool(spec.get("requiresRepublish"))),
        *(",".join(spec.get("volumeLifecycleModes") or ()) or NONE, age(item, now)),
    ]


def _csi_node(item: Json, now: float) -> list[Any]:
    return [_name(item), len(_spec(item).get("drivers") or ()), age(item, now)]


def _attachment(item: Json, now: float) -> list[Any]:
    spec = _spec(item)
    return [
        *(_name(item), spec.get("attacher") or "", (spec.get("source") or {}).get("persistentVolumeName") or ""),
        *(spec.get("nodeName") or "", bool(_status(item).get("attached")), age(item, now)),
    ]


def _runtime_class(item: Json, now: float) -> list[Any]:
    return [_name(item), item.get("handler") or "", age(item, now)]


def _priority_class(item: Json, now: float) -> list[Any]:
    policy = item.get("preemptionPolicy") or "PreemptLowerPriority"
    return [_name(item), item.get("value") or 0, bool(item.get("globalDefault")), age(item, now), policy]


def _resource_claim(item: Json, now: float) -> list[Any]:
    status = _status(item)
    is_deleting = bool(item["metadata"].get("deletionTimestamp"))
    states = ["deleted"] if is_deleting else []
    if status.get("allocation"):
        states.append("allocated")
        if status.get("reservedFor"):
            states.append("reserved")
    elif not is_deleting:
        states.append("pending")
    return [_name(item), ",".join(states), age(item, now)]


def _resource_slice(item: Json, now: float) -> list[Any]:
    spec = _spec(item)
    node = spec.get("nodeName") or UNSET
    return [_name(item), node, spec.get("driver") or "", (spec.get("pool") or {}).get("name") or "", age(item, now)]


def _binding(item: Json, now: float) -> list[Any]:
    role = item.get("roleRef") or {}
    names: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for subject in item.get("subjects") or ():
        shown = str(subject.get("name") or "")
        if subject.get("kind") == "ServiceAccount":
            shown = f"{subject.get('namespace') or ''}/{shown}"
        names.setdefault(str(subject.get("kind")), []).append(shown)
    subjects = [", ".join(names[kind]) for kind in ("User", "Group", "ServiceAccount")]
    return [_name(item), f"{role.get('kind', '')}/{role.get('name', '')}", age(item, now), *subjects]


def _signing_request(item: Json, now: float) -> list[Any]:
    spec, status = _spec(item), _status(item)
    seconds = spec.get("expirationSeconds")
    kinds = {condition.get("type") for condition in status.get("conditions") or ()}
    shown = "Denied" if "Denied" in kinds else "Approved" if "Approved" in kinds else "Pending"
    if "Failed" in kinds:
        shown += ",Failed"
    if status.get("certificate"):
        shown += ",Issued"
    return [
        *(_name(item), age(item, now), spec.get("signerName") or NONE, spec.get("username") or ""),
        *(since(seconds) if seconds else NONE, shown),
    ]


#: By the resource.
CELLS: dict[str, Callable[[Json, float], list[Any]]] = {
    "namespaces": _namespace,
    "nodes": _node,
    "pods": pod_cells,
    "configmaps": _config_map,
    "secrets": _secret,
    "serviceaccounts": _only_age,
    "events": _event,
    "events.events.k8s.io": _event,
    "persistentvolumes": _volume,
    "persistentvolumeclaims": _claim,
    "services": _service,
    "endpoints": _endpoints,
    "leases.coordination.k8s.io": _lease,
    "endpointslices.discovery.k8s.io": _endpoint_slice,
    "storageclasses.storage.k8s.io": _storage_class,
    "csidrivers.storage.k8s.io": _csi_driver,
    "csinodes.storage.k8s.io": _csi_node,
    "volumeattachments.storage.k8s.io": _attachment,
    "runtimeclasses.node.k8s.io": _runtime_class,
    "priorityclasses.scheduling.k8s.io": _priority_class,
    "resourceclaims.resource.k8s.io": _resource_claim,
    "resourceclaimtemplates.resource.k8s.io": _only_age,
    "resourceslices.resource.k8s.io": _resource_slice,
    "deviceclasses.resource.k8s.io": _only_age,
    "rolebindings.rbac.authorization.k8s.io": _binding,
    "clusterrolebindings.rbac.authorization.k8s.io": _binding,
    "certificatesigningrequests.certificates.k8s.io": _signing_request,
}

__all__ = ["CELLS", "condition_rows"]

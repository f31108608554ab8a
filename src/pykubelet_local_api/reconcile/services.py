"""Services as data: the Service of the API itself, and the EndpointSlices and Endpoints of Services with a selector. Pure.

Nothing handles traffic to a Service's address: its objects are for environment variables and for clients that read them.

Rules:
- An EndpointSlice has the pods of one address family with the same ports, sorted by name; its name follows from those.
- Pods that have ended, or that have no address yet, are no endpoints. A pod that is being deleted is not ready, but may be serving.
- Slices of this component that are not wanted are deleted; slices of others are left alone.
Source: the Kubernetes documentation "EndpointSlices", "Service"; the well-known labels of EndpointSlices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from operator import is_
from typing import Any

from pykubelet.base.kit.fnv import fnv1a_32
from pykubelet.base.kit.values import Value
from pykubelet_local_api.objects import Json, is_deleting, name_of, namespace_of, uid_of
from pykubelet_local_api.reconcile.changes import (
    condition_of,
    created,
    deleted,
    spec_of,
    status_of,
    updated,
    with_metadata,
)
from pykubelet_local_api.reconcile.pods import Remembered, has_ended, node_of
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.view import ObjectChange, View

SLICES, ENDPOINTS = "endpointslices.discovery.k8s.io", "endpoints"
NAME_LABEL, MANAGER_LABEL = "kubernetes.io/service-name", "endpointslice.kubernetes.io/managed-by"
MANAGER = "endpointslice-controller.k8s.io"
HEADLESS = "service.kubernetes.io/headless"
#: Endpoints of one slice. The API admits 1000, which are more than a node has pods.
MAX_ENDPOINTS = 1000
READS = frozenset({"pods", "services", SLICES, ENDPOINTS})
#: A port of a slice: name, protocol, number (0: none), application protocol.
Port = tuple[str, str, int, str]


class ApiAddress(Value):
    """Where the API is. `service_ip`: the address of its Service; `address`, `port`: where it listens; "" for no endpoint."""

    service_ip: str
    address: str
    port: int


def reconcile(view: View, api: ApiAddress | None) -> list[ObjectChange]:
    """The objects of Services that are missing, differ, or are not wanted."""
    changes = _of_api(view, api) if api is not None else []
    slices: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for found in view.list(SLICES):
        labels = found["metadata"].get("labels") or {}
        if labels.get(MANAGER_LABEL) == MANAGER:
            slices[namespace_of(found), labels.get(NAME_LABEL, "")].append(found)
    services = list(view.list("services"))
    pods = _by_label(view) if any(spec_of(service).get("selector") for service in services) else {}
    for service in services:
        if (
            spec_of(service).get("selector")
            and spec_of(service).get("type") != "ExternalName"
            and not is_deleting(service)
        ):
            key = (namespace_of(service), name_of(service))
            first = next(iter(sorted(spec_of(service)["selector"].items())))
            chosen = [pod for pod in pods.get((key[0], *first), ()) if _is_selected(pod, spec_of(service)["selector"])]
            present = slices.pop(key, []), _present(view, ENDPOINTS, *key)
            made_from = (*chosen, None, *present[0], None, *present[1])
            if not _is_settled(service, made_from):
                wanted = _slices(service, chosen)
                due = _differences(SLICES, wanted, present[0])
                due += _differences(ENDPOINTS, [_endpoints(service, wanted)], present[1])
                changes += due
                if not due:
                    _SETTLED.put(service, made_from)
    _SETTLED.keep_only(services)
    for left in slices.values():
        changes += [deleted(SLICES, found) for found in left]
    return changes


#: What a Service's objects were compared with when they were as wanted: its pods, slices and Endpoints.
_SETTLED: Remembered[tuple[Json | None, ...]] = Remembered()


def _is_settled(service: Json, made_from: tuple[Json | None, ...]) -> bool:
    known = _SETTLED.get(service)
    return known is not None and len(known) == len(made_from) and all(map(is_, known, made_from))


def _by_label(view: View) -> dict[tuple[str, str, str], list[Json]]:
    """The pods that may be endpoints, by namespace and each of their labels."""
    found: dict[tuple[str, str, str], list[Json]] = defaultdict(list)
    for pod in view.list("pods"):
        if not has_ended(pod) and node_of(pod) and status_of(pod).get("podIPs"):
            for key, value in (pod["metadata"].get("labels") or {}).items():
                found[namespace_of(pod), key, value].append(pod)
    return found


def _present(view: View, resource: str, namespace: str, name: str) -> list[Json]:
    found = view.get(resource, namespace, name)
    return [] if found is None else [found]


def _is_selected(pod: Json, selector: Json) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in selector.items())


def _differences(resource: str, wanted: Sequence[Json], present: Sequence[Json]) -> list[ObjectChange]:
    by_name = {name_of(found): found for found in present}
    changes: list[ObjectChange] = []
    for new in wanted:
        found = by_name.pop(name_of(new), None)
        if found is None:
            changes.append(created(resource, new))
        elif not _has_all(found, new) and not is_deleting(found):
            metadata = new["metadata"]
            merged = with_metadata(found, labels=metadata["labels"], ownerReferences=metadata.get("ownerReferences"))
            changes.append(updated(resource, merged | {key: value for key, value in new.items() if key != "metadata"}))
    changes += [deleted(resource, found) for found in by_name.values()]
    return changes


def _has_all(found: Json, wanted: Json) -> bool:
    same = all(
        found.get(key) == value for key, value in wanted.items() if key not in ("metadata", "apiVersion", "kind")
    )
    return same and (found["metadata"].get("labels") or {}) == wanted["metadata"]["labels"]


# Slices


def _slices(service: Json, pods: Sequence[Json]) -> list[Json]:
    groups: dict[tuple[str, tuple[Port, ...]], list[Json]] = defaultdict(list)
    for family in spec_of(service).get("ipFamilies") or ("IPv4",):
        for pod in pods:
            address = next((ip for ip in _addresses(pod) if (":" in ip) == (family == "IPv6")), "")
            if address:
                groups[family, tuple(_ports(service, pod))].append(_endpoint(service, pod, address))
        if not any(key[0] == family for key in groups):
            groups[family, ()] = []
    return [_slice(service, family, ports, endpoints) for (family, ports), endpoints in sorted(groups.items())]


def _addresses(pod: Json) -> Iterator[str]:
    for item in status_of(pod).get("podIPs") or ():
        yield item.get("ip") or ""


def _ports(service: Json, pod: Json) -> Iterator[Port]:
    for port in spec_of(service).get("ports") or ():
        number = _number(port, pod)
        if number:
            yield port.get("name") or "", port.get("protocol") or "TCP", number, port.get("appProtocol") or ""


def _number(port: Json, pod: Json) -> int:
    """The port of the pod; 0 if it has none of this name."""
    target: Any = port.get("targetPort") or port.get("port") or 0
    if isinstance(target, int):
        return target
    spec = spec_of(pod)
    lasting = [item for item in spec.get("initContainers") or () if item.get("restartPolicy") == "Always"]
    for container in (*(spec.get("containers") or ()), *lasting):
        for item in container.get("ports") or ():
            if item.get("name") == target and (item.get("protocol") or "TCP") == (port.get("protocol") or "TCP"):
                return int(item.get("containerPort") or 0)
    return 0


def _endpoint(service: Json, pod: Json, address: str) -> Json:
    is_ready = condition_of(pod, "Ready").get("status") == "True"
    publishes = bool(spec_of(service).get("publishNotReadyAddresses"))
    ready = publishes or (is_ready and not is_deleting(pod))
    endpoint: Json = {
        "addresses": [address],
        "conditions": {"ready": ready, "serving": publishes or is_ready, "terminating": is_deleting(pod)},
        "nodeName": node_of(pod),
        "targetRef": {"kind": "Pod", "namespace": namespace_of(pod), "name": name_of(pod), "uid": uid_of(pod)},
    }
    spec = spec_of(pod)
    if spec.get("hostname") and spec.get("subdomain") == name_of(service):
        endpoint["hostname"] = spec["hostname"]
    return endpoint


def _slice(service: Json, family: str, ports: tuple[Port, ...], endpoints: list[Json]) -> Json:
    labels = dict(service["metadata"].get("labels") or {}) | {NAME_LABEL: name_of(service), MANAGER_LABEL: MANAGER}
    if spec_of(service).get("clusterIP") == "None":
        labels[HEADLESS] = ""
    mark = fnv1a_32(f"{uid_of(service)} {family} {ports}".encode())
    owner = {
        "apiVersion": "v1",
        "kind": "Service",
        "name": name_of(service),
        "uid": uid_of(service),
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": namespace_of(service),
            "name": f"{name_of(service)}-{mark:08x}",
            "labels": labels,
            "ownerReferences": [owner],
        },
        "addressType": family,
        "endpoints": endpoints[:MAX_ENDPOINTS],
        "ports": [_port(port) for port in ports],
    }


def _port(port: Port) -> Json:
    name, protocol, number, application = port
    return {"name": name, "port": number, "protocol": protocol} | ({"appProtocol": application} if application else {})


def _endpoints(service: Json, slices: Sequence[Json]) -> Json:
    """The same as an object of the older kind, which has the first address family only."""
    first = (spec_of(service).get("ipFamilies") or ["IPv4"])[0]
    subsets = []
    for found in slices:
        if found["addressType"] != first or not found["endpoints"]:
            continue
        subset: Json = {}
        for key, is_ready in (("addresses", True), ("notReadyAddresses", False)):
            listed = [
                {"ip": item["addresses"][0], "nodeName": item["nodeName"], "targetRef": item["targetRef"]}
                | ({"hostname": item["hostname"]} if "hostname" in item else {})
                for item in found["endpoints"]
                if item["conditions"]["ready"] == is_ready and (is_ready or not item["conditions"]["terminating"])
            ]
            if listed:
                subset[key] = listed
        if subset:
            ports = [{key: value for key, value in port.items() if value != ""} for port in found["ports"]]
            subsets.append(subset | ({"ports": ports} if ports else {}))
    labels = dict(service["metadata"].get("labels") or {}) | {
        "endpoints.kubernetes.io/managed-by": "endpoint-controller"
    }
    metadata = {"namespace": namespace_of(service), "name": name_of(service), "labels": labels}
    return {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": subsets}


# The Service of the API


def _of_api(view: View, api: ApiAddress) -> list[ObjectChange]:
    if view.get("namespaces", "", "default") is None:
        return []
    changes = []
    if view.get("services", "default", "kubernetes") is None:
        changes.append(created("services", _api_service(api)))
    if api.address:
        present = _present(view, SLICES, "default", "kubernetes")
        changes += _differences(SLICES, [_api_slice(api)], present)
    return changes


def _api_service(api: ApiAddress) -> Json:
    family = "IPv6" if ":" in api.service_ip else "IPv4"
    labels = {"component": "apiserver", "provider": "kubernetes"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "default", "name": "kubernetes", "labels": labels},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": api.service_ip,
            "clusterIPs": [api.service_ip],
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": [family],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": api.port}],
            "sessionAffinity": "None",
        },
    }


def _api_slice(api: ApiAddress) -> Json:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"namespace": "default", "name": "kubernetes", "labels": {NAME_LABEL: "kubernetes"}},
        "addressType": "IPv6" if ":" in api.address else "IPv4",
        "endpoints": [{"addresses": [api.address], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": api.port, "protocol": "TCP"}],
    }


def concerns(view: View, resource: str, namespace: str, name: str) -> bool:
    """Services and their objects. Of pods: any in a namespace with a Service that has a selector."""
    if resource != "pods":
        return True
    return any(spec_of(service).get("selector") for service in view.list("services", namespace))


def services(api: ApiAddress | None) -> Reconciler:
    """The reconciler. `api`: where the API is; None: it has no Service."""
    return Reconciler("services", READS, partial(reconcile, api=api), concerns)

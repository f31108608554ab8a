"""Services: types, cluster IPs and node ports. They are data here: nothing routes to them. Pure.

Source: the Kubernetes documentation "Service", "Service ClusterIP allocation", "Virtual IPs and Service Proxies".
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

from pykubelet.base.api import labels as names
from pykubelet.base.manifests.validation.errors import Errors, forbidden, invalid
from pykubelet_local_api.errors import internal
from pykubelet_local_api.errors import invalid as unprocessable
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.common import ObjectStrategy, keep, shown_name
from pykubelet_local_api.strategies.service_rules import service_errors
from pykubelet_local_api.strategies.strategy import Context

#: The addresses of services. The first is that of the API.
SERVICE_NETWORK = ipaddress.IPv4Network("10.96.0.0/16")
#: So many addresses at the beginning are left for services that name theirs.
STATIC_ADDRESSES = 256
NODE_PORTS = range(30000, 32768)
STATIC_PORTS = 86
AFFINITY_SECONDS = 10_800
_WITH_PORTS = ("NodePort", "LoadBalancer")
_OF_CLUSTER_IP = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy")


class ServiceStrategy(ObjectStrategy):
    """The strategy of Services."""

    allows_create_on_update = True

    def name_errors(self, name: str) -> list[str]:
        """Why the name is not legal."""
        return names.dns_label_errors(name)

    def first_status(self, new: Json, context: Context) -> Json | None:
        return {"loadBalancer": {}}

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        spec = new["spec"] = new.get("spec") or {}
        if old is not None:
            _take_over(spec, old["spec"])
        _defaults(spec)

    def admit(self, new: Json, old: Json | None, context: Context) -> None:
        _choose_families(new["spec"])

    def validate_create(self, new: Json, context: Context) -> Errors:
        errors = super().validate_create(new, context)
        if not errors:
            self._allocate(new, context)
        return errors

    def validate_update(self, new: Json, old: Json, context: Context) -> Errors:
        errors = super().validate_update(new, old, context)
        if not errors and not context.subresource:
            self._allocate(new, context)
        return errors

    def validate(self, new: Json, context: Context) -> Errors:
        return service_errors(new["spec"])

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        spec, before = new["spec"], old["spec"]
        errors: Errors = []
        if "ExternalName" not in (spec["type"], before.get("type")) and before.get("clusterIPs"):
            given = spec.get("clusterIPs") or []
            if given[:1] != before["clusterIPs"][:1]:
                errors.append(invalid("spec.clusterIPs[0]", given, "may not change once set"))
        return errors + self.validate(new, context)

    def prepare_subresource(self, new: Json, old: Json, context: Context) -> None:
        super().prepare_subresource(new, old, context)
        balancer = new.setdefault("status", {}).setdefault("loadBalancer", {})
        for ingress in balancer.get("ingress") or ():
            if ingress.get("ip"):
                ingress.setdefault("ipMode", "VIP")

    def validate_subresource(self, new: Json, old: Json, context: Context) -> Errors:
        ingress = ((new.get("status") or {}).get("loadBalancer") or {}).get("ingress")
        if ingress and new["spec"].get("type") != "LoadBalancer":
            detail = "may only be used when `spec.type` is 'LoadBalancer'"
            return [forbidden("status.loadBalancer.ingress", detail)]
        return []

    def warnings(self, new: Json, old: Json | None, context: Context) -> list[str]:
        spec = new["spec"]
        if spec.get("externalName") and spec["type"] != "ExternalName":
            return ['spec.externalName is ignored when spec.type is not "ExternalName"']
        return []

    # what the cluster gives

    def _allocate(self, new: Json, context: Context) -> None:
        """Give the service its address and ports. Raises `StatusError` (422) if one that it names is not free."""
        spec = new["spec"]
        others = [item["spec"] for item in context.view.list(self.kind.resource) if _identity(item) != _identity(new)]
        if spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
            self._give_address(new, others, context)
        self._give_ports(new, others, context)

    def _give_address(self, new: Json, others: Iterable[Json], context: Context) -> None:
        spec = new["spec"]
        taken = {item.get("clusterIP") for item in others}
        if wanted := spec.get("clusterIP"):
            why = ""
            if ipaddress.ip_address(wanted) not in SERVICE_NETWORK:
                why = "the provided network does not match the current range"
            elif wanted in taken:
                why = "provided IP is already allocated"
            if why:
                error = invalid("spec.clusterIPs", spec["clusterIPs"], f"failed to allocate IP {wanted}: {why}")
                raise unprocessable(self.kind, shown_name(new), [error])
            return
        size = SERVICE_NETWORK.num_addresses - 1 - STATIC_ADDRESSES
        first = _number_of(new, context) % size
        for step in range(size):
            address = str(SERVICE_NETWORK[STATIC_ADDRESSES + (first + step) % size])
            if address not in taken:
                spec["clusterIP"], spec["clusterIPs"] = address, [address]
                return
        raise internal("failed to allocate a serviceIP: range is full")

    def _give_ports(self, new: Json, others: Iterable[Json], context: Context) -> None:
        spec = new["spec"]
        if spec["type"] not in _WITH_PORTS:
            return
        taken = {port["nodePort"] for item in others for port in item.get("ports") or () if port.get("nodePort")}
        taken |= {item["healthCheckNodePort"] for item in others if item.get("healthCheckNodePort")}
        own: dict[Any, dict[Any, int]] = {}
        for i, port in enumerate(spec.get("ports") or ()):
            wanted = port.get("nodePort")
            if not wanted:
                continue
            own.setdefault(port["port"], {})[port["protocol"]] = wanted
            why = ""
            if wanted not in NODE_PORTS:
                why = f"provided port is not in the valid range. The range of valid ports is {NODE_PORTS.start}-{NODE_PORTS.stop - 1}"
            elif wanted in taken:
                why = "provided port is already allocated"
            if why:
                error = invalid(f"spec.ports[{i}].nodePort", wanted, why)
                raise unprocessable(self.kind, shown_name(new), [error])
        if spec["type"] == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is False:
            return
        given = {number for by_protocol in own.values() for number in by_protocol.values()}
        free = _free_ports(taken | given, _number_of(new, context))
        for port in spec.get("ports") or ():
            if port.get("nodePort"):
                continue
            by_protocol = own.setdefault(port["port"], {})
            other = next((number for protocol, number in by_protocol.items() if protocol != port["protocol"]), 0)
            port["nodePort"] = by_protocol[port["protocol"]] = other or next(free)
        if spec["type"] == "LoadBalancer" and spec["externalTrafficPolicy"] == "Local":
            spec["healthCheckNodePort"] = spec.get("healthCheckNodePort") or next(free)


def _identity(found: Json) -> tuple[object, object]:
    return found["metadata"].get("namespace"), found["metadata"].get("name")


def _number_of(new: Json, context: Context) -> int:
    """A number that follows from the service and the time: strategies have no random numbers."""
    meta = new["metadata"]
    seed = f"{meta.get('namespace')}/{meta.get('name')}/{meta.get('uid')}/{context.view.now}"
    return int.from_bytes(sha256(seed.encode()).digest()[:8], "big")


def _free_ports(taken: set[int], number: int) -> Iterator[int]:
    dynamic = NODE_PORTS[STATIC_PORTS:]
    first = number % len(dynamic)
    for step in range(len(dynamic)):
        port = dynamic[(first + step) % len(dynamic)]
        if port not in taken:
            yield port
    raise internal("failed to allocate a nodePort: range is full")


def _take_over(spec: Json, before: Json) -> None:
    """Keep what a client leaves out of a change, and drop what the new type does not have."""
    kind, old = spec.get("type") or "ClusterIP", before.get("type")
    if "ExternalName" not in (kind, old):
        if not spec.get("clusterIP"):
            for field in ("clusterIP", "clusterIPs"):
                keep(spec, before, field)
        elif spec["clusterIP"] != before.get("clusterIP") and spec.get("clusterIPs") == before.get("clusterIPs"):
            spec["clusterIPs"] = [spec["clusterIP"]]  # the client knows the older field only
        for field in ("ipFamilies", "ipFamilyPolicy"):
            if not spec.get(field):
                keep(spec, before, field)
    elif kind == "ExternalName" and old != kind:
        for field in _OF_CLUSTER_IP:
            if spec.get(field) == before.get(field):
                spec.pop(field, None)
    ports = {(port.get("port"), port.get("protocol")): port for port in before.get("ports") or ()}
    for port in spec.get("ports") or ():
        was = ports.get((port.get("port"), port.get("protocol") or "TCP")) or {}
        if kind in _WITH_PORTS and not port.get("nodePort") and was.get("nodePort"):
            port["nodePort"] = was["nodePort"]
        elif kind not in _WITH_PORTS and old in _WITH_PORTS and port.get("nodePort") == was.get("nodePort"):
            port.pop("nodePort", None)
    if kind not in _WITH_PORTS and old in _WITH_PORTS:
        for field in ("externalTrafficPolicy", "healthCheckNodePort", "allocateLoadBalancerNodePorts"):
            if spec.get(field) == before.get(field):
                spec.pop(field, None)


def _defaults(spec: Json) -> None:
    spec["type"] = kind = spec.get("type") or "ClusterIP"
    spec["sessionAffinity"] = spec.get("sessionAffinity") or "None"
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    elif spec["sessionAffinity"] == "ClientIP":
        config = spec["sessionAffinityConfig"] = spec.get("sessionAffinityConfig") or {}
        config["clientIP"] = config.get("clientIP") or {}
        config["clientIP"].setdefault("timeoutSeconds", AFFINITY_SECONDS)
    for port in spec.get("ports") or ():
        port["protocol"] = port.get("protocol") or "TCP"
        port["targetPort"] = port.get("targetPort") or port.get("port")
    if kind in _WITH_PORTS:
        spec["externalTrafficPolicy"] = spec.get("externalTrafficPolicy") or "Cluster"
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if spec.get("publishNotReadyAddresses") is False:
        del spec["publishNotReadyAddresses"]
    if kind == "ExternalName":
        return
    spec["internalTrafficPolicy"] = spec.get("internalTrafficPolicy") or "Cluster"
    if spec.get("clusterIP") and not spec.get("clusterIPs"):
        spec["clusterIPs"] = [spec["clusterIP"]]
    elif spec.get("clusterIPs") and not spec.get("clusterIP"):
        spec["clusterIP"] = spec["clusterIPs"][0]


def _choose_families(spec: Json) -> None:
    """Set what the server chooses, which is no default of the type."""
    if spec["type"] == "ExternalName":
        return
    is_headless = spec.get("clusterIP") == "None"
    without_pods = is_headless and not spec.get("selector")
    if not spec.get("ipFamilyPolicy"):
        spec["ipFamilyPolicy"] = "RequireDualStack" if without_pods else "SingleStack"
    if not spec.get("ipFamilies"):
        spec["ipFamilies"] = ["IPv4", "IPv6"] if without_pods else ["IPv4"]

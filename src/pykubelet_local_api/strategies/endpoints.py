"""Endpoints and EndpointSlices: data about services, such as clients write it. Pure.

Source: the API references of Endpoints and EndpointSlice.
"""

from __future__ import annotations

from pykubelet.base.api import labels as names
from pykubelet.base.manifests.validation.errors import (
    Errors,
    duplicate,
    invalid,
    invalids,
    not_supported,
    required,
    too_many,
)
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.common import ObjectStrategy, immutable_errors
from pykubelet_local_api.strategies.service_rules import PROTOCOLS, point_errors
from pykubelet_local_api.strategies.strategy import Context

ADDRESS_TYPES = ("FQDN", "IPv4", "IPv6")
MAX_ENDPOINTS = 1000
MAX_ADDRESSES = 100
MAX_PORTS = 20_000
_DEPRECATED = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"


class EndpointsStrategy(ObjectStrategy):
    """The strategy of Endpoints."""

    allows_create_on_update = True

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        for subset in new.get("subsets") or ():
            for port in subset.get("ports") or ():
                port["protocol"] = port.get("protocol") or "TCP"

    def validate(self, new: Json, context: Context) -> Errors:
        errors: Errors = []
        for i, subset in enumerate(new.get("subsets") or ()):
            at = f"subsets[{i}]"
            if not subset.get("addresses") and not subset.get("notReadyAddresses"):
                errors.append(required(at, "must specify `addresses` or `notReadyAddresses`"))
            for field in ("addresses", "notReadyAddresses"):
                for j, address in enumerate(subset.get(field) or ()):
                    errors += point_errors(str(address.get("ip") or ""), f"{at}.{field}[{j}].ip")
            ports = subset.get("ports") or []
            for j, port in enumerate(ports):
                where = f"{at}.ports[{j}]"
                if port.get("name"):
                    errors += invalids(f"{where}.name", port["name"], names.dns_label_errors(port["name"]))
                elif len(ports) > 1:
                    errors.append(required(f"{where}.name"))
                errors += _port_errors(port, where)
        return errors

    def warnings(self, new: Json, old: Json | None, context: Context) -> list[str]:
        return [_DEPRECATED]


def _port_errors(port: Json, path: str) -> Errors:
    number = port.get("port") or 0
    errors = invalids(f"{path}.port", number, names.port_number_errors(number))
    if port["protocol"] not in PROTOCOLS:
        errors.append(not_supported(f"{path}.protocol", port["protocol"], PROTOCOLS))
    return errors


class EndpointSliceStrategy(ObjectStrategy):
    """The strategy of EndpointSlices."""

    has_generation = True

    def is_new_generation(self, new: Json, old: Json) -> bool:
        """Whether anything that clients write changed, labels too."""
        return any(
            (new.get(field) or None) != (old.get(field) or None) for field in ("endpoints", "ports", "addressType")
        ) or (new["metadata"].get("labels") or {}) != (old["metadata"].get("labels") or {})

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        for endpoint in new.setdefault("endpoints", None) or ():
            endpoint["conditions"] = endpoint.get("conditions") or {}
        for port in new.setdefault("ports", None) or ():
            port["name"] = port.get("name") or ""
            port["protocol"] = port.get("protocol") or "TCP"

    def validate(self, new: Json, context: Context) -> Errors:
        kind = str(new.get("addressType") or "")
        if not kind:
            return [required("addressType")]
        if kind not in ADDRESS_TYPES:
            return [not_supported("addressType", kind, ADDRESS_TYPES)]
        return self._ports(new.get("ports") or []) + self._endpoints(new.get("endpoints") or [], kind)

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        fixed = immutable_errors(new.get("addressType"), old.get("addressType"), "addressType")
        return fixed or self.validate(new, context)

    def _ports(self, ports: list[Json]) -> Errors:
        if len(ports) > MAX_PORTS:
            return [too_many("ports", len(ports), MAX_PORTS)]
        errors: Errors = []
        seen: set[str] = set()
        for i, port in enumerate(ports):
            name = port["name"]
            if name:
                errors += invalids(f"ports[{i}].name", name, names.dns_label_errors(name))
            if name in seen:
                errors.append(duplicate(f"ports[{i}].name", name))
            seen.add(name)
            if port["protocol"] not in PROTOCOLS:
                errors.append(not_supported(f"ports[{i}].protocol", port["protocol"], PROTOCOLS))
        return errors

    def _endpoints(self, endpoints: list[Json], kind: str) -> Errors:
        if len(endpoints) > MAX_ENDPOINTS:
            return [too_many("endpoints", len(endpoints), MAX_ENDPOINTS)]
        errors: Errors = []
        for i, endpoint in enumerate(endpoints):
            at, addresses = f"endpoints[{i}]", endpoint.get("addresses") or []
            if not addresses:
                errors.append(required(f"{at}.addresses", "must contain at least 1 address"))
            elif len(addresses) > MAX_ADDRESSES:
                errors.append(too_many(f"{at}.addresses", len(addresses), MAX_ADDRESSES))
            for j, address in enumerate(addresses):
                where = f"{at}.addresses[{j}]"
                if kind == "FQDN":
                    errors += invalids(where, address, names.dns_subdomain_errors(str(address)))
                    continue
                found = point_errors(str(address), where)
                if not found and (":" in str(address)) != (kind == "IPv6"):
                    found = [invalid(where, address, f"must be an {kind} address")]
                errors += found
            if node := endpoint.get("nodeName"):
                errors += invalids(f"{at}.nodeName", node, names.dns_subdomain_errors(node))
            if host := endpoint.get("hostname"):
                errors += invalids(f"{at}.hostname", host, names.dns_label_errors(host))
        return errors
